"""`informin eval`: options, wrong options, and embeddings that cannot be scored."""

import hashlib
import os
import re
import shutil

import numpy as np
import pytest
from scipy.stats import pearsonr

from informin.cli import eval as eval_command
from informin.evaluation.senteval import TRANSFER_TASKS, load_task
from informin.models import open_model
from informin.models.open_model import load_model
from tests.cli.eval_command.helpers import changed, line, read
from tests.conftest import make_sentences, tokenizer_of


def test_dev_split(run, tmp_path):
    """Groups contain only tasks with a dev split. Transfer tasks report the accuracy that selects C."""
    code, out, _ = run(split="dev", output=tmp_path / "a.json")
    found = read(tmp_path / "a.json")
    assert code == 0 and found["split"] == "dev"
    assert list(found["tasks"]) == ["STS-B", "SICK-R", *TRANSFER_TASKS] and "by aggregation" not in out
    assert all(found["tasks"][name]["score"] == found["tasks"][name]["dev"] for name in TRANSFER_TASKS)
    assert list(found["tasks"]["STS-B"]["data"]) == ["STS/STSBenchmark/sts-dev.csv"]
    assert found["average"]["sts"] is None and found["average"]["transfer"] > 0
    code, _, err = run(split="dev", tasks=["STS14", "STS-B"])
    assert code == 2 and "error: --tasks contains STS14, which has no dev split;" in err


