"""Studies: their files, their statistics against the published tables, and runs with commands that only pretend."""

import json
import sys

import pytest

from experiments.studies import runner
from experiments.studies.plan import BEFORE, read_study
from experiments.studies.runner import Runner, read_run, runs_of, without_paths, words
from experiments.studies.table import holm, intervals, mean_and_sd, summarize, tables, verdict
from experiments.study import load_study, show
from experiments.tables import markdown, read_summary, write_summary
from tests.conftest import ROOT, raises_usage

STUDIES = ROOT / "experiments/results/studies"
PUBLISHED = [STUDIES / name / "summary.json" for name in ("main-small", "grid-small", "lengths-long")]
CONFIGS = sorted((ROOT / "experiments" / "configs").glob("*.yaml"))
STUDY = """
base: {model_name: encoder, learning_rate: 3e-5}
recipes:
  simcse: {objective: simcse}
  informin: {objective: informin, learning_rate: null}
grid: {per_device_train_batch_size: [64, 128]}
seeds: [1, 2]
baseline: simcse
tasks: [sts]
labels: [topics.tsv]
before: true
"""


@pytest.fixture
def study(tmp_path):
    def write(text=STUDY, *args, **options):
        (tmp_path / "toy.yaml").write_text(text)
        return read_study(tmp_path / "toy.yaml", *args, **options)

    return write


class TestPlan:
    def test_settings_are_recipes_at_grid_combinations(self, study):
        toy = study()
        names = ["simcse, batch 64", "informin, batch 64", "simcse, batch 128", "informin, batch 128"]
        assert [setting.name for setting in toy.settings] == names
        assert toy.settings[1].baseline == "simcse, batch 64" and toy.settings[0].baseline is None
        options = {"model_name": "encoder", "objective": "informin", "per_device_train_batch_size": 64}
        assert toy.settings[1].options == options, "null leaves an option out"
        assert [setting.name for setting in toy.before] == [BEFORE]
        assert toy.measures == ["sts", "topics/v_measure", "topics/nearest_neighbor"]

    def test_command_line_overrides_base_and_recipes_but_not_the_grid(self, study):
        toy = study(STUDY, ["model_name=mine", "learning_rate=1e-4"], seeds=[7], files=["/data/topics.tsv"])
        assert {setting.options["model_name"] for setting in toy.settings} == {"mine"} and toy.seeds == [7]
        assert toy.samples == {"topics": ("labels", "/data/topics.tsv")}
        with raises_usage():
            study(STUDY, ["per_device_train_batch_size=8"])

    def test_samples_have_the_names_of_the_tasks(self, study):
        named = STUDY.replace("topics.tsv", "topics.tsv.gz")
        assert list(study(named).samples) == ["topics"]
        with raises_usage():
            study(f"{named}\nretrieval: [other/topics.tsv]")

    def test_paths_are_reduced_to_their_names(self):
        options = {"train_file": ["/home/alice/a.txt", "b.txt"], "guide": "~/models/own", "pooler": "cls"}
        assert without_paths(options) == {"train_file": ["a.txt", "b.txt"], "guide": "own", "pooler": "cls"}

    @pytest.mark.parametrize(
        "old, new",
        [
            ("baseline: simcse", "baseline: nothing"),
            ("seeds:", "seed: 1\nseeds:"),
            ("informin, learning", "simcse, learning"),
        ],
        ids=["baseline", "key", "equal settings"],
    )
    def test_mistakes_that_would_change_the_table(self, study, old, new):
        text = STUDY.replace(old, new).replace("learning_rate: null", "learning_rate: 3.0e-5")
        with raises_usage():
            study(text)

    def test_folder_depends_on_what_changes_the_weights(self, study):
        one = study().settings[0]
        same = study(STUDY.replace("3e-5", "0.00003").replace("encoder,", "encoder, license: mit,")).settings[0]
        other = study(STUDY.replace("3e-5", "3.1e-5")).settings[0]
        assert one.folder == same.folder != other.folder and one.folder.startswith("simcse-batch-64-")

    @pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
    def test_published_files_are_studies(self, path):
        assert read_study(path).settings


