"""summary.json keeps all values, and the tables in results/ match their summaries."""

import json
import shutil

import pytest

from informin.cli import eval as eval_command
from informin.cli import study as study_command
from informin.studies.summary import load_study
from informin.summaries import read_summary, write_summary
from tests.conftest import ROOT, raises_usage

RESULTS = ROOT / "results"
STUDIES = sorted(path.parent for path in RESULTS.glob("studies/*/summary.json"))
EVALUATIONS = sorted(path.parent for path in RESULTS.glob("*/summary.json") if path.parent.name != "peers")


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [{"seed": 1, "scores": {"a": 1.5, "b": None}, "data": None}],
        [{"a": {"x": 1, "y": {"z": 2}}, "n": 1}, {"a": {"x": 1, "y": {"z": 3}}, "n": 1}],
        [{"a": {}, "b": {"x": None}}, {"a": {}, "b": {}}],
        [{"a": None, "b": [1]}, {"a": {"x": 1}, "b": [1]}],
        [{"a": 1}, {"b": 1}, {}],
    ],
)
def test_runs_are_read_as_they_were_written(runs, tmp_path):
    write_summary(tmp_path / "summary.json", {"title": "t"}, runs)
    assert read_summary(tmp_path / "summary.json") == ({"title": "t"}, runs)


def test_shared_values_are_written_once(tmp_path):
    runs = [{"seed": seed, "options": {"lr": 0.1, "seed": seed}, "torch": "2"} for seed in (1, 2)]
    write_summary(tmp_path / "summary.json", {}, runs)
    kept = json.loads((tmp_path / "summary.json").read_text())
    assert kept["shared"] == {"options": {"lr": 0.1}, "torch": "2"}
    assert kept["runs"] == [{"seed": 1, "options": {"seed": 1}}, {"seed": 2, "options": {"seed": 2}}]


@pytest.mark.parametrize("text", ['{"a": 1}', '{"shared": {}, "runs": {}}'])
def test_other_files_are_rejected(text, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with raises_usage(found="has no keys shared and runs", fix="Choose a summary.json"):
        read_summary(tmp_path / "a.json")


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_table_of_a_study_from_its_summary(folder, tmp_path, capsys):
    """Identical bytes, and the plot is drawn."""
    shutil.copy(folder / "summary.json", tmp_path)
    assert study_command.main([str(tmp_path / "summary.json")]) == 0
    assert (tmp_path / "table.md").read_bytes() == (folder / "table.md").read_bytes()
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    assert read_summary(tmp_path / "summary.json")[1] == read_summary(folder / "summary.json")[1]


@pytest.mark.parametrize("folder", EVALUATIONS, ids=lambda folder: folder.name)
def test_table_of_an_evaluation_from_its_summary(folder, tmp_path, capsys):
    against = ["--seeds", "--compare", str(RESULTS / "simcse")] if folder.name == "informin" else []
    assert eval_command.main(["--report", str(folder), "--output", str(tmp_path), *against]) == 0
    assert (tmp_path / "table.md").read_bytes() == (folder / "table.md").read_bytes()
    assert read_summary(tmp_path / "summary.json") == read_summary(folder / "summary.json")


def test_every_result_has_one_table_one_summary_and_at_most_one_figure():
    assert len(STUDIES) == 24 and len(EVALUATIONS) == 9
    for folder in [*STUDIES, *EVALUATIONS, RESULTS / "peers"]:
        kept = {path.name for path in folder.iterdir()} - {"plot.csv", "plot.svg"}  # which git ignores
        assert kept - {"plot.png"} == {"table.md", "summary.json"} and ("plot.png" in kept) == (folder in STUDIES)


def test_every_run_has_scores_seed_options_and_checksum():
    for folder in STUDIES:
        study, runs = load_study(folder / "summary.json")
        assert len(runs) + len(read_summary(folder / "summary.json")[0]["missing"]) == (
            len(study.settings) * len(study.seeds) + len(study.before)
        )
        for (_, seed), run in runs.items():
            assert (
                run["seed"] == seed and run["options"]["model_name"] and len(run["base_model"]["weights_sha256"]) == 64
            )
            assert run["scores"] or run["dev"]["spearman"], folder.name


def test_options_that_cannot_change_a_finished_study_are_refused(capsys):
    code = study_command.main([str(STUDIES[0] / "summary.json"), "--seeds", "1", "--set", "batch=2"])
    assert code == 2 and "--set, --seeds cannot change them" in capsys.readouterr().err


def test_summary_with_another_schema_is_refused(tmp_path, capsys):
    write_summary(tmp_path / "summary.json", {"schema": 1}, [])
    assert study_command.main([str(tmp_path / "summary.json")]) == 2
    assert "has schema 1; expected 2" in capsys.readouterr().err
