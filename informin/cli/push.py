"""Push an exported folder to the Hub."""

import argparse
from pathlib import Path

from informin import program
from informin.cli.push_space import Space, add_space_options, prepare_space, space_of, upload_space, write_files
from informin.errors import PushError, UsageError
from informin.publishing.added_results import add_results
from informin.publishing.card import write_card
from informin.publishing.hub import card_files, prepare, push_card, push_folder, refuse_bad_name
from informin.publishing.published import check_export, published_files
from informin.temporary import TemporaryFolder


def main(argv: list[str] | None = None) -> int:
    """Push a folder. Returns the exit code: 0, 1 (the upload failed), 2 (usage), 130 (interrupted)."""
    options = parser()
    args = options.parse_args(argv)
    return program.exit_code(lambda: push(args), options.option_names())


def parser() -> program.Parser:
    """Return the parser of the options."""
    parser = program.Parser(prog="informin push", description=__doc__)
    add = parser.add_argument
    add("folder", help="Exported folder: the output of training or of `informin export`.")
    add("repo", help="Repository: USER/NAME, or NAME for your own. Created if it does not exist.")
    add("--private", action="store_true", help="Create a private repository; an existing public one is rejected.")
    add("--branch", help="Push to this existing branch instead of main.")
    add("--results", nargs="+", default=[], metavar="FILE",
        help="Results of `informin eval` to add to the model card (files or folders): of this model, of its source "
        "model, and of the runs in --seeds.")  # fmt: skip
    add("--seeds", nargs="+", default=[], metavar="FOLDER",
        help="Exported folders of the same run with other seeds. The card shows the mean and standard deviation of "
        "their --results.")  # fmt: skip
    add("--trust_remote_code", action="store_true", help="With --results: run the model's own code to load it.")
    add("--update_card", action="store_true", help="Upload only the model card and the results.")
    add("--dry_run", action="store_true", help="Write the model card and list the files, without uploading them.")
    add("--overwrite", action="store_true", help="Overwrite files that you did not upload with InforMin-CL.")
    add_space_options(parser)
    return parser


def push(args: argparse.Namespace) -> None:
    """Add results to the folder, check the repositories, list the files and upload them."""
    refuse_bad_name(args.repo)
    space = space_of(args)
    check_export(args.folder)
    if args.seeds and not args.results:
        raise UsageError("is set without `results`", option="seeds", fix="Give the results of these runs.")
    if args.results:
        add_results(args.folder, args.results, args.seeds, trust_remote_code=args.trust_remote_code)
    chosen, upload = (card_files, push_card) if args.update_card else (published_files, push_folder)
    if args.dry_run:
        write_card(args.folder, args.repo)
        show(args.folder, chosen(args.folder))
        if space:
            show_space(space, args.repo)
        print(f"Nothing was uploaded to {args.repo}{f' and {space.repo}' if space else ''}.")
        return
    new = not args.update_card
    to = prepare(args.repo, args.private or None, None, args.branch, args.overwrite, args.folder, create=new)
    page = prepare_space(space, args.private, args.overwrite) if space else None
    show(args.folder, chosen(args.folder))
    try:
        print(f"{'The model' if new else 'The card'} is at {upload(args.folder, to)}", flush=True)
    except PushError as error:
        error.finish |= space.options if space else {}
        raise
    if space and page:
        print(f"The search page is at {upload_space(space, page, to.repo, args.folder, args.overwrite)}")


def show_space(space: Space, repo: str) -> None:
    """Print the files of the Space with their sizes, and its package in one line."""
    with TemporaryFolder() as folder:
        paths = write_files(Path(folder), space, repo)
        package = [path for path in paths if path.parts[0] == "informin"]
        print(f"Space {space.repo}:")
        for path in (path for path in paths if path not in package):
            print(f"{Path(folder, path).stat().st_size:>13,}  {path.as_posix()}")
        size = sum(Path(folder, path).stat().st_size for path in package)
        print(f"{size:>13,}  informin/ ({len(package)} files)")


def show(folder: str, published: list[Path]) -> None:
    """Print the files to upload with their sizes, and the names of files that are not uploaded."""
    for path in published:
        print(f"{Path(folder, path).stat().st_size:>13,}  {path.as_posix()}")
    print(f"{sum(Path(folder, path).stat().st_size for path in published):>13,}  bytes in {len(published)} files")
    kept = {path.parts[0] for path in published_files(folder)}
    left_out = sorted(path.name for path in Path(folder).iterdir() if path.name not in kept)
    if left_out:
        print(f"Not uploaded: {', '.join(left_out)}")
