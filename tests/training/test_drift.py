"""The drift report of a run, in training.json, the model card and the output."""

import re

import numpy as np
import pytest
import torch
from sentence_transformers.models import Dense

from informin.cli import train
from informin.errors import UsageError
from informin.evaluation.drift import MEASURES, draw, measure_drift
from informin.model.open import load_model
from informin.model.records import RunRecord
from informin.training.model import TrainedModel
from tests.conftest import make_sentences, save_sentence_transformer
from trainer_informin import InforMinTrainer


def test_drift_compares_with_the_original_encoder(command, bert, sentences_file, tmp_path, capsys):
    """Measuring it from the two folders gives the same numbers."""
    options = dict(load_best_model_at_end="false", measure_drift="true")
    assert train.main(command(**options)) == 0
    assert RunRecord.load(tmp_path / "run" / "checkpoint-2").drift is None
    drift = RunRecord.load(tmp_path / "run").drift
    out = capsys.readouterr().out
    old, new = load_model(str(bert), pooler="cls"), load_model(str(tmp_path / "run"))
    texts = draw(sentences_file.read_text().splitlines())
    expected = measure_drift(old.encode, new.encode, texts).record()
    assert drift["sentences"] == expected["sentences"] == 96 and drift["warnings"] == expected["warnings"]
    for end in ("old", "new"):
        assert drift[end].keys() == MEASURES.keys()
        assert drift[end].pop("stsb_dev") is expected[end].pop("stsb_dev") is None
        for name, value in drift[end].items():  # rounding may change one of the 960 neighbors
            counts_neighbors = name in ("neighbors_kept", "alignment", "neighbor_distance", "hubness")
            assert value == pytest.approx(expected[end][name], rel=1e-2 if counts_neighbors else 1e-5), name
    shown = re.search(r"drift, 10 nearest neighbors kept, % +(\S+)\n", out)[1]
    assert shown == f"{drift['new']['neighbors_kept']:.1f}"
    assert (tmp_path / "run" / "report.html").is_file()


def test_drift_of_an_object_compares_with_its_weights_and_not_with_those_of_its_files(st_mean, unscored):
    model = load_model(st_mean, device="cpu")
    for weight in model.parameters():
        weight.data += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    how = dict(measure_drift=True, learning_rate=0.0, max_steps=1, save_strategy="no")
    trainer = InforMinTrainer(model, unscored(**how), train_dataset=make_sentences(40))
    trainer.train()
    trainer.export()
    assert trainer.record().drift["new"]["neighbors_kept"] == 100


def test_drift_of_low_rank_matrices_compares_with_the_other_modules_before_training(bert, unscored, tmp_path):
    """A Dense after the encoder is trained beside the matrices."""
    pytest.importorskip("peft", reason="the extra lora is not installed")
    folder = save_sentence_transformer(tmp_path / "dense", bert, Dense(32, 16))
    trainer = InforMinTrainer(
        str(folder), unscored(lora_r=2, measure_drift=True, learning_rate=0.05), train_dataset=make_sentences(40)
    )
    before = trainer.encode(make_sentences(4))
    trainer.train()
    after = trainer.encode(make_sentences(4))
    np.testing.assert_allclose(trainer._encode_before(make_sentences(4)), before, atol=1e-6)
    assert np.array_equal(trainer.encode(make_sentences(4)), after) and np.abs(after - before).max() > 0.1


def test_drift_is_not_measured_by_default_nor_on_few_sentences(command, tmp_path, caplog):
    assert train.main(command(max_steps=1, eval_strategy="no", output_dir=tmp_path / "a")) == 0
    assert RunRecord.load(tmp_path / "a").drift is None
    few = tmp_path / "few.txt"
    few.write_text("\n".join(make_sentences(20) * 2))
    caplog.set_level("INFO")
    assert train.main(command(train_file=few, measure_drift="true", max_steps=1, eval_strategy="no")) == 0
    assert "Drift was not measured" in caplog.text and RunRecord.load(tmp_path / "run").drift is None


def test_errors_in_drift_do_not_fail_a_finished_run(command, tmp_path, caplog, monkeypatch):
    def gone(*args, **kwargs):
        raise UsageError("It is gone.")

    monkeypatch.setattr(TrainedModel, "before", gone)
    assert train.main(command(measure_drift="true", max_steps=1, eval_strategy="no")) == 0
    assert "It is gone." in caplog.text and RunRecord.load(tmp_path / "run").drift is None
    assert (tmp_path / "run" / "modules.json").is_file()


def test_drift_warnings_are_printed(command, tmp_path, capsys):
    """With a learning rate that breaks the encoder."""
    assert train.main(command(learning_rate=0.3, max_steps=6, measure_drift="true", eval_strategy="no")) == 0
    warnings = RunRecord.load(tmp_path / "run").drift["warnings"]
    assert warnings and capsys.readouterr().out.count("Note: training ") == len(warnings)
