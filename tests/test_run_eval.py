"""run_eval.py as people run it: 14 tasks of synthetic data, going on after an interruption, and every mistake."""

import hashlib
import json
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
from safetensors.torch import load_file, save_file
from scipy.stats import pearsonr, spearmanr
from transformers import AutoModel

import run_eval
from informin.cli import eval as eval_command
from informin.encoders.encoder import Encoder, load_encoder
from informin.evaluation import results as results_module
from informin.evaluation import scoring, senteval
from informin.evaluation.labels import load_labels, score_labels
from informin.evaluation.measures import LABELS
from informin.evaluation.results import IDENTITY, new_results, save_results
from informin.evaluation.senteval import STS_TASKS, TASKS, TRANSFER_TASKS, load_task
from tests.conftest import ROOT, SHARED, make_sentences, tokenizer_of
from tests.senteval_data import small_counts, write_senteval

SHARE = 0.01  # of the counts of each task; the smallest have 16 examples
MINI = SHARED / "models" / "bert-mini-wiki"
SENTEVAL = SHARED / "data" / "senteval"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_senteval(tmp_path_factory.mktemp("senteval"), SHARE)


@pytest.fixture(autouse=True)
def small_data(monkeypatch, logging_as_before):
    small_counts(monkeypatch, SHARE)
    monkeypatch.delenv("SENTEVAL_DATA", raising=False)


@pytest.fixture
def run(bert, data, capsys):
    """Calls the command, for its exit code and what it prints. Keywords change or add options, None removes one."""

    def run(*flags: str, **changes) -> tuple[int, str, str]:
        options = dict(model_name=bert, pooler="cls", senteval_dir=data, device="cpu") | changes
        argv = list(flags)
        for name, value in options.items():
            values = value if isinstance(value, (list, tuple)) else [value]
            argv += [] if value is None else [f"--{name}", *map(str, values)]
        capsys.readouterr()
        code = run_eval.main(argv)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """The sentences that are encoded, in order."""
    seen, original = [], Encoder.__call__

    def spy(self, sentences, progress=None):
        seen.extend(sentences)
        return original(self, sentences, progress)

    monkeypatch.setattr(Encoder, "__call__", spy)
    return seen


@pytest.fixture
def scored(monkeypatch) -> list[str]:
    """The tasks that are scored, in order."""
    seen = []

    def spied(original):
        return lambda encode, task: seen.append(task.name) or original(encode, task)

    for name in ("score_sts", "score_transfer"):
        monkeypatch.setattr(scoring, name, spied(getattr(scoring, name)))
    return seen


def changed(source: Path, folder: Path, change) -> Path:
    """A copy of a model's folder whose weights a function has changed in place."""
    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def another(source: Path, folder: Path, by: float = 0.1) -> Path:
    """Another model: the same with noise."""

    def noise(weights):
        generator = torch.Generator().manual_seed(0)
        for x in weights.values():
            x += by * torch.randn(x.shape, generator=generator)

    return changed(source, folder, noise)


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def scores(path: Path) -> dict[str, float]:
    return {name: task["score"] for name, task in read(path)["tasks"].items()}


def line(text: str, start: str) -> list[str]:
    """The cells after the label of the first line of a text table that begins so."""
    return next(x for x in text.splitlines() if x.startswith(start)).removeprefix(start).split()


# Whole runs


def test_all_tasks(run, data, bert, tmp_path, encoded, caplog):
    """Every task in the file and in the tables; each sentence encoded once."""
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


def test_the_keys_are_those_that_are_documented(run, data, bert, tmp_path):
    run(output=tmp_path / "a.json", whitening=8)
    found, documented = read(tmp_path / "a.json"), results_module.__doc__
    names = re.findall(r"^(\w+)(?:\.NAME)?  ", documented, re.MULTILINE)
    assert set(found) == set(names)
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
    assert found["weights_sha256"] == load_encoder(str(bert), ("cls",)).weights_sha256()
    expected = dict(
        model=str(bert), pooler="cls", normalized=False, max_length=66, precision="fp32", split="test", schema=1
    )
    assert found | expected == found
    assert found["environment"]["torch"] == torch.__version__ and found["environment"]["device"].startswith("cpu")


