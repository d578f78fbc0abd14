"""`informin check` compares the fast paths of this machine with the plain path, and measures both libraries."""

import json

import pytest

import informin.check.equality as equality
import informin.check.report as report
import informin.fast.masks as masks
import informin.fast.packing as packing
import informin.fast.speed as speed
from informin.check.report import Check, machine
from informin.check.speed import HERE, PEER, Measured, Side, Size, as_record, encode_once, smaller, train_once
from informin.cli import run_command
from tests.conftest import make_sentences, save_bert

SHORT = ("check", "--skip_speed", "--device", "cpu")


def test_the_paths_of_a_cpu_equal_the_plain_path(tmp_path, capsys):
    code = run_command(*SHORT, "--objectives", "informin", "--bf16", "--output", str(tmp_path / "check.json"))
    printed = capsys.readouterr().out
    assert code == 0 and "DIFFERS" not in printed and max(map(len, printed.splitlines())) <= 80
    found = json.loads((tmp_path / "check.json").read_text())
    assert found["passed"] and found["machine"]["processor"] and not found["speed"]
    steps = [one for one in found["comparisons"] if one["objective"] == "informin"]
    paths = {
        "packed, NumPy masks",
        "packed, NumPy masks, 2 threads",
        "padded, NumPy masks",
        "packed, NumPy masks, chunks",
    }
    assert {one["path"] for one in steps} == paths
    assert {(one["encoder"], one["precision"]) for one in steps} == {
        (encoder, precision) for encoder in ("BERT", "RoBERTa") for precision in ("fp32", "bf16")
    }
    assert max(one["difference"] for one in steps if one["precision"] == "bf16") > 1e-4, "bf16 was not compared"


def scaled(function):
    return lambda *given, **how: function(*given, **how) * 1.01


def misplaced(function):
    def wrong(*given):
        packed = function(*given)
        packed.rows = packed.rows.flip(0)
        return packed

    return wrong


def flipped(function):
    return lambda *given, **how: function(*given, **how).flip(0)


def failing(function):
    def fail(*given):
        raise RuntimeError("no kernel image is available")

    return fail


@pytest.mark.parametrize(
    "module, name, broken, expected",
    [
        (packing, "_attend_by_runs", scaled, "encode, packed, fp32: hidden states by "),
        (speed, "packed_rows", misplaced, "encode, packed, short texts, fp32: embeddings by "),
        (speed.SortedInference, "_forward", flipped, "encode, sorted, short texts, fp32: embeddings by "),
        (masks, "keep_mask", scaled, "simcse, packed, NumPy masks, fp32: contrast by "),
        (masks, "keep_mask", failing, "simcse, packed, NumPy masks, fp32: no kernel image is available"),
    ],
)
def test_what_is_broken_is_named(monkeypatch, capsys, module, name, broken, expected):
    monkeypatch.setattr(equality, "ENCODERS", ("BERT",))
    monkeypatch.setattr(module, name, broken(getattr(module, name)))
    assert run_command(*SHORT, "--objectives", "simcse") == 1
    assert f"DIFFERS: BERT, {expected}" in capsys.readouterr().out


@pytest.mark.parametrize("side", [Side(PEER), Side(PEER, "bf16", sorts=True), Side(HERE), Side(HERE, "bf16")])
def test_both_libraries_are_measured(bert, side):
    size = Size(texts=64, batch=16, steps=3, skipped=1)
    for measure in (encode_once, train_once):
        per_second, cpu_seconds, peak_gib = measure(side, str(bert), make_sentences(64), "cpu", size)
        assert per_second > 0 and cpu_seconds > 0 and 0.1 < peak_gib < 64


def test_less_is_measured_of_a_larger_encoder(bert, tmp_path):
    size = Size(texts=256, batch=64, steps=4, skipped=1)
    assert smaller(size, str(bert)) == size
    large = save_bert(tmp_path / "large", hidden_size=1024, num_attention_heads=16, intermediate_size=4096)
    found = smaller(size, str(large))
    assert found.texts < 256 and 16 <= found.batch < 64 and found.skipped < found.steps < 4


def test_ratios_are_those_of_a_round():
    """The median of 2, 3 and 1/2, and not the ratio of the medians."""
    found = as_record(
        [
            Measured("train", PEER, "fp32", [1.0, 2.0, 10.0], [1.0] * 3, 1.0),
            Measured("train", HERE, "fp32", [2.0, 6.0, 5.0], [0.5, 1.0, 0.5], 1.0),
        ]
    )
    assert [(one["ratio"], one["cpu_ratio"]) for one in found] == [(1.0, 1.0), (2.0, 2.0)]
    printed = Check(machine(equality.torch.device("cpu")), [], "none", False, found).table()
    assert max(map(len, printed.splitlines())) <= 80


def test_what_has_no_effect_is_refused(capsys):
    assert run_command(*SHORT, "--model_name", "some-model") == 2
    assert "--model_name" in capsys.readouterr().err
    assert run_command(*SHORT, "--objectives", "simsce") == 2
    assert "--objectives" in capsys.readouterr().err


def test_too_few_texts_are_found_before_anything_is_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "compare_paths", lambda *given: pytest.fail("the paths were compared"))
    (tmp_path / "few.txt").write_text("A dog sleeps.\n" * 10)
    assert run_command("check", "--device", "cpu", "--train_file", str(tmp_path / "few.txt")) == 2
    assert "--train_file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["check.json", "folder"])
def test_an_existing_output_is_an_error_whose_advice_can_be_followed(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "compare_paths", lambda *given: pytest.fail("the paths were compared"))
    (tmp_path / "check.json").write_text("{}")
    (tmp_path / "folder").mkdir()
    assert run_command(*SHORT, "--output", str(tmp_path / name)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --output ") and "overwrite" not in error
