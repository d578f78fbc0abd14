"""`informin analyze`: every figure with tiny models, and wrong options."""

import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from informin.cli import analyze as analyze_command
from informin.cli import eval as eval_command
from informin.evaluation import score_pairs
from informin.evaluation.senteval import load_task
from informin.figures import paper_figures as figures
from informin.figures.paper_figures import read_log
from informin.models.open_model import load_model
from run_unsup import main as train
from tests.conftest import make_sentences
from tests.senteval_data import small_counts, write_senteval

SHARE = 0.02
SHOWN = ("conditional_entropy", "infonce_bound", "spearman")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_senteval(tmp_path_factory.mktemp("senteval"), SHARE)


@pytest.fixture(autouse=True)
def small_data(monkeypatch, logging_as_before):
    small_counts(monkeypatch, SHARE)
    monkeypatch.delenv("SENTEVAL_DATA", raising=False)


@pytest.fixture
def sentences(tmp_path) -> Path:
    """Return sentences with function words, which have a style."""
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join([*make_sentences(60, seed=3), "", "the dog  runs"]) + "\n")
    return path


@pytest.fixture
def draw(tmp_path, capsys):
    """Return a function that runs the command and returns exit code, output and the rows of the CSV."""

    def draw(figure: str, **options):
        argv = [figure, f"--output={tmp_path / 'figure'}"]
        for name, value in options.items():
            argv += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
        code = analyze_command.main(argv)
        out = capsys.readouterr()
        rows = []
        if code == 0:
            for kind in ("png", "svg"):
                assert (tmp_path / f"figure.{kind}").stat().st_size > 1000
            rows = list(csv.DictReader((tmp_path / "figure.csv").read_text(encoding="utf-8").splitlines()))
            assert out.out.splitlines()[-1] == str(tmp_path / "figure.csv")
        return code, out, rows

    return draw


def test_alignment_equals_the_trainers_and_colors_use_results(draw, bert, roberta, data, tmp_path, monkeypatch):
    results = tmp_path / "bert.json"
    argv = ["--model_name", str(bert), "--pooler", "mean", "--tasks", "sts", "--senteval_dir", str(data)]
    assert eval_command.main([*argv, "--output", str(results)]) == 0
    scored = []
    score = figures.score_encoder
    monkeypatch.setattr(figures, "score_encoder", lambda *args: scored.append(args[0].name) or score(*args))
    options = dict(model_name=[bert, roberta], pooler="mean", senteval_dir=data, split="dev")
    code, out, rows = draw("alignment", **options, results=[results])
    assert code == 0 and scored == [str(roberta)]  # the other's average was in the file
    _, _, again = draw("alignment", **options)
    assert again == rows and scored == [str(roberta), str(bert), str(roberta)]
    (pairs,) = load_task(data, "STS-B", "dev").subsets
    encoder = load_model(str(bert), ["mean"])
    expected = score_pairs(lambda wanted: encoder(wanted)["mean"], pairs)
    assert rows[0]["name"] == "tiny-bert"
    for name in ("alignment", "uniformity"):
        assert float(rows[0][name]) == pytest.approx(expected[name], rel=1e-4)
    assert f"{expected['alignment']:.3f}" in out.out and "STS-B dev" in out.out


def test_results_of_another_split_or_pooler_are_not_used_for_the_average(bert, data, tmp_path):
    encoder = load_model(str(bert), ["mean"])
    found = {"weights_sha256": encoder.weights_sha256(), "pooler": "mean", "whitening": None, "split": "test"}
    found |= {"max_length": encoder.length, "precision": "fp32", "prompt": None}
    assert figures.is_of(found, encoder)
    changes = {"pooler": "cls", "split": "dev", "whitening": {"dimensions": 8}, "weights_sha256": "0", "max_length": 8}
    for name, value in (changes | {"precision": "bf16", "prompt": "query: "}).items():
        assert not figures.is_of(found | {name: value}, encoder), name


def test_tsne_of_a_sample(draw, bert, roberta, sentences):
    options = dict(model_name=[bert, roberta], pooler="mean", train_file=sentences, max_sentences=40, clusters=3)
    code, _, rows = draw("tsne", **options)
    assert code == 0 and len(rows) == 80 and {row["cluster"] for row in rows} == {"0", "1", "2"}
    first = [row["sentence"] for row in rows if row["checkpoint"] == "tiny-bert"]
    assert len(set(first)) == 40 and first == [row["sentence"] for row in rows if row["checkpoint"] == "tiny-roberta"]
    assert draw("tsne", **options)[2] == rows
    other = draw("tsne", **(options | {"seed": 1}))[2]
    assert [row["sentence"] for row in other[:40]] != first