def test_seconds_of_encoding_are_of_the_task_that_encoded(run, tmp_path, monkeypatch):
    """All years have the same sentences here: the first of them pays."""
    original = Encoder.__call__
    monkeypatch.setattr(Encoder, "__call__", lambda *inputs: time.sleep(0.2) or original(*inputs))
    run(output=tmp_path / "a.json", tasks=["STS12", "STS13", "STS-B"])
    seconds = {name: task["seconds"]["encode"] for name, task in read(tmp_path / "a.json")["tasks"].items()}
    assert seconds["STS12"] > 0.2 > seconds["STS13"] and seconds["STS-B"] > 0.2


def test_scores_are_those_of_the_embeddings(run, data, bert, tmp_path):
    """STS-B from AutoModel by itself; [CLS] and mean are not mixed up."""
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


# Going on


def test_the_second_call_encodes_nothing_and_prints_the_same(run, tmp_path, encoded, scored):
    first = run(output=tmp_path / "a.json")
    before = (tmp_path / "a.json").read_bytes()
    encoded.clear(), scored.clear()
    second = run(output=tmp_path / "a.json")
    assert (encoded, scored) == ([], []) and second[:2] == first[:2]
    assert (tmp_path / "a.json").read_bytes() == before


def test_more_tasks_later(run, tmp_path, scored):
    """The file has both, the table what was asked for."""
    run(output=tmp_path / "a.json", tasks="STS-B")
    _, out, _ = run(output=tmp_path / "a.json", tasks="MR")
    assert scored == ["STS-B", "MR"] == list(read(tmp_path / "a.json")["tasks"])
    assert "STS" not in out and "Transfer, accuracy x 100" in out


@pytest.mark.parametrize("where", ["encoding", "scoring"])
def test_interrupted_and_gone_on_equals_run_through(run, tmp_path, monkeypatch, scored, where):
    """Ctrl-C in the third task; each earlier one is kept, for each pooler."""
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
            patch.setattr(Encoder, "__call__", interrupted(Encoder.__call__, 2))
        else:
            patch.setattr(scoring, "score_transfer", interrupted(scoring.score_transfer, 0))
        code, out, err = run(output=tmp_path / "halves", **options)
    assert code == 130 and out == "" and "Traceback" not in err
    kept = f"Finished tasks are in {tmp_path / 'halves'}. The same command resumes."
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


def test_only_the_task_whose_data_changed_is_scored_again(run, data, tmp_path, scored, encoded):
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


def test_the_same_weights_in_another_folder_are_gone_on_with(run, bert, tmp_path, scored):
    run(output=tmp_path / "a.json", tasks="STS-B")
    moved = shutil.copytree(bert, tmp_path / "moved")
    code, out, _ = run(output=tmp_path / "a.json", tasks=["STS-B", "MR"], model_name=moved)
    assert code == 0 and scored == ["STS-B", "MR"] and "moved, cls" in out


def test_output_that_cannot_be_written(run, tmp_path):
    (tmp_path / "a").write_text("")
    code, _, err = run(output=tmp_path / "a" / "b.json", tasks="STS-B")
    assert code == 2 and f"error: {tmp_path / 'a' / 'b.json'} cannot be written: " in err


# Several models and poolers


def test_a_row_for_each_model_and_pooler(run, bert, roberta, tmp_path, encoded):
    folder = tmp_path / "out"
    options = dict(model_name=[bert, roberta], pooler=["cls", "mean"], tasks=["STS-B", "MR"])
    code, out, _ = run(output=folder, **options)
    labels = [f"tiny-{model}, {pooler}" for model in ("bert", "roberta") for pooler in ("cls", "mean")]
    assert code == 0
    assert [path.name for path in sorted(folder.iterdir())] == [f"{x.replace(', ', '-')}.json" for x in labels]
    assert [x.rpartition(",")[0] + "," + x.rpartition(",")[2][:5].rstrip() for x in out.splitlines()[2:6]] == labels
    for name in labels:
        found = read(folder / f"{name.replace(', ', '-')}.json")
        assert line(out, name) == [f"{found['tasks']['STS-B']['score']:.2f}", "-"]
    assert len({scores(path)["STS-B"] for path in folder.iterdir()}) == 4
    assert len(encoded) == 2 * len(set(encoded)), "both poolers in one pass"


def test_auto_is_what_the_checkpoint_says(run, bert, tmp_path):
    code, _, err = run(pooler="auto", tasks="STS-B")
    assert code == 2 and f"error: --pooler is auto, but the pooling of {bert} is unknown" in err
    folder = shutil.copytree(bert, tmp_path / "ours")
    config = read(folder / "config.json")
    (folder / "config.json").write_text(json.dumps(config | {"informin": {"pooling": "cls"}}))
    code, out, _ = run(model_name=folder, pooler=None, tasks="STS-B", output=tmp_path / "out")
    assert code == 0 and "ours, cls" in out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["ours-cls.json"]