def expected_whitening(x: np.ndarray, fitted_on: np.ndarray, dimensions: int | None) -> np.ndarray:
    """Whiten with the eigenvectors of the covariance, without those for 0: outputs of LayerNorm sum to 0."""
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
    found, encoder = read(tmp_path / "a.json"), load_model(str(bert), ("cls",))
    digest = hashlib.sha256(sentences.read_bytes()).hexdigest()
    fitted_on = f"fit.txt (SHA-256 {digest})" if file else "the sentences of each task"
    few = dimensions is None and not file
    assert code == few and found["whitening"] == {"dimensions": dimensions, "fitted_on": fitted_on}
    assert f"tiny-bert, cls, whitening{f' {dimensions}' if dimensions else ''}  " in out
    for name in ("STS-B", "SICK-R"):
        task = load_task(data, name)
        own = task.sentences()
        if name == "STS-B" and few:  # as many dimensions as sentences: all angles are equal
            assert len(own) <= 32 < len(load_task(data, "SICK-R").sentences())
            assert found["tasks"][name]["error"].startswith(f"{len(own)} sentences cannot be whitened to 32 dimensions")
            continue
        fit = encoder(make_sentences(80, seed=5) if file else own)["cls"].astype(float)
        vectors = dict(zip(own, expected_whitening(encoder(own)["cls"].astype(float), fit, dimensions)))
        pairs = task.subsets[0]
        x, y = (np.stack([vectors[s] for s in side]) for side in (pairs.sentences1, pairs.sentences2))
        cosines = (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
        expected = 100 * pearsonr(cosines, pairs.scores).statistic  # ranks of equal pairs would depend on rounding
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
def test_wrong_options_are_rejected_before_encoding(run, bert, options, message, encoded):
    """Prints one line and exits with code 2."""
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
def test_unknown_options_and_choices_are_rejected(option):
    with pytest.raises(SystemExit, match="2"):
        eval_command.main(["--model_name", "x", *option])


def test_damaged_data_is_found_before_scoring(run, data, tmp_path, encoded):
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
def test_nan_embeddings_have_no_score(run, bert, tmp_path, whitening, scored):
    """Only STS-B and TREC contain the unknown token, whose embedding is NaN. The other tasks are scored."""

    def one_nan(weights):
        weights["bert.embeddings.word_embeddings.weight"][1, 0] = float("nan")

    model, output = changed(bert, tmp_path / "broken", one_nan), tmp_path / "a.json"
    tasks = ["STS12", "STS-B", "MR", "TREC"]
    flags = ["--whitening", "4"] if whitening else []
    code, out, _ = run(*flags, model_name=model, tasks=tasks, output=output)
    found = read(output)["tasks"]
    assert code == 1 and [name for name in tasks if found[name]["score"] is None] == ["STS-B", "TREC"]
    name = f"broken, cls{', whitening 4' if whitening else ''}"
    assert line(out, f"{name}  ") == [f"{found['STS12']['score']:.2f}", "-", "-"]
    for task in ("STS-B", "TREC"):
        assert re.fullmatch(r"the embeddings of \d+ of \d+ sentences are not finite", found[task]["error"])
        assert f"\n{name}: {task} has no score: {found[task]['error']}.\n" in out
        assert set(found[task]) == {"score", "n", "error", "truncated", "data", "seconds"} and found[task]["n"] > 0
    scored.clear()
    assert run(*flags, model_name=model, tasks=tasks, output=output)[0] == 1
    assert scored == ["STS-B", "TREC"], "tasks without a score are scored again"
    assert run(*flags, model_name=model, tasks=["STS12", "MR"], output=output)[0] == 0


def test_nan_in_whitening_sentences(run, bert, tmp_path):
    def one_nan(weights):
        weights["bert.embeddings.word_embeddings.weight"][1, 0] = float("nan")

    (tmp_path / "fit.txt").write_text("the dog\na quaint cat\n")
    model = changed(bert, tmp_path / "broken", one_nan)
    code, out, _ = run(model_name=model, tasks="STS12", whitening=1, whitening_file=tmp_path / "fit.txt")
    assert code == 1 and re.search(r"STS12 has no score: the embeddings of (\d+) of \1 sentences are not finite\.", out)


@pytest.mark.parametrize("whitening", [False, True])
def test_equal_embeddings_have_no_correlation(run, bert, tmp_path, whitening):
    """A classifier can still predict the largest class."""

    def constant(weights):
        weights["bert.encoder.layer.1.output.LayerNorm.weight"].zero_()

    model = changed(bert, tmp_path / "flat", constant)
    flags = ["--whitening", "4"] if whitening else []
    code, out, _ = run(*flags, model_name=model, tasks=["STS-B", "MRPC"], output=tmp_path / "a.json")
    found = read(tmp_path / "a.json")["tasks"]
    assert code == 1 and re.search(r"STS-B has no score: all \d+ predictions are equal, so the correlation is", out)
    assert found["STS-B"]["score"] is None and found["MRPC"]["score"] == pytest.approx(200 / 3, abs=1)


def test_truncated_sentences_are_counted(run, bert, data, tmp_path):
    """Counts per task include sentences that an earlier task has."""
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

    def spy(*inputs, prompt, **backend):
        calls.append((*inputs, prompt, *backend.values()))
        return load_model(*inputs[:4], "cpu", inputs[5], prompt=prompt)

    monkeypatch.setattr(open_model, "load_model", spy)
    backend = dict(backend="native", code_revision="v1")
    how = dict(prompt="the", device="mps", batch_size=3, max_length=9, pooler=["mean", "cls"])
    run("--bf16", "--trust_remote_code", tasks="STS-B", **how, **backend)
    run(tasks="STS-B", device=None)
    assert calls == [
        (str(bert), ("mean", "cls"), 9, 3, "mps", True, "the", "native", True, "v1"),
        (str(bert), ("cls",), None, 64, None, False, None, "auto", False, None),
    ]


def test_bf16_changes_scores_slightly(run, tmp_path):
    """The file records the precision."""
    run(tasks="SICK-R", pooler="mean", output=tmp_path / "a.json")
    run("--bf16", tasks="SICK-R", pooler="mean", output=tmp_path / "b.json")
    assert [read(tmp_path / f"{x}.json")["precision"] for x in "ab"] == ["fp32", "bf16"]
    first, second = (read(tmp_path / f"{x}.json")["tasks"]["SICK-R"]["pearson"] for x in "ab")
    assert 0 < abs(first - second) < 2
