"""Results files: their format, saving, resuming and validation."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch

from informin import __version__
from informin.errors import SaveError
from informin.evaluation.evaluate import Evaluation
from informin.evaluation.results import checksums, environment, load_all_results, load_results, results_files
from informin.evaluation.senteval import TRANSFER_TASKS
from tests.conftest import ROOT, raises_usage
from tests.evaluation.results_helpers import STS, entry, results

TRANSFER = dict(zip(TRANSFER_TASKS, [81.0, 82.0, 83.0, 84.0, 85.0, 86.0, 87.5]))


def test_older_files_are_read(tmp_path):
    """They lack a prompt and a similarity, and count truncated sentences."""
    old = asdict(results(STS))
    del old["prompt"], old["similarity"]
    old["tasks"]["STS12"]["truncated"] = 3
    (tmp_path / "a.json").write_text(json.dumps(old))
    read = load_results(tmp_path / "a.json")
    assert read.prompt is None and read.similarity == "cosine" and read.average == results(STS).average
    assert results({}).resumed(tmp_path / "a.json").tasks == old["tasks"]


def test_the_error_of_a_full_disk_names_the_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match=r"a\.json"):
        results(STS).save(tmp_path / "file" / "a.json")


def test_averages_require_all_seven_scores():
    found = results(dict(list(STS.items())[:-1]))
    assert found.average == {"sts": None, "transfer": None}
    found.add("SICK-R", entry(STS["SICK-R"]))
    assert found.average == {"sts": pytest.approx(sum(STS.values()) / 7), "transfer": None}
    for name, score in TRANSFER.items():
        found.add(name, entry(score))
    assert found.average["transfer"] == pytest.approx(sum(TRANSFER.values()) / 7)
    found.add("STS13", entry(None))
    assert found.average == {"sts": None, "transfer": pytest.approx(sum(TRANSFER.values()) / 7)}
    found.add("STS13", entry(0.0))
    assert found.average["sts"] == pytest.approx((sum(STS.values()) - 20.5) / 7)


def test_seconds_of_all_tasks_are_counted_once():
    found = results(STS)
    found.add("STS12", entry(1.0, seconds={"encode": 2.0, "score": 3.0}))
    assert found.seconds == pytest.approx(6 * 1.75 + 5)


def test_save_and_load(tmp_path):
    path = tmp_path / "a" / "b" / "model-cls.json"
    found = results(STS | {"MR": None}, model="org/modèle", whitening={"dimensions": None, "fitted_on": "é"})
    found.save(path)
    assert load_results(path) == found == load_results(str(path))
    assert "modèle" in path.read_text(encoding="utf-8")
    results(TRANSFER).save(path)
    assert load_results(path) == results(TRANSFER) and [p.name for p in path.parent.iterdir()] == ["model-cls.json"]


def test_a_failed_write_keeps_the_previous_file(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.json"
    results(STS).save(path)
    before = path.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(SaveError):
        patch.setattr(os, "replace", fail)
        results(TRANSFER).save(path)
    with pytest.raises(ValueError):
        results({"STS12": float("nan")}).save(path)  # undefined scores are null
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content", ["[]", '{"schema": 1, "tas', '{"schema": 1}', '{"model": "m", "tasks": {}, "x": 1}']
)
def test_other_files_are_rejected(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with raises_usage(found=str(tmp_path / "a.json")):
        load_results(tmp_path / "a.json")


def test_resuming(tmp_path):
    """Tasks are kept; the model's name and the environment are updated."""
    fresh = results({}, model="here")
    assert fresh.resumed(tmp_path / "none.json") is fresh
    before = results(STS, model="there")
    before.environment = {"torch": "1"}
    before.save(tmp_path / "a.json")
    resumed = fresh.resumed(tmp_path / "a.json")
    assert asdict(resumed) == asdict(before) | {"model": "here", "environment": {"torch": "2"}}


@pytest.mark.parametrize(
    "name, value",
    [
        ("weights_sha256", "f" * 64),
        ("pooler", "mean"),
        ("normalized", True),
        ("prompt", "query: "),
        ("whitening", {"dimensions": 4, "fitted_on": "x"}),
        ("max_seq_length", 32),
        ("precision", "bf16"),
        ("split", "dev"),
        ("similarity", "dot"),
        ("settings_sha256", "f" * 64),
        ("truncate_dim", 64),
    ],
)
def test_results_of_other_settings_are_not_resumed(tmp_path, name, value):
    path = tmp_path / "a.json"
    results(STS, **{name: value}).save(path)
    with raises_usage("output", found=f"({name} {value!r}, now {getattr(results({}), name)!r})"):
        results({}).resumed(path)


def test_results_files(tmp_path):
    for name in ("seed10.json", "seed2.json", "c.txt"):
        (tmp_path / name).write_text(json.dumps(asdict(results(STS, model=name))))
    assert results_files(tmp_path) == [tmp_path / "seed2.json", tmp_path / "seed10.json"]
    assert [one.model for one in load_all_results([tmp_path, tmp_path / "c.txt"])] == [
        *("seed2.json", "seed10.json", "c.txt")
    ]
    (tmp_path / "empty").mkdir()
    with raises_usage(found=f"{tmp_path / 'empty'} contains no .json file"):
        results_files(tmp_path / "empty")


def test_each_row_is_saved_in_its_own_file(tmp_path):
    """A file replaced another one, and long prompts, whose beginning is equal, could not be saved."""
    prompts = [f"Instruct: {'given a question, ' * 20}{end}" for end in ("retrieve", "cluster")]
    rows = [results({"MR": 1.0}, model=model) for model in ("x/m", "y/m", "y-m")]
    rows += [results({"MR": 2.0}, prompt=prompt) for prompt in prompts]
    Evaluation(rows).save(tmp_path)
    saved = load_all_results([tmp_path])
    assert len(saved) == 5 and all(one in saved for one in rows)


def test_checksums(tmp_path):
    (tmp_path / "a").mkdir()
    files = [tmp_path / "a" / "x.txt", tmp_path / "y.txt"]
    for path, content in zip(files, (b"1", b"2\n")):
        path.write_bytes(content)
    expected = {"a/x.txt": hashlib.sha256(b"1").hexdigest(), "y.txt": hashlib.sha256(b"2\n").hexdigest()}
    assert checksums(files, tmp_path) == checksums(files, str(tmp_path)) == expected


def test_environment():
    found = environment(torch.device("cpu"))
    assert (found["informin"], found["python"]) == (__version__, platform.python_version())
    assert torch.__version__.startswith(found["torch"]) and found["numpy"] == np.__version__  # torch may add +cu130
    assert found["device"] == f"cpu {platform.machine()}" and found["threads"] == torch.get_num_threads()
    assert found.keys() - {"informin", "python", "device", "threads"} == {
        *("torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn")
    }


def test_results_and_tables_do_not_import_heavy_libraries():
    """The model card uses them."""
    heavy = "{'torch', 'transformers', 'datasets', 'sklearn', 'matplotlib'}"
    names = ", ".join(f"informin.evaluation.{name}" for name in ("results", "table", "senteval"))
    code = f"import sys, {names}; print(*sys.modules.keys() & {heavy})"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