@pytest.mark.parametrize("several", [dict(pooler=["cls", "mean"]), dict(model_name=["one", "two"])])
def test_one_file_for_several_rows(run, tmp_path, several, encoded):
    code, _, err = run(output=tmp_path / "a.json", **several)
    assert (code, err) == (2, f"error: --output is {tmp_path / 'a.json'}, one file for several rows. Give a folder.\n")
    assert encoded == [] and list(tmp_path.iterdir()) == []


def test_models_of_one_name_in_one_folder(run, tmp_path):
    code, _, err = run(output=tmp_path / "out", model_name=["a/last", "b/last"])
    message = f"--output is {tmp_path / 'out'}, but two models have the same folder name (last, last). Rename one."
    assert (code, err) == (2, f"error: {message}\n")


def test_results_by_split_and_whitening_have_their_own_files(run, tmp_path):
    for changes in ({}, {"split": "dev"}, {"whitening": 4}, {"whitening": 4, "split": "dev"}):
        assert run(output=tmp_path, tasks="STS-B", **changes)[0] == 0
    assert run("--whitening", output=tmp_path, tasks="STS-B")[0] == 0
    names = ("", "-dev", "-whitening", "-whitening4", "-whitening4-dev")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"tiny-bert-cls{name}.json" for name in names)


# Comparing


def test_compare_with_one_file(run, bert, tmp_path):
    run(output=tmp_path / "base.json", tasks=["STS-B", "MR"])
    other = another(bert, tmp_path / "other")
    options = dict(model_name=other, pooler=["cls", "mean"], tasks=["STS-B", "MR"])
    code, out, _ = run(compare=tmp_path / "base.json", output=tmp_path / "out", **options)
    base = scores(tmp_path / "base.json")
    assert code == 0
    assert line(out, "tiny-bert, cls") == [f"{base['STS-B']:.2f}", "-"]
    for pooler in ("cls", "mean"):
        gain = scores(tmp_path / "out" / f"other-{pooler}.json")["STS-B"] - base["STS-B"]
        assert abs(gain) > 0.1 and line(out, f"other, {pooler} - tiny-bert, cls") == [f"{gain:+.2f}", "-"]


def test_compare_seeds_with_a_folder(run, bert, tmp_path):
    """Row by row, then mean and standard deviation, over n - 1, of both sides and of the differences."""
    seeds = [another(bert, tmp_path / f"seed{i}", by=0.05 * i) for i in (1, 2, 3)]
    run(model_name=seeds, tasks="STS-B", output=tmp_path / "base")
    code, out, _ = run("--seeds", model_name=seeds, pooler="mean", tasks="STS-B", compare=tmp_path / "base")
    assert code == 0
    names = (r"seed\d, cls", r"seed\d, mean", r"seed\d, mean - seed\d, cls")
    tables = [[float(x) for x in re.findall(rf"^{name}  +([-+\d.]+)", out, re.MULTILINE)] for name in names]
    base, own, gains = map(np.array, tables)
    np.testing.assert_allclose(
        base, [scores(tmp_path / "base" / f"seed{i}-cls.json")["STS-B"] for i in (1, 2, 3)], atol=0.006
    )
    np.testing.assert_allclose(gains, own - base, atol=0.016)
    found = re.findall(r"^mean ± sd of these 3 +([-+\d.]+) ± ([\d.]+)", out, re.MULTILINE)
    assert len(found) == 3
    for (mean, spread), values in zip(found, (base, own, gains)):
        assert (float(mean), float(spread)) == (
            pytest.approx(values.mean(), abs=0.02),
            pytest.approx(values.std(ddof=1), abs=0.02),
        )


def test_compare_with_another_split(run, tmp_path):
    run(output=tmp_path / "dev.json", tasks="STS-B", split="dev")
    code, _, err = run(compare=tmp_path / "dev.json", tasks="STS-B")
    assert code == 2 and re.search(r"--compare \S+ was scored on the dev split; expected the test split", err)


