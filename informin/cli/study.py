"""Repeat runs over settings and seeds, and compare them by seed."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from informin import program
from informin.cli.report import leave_report
from informin.errors import UsageError
from informin.evaluation.table import render
from informin.figures import run_plots
from informin.outputs import make_folder, save_text
from informin.studies.plan import Study, check_data, check_options, read_study
from informin.studies.runner import Progress, Runner, visible_gpus
from informin.studies.runs import Run, read_run, runs_of
from informin.studies.summary import Records, load_study, save_study
from informin.studies.table import notes, plot_rows, tables
from informin.summaries import SUMMARY, TABLE, refuse_foreign
from informin.training.command_line import option_names

PLOTS = ("plot.png", "plot.svg", "plot.csv")


def main(argv: list[str] | None = None) -> int:
    """Run a study. Returns the exit code: 0, 1 (a run failed or is missing), 2 (usage), 128 + signal."""
    options = parser()
    args = options.parse_args(argv)
    return program.exit_code(lambda: work(args), [*options.option_names(), *option_names()])


def parser() -> program.Parser:
    """Return the parser."""
    parser = program.Parser(prog="informin study", description=__doc__)
    add = parser.add_argument
    add("study", help="YAML file like those in configs/studies. informin/studies/plan.py describes its keys. Or the "
        "summary.json of a finished study, to regenerate table and plot in its folder.")  # fmt: skip
    add(
        "--output",
        default="outputs/studies",
        help="Output folder. Studies with the same output folder share runs. Files are compared by name, so use a new "
        "folder if the contents of a file change. Default: %(default)s.",
    )
    add(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="OPTION=VALUE",
        help="Options of run_unsup.py that override base and recipes. Options of the grid cannot be set.",
    )
    add("--labels", nargs="+", default=[], metavar="FILE",
        help="Files to use instead of the study's `labels` and `retrieval` files with the same names.")  # fmt: skip
    add("--seeds", nargs="+", type=int, metavar="N", help="Seeds to use instead of the study's.")
    add("--jobs", type=int, metavar="N", help="Number of parallel runs. Default: number of GPUs, or 1.")
    add("--keep_checkpoints", action="store_true", help="Keep the checkpoints of finished runs.")
    add("--report", action="store_true", help="Only write table and plot of the finished runs.")
    return parser


def work(args: argparse.Namespace) -> int | None:
    """Run the study, or report on it."""
    if args.study.endswith(".json"):
        names = ("set", "labels", "seeds", "jobs", "keep_checkpoints")
        if given := [f"`{name}`" for name in names if getattr(args, name)]:
            raise UsageError(
                f"{args.study} is a summary.json: its runs are finished, so {', '.join(given)} cannot change them",
                fix="Leave these options out, or run the study from its YAML file.",
            )
        show(*load_study(args.study), Path(args.study).parent)
        return None
    study = read_study(args.study, args.set, args.seeds, args.labels)
    runs = runs_of(study, args.output)
    if not args.report:
        return run_and_report(study, runs, args.output, args.jobs, args.keep_checkpoints)
    report(study, runs, args.output)
    return None


def run_and_report(study: Study, runs: list[Run], output: str, jobs: int | None, keep_checkpoints: bool) -> int:
    """Run everything that is not finished, then write the report."""
    gpus = visible_gpus()
    jobs = max(1, len(gpus)) if jobs is None else jobs
    if jobs < 1:
        raise UsageError(f"is {jobs}", option="jobs", needed="1 or more")
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[0]  # check the options with one GPU, as in a run
    check_options(study)
    if study.scored and _unfinished(study, runs):
        check_data(study)
    refuse_foreign(Path(output, study.name), PLOTS)
    make_folder(output, "output")
    with Runner(study.tasks, keep_checkpoints, jobs, gpus, study.samples) as runner:
        progress = Progress(study, runs, runner, jobs)
        progress.process()
    if runner.received:
        print("Interrupted. Finished runs are kept. Run the same command again to resume.", file=sys.stderr)
        return 128 + runner.received
    missing = _unfinished(study, runs)
    if len(missing) < len(runs):
        report(study, runs, output)
    for run in missing:
        outcome = progress.outcomes.get(run.name, "was not run")
        print(f"Missing: {run.name} {outcome.removesuffix('.')}. Run the same command again to retry.")
    return 1 if missing else 0


def _unfinished(study: Study, runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if not read_run(run, study.scored)]


def report(study: Study, runs: Sequence[Run], output: str) -> None:
    """Print the tables of the finished runs, and write them with the numbers and the plot to OUTPUT/STUDY.

    Raise UsageError if no run is finished.
    """
    records = {(run.setting.name, run.seed): record for run in runs if (record := read_run(run, study.scored))}
    if not records:
        raise UsageError(f"{output} has no finished runs of {study.name}", fix="Run the study without `report` first.")
    folder = Path(output, study.name)
    make_folder(folder, "output")
    show(study, records, folder)


def show(study: Study, records: Records, folder: Path) -> None:
    """Print the tables, and write tables, numbers and plot to the folder."""
    refuse_foreign(folder, PLOTS)
    summary = save_study(folder / SUMMARY, study, records)
    shown, said = tables(summary), notes(summary)
    print("\n" + "\n\n".join([*(render(table, "text") for table in shown), *said]))
    markdown = "\n\n".join([*(render(table, "markdown") for table in shown), *said])
    save_text(folder / TABLE, markdown + "\n")
    rows = plot_rows(summary)
    if rows:  # empty if all scores are undefined
        run_plots.seeds(rows, study.title, folder / "plot")
    print(f"\nTable, numbers and plot are in {folder}.")
    leave_report(folder)
