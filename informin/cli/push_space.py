"""The options and steps of `informin push --space`."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from informin.demo.page import require_gradio
from informin.demo.space import write_space
from informin.errors import UsageError
from informin.guide.replay import PACKAGED
from informin.labeled_sentences import Sentences, load_labeled_sentences
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


@dataclass(frozen=True)
class Space:
    """The Space to publish.

    Attributes:
        repo: Its repository.
        sentences: What its visitors search.
        compare: Hub id of a model that it compares with.
        options: The options that describe it, as they were given.
    """

    repo: str
    sentences: Sentences
    compare: str | None
    options: dict[str, str | bool]


def space_of(args: argparse.Namespace) -> Space | None:
    """Check the options and read the sentences of the Space; None without a Space.

    Raises:
        UsageError: An option is set without `space`, a name is not valid, the file cannot be read, or gradio is
            missing.
    """
    options = {name: value for name in NAMES if (value := getattr(args, name))}
    if not args.space:
        for option in options:
            raise UsageError("is set without `space`", option=option, fix="Name the Space with `space`.")
        return None
    refuse_bad_name(args.space)
    if args.space_compare:
        refuse_bad_name(args.space_compare)
    require_gradio()
    sentences = load_labeled_sentences(args.space_sentences or PACKAGED, option="space_sentences")
    return Space(args.space, sentences, args.space_compare, options)


def prepare_space(space: Space, private: bool, overwrite: bool) -> Destination:
    """Check that the Space can be pushed, and create it if it does not exist; see `prepare`.

    Raises:
        UsageError: As `prepare`; or the model to compare with is not on the Hub.
    """
    to = prepare(space.repo, private or None, None, None, overwrite, kind=SPACE)
    if space.compare and not to.api.repo_exists(space.compare):
        raise UsageError(f"is {space.compare}, which is not on the Hub", option="space_compare")
    return to


def write_files(folder: Path, space: Space, repo: str) -> list[Path]:
    """Write the Space's files for a model and return their paths, relative to the folder."""
    models = [repo, *([space.compare] if space.compare else [])]
    write_space(folder, f"Search with {repo.rpartition('/')[2]}", models, space.sentences)
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def upload_space(space: Space, to: Destination, repo: str, source: str, overwrite: bool) -> str:
    """Upload the Space of a model on the Hub, which was pushed from the folder `source`, and return its URL."""
    finish: dict[str, Any] = {"folder": source, "repo": repo, "update_card": True} | space.options
    with TemporaryFolder() as folder:
        write_files(Path(folder), space, repo)
        return push_space(folder, to, finish | ({"overwrite": True} if overwrite else {}))