def test_compare_with_a_folder_counts_as_people_do(run, bert, tmp_path):
    """seed10 comes after seed2."""
    seeds = [another(bert, tmp_path / f"seed{i}", by=0.05 * i) for i in (2, 10)]
    run(model_name=seeds, tasks="STS-B", output=tmp_path / "base")
    _, out, _ = run(model_name=seeds, tasks="STS-B", compare=tmp_path / "base")
    for i in (2, 10):
        assert line(out, f"seed{i}, cls - seed{i}, cls") == ["+0.00", "-"]


def test_a_mistake_in_the_last_model_is_found_before_the_first_is_scored(run, bert, encoded):
    code, out, err = run(model_name=[bert, "/no/model"], tasks="STS-B")
    assert (code, out, encoded) == (2, "", []) and "--model_name /no/model: there is no such folder" in err


def test_seeds(run, bert, tmp_path):
    models = [bert, another(bert, tmp_path / "seed2")]
    _, out, _ = run("--seeds", model_name=models, tasks="STS-B", output=tmp_path / "out")
    values = [scores(tmp_path / "out" / f"{model.name}-cls.json")["STS-B"] for model in models]
    assert line(out, "mean ± sd of these 2") == [
        f"{np.mean(values):.2f}",
        "±",
        f"{np.std(values, ddof=1):.2f}",
        "-",
    ]
    assert "mean ± sd" not in run(model_name=models, tasks="STS-B")[1]


@pytest.mark.parametrize(
    "files, message",
    [
        (None, "PATH cannot be read: "),
        (0, "PATH contains no .json file; expected a folder"),
        (2, "--compare has 2 results; expected 1, or one for each row (3)."),
    ],
)
def test_compare_with_what_does_not_fit(run, tmp_path, files, message, encoded):
    folder = tmp_path / "other"
    if files is not None:
        folder.mkdir()
        for i in range(files):
            identity = dict.fromkeys(IDENTITY, "") | {"normalized": False, "whitening": None, "max_length": 64}
            save_results(folder / f"{i}.json", new_results("model", identity, {}))
    code, out, err = run(compare=folder, pooler=["cls", "mean", "last2"])
    assert (code, out, encoded) == (2, "", []) and err.startswith(f"error: {message.replace('PATH', str(folder))}")


# Formats


def test_format_json(run, tmp_path):
    code, out, _ = run(format="json", output=tmp_path, pooler=["cls", "mean"], tasks=["STS-B", "TREC"])
    assert code == 0
    assert json.loads(out) == [read(tmp_path / f"tiny-bert-{pooler}.json") for pooler in ("cls", "mean")]


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_formats(run, tmp_path, form):
    _, out, _ = run(format=form, output=tmp_path / "a.json", tasks=["STS-B", "MR"], max_length=4)
    value = f"{scores(tmp_path / 'a.json')['STS-B']:.2f}"
    note = re.search(r"tiny-bert, cls: \d+ sentences were truncated to 4 tokens\.$", out, re.MULTILINE)[0]
    assert ("Seconds" in out) == (form == "text")
    if form == "text":
        assert line(out, "tiny-bert, cls") == [value, "-"] and out.endswith(f"\n\n{note}\n")
    elif form == "markdown":
        assert f"| tiny-bert, cls | {value} |   - |" in out and out.endswith(f"|\n\n{note}\n")
    else:
        assert f"\ntiny-bert, cls & {value} & - \\\\\n" in out and out.endswith(f"\\end{{tabular}}\n% {note}\n")
        assert out.count("\\begin{tabular}{lrr}") == 2


# Options


def test_the_dev_split(run, tmp_path):
    """Of the groups, what has one; of transfer tasks, the accuracy that C is chosen by."""
    code, out, _ = run(split="dev", output=tmp_path / "a.json")
    found = read(tmp_path / "a.json")
    assert code == 0 and found["split"] == "dev"
    assert list(found["tasks"]) == ["STS-B", "SICK-R", *TRANSFER_TASKS] and "by aggregation" not in out
    assert all(found["tasks"][name]["score"] == found["tasks"][name]["dev"] for name in TRANSFER_TASKS)
    assert list(found["tasks"]["STS-B"]["data"]) == ["STS/STSBenchmark/sts-dev.csv"]
    assert found["average"]["sts"] is None and found["average"]["transfer"] > 0
    code, _, err = run(split="dev", tasks=["STS14", "STS-B"])
    assert code == 2 and "error: --tasks contains STS14, which has no dev split;" in err


