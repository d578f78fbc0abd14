"""Publish an exported folder on the Hub."""

import argparse
from os.path import expanduser
from pathlib import Path
from tempfile import TemporaryDirectory

from informin import program


def main(argv: list[str] | None = None) -> int:
    """Push a folder. Returns the exit code: 0, 1 (the upload failed), 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin push", description=__doc__)
    add = parser.add_argument
    add(
        "--model_name",
        type=expanduser,
        required=True,
        metavar="FOLDER",
        help="Exported folder: the output of train, fit, distill or export.",
    )
    add(
        "--hub_model_id",
        required=True,
        metavar="USER/REPO",
        help="Repository, or its name alone for your own. Created if it does not exist.",
    )
    add("--private", action="store_true", help="Create a private repository; an existing public one is rejected.")
    add("--branch", metavar="NAME", help="Push to this existing branch instead of main.")
    add(
        "--results",
        type=expanduser,
        nargs="+",
        default=[],
        metavar="FILE",
        help="Results of `informin eval` to add to the model card: files or folders, of this model, of its source "
        "model, and of the same run with other seeds.",
    )
    add("--trust_remote_code", action="store_true", help="With --results: run the model's own code to load it.")
    add(
        "--space",
        metavar="USER/REPO",
        help="Also publish a page as this Space, where visitors compare sentences. Needs the extra demo.",
    )
    add(
        "--dry_run",
        action="store_true",
        help="Print the model card and the files. Nothing is written or uploaded.",
    )
    add("--overwrite", action="store_true", help="Overwrite files that you did not upload with InforMin-CL.")
    args = parser.parse_args(argv)
    parser.check_needs(args, {"trust_remote_code": "results"})
    return program.exit_code(lambda: work(args), parser.option_names())


def work(args: argparse.Namespace) -> None:
    """Add results to the folder, check the repository, list the files and upload them."""
    from informin.errors import raise_if_missing
    from informin.publishing.export import check_export
    from informin.publishing.push import check_name, prepare, push_folder
    from informin.publishing.scores import add_results

    folder = args.model_name
    repo = args.hub_model_id
    check_export(folder)
    check_name(repo, "hub_model_id")
    if args.space:
        check_name(args.space, "space")
        raise_if_missing("demo", option="space")
    if args.dry_run:
        show(args)
        return
    if args.results:
        add_results(folder, args.results, trust_remote_code=args.trust_remote_code)
    to = prepare(repo, args.private or None, branch=args.branch, overwrite=args.overwrite, folder=folder)
    print_files(folder)
    print(f"The model is at {push_folder(folder, to)}")
    if args.space:
        publish_space(args.space, to.repo, args.private, args.overwrite)


def show(args: argparse.Namespace) -> None:
    """Print the model card and the files that would be uploaded."""
    from informin.publishing.card import CARD, write_card
    from informin.publishing.export import preview
    from informin.publishing.scores import add_results

    with preview(args.model_name) as copy:
        if args.results:
            add_results(args.model_name, args.results, trust_remote_code=args.trust_remote_code, to=copy)
        write_card(copy, args.hub_model_id)
        print((copy / CARD).read_text(encoding="utf-8"))
        print_files(args.model_name, copy)
    print(f"Nothing was uploaded to {args.hub_model_id}.")


def publish_space(space: str, model: str, private: bool, overwrite: bool) -> None:
    """Upload the page of a model on the Hub."""
    from informin.frozen.space import write_space
    from informin.publishing.push import push_space

    with TemporaryDirectory() as folder:
        write_space(folder, model)
        print(f"The page is at {push_space(folder, space, private or None, overwrite)}")


def print_files(folder: str, preview: Path | None = None) -> None:
    """Print the files to upload, in a folder or its preview, with their sizes, and the names of the others."""
    from informin.publishing.export import published_files

    source = preview or Path(folder)
    files = published_files(source)
    for path in files:
        print(f"{(source / path).stat().st_size:>13,}  {path.as_posix()}")
    uploaded = {path.parts[0] for path in files}
    if others := sorted(path.name for path in Path(folder).iterdir() if path.name not in uploaded):
        print(f"Not uploaded: {', '.join(others)}")