def test_tsne_of_labeled_sentences(draw, bert, tmp_path):
    lines = dict.fromkeys(make_sentences(40))
    rows = [f"{line}\t{'cat' if i % 3 else ' dog'}\n" for i, line in enumerate(lines)]
    (tmp_path / "labeled.tsv").write_text("".join(["text\tlabel\n", *rows, rows[1].replace("cat", "bird")]))
    code, _, drawn = draw("tsne", model_name=[bert], pooler="mean", train_file=tmp_path / "labeled.tsv")
    found = {f"{row['sentence']}\t{row['label']}" for row in drawn}
    assert code == 0 and found == {row.strip().replace("\t ", "\t") for row in rows}


def test_cosines(draw, bert, data):
    code, _, rows = draw("cosines", model_name=bert, pooler="cls", senteval_dir=data, split="test")
    (pairs,) = load_task(data, "STS-B", "test").subsets
    x = load_model(str(bert), ["cls"])([pairs.sentences1[3], pairs.sentences2[3]])["cls"]
    expected = x[0] @ x[1] / np.linalg.norm(x[0]) / np.linalg.norm(x[1])
    assert code == 0 and len(rows) == len(pairs)
    assert float(rows[3]["cosine"]) == pytest.approx(expected, abs=1e-5)
    assert float(rows[3]["gold"]) == pairs.scores[3]


def test_curves_of_a_run(draw, command, tmp_path):
    assert train(command()) == 0
    code, _, rows = draw("curves", run=tmp_path / "run")
    assert code == 0 and [row["step"] for row in rows] == ["0", "2", "4"]
    assert rows[0]["eval_spearman"] and rows[1]["terms/contrast"] and not rows[0]["terms/contrast"]
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")  # as if an earlier checkpoint had the best score
    for _ in range(2):
        code, _, again = draw("curves", run=tmp_path / "run")
        assert code == 0 and [row["step"] for row in again] == ["0", "2", "4"]
        assert again[2]["terms/contrast"] == rows[2]["terms/contrast"], "report.json has the whole log"
        shutil.rmtree(tmp_path / "run" / "checkpoint-2", ignore_errors=True)


def test_information_of_runs(draw, command, tmp_path):
    """Scores are those at or before a log entry; without evaluation there are none."""
    options = dict(measure_information=True, logging_steps=1)
    assert train(command(**options, eval_steps=2, output_dir=tmp_path / "one")) == 0
    never = dict(eval_strategy="no", eval_pairs=None, load_best_model_at_end=False)
    assert train(command(**options, **never, output_dir=tmp_path / "two")) == 0
    code, out, rows = draw("information", run=[tmp_path / "one", tmp_path / "two"])
    assert code == 0 and [(row["run"], row["step"]) for row in rows] == [(r, s) for r in ("one", "two") for s in "1234"]
    log = {entry["step"]: entry for entry in read_log(tmp_path / "one") if "loss" in entry}
    scores = {entry["step"]: entry["eval_spearman"] for entry in read_log(tmp_path / "one") if "eval_spearman" in entry}
    assert [float(row["spearman"]) for row in rows[:4]] == [scores[step] for step in (0, 2, 2, 4)]
    assert [row["spearman"] for row in rows[4:]] == [""] * 4
    for name in ("infonce_bound", "conditional_entropy"):
        assert [float(row[name]) for row in rows[:4]] == [log[step][name] for step in (1, 2, 3, 4)]
    (line,) = [line.split() for line in out.out.splitlines() if line.startswith("one")]
    assert line == ["one", *(f"{float(rows[3][name]):.3f}" for name in SHOWN)]


def test_runs_without_measures_of_information_are_rejected(draw, command, tmp_path):
    assert train(command()) == 0
    code, out, _ = draw("information", run=tmp_path / "run")
    assert code == 2 and "has no measures of information. Train it again with `measure_information`." in out.err


def test_redundancy_with_differences(draw, bert, roberta, sentences):
    code, out, rows = draw("redundancy", model_name=[roberta], compare=bert, pooler="mean", train_file=sentences)
    assert code == 0
    assert [row["checkpoint"] for row in rows] == ["tiny-bert"] * 5 + ["tiny-roberta"] * 5
    by_kind = {row["kind"]: row for row in rows[:5]}
    assert float(by_kind["capitalized"]["cosine"]) == 1  # an uncased tokenizer
    assert float(by_kind["capitalized"]["style_accuracy"]) == 50
    assert float(by_kind["content changed"]["cosine"]) < 1
    lines = out.out.splitlines()
    gains = [line.split() for line in lines if line.startswith("tiny-roberta - tiny-bert")]
    assert len(gains) == 2
    change = float(rows[9]["cosine"]) - float(rows[4]["cosine"])
    assert gains[0][-1] == f"{change:+.3f}"