def whitened_by_hand(x: np.ndarray, fitted_on: np.ndarray, dimensions: int | None) -> np.ndarray:
    """From the eigenvectors of the covariance, the largest first, without those of 0: LayerNorm's vectors sum to 0."""
    variances, directions = np.linalg.eigh(np.cov(fitted_on.T, bias=True))
    largest = [i for i in np.argsort(-variances) if variances[i] > 1e-9 * variances.max()][:dimensions]
    assert len(largest) < 32
    return (x - fitted_on.mean(0)) @ directions[:, largest] / np.sqrt(variances[largest])


@pytest.mark.parametrize("file", [False, True])
@pytest.mark.parametrize("dimensions", [None, 6])
def test_whitening(run, bert, data, tmp_path, file, dimensions):
    sentences = tmp_path / "fit.txt"
    sentences.write_text("\n\n".join(make_sentences(80, seed=5)) + "\n")
    flags = ["--whitening"] if dimensions is None else ["--whitening", str(dimensions)]
    flags += ["--whitening_file", str(sentences)] if file else []
    code, out, _ = run(*flags, tasks=["STS-B", "SICK-R"], output=tmp_path / "a.json")
    found, encoder = read(tmp_path / "a.json"), load_encoder(str(bert), ("cls",))
    digest = hashlib.sha256(sentences.read_bytes()).hexdigest()
    fitted_on = f"fit.txt (SHA-256 {digest})" if file else "the sentences of each task"
    assert code == 0 and found["whitening"] == {"dimensions": dimensions, "fitted_on": fitted_on}
    assert f"tiny-bert, cls, whitening{f' {dimensions}' if dimensions else ''}  " in out
    for name in ("STS-B", "SICK-R"):
        task = load_task(data, name)
        own = task.sentences()
        if name == "STS-B" and dimensions is None and not file:
            assert len(own) <= 32 < len(load_task(data, "SICK-R").sentences())
            continue  # so few sentences are all at the same angle in all their dimensions
        fit = encoder(make_sentences(80, seed=5) if file else own)["cls"].astype(float)
        vectors = dict(zip(own, whitened_by_hand(encoder(own)["cls"].astype(float), fit, dimensions)))
        pairs = task.subsets[0]
        x, y = (np.stack([vectors[s] for s in side]) for side in (pairs.sentences1, pairs.sentences2))
        cosines = (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
        expected = 100 * pearsonr(cosines, pairs.scores).statistic  # ranks would hang on the last bits of equal pairs
        assert found["tasks"][name]["pearson"] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(whitening=33), "--whitening is 33; expected 1 to 32, the dimensions of MODEL's embeddings."),
        (dict(whitening=0), "--whitening is 0; expected 1 or more, or no number for all dimensions."),
        (dict(whitening=-1), "--whitening is -1; expected 1 or more, or no number for all dimensions."),
        (dict(whitening_file="x.txt"), "--whitening_file has no effect without --whitening."),
        (dict(whitening=4, whitening_file="/no/x.txt"), "--whitening_file: /no/x.txt does not exist."),
        (
            dict(tasks=["STS-B", "STS17"]),
            "--tasks contains 'STS17'; expected all, sts, transfer or names of ",
        ),
        (
            dict(senteval_dir="/no/data"),
            "/no/data/STS/STSBenchmark/sts-test.csv does not exist; expected SentEval's",
        ),
        (dict(model_name="/no/model"), "--model_name /no/model: there is no such folder"),
        (dict(pooler="mlp"), "--pooler is mlp, but MODEL has no projection head; "),
        (dict(max_length=67), "--max_length is 67; expected 3 to 66 tokens for MODEL."),
        (dict(batch_size=0), "--batch_size is 0; expected 1 or more."),
        (dict(device="gpu"), "--device gpu cannot be used: "),
    ],
)
def test_mistakes(run, bert, options, message, encoded):
    """One line, exit code 2, before anything is encoded."""
    code, out, err = run(**({"tasks": "STS-B"} | options))
    assert (code, out, encoded) == (2, "", [])
    assert err.startswith(f"error: {message.replace('MODEL', str(bert))}") and err.count("\n") == 1


