"""`informin eval`: complete runs on 14 tasks of synthetic data, and resuming them."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from transformers import AutoModel

from informin.evaluation import results as results_module
from informin.evaluation import scoring, senteval
from informin.evaluation.senteval import STS_TASKS, TASKS, TRANSFER_TASKS, load_task
from informin.models.native import NativeModel
from informin.models.open_model import load_model
from tests.cli.eval_command.helpers import another, line, read, scores
from tests.conftest import ROOT, SHARED, tokenizer_of
from tests.senteval_data import small_counts

MINI = SHARED / "models" / "bert-mini-wiki"
SENTEVAL = SHARED / "data" / "senteval"


# Complete runs


def test_all_tasks(run, data, bert, tmp_path, encoded, caplog):
    """File and tables contain every task, and each sentence is encoded once."""
    output = tmp_path / "out" / "a.json"
    code, out, err = run(output=output)
    found = read(output)
    assert code == 0 and list(found["tasks"]) == list(TASKS) and "Traceback" not in err
    assert [path.name for path in output.parent.iterdir()] == ["a.json"]
    tables = out.split("\n\n")
    assert [table.splitlines()[0] for table in tables] == [
        *("STS, Spearman x 100", "Transfer, accuracy x 100", "STS12-16 by aggregation", "Seconds")
    ]
    for table, names, group in ((tables[0], STS_TASKS, "sts"), (tables[1], TRANSFER_TASKS, "transfer")):
        values = [found["tasks"][name]["score"] for name in names]
        assert table.splitlines()[1].split() == [*names, "Avg"]
        assert line(table, "tiny-bert, cls") == [f"{x:.2f}" for x in (*values, np.mean(values))]
        assert found["average"][group] == pytest.approx(np.mean(values))
    everything = {s for name in TASKS for s in load_task(data, name).sentences()}
    assert len(encoded) == len(set(encoded)) and set(encoded) == everything
    said = [record.getMessage() for record in caplog.records if record.name == "informin.evaluation.scoring"]
    assert [text.split(" (")[0] for text in said] == [
        f"tiny-bert, cls: {name} {task['score']:.2f}" for name, task in found["tasks"].items()
    ]


def test_keys_of_results_are_documented(run, data, bert, tmp_path):
    run(output=tmp_path / "a.json", whitening=8)
    found, documented = read(tmp_path / "a.json"), results_module.__doc__
    names = re.findall(r"^(\w+)(?:\.NAME)?  ", documented, re.MULTILINE)
    assert {*found, "similarity"} == set(names)  # which is left out for the cosine
    assert set(found["whitening"]) == {"dimensions", "fitted_on"} and "{dimensions: K or null" in documented
    assert set(found["average"]) == {"sts", "transfer"}
    common = {"score", "n", "truncated", "data", "seconds"}
    subsets = senteval.YEARS | {"STS-B": {"STS-B test"}, "SICK-R": {"SICK-R test"}}
    for name, task in found["tasks"].items():
        assert set(task) == common | ({"mean", "wmean", "pearson", "subsets"} if name in STS_TASKS else {"dev"}), name
        assert set(task["seconds"]) == {"encode", "score"} and task["seconds"]["score"] > 0
        loaded = load_task(data, name)
        assert task["n"] == loaded.examples and task["truncated"] == 0
        assert task["data"] == {
            path.relative_to(data).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in loaded.files
        }
        if name in STS_TASKS:
            assert list(task["subsets"]) == list(subsets[name])
            assert {key for subset in task["subsets"].values() for key in subset} == {"score", "n"}
            assert sum(subset["n"] for subset in task["subsets"].values()) == task["n"]
    for key in ("error", "mean", "wmean", "pearson", "subsets", "dev", "truncated", "data", "encode", "score", "n"):
        assert re.search(rf"\b{key}\b", documented), key
    assert found["seconds"] == pytest.approx(sum(sum(t["seconds"].values()) for t in found["tasks"].values()))
    assert found["weights_sha256"] == load_model(str(bert), ("cls",)).weights_sha256()
    expected = dict(
        model=str(bert), pooler="cls", normalized=False, max_length=66, precision="fp32", split="test", schema=1
    )
    assert found | expected == found
    assert found["environment"]["torch"] == torch.__version__ and found["environment"]["device"].startswith("cpu")


def test_shared_sentences_count_for_the_first_task(run, tmp_path, monkeypatch):
    """All STS years have the same sentences here."""
    original = NativeModel.__call__
    monkeypatch.setattr(NativeModel, "__call__", lambda *inputs: time.sleep(0.2) or original(*inputs))
    run(output=tmp_path / "a.json", tasks=["STS12", "STS13", "STS-B"])
    seconds = {name: task["seconds"]["encode"] for name, task in read(tmp_path / "a.json")["tasks"].items()}
    assert seconds["STS12"] > 0.2 > seconds["STS13"] and seconds["STS-B"] > 0.2


def test_scores_match_automodel(run, data, bert, tmp_path):
    """STS-B with embeddings of a plain AutoModel, for two poolings."""
    run(output=tmp_path, tasks="STS-B", pooler=["mean", "cls"])
    pairs = load_task(data, "STS-B").subsets[0]
    model, tokenizer = AutoModel.from_pretrained(bert).eval(), tokenizer_of(bert)
    for pooler in ("cls", "mean"):
        cosines = []
        for pair in zip(pairs.sentences1, pairs.sentences2):
            with torch.no_grad():
                x, y = (model(**tokenizer(s, return_tensors="pt")).last_hidden_state[0] for s in pair)
            x, y = (x[0], y[0]) if pooler == "cls" else (x.mean(0), y.mean(0))
            cosines.append(float(torch.cosine_similarity(x, y, dim=0)))
        expected = 100 * spearmanr(cosines, pairs.scores).statistic
        assert scores(tmp_path / f"tiny-bert-{pooler}.json")["STS-B"] == pytest.approx(expected, abs=0.01)


def test_data_from_the_environment(run, data, monkeypatch):
    monkeypatch.setenv("SENTEVAL_DATA", str(data))
    code, out, _ = run(senteval_dir=None, tasks="STS-B")
    assert code == 0 and "tiny-bert, cls" in out


def test_groups_and_names_of_tasks(run, tmp_path):
    run(output=tmp_path / "a.json", tasks=["mrpc", "stsb", "Trec"])
    assert list(read(tmp_path / "a.json")["tasks"]) == ["STS-B", "TREC", "MRPC"]
    run(output=tmp_path / "b.json", tasks="sts")
    assert list(read(tmp_path / "b.json")["tasks"]) == list(STS_TASKS)


# Resuming


def test_second_call_encodes_nothing_and_prints_the_same(run, tmp_path, encoded, scored):
    first = run(output=tmp_path / "a.json")
    before = (tmp_path / "a.json").read_bytes()
    encoded.clear(), scored.clear()
    second = run(output=tmp_path / "a.json")
    assert (encoded, scored) == ([], []) and second[:2] == first[:2]
    assert (tmp_path / "a.json").read_bytes() == before


def test_added_task_is_scored_and_shown_alone(run, tmp_path, scored):
    """The file contains both tasks, the table only the requested one."""
    run(output=tmp_path / "a.json", tasks="STS-B")
    _, out, _ = run(output=tmp_path / "a.json", tasks="MR")
    assert scored == ["STS-B", "MR"] == list(read(tmp_path / "a.json")["tasks"])
    assert "STS" not in out and "Transfer, accuracy x 100" in out


@pytest.mark.parametrize("where", ["encoding", "scoring"])
def test_resumed_results_equal_uninterrupted_results(run, tmp_path, monkeypatch, scored, where):
    """Ctrl-C in the third task keeps the earlier tasks of each pooling."""
    options = dict(pooler=["cls", "mean"], tasks=["STS12", "STS-B", "MR", "SST2", "TREC"])
    calls = []

    def interrupted(original, allowed):
        def call(*inputs, **named):
            calls.append(1)
            if len(calls) > allowed:
                raise KeyboardInterrupt
            return original(*inputs, **named)

        return call

    with monkeypatch.context() as patch:
        if where == "encoding":
            patch.setattr(NativeModel, "__call__", interrupted(NativeModel.__call__, 2))
        else:
            patch.setattr(scoring, "score_transfer", interrupted(scoring.score_transfer, 0))
        code, out, err = run(output=tmp_path / "halves", **options)
    assert code == 130 and out == "" and "Traceback" not in err
    kept = f"Finished tasks are in {tmp_path / 'halves'}. Run the same command again to resume."
    assert err.endswith(f"Interrupted during the {where} of MR. {kept}\n")
    files = [tmp_path / "halves" / f"tiny-bert-{pooler}.json" for pooler in ("cls", "mean")]
    assert sorted((tmp_path / "halves").iterdir()) == files
    assert [list(read(path)["tasks"]) for path in files] == [["STS12", "STS-B"]] * 2
    scored.clear()
    assert run(output=tmp_path / "halves", **options)[0] == 0
    assert scored == ["MR", "MR", "SST2", "SST2", "TREC", "TREC"]
    run(output=tmp_path / "whole", **options)
    for path in files:
        whole = read(tmp_path / "whole" / path.name)["tasks"]
        timeless = [{n: t | {"seconds": None} for n, t in tasks.items()} for tasks in (read(path)["tasks"], whole)]
        assert timeless[0] == timeless[1]


def test_only_tasks_with_changed_data_are_scored_again(run, data, tmp_path, scored, encoded):
    copy, output = shutil.copytree(data, tmp_path / "data"), tmp_path / "a.json"
    options = dict(output=output, senteval_dir=copy, tasks=["STS-B", "MR", "CR"])
    run(**options)
    before = read(output)["tasks"]
    path = copy / "CR" / "custrev.pos"
    path.write_text(path.read_text().replace("the", "not", 1))
    scored.clear(), encoded.clear()
    run(**options)
    after = read(output)["tasks"]
    assert scored == ["CR"] and set(encoded) == set(load_task(copy, "CR").sentences())
    assert after["CR"]["data"]["CR/custrev.pos"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert after["CR"]["data"]["CR/custrev.neg"] == before["CR"]["data"]["CR/custrev.neg"]
    assert {name: after[name] for name in ("STS-B", "MR")} == {name: before[name] for name in ("STS-B", "MR")}


def test_results_of_another_model_are_not_resumed(run, bert, tmp_path, encoded):
    output = tmp_path / "a.json"
    run(output=output, tasks="STS-B")
    before = output.read_bytes()
    encoded.clear()
    code, out, err = run(output=output, tasks="STS-B", model_name=another(bert, tmp_path / "other"))
    assert (code, out, encoded) == (2, "", []) and f"error: {output} contains other results (weights_sha256 '" in err
    assert output.read_bytes() == before
    for changes, named in [
        (dict(pooler="mean"), "pooler 'cls', now 'mean'"),
        (dict(max_length=9), "max_length 66, now 9"),
        (dict(whitening=4), "whitening None, now {'dimensions': 4, 'fitted_on': 'the sentences of each task'}"),
        (dict(split="dev"), "split 'test', now 'dev'"),
    ]:
        code, _, err = run(output=output, tasks="STS-B", **changes)
        assert code == 2 and f"({named}). Choose another --output, or delete the file." in err
    assert output.read_bytes() == before


def test_same_weights_in_another_folder_are_resumed(run, bert, tmp_path, scored):
    run(output=tmp_path / "a.json", tasks="STS-B")
    moved = shutil.copytree(bert, tmp_path / "moved")
    code, out, _ = run(output=tmp_path / "a.json", tasks=["STS-B", "MR"], model_name=moved)
    assert code == 0 and scored == ["STS-B", "MR"] and "moved, cls" in out


def test_unwritable_output_is_an_error(run, tmp_path):
    (tmp_path / "a").write_text("")
    code, _, err = run(output=tmp_path / "a" / "b.json", tasks="STS-B")
    assert code == 2 and f"error: {tmp_path / 'a' / 'b.json'} cannot be written: " in err


# In a subprocess


def command(*options: str, home: Path) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "SENTEVAL_DATA"}
    environment |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-m", "informin", "eval", *options]
    return subprocess.run(arguments, env=environment, cwd=home, capture_output=True, text=True, timeout=120)


def test_help(tmp_path):
    result = command("--help", home=tmp_path)
    assert result.returncode == 0 and result.stderr == ""
    text = " ".join(result.stdout.split())
    assert "Score encoders on STS and transfer tasks" in text
    for name in TASKS:
        assert name in text
    for option in (
        "model_name",
        "tasks",
        "pooler",
        "senteval_dir",
        "split",
        "max_length",
        "batch_size",
        "device",
        "bf16",
    ):
        assert f"--{option}" in text
    for option in (
        "whitening",
        "whitening_file",
        "output",
        "format",
        "compare",
        "seeds",
        "labels",
        "retrieval",
        "prompt",
    ):
        assert f"--{option}" in text


def test_error_without_data_and_hub(bert, tmp_path):
    """Prints one line with instructions."""
    result = command("--model_name", str(bert), "--pooler", "cls", home=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1 and result.stderr.startswith(
        "error: senteval.tar cannot be downloaded from the Hub"
    )
    assert result.stderr.endswith(
        "Without the Hub, give --senteval_dir FOLDER (SentEval's data/downstream), or set SENTEVAL_DATA to it.\n"
    )


@pytest.mark.skipif(not (MINI.is_dir() and SENTEVAL.is_dir()), reason=f"{MINI} or {SENTEVAL} does not exist")
def test_real_encoder_on_real_data(run, monkeypatch, tmp_path):
    small_counts(monkeypatch, 1)
    code, out, _ = run(model_name=MINI, tasks="STS-B", senteval_dir=SENTEVAL, output=tmp_path / "a.json")
    found = read(tmp_path / "a.json")["tasks"]["STS-B"]
    assert code == 0 and found["n"] == 1379 and found["score"] == pytest.approx(44.46, abs=0.02)
    assert line(out, "bert-mini-wiki, cls") == [f"{found['score']:.2f}", "-"]