def test_drift_against_another(draw, bert, roberta, data, tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("\n".join(make_sentences(70, seed=3)))
    options = dict(model_name=roberta, compare=bert, pooler="mean", train_file=path, max_sentences=50)
    code, out, rows = draw("drift", **options, senteval_dir=data)
    assert code == 0 and [row["checkpoint"] for row in rows] == ["tiny-roberta"] * 50
    lines = out.out.splitlines()
    assert lines[:2] == ["Drift on 50 sentences", lines[1]] and lines[1].split() == ["tiny-bert", "tiny-roberta"]
    kept = sum(int(row["neighbors_kept"]) for row in rows) / 5
    assert lines[2].split()[-2:] == ["100.0", f"{kept:.1f}"] and kept < 60
    (pairs,) = load_task(data, "STS-B", "dev").subsets
    encoders = [load_model(str(name), ["mean"]) for name in (bert, roberta)]
    scores = [score_pairs(lambda wanted, e=e: e(wanted)["mean"], pairs)["spearman"] for e in encoders]
    assert next(line for line in lines if line.startswith("STS-B dev")).split()[-2:] == [f"{x:.2f}" for x in scores]
    assert any(line.startswith("tiny-roberta changed neighborhoods: sentences kept") for line in lines)
    _, out, again = draw("drift", **options)
    assert [row["sentence"] for row in again] == [row["sentence"] for row in rows] and "not scored" in out.out
    assert [row["sentence"] for row in draw("drift", **options, seed=1)[2]] != [row["sentence"] for row in rows]


def test_folders_with_the_same_name_are_shown_with_paths(draw, bert, sentences, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run").symlink_to(bert)
    names = [str(tmp_path / name / "run") for name in ("a", "b")]
    _, _, rows = draw("tsne", model_name=names, pooler="cls", train_file=sentences, clusters=2)
    assert list(dict.fromkeys(row["checkpoint"] for row in rows)) == names


@pytest.mark.parametrize(
    "figure, options, message",
    [
        ("tsne", {"train_file": "PATH/absent.txt"}, "--train_file: PATH/absent.txt does not exist"),
        ("tsne", {"train_file": "PATH/blank.txt"}, "--train_file names PATH/blank.txt, which contains no sentence"),
        (
            "tsne",
            {"train_file": "PATH/few.txt", "output": "PATH/"},
            "--output is PATH/; expected the path of the files",
        ),
        ("tsne", {"train_file": "PATH/few.txt", "max_sentences": "-5"}, "--max_sentences is -5; expected 1 or more"),
        ("tsne", {"train_file": "PATH/few.txt"}, "t-SNE has only 2 sentences; expected at least 30"),
        ("tsne", {"train_file": "PATH/few.txt", "pooler": "auto"}, "is auto, but the pooling of"),
        ("redundancy", {"train_file": "PATH/few.txt"}, "Found too few sentences with a variant"),
        ("cosines", {"senteval_dir": "PATH"}, "STS/STSBenchmark/sts-dev.csv does not exist"),
        ("drift", {"train_file": "PATH/few.txt", "compare": "BERT"}, "Found 2 distinct sentences; expected 30 or more"),
        (
            "drift",
            {"train_file": "PATH/blank.txt", "compare": "BERT"},
            "--train_file names PATH/blank.txt, which contains no sentence",
        ),
        ("alignment", {"senteval_dir": "DATA", "results": "PATH/few.txt"}, "a results file of `informin eval`"),
    ],
)
def test_wrong_options(draw, bert, data, tmp_path, figure, options, message):
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "few.txt").write_text("the dog\nthe cat\n")
    known = {"PATH": tmp_path, "DATA": data, "BERT": bert}
    paths = {name: re.sub("|".join(known), lambda match: str(known[match[0]]), x) for name, x in options.items()}
    code, out, _ = draw(figure, model_name=bert, **({"pooler": "cls"} | paths))
    assert code == 2
    assert re.match(r"error: .*" + re.escape(message.replace("PATH", str(tmp_path))), out.err.splitlines()[-1])
    assert not list(tmp_path.glob("figure*"))


def test_curves_of_no_run(draw, tmp_path):
    code, out, _ = draw("curves", run=tmp_path)
    assert code == 2 and f"{tmp_path} has no complete checkpoint" in out.err