@pytest.mark.parametrize(
    "lines, flags, message",
    [
        (["the dog"] * 3, ["--whitening"], "FILE has 1 different sentence; expected 2 or more for 1 dimension."),
        (["the dog", "a cat", "the dog"], ["--whitening", "2"], "FILE has 2 different sentences; expected 3 or more"),
        (["", " "], ["--whitening", "1"], "FILE has 0 different sentences; expected 2 or more"),
        (
            None,
            ["--whitening"],
            "FILE is a pipe or a device, which can be read only once; expected a file. Save its content to a file.",
        ),
    ],
)
def test_unusable_whitening_files_are_rejected(run, tmp_path, encoded, lines, flags, message):
    path = tmp_path / "fit.txt"
    os.mkfifo(path) if lines is None else path.write_text("\n".join(lines))
    code, out, err = run(*flags, tasks="STS-B", whitening_file=path)
    assert (code, out, encoded) == (2, "", []) and err.count("\n") == 1
    assert err.startswith("error: --whitening_file") and message.replace("FILE", str(path)) in err


@pytest.mark.parametrize(
    "option",
    [["--format", "html"], ["--pooler", "max"], ["--split", "train"], ["--task", "STS-B"], ["--whitening", "all"]],
)
def test_options_that_the_parser_does_not_know(option):
    with pytest.raises(SystemExit, match="2"):
        run_eval.main(["--model_name", "x", *option])


def test_damaged_data_are_found_before_anything_is_scored(run, data, tmp_path, encoded):
    copy = shutil.copytree(data, tmp_path / "data")
    path = copy / "SUBJ" / "subj.objective"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    code, out, err = run(senteval_dir=copy, output=tmp_path / "out" / "a.json")
    assert (code, out, encoded) == (2, "", []) and not (tmp_path / "out").exists()
    needed = len(lines)
    assert err == f"error: {path}: found {needed - 1} sentences; expected {needed}. Download the file again.\n"
    path.unlink()
    code, _, err = run(senteval_dir=copy)
    assert code == 2 and err.startswith(f"error: {path} does not exist; expected SentEval's data/down")


@pytest.mark.parametrize("whitening", [False, True])
def test_embeddings_that_are_nan(run, bert, tmp_path, whitening, scored):
    """A NaN weight of the unknown word, which only STS-B and TREC have: both are named, the others scored."""

    def one_nan(weights):
        weights["bert.embeddings.word_embeddings.weight"][1, 0] = float("nan")

    model, output = changed(bert, tmp_path / "broken", one_nan), tmp_path / "a.json"
    tasks = ["STS12", "STS-B", "MR", "TREC"]
    flags = ["--whitening"] if whitening else []
    code, out, _ = run(*flags, model_name=model, tasks=tasks, output=output)
    found = read(output)["tasks"]
    assert code == 1 and [name for name in tasks if found[name]["score"] is None] == ["STS-B", "TREC"]
    name = f"broken, cls{', whitening' if whitening else ''}"
    assert line(out, f"{name}  ") == [f"{found['STS12']['score']:.2f}", "-", "-"]
    for task in ("STS-B", "TREC"):
        assert re.fullmatch(r"the embeddings of \d+ of \d+ sentences are not finite", found[task]["error"])
        assert f"\n{name}: {task} has no score: {found[task]['error']}.\n" in out
        assert set(found[task]) == {"score", "n", "error", "truncated", "data", "seconds"} and found[task]["n"] > 0
    scored.clear()
    assert run(*flags, model_name=model, tasks=tasks, output=output)[0] == 1
    assert scored == ["STS-B", "TREC"], "what has no score is tried again"
    assert run(*flags, model_name=model, tasks=["STS12", "MR"], output=output)[0] == 0


def test_sentences_of_the_whitening_that_are_nan(run, bert, tmp_path):
    def one_nan(weights):
        weights["bert.embeddings.word_embeddings.weight"][1, 0] = float("nan")

    (tmp_path / "fit.txt").write_text("the dog\na quaint cat\n")
    model = changed(bert, tmp_path / "broken", one_nan)
    code, out, _ = run(model_name=model, tasks="STS12", whitening=1, whitening_file=tmp_path / "fit.txt")
    assert code == 1 and re.search(r"STS12 has no score: the embeddings of (\d+) of \1 sentences are not finite\.", out)


@pytest.mark.parametrize("whitening", [False, True])
def test_embeddings_that_are_all_alike(run, bert, tmp_path, whitening):
    """No correlation is defined; a classifier can still name the largest class."""

    def constant(weights):
        weights["bert.encoder.layer.1.output.LayerNorm.weight"].zero_()

    model = changed(bert, tmp_path / "flat", constant)
    flags = ["--whitening"] if whitening else []
    code, out, _ = run(*flags, model_name=model, tasks=["STS-B", "MRPC"], output=tmp_path / "a.json")
    found = read(tmp_path / "a.json")["tasks"]
    assert code == 1 and re.search(r"STS-B has no score: all \d+ predictions are equal, so the correlation is", out)
    assert found["STS-B"]["score"] is None and found["MRPC"]["score"] == pytest.approx(200 / 3, abs=1)


