"""The drift report of a run, in training.json, the model card and the output."""

import json
import re
from operator import itemgetter
from types import SimpleNamespace

import pytest
from datasets import IterableDataset

import run_unsup
from informin.errors import UsageError
from informin.evaluation import load_stsb_dev
from informin.evaluation.drift import MEASURES, draw, measure_drift
from informin.models import native
from informin.models.native import NativeModel
from informin.models.open_model import load_model
from informin.training import drift
from tests.conftest import make_sentences
from tests.senteval_data import small_counts, write_senteval


@pytest.fixture(autouse=True)
def as_before(logging_as_before, monkeypatch):
    monkeypatch.delenv("SENTEVAL_DATA", raising=False)


def record(folder) -> dict:
    return json.loads((folder / "training.json").read_text())


def test_drift_compares_with_the_original_encoder(command, bert, sentences_file, tmp_path, capsys, monkeypatch):
    """Measuring it from the two folders gives the same numbers, also for a resumed run."""
    small_counts(monkeypatch, 0.02)
    data = write_senteval(tmp_path / "senteval", 0.02)
    options = dict(senteval_dir=data, load_best_model_at_end="false", seed=7)
    assert run_unsup.main(command(max_steps=2, **options)) == 0
    assert record(tmp_path / "run" / "checkpoint-2")["drift"] is None
    first = record(tmp_path / "run")["drift"]
    capsys.readouterr()
    again = ["--resume_from_checkpoint", "last", "--resume_with_changes"]
    assert run_unsup.main([*command(max_steps=6, **options), *again]) == 0
    out = capsys.readouterr()
    found = record(tmp_path / "run")["drift"]
    pairs = load_stsb_dev(data)
    old, new = (load_model(str(folder), ["cls"]) for folder in (bert, tmp_path / "run"))
    texts, by_cls = draw(sentences_file.read_text().splitlines()), itemgetter("cls")
    expected = measure_drift(lambda x: by_cls(old(x)), lambda x: by_cls(new(x)), texts, pairs).record()
    assert found["sentences"] == expected["sentences"] == 96 and found["warnings"] == expected["warnings"]
    for end in ("old", "new"):
        assert found[end].keys() == MEASURES.keys()
        assert found[end] == pytest.approx(expected[end], rel=1e-4)
    assert found["old"] == pytest.approx(first["old"], rel=1e-6)
    assert found["new"]["rotated_cosine"] < first["new"]["rotated_cosine"] < 1
    shown = re.search(r"drift, 10 nearest neighbors kept, % +(\S+)\n", out.out)[1]
    assert shown == f"{found['new']['neighbors_kept']:.1f}"
    ends = f"{found['old']['stsb_dev']:.2f} before, {found['new']['stsb_dev']:.2f} after"
    assert re.search(rf"drift, STS-B dev +{ends}\n", out.out)
    assert "LOAD REPORT" not in out.out + out.err
    card = (tmp_path / "run" / "README.md").read_text()
    assert f"| 10 nearest neighbors kept, % | 100.0 | {shown} |" in card


def test_drift_uses_pooling_and_precision_of_the_run(command, tmp_path, monkeypatch):
    seen, load = [], native.embed
    monkeypatch.setattr(native, "embed", lambda *args: seen.append(args) or load(*args))
    assert run_unsup.main(command(bf16=True)) == 0
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["informin"]
    assert {args[4].pooling for args in seen} == {settings["pooling"]}
    assert run_unsup.main(command(output_dir=tmp_path / "fp32")) == 0
    half, full = (record(tmp_path / name)["drift"]["old"]["uniformity"] for name in ("run", "fp32"))
    assert half != full and half == pytest.approx(full, rel=0.05)


def test_drift_is_not_measured_on_few_sentences_or_a_stream(command, tmp_path, caplog):
    few = tmp_path / "few.txt"
    few.write_text("\n".join(make_sentences(20) * 2))
    assert run_unsup.main(command(train_file=few)) == 0
    assert "Drift was not measured: it requires 30 distinct sentences, and there are 20." in caplog.text
    assert record(tmp_path / "run")["drift"] is None
    assert "Changes to the embeddings" not in (tmp_path / "run" / "README.md").read_text()
    stream = IterableDataset.from_generator(lambda: iter(()))
    caplog.set_level("INFO")
    trainer = SimpleNamespace(sentences=stream)
    assert drift.report_drift(trainer, None, "folder") is None
    assert "Drift was not measured: the sentences are a stream" in caplog.text


def test_errors_in_drift_do_not_fail_a_finished_run(command, bert, tmp_path, caplog, monkeypatch):
    def gone(*args, **kwargs):
        raise UsageError("It is gone.")

    options = dict(senteval_dir=tmp_path / "absent")
    assert run_unsup.main(command(**options)) == 0
    assert (
        "STS-B dev was not evaluated: " in caplog.text and record(tmp_path / "run")["drift"]["old"]["stsb_dev"] is None
    )
    monkeypatch.setattr(NativeModel, "original", gone)
    assert run_unsup.main(command(output_dir=tmp_path / "other")) == 0
    assert "Drift could not be measured or written: It is gone." in caplog.text
    assert (tmp_path / "other" / "model.safetensors").is_file() and record(tmp_path / "other")["drift"] is None


def test_drift_warnings_are_printed_last(command, tmp_path, capsys):
    """With a learning rate that breaks the encoder."""
    assert run_unsup.main(command(learning_rate=0.3, max_steps=6)) == 0
    out = capsys.readouterr().out
    found = record(tmp_path / "run")["drift"]["warnings"]
    assert found and out.count("Note: training ") == len(found)
    assert f"\nNote: training {found[0]}\n" in out
    card = (tmp_path / "run" / "README.md").read_text()
    assert card.count("\nTraining ") >= len(found) and found[0][:40] in card
