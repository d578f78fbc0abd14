"""The report of `informin train`: from a real run of a tiny encoder, and verdicts."""

import json

import pytest

import run_unsup
from informin.cli import report as command
from informin.errors import UsageError
from informin.publishing.report_record import load_report, logged
from informin.report import verdicts
from informin.report.page import page
from tests.conftest import make_sentences, raises_usage, save_bert, save_pairs
from tests.report.helpers import LONG, SCRIPT, addresses


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Output folder of a run of four steps with pairs, and hostile sentences among those it trains on."""
    folder = tmp_path_factory.mktemp("train")
    sentences = [*make_sentences(60), f"dog {SCRIPT}", f"cat {LONG}"]
    (folder / "sentences.txt").write_text("\n".join(sentences))
    options = dict(
        model_name=save_bert(folder / "bert"),
        train_file=folder / "sentences.txt",
        eval_pairs=save_pairs(folder / "pairs.tsv"),
        output_dir=folder / "run",
        **dict(per_device_train_batch_size=16, max_steps=4, eval_steps=2, logging_steps=2, learning_rate=1e-3),
        **dict(bf16=False, use_cpu=True, disable_tqdm=True),
    )
    assert run_unsup.main([f"--{name}={value}" for name, value in options.items()]) == 0
    return folder / "run"


def test_run_leaves_a_page(run):
    html = (run / "report.html").read_text()
    assert addresses(html) == [] and "<script" not in html and len(html) < 3 * 2**20
    for heading in ("Scores before and after", "Loss, terms and scores over the steps", "Map", "Hubs", "Drift"):
        assert f"<h2>{heading}</h2>" in html
    assert "On general English sentences" in html and "pairs.tsv, Spearman x 100" in html
    assert "bert" in html and str(run.parent) not in html + (run / "report.json").read_text()


def test_record_has_the_log_and_scores_of_the_run(run):
    record, training = load_report(run), json.loads((run / "training.json").read_text())
    assert [entry["step"] for entry in record["log"] if "loss" in entry] == [2, 4]
    assert all({"terms/contrast", "terms/reconstruction"} <= entry.keys() for entry in record["log"] if "loss" in entry)
    by_step = {entry["step"]: entry["spearman"] for entry in training["history"]}
    assert {e["step"]: e["eval_spearman"] for e in record["log"] if "eval_spearman" in e} == by_step
    (score,) = record["scores"]
    assert (score["name"], score["kind"], score["n"]) == ("pairs.tsv", "pairs", 12)
    kept = by_step[training["kept_step"]]
    assert (score["old"][0], score["new"][0]) == pytest.approx((by_step[0], kept), abs=1e-3)
    assert record["general"]["sentences"] == 500 and record["snapshot"]["sentences"] == 62


def test_command_gives_the_same_bytes(run, capsys):
    first = (run / "report.html").read_bytes()
    assert command.main([str(run)]) == 0
    assert (run / "report.html").read_bytes() == first


def test_record_of_training_is_needed(run, tmp_path):
    (tmp_path / "report.json").write_bytes((run / "report.json").read_bytes())
    with raises_usage(found="has no training.json"):
        page(tmp_path)


def test_run_without_drift_has_a_short_page(command, tmp_path, capsys):
    """It still has the loss, the scores without intervals and the options."""
    assert run_unsup.main(command(measure_drift=False)) == 0
    assert f"Report: {tmp_path / 'run' / 'report.html'}" in capsys.readouterr().out
    record = load_report(tmp_path / "run")
    assert record["snapshot"] is None and record["general"] is None and record["scores"] == []
    html = page(tmp_path / "run")
    assert "● No evidence." in html and "The scores have no intervals" in html
    assert "pairs.tsv, Spearman x 100" in html and "<h2>Map</h2>" not in html


def test_a_page_that_cannot_be_written_does_not_fail_the_run(command, tmp_path, capsys, monkeypatch):
    def full(path, text):
        raise UsageError(f"{path} cannot be written: [Errno 28] No space left on device")

    monkeypatch.setattr("informin.report.page.save_text", full)
    assert run_unsup.main(command(measure_drift=False)) == 0
    assert "report.html cannot be written: [Errno 28] No space left on device" in capsys.readouterr().err
    assert (tmp_path / "run" / "model.safetensors").is_file()


def entry(low: float, high: float, **changes) -> dict:
    middle = [(low + high) / 2, low, high]
    score = dict(name="a.tsv", kind="pairs", measure="spearman", n=12, old=middle, new=middle, difference=middle)
    return score | changes


@pytest.mark.parametrize(
    "scores, kind, word",
    [
        ([entry(0.1, 2)], "good", "Helped"),
        ([entry(-2, -0.1)], "bad", "Hurt"),
        ([entry(-0.1, 2)], "unclear", "No evidence"),
        ([], "unclear", "No evidence"),
        ([entry(0.1, 2), entry(-2, -1, kind="labels", measure="nearest_neighbor")], "unclear", "Mixed"),
        ([entry(0.1, 2), entry(-2, 1, kind="labels", measure="nearest_neighbor")], "good", "Helped"),
    ],
)
def test_verdict_follows_the_interval(scores, kind, word):
    verdict = verdicts.of_training(scores, chosen=True, evaluated=False)
    assert (verdict.kind, verdict.word) == (kind, word)
    assert not scores or "12 pairs" in verdict.sentence
    assert ("chosen by" in verdict.reliability) == bool(scores)


def test_long_logs_are_thinned():
    log = [{"step": i, "loss": 1.0, "grad_norm": float("nan")} for i in range(5000)]
    log += [{"step": 5000, "eval_spearman": 5.0, "epoch": 1.0}, {"step": 5000, "train_runtime": 9.0}]
    found = logged(log)
    assert len(found) <= 1001 and found[-1] == {"step": 5000, "eval_spearman": 5.0, "epoch": 1.0}
    assert found[0] == {"step": 0, "loss": 1.0, "grad_norm": None}


def test_log_entries_without_a_loss(run, tmp_path):
    """NaN is logged as null, also for the loss."""
    record = json.loads((run / "report.json").read_text())
    record["log"] = [{"step": 1, "loss": None, "terms/contrast": 1.0}, *record["log"], {"step": 5, "loss": None}]
    for name in ("report.json", "training.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    (tmp_path / "report.json").write_text(json.dumps(record))
    assert "Loss and its unweighted terms over the steps" in page(tmp_path)
    record["log"] = [{"step": 1, "loss": None}]
    (tmp_path / "report.json").write_text(json.dumps(record))
    assert "Loss and its unweighted terms" not in page(tmp_path)


@pytest.mark.parametrize(
    "change, found",
    [
        ({"measure": "x"}, "scores[0].measure"),
        ({"kind": "x"}, "scores[0].kind"),
        ({"n": 0}, "scores[0].n"),
        ({"n": 10**300}, "scores[0].n"),
        *(({side: [0.0, 1e300, 1.0]}, f"scores[0].{side}") for side in ("old", "new", "difference")),
        ({"new": [1.0, None, 2.0]}, "scores[0].new"),
    ],
)
def test_damaged_scores_are_refused(change, found, run, tmp_path):
    record = json.loads((run / "report.json").read_text())
    record["scores"][0] |= change
    (tmp_path / "report.json").write_text(json.dumps(record))
    with raises_usage(found=found):
        load_report(tmp_path)