def test_sentences_that_are_cut_are_counted(run, bert, data, tmp_path):
    """For each task, those that an earlier task had among them."""
    tasks = ["STS12", "STS13", "MR", "MRPC"]
    _, out, _ = run(max_length=7, tasks=tasks, output=tmp_path / "a.json")
    found, tokenizer = read(tmp_path / "a.json"), tokenizer_of(bert)
    expected = {
        name: sum(len(tokenizer(s)["input_ids"]) > 7 for s in load_task(data, name).sentences()) for name in tasks
    }
    assert {name: task["truncated"] for name, task in found["tasks"].items()} == expected and expected["STS13"] > 0
    assert found["max_length"] == 7 and f"cls: {sum(expected.values()):,} sentences were truncated to 7 tokens." in out


def test_options_reach_the_encoder(run, bert, monkeypatch):
    calls = []

    def spy(*inputs, prompt):
        calls.append((*inputs, prompt))
        return load_encoder(*inputs[:4], "cpu", inputs[5], prompt=prompt)

    monkeypatch.setattr(eval_command, "load_encoder", spy)
    run("--bf16", tasks="STS-B", prompt="the", device="mps", batch_size=3, max_length=9, pooler=["mean", "cls"])
    run(tasks="STS-B", device=None)
    assert calls == [
        (str(bert), ["mean", "cls"], 9, 3, "mps", True, "the"),
        (str(bert), ["cls"], None, 64, None, False, None),
    ]


def test_bf16(run, tmp_path):
    """Other scores, not far away, and the file says so."""
    run(tasks="SICK-R", pooler="mean", output=tmp_path / "a.json")
    run("--bf16", tasks="SICK-R", pooler="mean", output=tmp_path / "b.json")
    assert [read(tmp_path / f"{x}.json")["precision"] for x in "ab"] == ["fp32", "bf16"]
    first, second = (read(tmp_path / f"{x}.json")["tasks"]["SICK-R"]["pearson"] for x in "ab")
    assert 0 < abs(first - second) < 2


# As a command


def command(*options: str, home: Path) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "SENTEVAL_DATA"}
    environment |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, str(ROOT / "run_eval.py"), *options]
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


# Samples


@pytest.fixture
def titles(tmp_path) -> Path:
    """A labeled sample."""
    sentences = make_sentences(60)
    rows = ["text\tlabel", *(f"{sentence}\t{sentence.split()[0] < 'h'}" for sentence in sentences)]
    (tmp_path / "titles.tsv").write_text("\n".join(rows))
    return tmp_path / "titles.tsv"


@pytest.fixture
def faq(tmp_path) -> Path:
    """A search."""
    first, second = make_sentences(12, 1), make_sentences(12, 2)
    rows = [json.dumps({"query": a, "document": b, "negative": a[::-1]}) for a, b in zip(first, second)]
    (tmp_path / "faq.jsonl").write_text("\n".join(rows))
    return tmp_path / "faq.jsonl"


def test_samples_need_no_senteval(run, titles, faq, tmp_path, encoded, monkeypatch, bert):
    monkeypatch.setattr(eval_command, "senteval_folder", lambda given: pytest.fail("no data of SentEval are needed"))
    output = tmp_path / "out.json"
    code, out, _ = run(labels=titles, retrieval=faq, senteval_dir=None, output=output)
    assert code == 0 and list(read(output)["tasks"]) == ["titles", "faq"] and len(encoded) == len(set(encoded))
    first, second, seconds = out.split("\n\n")
    assert first.splitlines()[0] == "titles: 60 sentences of 2 classes, x 100" and seconds.startswith("Seconds")
    assert second.splitlines()[0] == "faq: search, 12 queries among 24 documents, x 100"
    expected = score_labels(lambda s: load_encoder(str(bert), ("cls",))(s)["cls"], load_labels(titles, "labels"))
    found = read(output)["tasks"]["titles"]["measures"]
    assert found == pytest.approx(expected, abs=1e-4)
    assert line(first, "tiny-bert, cls") == [f"{found[name]:.2f}" for name in LABELS]
    encoded.clear()
    assert run(labels=titles, retrieval=faq, senteval_dir=None, output=output)[1] == out and encoded == []