class TestStatistics:
    @pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parent.name)
    def test_tables_of_the_published_runs_are_computed_again(self, path):
        text = "\n\n".join(tables(summarize(*load_study(str(path)))))
        expected = path.with_name("table.md").read_text(encoding="utf-8")
        lines = [line for line in expected.splitlines() if line.startswith(("|", "**"))]
        assert [line for line in text.splitlines() if line.startswith(("|", "**"))] == lines

    def test_runs_that_were_scored_on_another_file_of_the_same_name_are_named(self):
        toy, records = load_study(str(STUDIES / "ami-small" / "summary.json"))
        sample, record = next(iter(toy.samples)), next(iter(records.values()))
        record["samples"][sample]["data"] = {"other.tsv": "0" * 64}
        note = f"The finished runs differ in the content of {sample} (number of runs):"
        assert note in "\n\n".join(tables(summarize(toy, records)))

    def test_mean_and_sd_ignore_undefined_values(self):
        assert mean_and_sd({1: 2.0, 2: None, 3: 4.0}) == {"values": {1: 2.0, 3: 4.0}, "mean": 3.0, "sd": 2**0.5, "n": 2}
        assert mean_and_sd({})["mean"] is None and mean_and_sd({1: 5.0})["sd"] is None

    def test_t_interval_in_closed_form(self):
        """Of 1, 2, 3: mean 2, sd 1, and t = 4.3027 with two degrees of freedom."""
        resampled, normal = intervals([1.0, 2.0, 3.0])
        assert normal == pytest.approx([2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5], abs=1e-3)
        assert 1 <= resampled[0] < 2 < resampled[1] <= 3
        assert intervals([1.0, 2.0]) == intervals([1.0, 1.0, 1.0]) == (None, None)

    def test_a_signal_needs_both_intervals(self):
        assert verdict([0.1, 1], [0.2, 1]) == verdict([-1, -0.1], [-2, -0.1]) == "signal"
        assert verdict([0.1, 1], [-0.1, 1]) == verdict([-0.1, 1], [0.1, 1]) == "not shown"

    def test_holm_by_hand(self):
        assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
        assert holm([0.9, 0.8]) == [1, 1]


def test_summary_shares_common_entries(tmp_path):
    runs = [{"a": 1, "b": {"c": 1, "d": seed}, "e": [seed]} for seed in (1, 2)]
    write_summary(tmp_path / "summary.json", {"name": "toy"}, runs)
    assert json.loads((tmp_path / "summary.json").read_text())["shared"] == {"a": 1, "b": {"c": 1}}
    assert read_summary(tmp_path / "summary.json") == ({"name": "toy"}, runs)


def test_markdown_aligns_columns():
    table = markdown("t", ["", "n"], [["a", 1.5], ["long", None]])
    assert table.splitlines()[2:] == ["|      |   n |", "| ---- | --: |", "| a    | 1.5 |", "| long |   - |"]


PRETEND = """
import json, pathlib, sys
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
if sys.argv[1] == "train":
    folder = pathlib.Path(options["--output_dir"])
    folder.mkdir(parents=True)
    score = float(options["--seed"]) + 10 * (options["--objective"] == "informin")
    record = {"options": {"precision": "fp32"}, "history": [{"step": 8, "spearman": score}], "kept_step": 8, "steps": 8}
    record |= {"base_model": {"weights_sha256": "0"}, "data": {"sentences": 1}, "environment": {}, "development": "d"}
    if options["--seed"] != "2":
        (folder / "training.json").write_text(json.dumps(record))
elif options["--tasks"] != "STS16":
    file = pathlib.Path(options["--output"])
    results = json.loads(file.read_text()) if file.exists() else {"tasks": {}, "average": {}}
    results["tasks"][options["--tasks"]] = {"score": 50.0}
    file.write_text(json.dumps(results))
"""


def test_runs_are_trained_once_and_a_failed_one_is_missing(study, tmp_path, monkeypatch, capsys):
    toy = study(STUDY.split("grid:")[0] + "seeds: [1, 3, 4, 2]\nbaseline: simcse\n")
    (tmp_path / "pretend.py").write_text(PRETEND)
    monkeypatch.setattr(runner, "INFORMIN", [sys.executable, str(tmp_path / "pretend.py")])
    runs = runs_of(toy, tmp_path / "out")
    Runner(toy, jobs=2).process(runs)
    records = {(run.setting.name, run.seed): record for run in runs if (record := read_run(run, []))}
    assert len(records) == 6 and "failed: see" in capsys.readouterr().out
    before = {run.folder: (run.folder / "run.json").stat().st_mtime_ns for run in runs if read_run(run, [])}
    Runner(toy, jobs=2).process(runs)
    assert before == {folder: (folder / "run.json").stat().st_mtime_ns for folder in before}
    show(toy, records, tmp_path / "toy")
    gain = summarize(*load_study(str(tmp_path / "toy" / "summary.json")))["differences"][0]
    assert (
        gain["mean"] == 10 and gain["verdict"] == "equal values: no interval" and (tmp_path / "toy/plot.png").exists()
    )


def test_studies_with_the_same_runs_keep_the_scores_of_each_other(study, tmp_path, monkeypatch):
    (tmp_path / "pretend.py").write_text(PRETEND)
    monkeypatch.setattr(runner, "INFORMIN", [sys.executable, str(tmp_path / "pretend.py")])
    for task in ("STS12", "STS13", "STS16"):  # the last one fails
        toy = study(STUDY.split("grid:")[0] + f"seeds: [1]\ntasks: [{task}]\n")
        runs = runs_of(toy, tmp_path / "out")
        Runner(toy, jobs=1).process(runs)
        assert all(bool(read_run(run, toy.scored)) == (task != "STS16") for run in runs)
    assert all(read_run(run, ["STS12", "STS13"]) for run in runs)


def test_options_become_words_of_a_command_line():
    given = {"bf16": True, "view_dropout": [0.1, 0.2], "lr_scheduler_kwargs": {"a": 1}, "seed": 1}
    assert words(given) == [
        "--bf16",
        "true",
        "--view_dropout",
        "0.1",
        "0.2",
        "--lr_scheduler_kwargs",
        '{"a": 1}',
        "--seed",
        "1",
    ]
