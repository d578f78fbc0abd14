"""Results that are added to an exported folder."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from informin.models.open_model import in_memory
from informin.publishing.added_results import add_results
from informin.publishing.export import export_checkpoint, export_folder
from informin.publishing.record import load_record
from tests.conftest import raises_usage
from tests.publishing.export_helpers import COMMON, EXPORTED, copy, published, read_json, results_of, save, snapshot


@pytest.fixture
def export(bert_run, tmp_path) -> Path:
    """A copy of an exported folder."""
    export_checkpoint(bert_run.kept, tmp_path / "export")
    shutil.copy(bert_run.folder / "training.json", tmp_path / "export")
    return tmp_path / "export"


def test_results_are_matched_by_their_weights(export, bert, other_seed, tmp_path):
    """One folder has results of these weights, of the starting encoder with two poolers, and of another seed."""
    whose = [(export, 71.0, "cls"), (bert, 72.0, "cls"), (bert, 73.0, "mean"), (other_seed, 74.0, "cls")]
    for folder, score, pooler in whose:
        save(results_of(folder, score, pooler=pooler), tmp_path / "results")
    add_results(export, [str(tmp_path / "results")], [str(other_seed)])
    wanted = {
        "model.json": ("this model", 71.0),
        "base-cls.json": ("before training", 72.0),
        "base-mean.json": ("before training", 73.0),
        "other_seeds/seed1.json": ("seed 1", 74.0),
    }
    added = {name: json.loads(content) for name, content in snapshot(export / "results").items()}
    assert {name: (kept["model"], kept["average"]["sts"]) for name, kept in added.items()} == wanted
    assert published(export) == sorted([*EXPORTED, *(f"results/{name}" for name in wanted)], key=Path)
    given = results_of(bert, 73.0, pooler="mean")
    assert added["base-mean.json"] | {"environment": 0} == given | {"model": "before training", "environment": 0}


def test_an_export_of_the_same_weights_keeps_results_and_an_edited_card(export, tmp_path):
    add_results(export, [save(results_of(export, 71.0), tmp_path)])
    export_checkpoint(export, tmp_path / "again")
    assert snapshot(tmp_path / "again" / "results") == snapshot(export / "results")
    assert "71.00" in (tmp_path / "again" / "README.md").read_text()
    (export / "README.md").write_text("# Mine")
    export_checkpoint(export, tmp_path / "edited")
    assert (tmp_path / "edited" / "README.md").read_text() == "# Mine"
    export_checkpoint(export, tmp_path / "half", "float16")
    assert not (tmp_path / "half" / "results").exists() and "71.00" not in (tmp_path / "half" / "README.md").read_text()


def test_newer_results_replace_older_ones(export, tmp_path):
    for score in (50.0, 60.0):
        add_results(export, [save(results_of(export, score), tmp_path)])
    assert read_json(export / "results" / "model.json")["average"]["sts"] == 60.0


@pytest.mark.parametrize(
    ("how", "found", "needed"),
    [
        (dict(whitening={"dimensions": None, "fitted_on": "x"}), "was scored with whitening {", "None"),
        (dict(split="dev"), "was scored with split 'dev'", "'test'"),
        (dict(pooler="mean"), "was scored with pooler 'mean'", "'cls'"),
        (dict(weights_sha256="0" * 64), "has results of another model (export)", "the weights of "),
        (dict(precision="bf16"), "was scored with precision 'bf16'", "'fp32'"),
        (dict(max_length=32), "was scored with max_length 32", "66"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_results_that_do_not_fit_the_table_are_refused(export, bert, tmp_path, how, found, needed):
    """Nothing of the call is kept, not even valid results."""
    good = save(results_of(bert), tmp_path / "good")
    bad = save(results_of(export, **how), tmp_path / "bad")
    with raises_usage(found=f"{bad} {found}", needed=needed):
        add_results(export, [good, bad])
    assert not (export / "results").exists()


def test_results_of_another_seed_need_its_folder(export, other_seed, tmp_path):
    path = save(results_of(other_seed), tmp_path)
    with raises_usage(found="has results of another model", fix=f"`informin eval` with `model_name` {export}."):
        add_results(export, [path])
    add_results(export, [path], [str(other_seed)])
    assert [path.name for path in (export / "results").rglob("*.json")] == ["seed1.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "x.json cannot be read: "),
        ("[]", "it is a list; expected a mapping"),
        ('{"schema": 1}', "model is missing"),
    ],
)
def test_files_that_are_not_results_are_refused(export, tmp_path, content, message):
    (tmp_path / "x.json").write_text(content)
    with raises_usage(found=message):
        add_results(export, [str(tmp_path / "x.json")])


def change_record(folder: Path, **values) -> None:
    (folder / "training.json").write_text(json.dumps(load_record(folder) | values))


@pytest.mark.parametrize(
    ("change", "option", "found"),
    [
        (lambda seed: change_record(seed, options=COMMON), "seeds", "options differ (training.json)"),
        (lambda seed: change_record(seed, data=None, base_model={"name": "x"}), "seeds", "base_model, data differ"),
        (lambda seed: change_record(seed, seed=42), "seeds", "both have seed 42"),
        (lambda seed: (seed / "training.json").unlink(), "seeds", "base_model, data, options differ"),
        (lambda seed: (seed / "modules.json").unlink(), None, "is a checkpoint, which cannot be published"),
        (shutil.rmtree, None, "does not exist"),
    ],
    ids=["other-options", "other-start", "same-seed", "no-record", "checkpoint", "no-folder"],
)
def test_a_folder_that_is_not_another_seed_is_refused(export, other_seed, tmp_path, change, option, found):
    results, seed = save(results_of(export), tmp_path), copy(other_seed, tmp_path / "seed")
    change(seed)
    with raises_usage(option=option, found=found):
        add_results(export, [results], [str(seed)])
    assert not (export / "results").exists()


def test_export_without_a_record_has_no_other_seeds(export, other_seed, tmp_path):
    """Even if the other export has no record either."""
    seed = copy(other_seed, tmp_path / "seed")
    for folder in (export, seed):
        (folder / "training.json").unlink()
    with raises_usage(option="seeds", found="base_model, data, options differ"):
        add_results(export, [save(results_of(export), tmp_path)], [str(seed)])
    add_results(export, [save(results_of(export), tmp_path)])
    assert published(export)[-3:] == ["sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"]


def test_results_of_earlier_weights_are_removed(export, bert, bert_run, tmp_path):
    """A resumed run exports other weights to the same folder, and removes old scores and ONNX files."""
    add_results(export, [save(results_of(folder), tmp_path) for folder in (export, bert)])
    (export / "onnx").mkdir()
    (export / "onnx" / "model.onnx").write_bytes(b"x")
    (export / "results" / "mine.json").write_text("{}")
    before, trained = published(export), (bert_run.trainer.model, bert_run.trainer.processing_class)
    export_folder(in_memory(*trained), export, bert_run.record)
    assert published(export) == before and "this model (seed 42)" in (export / "README.md").read_text()
    export_folder(in_memory(*trained), export, bert_run.record, torch.bfloat16)
    assert set(before) - set(published(export)) == {"results/model.json", "onnx/model.onnx"}
    assert "Not evaluated" in (export / "README.md").read_text() and (export / "results" / "mine.json").exists()


def test_half_precision_is_a_different_model(export, bert_run, tmp_path):
    """Rounded weights have their own scores."""
    export_checkpoint(bert_run.kept, tmp_path / "half", "float16")
    with raises_usage(found="has results of another model"):
        add_results(tmp_path / "half", [save(results_of(export), tmp_path)])