def test_samples_beside_tasks_compared_by_seed(run, bert, titles, tmp_path):
    other = another(bert, tmp_path / "other")
    assert run("--tasks", "STS-B", labels=titles, output=tmp_path / "before.json")[0] == 0
    models, compare = [other, another(bert, tmp_path / "third", 0.2)], tmp_path / "before.json"
    code, out, _ = run("--seeds", "--tasks", "STS-B", model_name=models, labels=titles, compare=compare)
    sts, table, *_ = out.split("\n\n")
    assert code == 0 and sts.startswith("STS, ") and table.startswith("titles: 60 ")
    before, after = (float(line(table, f"{name}, cls  ")[0]) for name in ("tiny-bert", "other"))
    assert float(line(table, "other, cls - tiny-bert, cls")[0]) == pytest.approx(after - before, abs=0.011)
    assert table.count("mean ± sd of these 2") == 2


def test_a_prompt_is_part_of_what_was_scored(run, titles, tmp_path):
    scores = []
    for prompt in (None, "the old"):
        code, out, _ = run(labels=titles, prompt=prompt, output=tmp_path / f"{prompt}.json")
        scores.append(read(tmp_path / f"{prompt}.json")["tasks"]["titles"]["measures"])
        assert code == 0 and read(tmp_path / f"{prompt}.json")["prompt"] == prompt
    assert scores[0] != scores[1] and "tiny-bert, cls, prompt 'the old'" in out
    code, _, err = run(labels=titles, output=tmp_path / "the old.json")
    assert code == 2 and "contains other results (prompt 'the old', now None)" in err


def test_another_file_of_the_same_name_is_not_compared(run, titles, tmp_path):
    run(labels=titles, output=tmp_path / "before.json")
    titles.write_text(titles.read_text() + "\nmore\tTrue\n")
    code, _, err = run(labels=titles, compare=tmp_path / "before.json")
    assert code == 2 and "was scored on another titles. Score it on this file." in err


@pytest.mark.parametrize(
    "option, content, message",
    [
        ("labels", None, "error: --labels: "),
        ("retrieval", None, "error: --retrieval: "),
        ("labels", "text\tlabel\na\tx\nb\tx\n", "sample.tsv has 2 different sentences with 1 label; expected two"),
        ("labels", "text\ttag\na\tx\n", "sample.tsv has no column label; its first line is text, tag."),
        ("retrieval", "query\tdocument\na\tb\n", "sample.tsv has 1 different document; expected two or more"),
    ],
)
def test_samples_that_cannot_be_scored(run, tmp_path, encoded, option, content, message):
    if content is not None:
        (tmp_path / "sample.tsv").write_text(content)
    code, out, err = run(**{option: tmp_path / "sample.tsv"})
    assert code == 2 and message in err and out == "" and encoded == []


def test_a_sample_whose_embeddings_are_nan(run, bert, titles, tmp_path):
    def broken(weights):
        weights["bert.embeddings.word_embeddings.weight"][:] = float("nan")

    code, out, _ = run(model_name=changed(bert, tmp_path / "broken", broken), labels=titles, output=tmp_path / "a.json")
    assert code == 1 and "broken, cls: titles has no score: the embeddings of 60 of 60 sentences are not finite." in out
    assert read(tmp_path / "a.json")["tasks"]["titles"]["score"] is None


def test_no_data_and_no_hub(bert, tmp_path):
    """One line that says what to do."""
    result = command("--model_name", str(bert), "--pooler", "cls", home=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1 and result.stderr.startswith(
        "error: senteval.tar cannot be downloaded from the Hub"
    )
    assert result.stderr.endswith(
        "Without the Hub, give --senteval_dir FOLDER (SentEval's data/downstream), or set SENTEVAL_DATA to it.\n"
    )


@pytest.mark.skipif(not (MINI.is_dir() and SENTEVAL.is_dir()), reason=f"{MINI} or {SENTEVAL} is not there")
def test_a_real_encoder_on_the_real_data(run, monkeypatch, tmp_path):
    small_counts(monkeypatch, 1)
    code, out, _ = run(model_name=MINI, tasks="STS-B", senteval_dir=SENTEVAL, output=tmp_path / "a.json")
    found = read(tmp_path / "a.json")["tasks"]["STS-B"]
    assert code == 0 and found["n"] == 1379 and found["score"] == pytest.approx(44.46, abs=0.02)
    assert line(out, "bert-mini-wiki, cls") == [f"{found['score']:.2f}", "-"]
