"""The options and steps of `informin push --space`."""

import argparse
from pathlib import Path
from typing import Any

from informin.demo.page import require_gradio
from informin.demo.sentences import Sentences, load_labeled_sentences
from informin.demo.space import write_space
from informin.errors import UsageError
from informin.guide.replay import PACKAGED
from informin.publishing.hub import SPACE, Destination, prepare, push_space, refuse_bad_name
from informin.temporary import TemporaryFolder

NAMES = ("space", "space_sentences", "space_compare")


def add_space_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--space", metavar="REPO", help="Also publish a search page for the model as this Space: USER/NAME, or NAME.")
    add("--space_sentences", metavar="FILE",
        help="Sentences that visitors of the Space search: text, CSV, TSV, JSONL or Parquet. Only its columns `text` "
        "and `label` are published. Default: the general sentences of this package.")  # fmt: skip
    add("--space_compare", metavar="MODEL",
        help="Hub id of a model that the Space compares with, such as the model before training.")  # fmt: skip


def space_options(args: argparse.Namespace) -> dict[str, str | bool]:
    """Return the options that are set."""
    return {name: value for name in NAMES if (value := getattr(args, name))}


def space_sentences(args: argparse.Namespace) -> Sentences | None:
    """Check the options and read the sentences of the Space; None without a Space.

    Raises:
        UsageError: An option is set without `space`, a name is not valid, the file cannot be read, or gradio is
            missing.
    """
    if not args.space:
        for option in space_options(args):
            raise UsageError("is set without `space`", option=option, fix="Name the Space with `space`.")
        return None
    refuse_bad_name(args.space)
    if args.space_compare:
        refuse_bad_name(args.space_compare)
    require_gradio()
    return load_labeled_sentences(args.space_sentences or PACKAGED, option="space_sentences")


def prepare_space(args: argparse.Namespace) -> Destination:
    """Check that the Space can be pushed, and create it if it does not exist; see `prepare`.

    Raises:
        UsageError: As `prepare`; or the Hub does not have the model to compare with.
    """
    to = prepare(args.space, args.private or None, None, None, args.overwrite, kind=SPACE)
    if args.space_compare and not to.api.repo_exists(args.space_compare):
        raise UsageError(f"is {args.space_compare}, which the Hub does not have", option="space_compare")
    return to


def write_files(folder: Path, args: argparse.Namespace, repo: str, sentences: Sentences) -> list[Path]:
    """Write the Space's files and return their paths, relative to the folder."""
    models = [repo, *([args.space_compare] if args.space_compare else [])]
    write_space(folder, f"Search with {repo.rpartition('/')[2]}", models, sentences)
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def upload_space(args: argparse.Namespace, to: Destination, repo: str, sentences: Sentences) -> str:
    """Upload the Space of a model on the Hub, and return its URL."""
    finish: dict[str, Any] = {"folder": args.folder, "repo": repo, "update_card": True} | space_options(args)
    with TemporaryFolder() as folder:
        write_files(Path(folder), args, repo, sentences)
        return push_space(folder, to, finish | ({"overwrite": True} if args.overwrite else {}))
