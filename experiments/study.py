"""Repeat runs over settings and seeds, and compare them by seed.

python -m experiments.study experiments/configs/main-small.yaml --set model_name=FOLDER train_file=FILE --jobs 2
python -m experiments.study experiments/results/studies/main-small/summary.json    # its table and plot again
"""

import argparse
import sys
from pathlib import Path

from experiments.figures import plots
from experiments.studies.plan import BEFORE, Setting, Study, read_study
from experiments.studies.runner import Runner, read_run, runs_of
from experiments.studies.table import Records, plot_rows, summarize, tables
from experiments.tables import read_summary, write_summary


def main() -> int:
    """Run a study, or write the table of a finished one. Returns 1 if a run is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("study", help="YAML file (experiments/studies/plan.py describes its keys), or the summary.json of a study.")
    add("--output", default="outputs/studies", help="Output folder. Studies with the same one share runs.")
    add("--set", nargs="+", action="extend", default=[], metavar="OPTION=VALUE", help="Override base and recipes.")
    add("--labels", nargs="+", default=[], metavar="FILE", help="Files instead of the study's with the same names.")
    add("--seeds", nargs="+", type=int, metavar="N", help="Seeds instead of the study's.")
    add("--jobs", type=int, default=1, metavar="N", help="Number of parallel runs, each on its GPU if there are.")
    add("--keep_checkpoints", action="store_true", help="Keep the checkpoints of finished runs.")
    add("--report", action="store_true", help="Only write table and plot of the finished runs.")
    args = parser.parse_args()
    if args.study.endswith(".json"):
        show(*load_study(args.study), Path(args.study).parent)
        return 0
    study = read_study(args.study, args.set, args.seeds, args.labels)
    runs = runs_of(study, args.output)
    if not args.report:
        Runner(study, args.jobs, args.keep_checkpoints).process(runs)
    records = {(run.setting.name, run.seed): record for run in runs if (record := read_run(run, study.scored))}
    if records:
        show(study, records, Path(args.output, study.name))
    return 1 if len(records) < len(runs) else 0


def load_study(path: str) -> tuple[Study, Records]:
    """Load a study and its finished runs from its summary."""
    numbers, runs = read_summary(path)
    settings = [Setting(name, s["recipe"], s["options"], s["baseline"]) for name, s in numbers["settings"].items()]
    before = [Setting(name, BEFORE, {}, trained=False) for name in numbers["before"]]
    names = {name: numbers[name] for name in ("name", "title", "seeds", "tasks", "grid")}
    samples = {name: (kind, file) for name, (kind, file) in numbers["samples"].items()}
    study = Study(**names, settings=settings, samples=samples, before=before, published=numbers.get("published", {}))
    return study, {(run.pop("setting"), run["seed"]): run for run in runs}


def show(study: Study, records: Records, folder: Path) -> None:
    """Print the tables, and write tables, numbers and plot to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    summary = summarize(study, records)
    write_summary(folder / "summary.json", summary, [{"setting": name, **run} for (name, _), run in records.items()])
    text = "\n\n".join(tables(summary)) + "\n"
    (folder / "table.md").write_text(text, encoding="utf-8")
    if rows := plot_rows(summary):
        plots.seeds(rows, study.title, folder / "plot")
    print(f"\n{text}\nTable, numbers and plot are in {folder}.")


if __name__ == "__main__":
    sys.exit(main())
