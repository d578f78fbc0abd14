"""Publish an exported folder on the Hub."""

import argparse
from pathlib import Path

from informin import program
from informin.errors import UsageError
from informin.publishing.card import write_card
from informin.publishing.hub import card_files, prepare, push_card, push_folder, refuse_bad_name
from informin.publishing.published import check_export, published_files
from informin.publishing.results import add_results


def main(argv: list[str] | None = None) -> int:
    """Pushes one folder. Returns the exit code: 0, 1 (the upload failed), 2 (usage), 130 (interrupted)."""
    options = parser()
    args = options.parse_args(argv)
    return program.exit_code(lambda: push(args), options.option_names())


def parser() -> program.Parser:
    """The options."""
    parser = program.Parser(prog="informin push", description=__doc__)
    add = parser.add_argument
    add("folder", help="What run_unsup.py or run_export.py left.")
    add("repo", help="user/name, or a name alone for your own. Created where there is none.")
    add("--private", action="store_true", help="Create it private; refuse one that is public.")
    add("--branch", help="Push to this branch, which exists, instead of main.")
    add("--results", nargs="+", default=[], metavar="FILE",
        help="Results of run_eval.py for the card, or folders of them: of this model, of the encoder before training, "
        "of --seeds.")  # fmt: skip
    add("--seeds", nargs="+", default=[], metavar="FOLDER",
        help="Other seeds of the same run, exported: the card gets mean and spread of their --results.")  # fmt: skip
    add("--update_card", action="store_true", help="Upload the card and the results alone.")
    add("--dry_run", action="store_true", help="Write the card into the folder, show what would go up, and stop.")
    add("--overwrite", action="store_true", help="Write over files that this project, or you, did not put there.")
    return parser


def push(args: argparse.Namespace) -> None:
    """Results into the folder, a look at the repository, the list of files, the upload."""
    refuse_bad_name(args.repo)
    check_export(args.folder)
    if args.seeds and not args.results:
        raise UsageError("is set without `results`", option="seeds", fix="Give the results of these runs.")
    if args.results:
        add_results(args.folder, args.results, args.seeds)
    chosen, upload = (card_files, push_card) if args.update_card else (published_files, push_folder)
    if args.dry_run:
        write_card(args.folder, args.repo)
        show(args.folder, chosen(args.folder))
        print(f"Nothing was uploaded to {args.repo}.")
        return
    new = not args.update_card
    to = prepare(args.repo, args.private or None, None, args.branch, args.overwrite, args.folder, create=new)
    show(args.folder, chosen(args.folder))
    print(f"{'The model' if new else 'The card'} is at {upload(args.folder, to)}")


def show(folder: str, published: list[Path]) -> None:
    """What goes up, with sizes, and what does not."""
    for path in published:
        print(f"{Path(folder, path).stat().st_size:>13,}  {path.as_posix()}")
    print(f"{sum(Path(folder, path).stat().st_size for path in published):>13,}  bytes in {len(published)} files")
    kept = {path.parts[0] for path in published_files(folder)}
    left_out = sorted(path.name for path in Path(folder).iterdir() if path.name not in kept)
    if left_out:
        print(f"Not uploaded: {', '.join(left_out)}")
