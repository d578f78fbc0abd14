"""`informin eval`: labeled samples and retrieval pairs."""

import json
from pathlib import Path

import pytest

from informin.evaluation.labels import load_labels, score_labels
from informin.evaluation.measures import LABELS
from informin.jobs import evaluate as job
from informin.models.open_model import load_model
from tests.cli.eval_command.helpers import another, changed, line, read
from tests.conftest import make_sentences


@pytest.fixture
def titles(tmp_path) -> Path:
    """Write a labeled sample."""
    sentences = make_sentences(60)
    rows = ["text\tlabel", *(f"{sentence}\t{sentence.split()[0] < 'h'}" for sentence in sentences)]
    (tmp_path / "titles.tsv").write_text("\n".join(rows))
    return tmp_path / "titles.tsv"


@pytest.fixture
def faq(tmp_path) -> Path:
    """Write a retrieval sample."""
    first, second = make_sentences(12, 1), make_sentences(12, 2)
    rows = [json.dumps({"query": a, "document": b, "negative": a[::-1]}) for a, b in zip(first, second)]
    (tmp_path / "faq.jsonl").write_text("\n".join(rows))
    return tmp_path / "faq.jsonl"


def test_samples_need_no_senteval(run, titles, faq, tmp_path, encoded, monkeypatch, bert):
    monkeypatch.setattr(job, "senteval_folder", lambda given: pytest.fail("SentEval's data is not needed"))
    output = tmp_path / "out.json"
    code, out, _ = run(labels=titles, retrieval=faq, senteval_dir=None, output=output)
    assert code == 0 and list(read(output)["tasks"]) == ["titles", "faq"] and len(encoded) == len(set(encoded))
    first, second, seconds = out.split("\n\n")
    assert first.splitlines()[0] == "titles: 60 sentences of 2 classes, x 100" and seconds.startswith("Seconds")
    assert second.splitlines()[0] == "faq: search, 12 queries among 24 documents, x 100"
    expected = score_labels(lambda s: load_model(str(bert), ("cls",))(s)["cls"], load_labels(titles, "labels"))
    found = read(output)["tasks"]["titles"]["measures"]
    assert found == pytest.approx(expected, abs=1e-4)
    assert line(first, "tiny-bert, cls") == [f"{found[name]:.2f}" for name in LABELS]
    encoded.clear()
    assert run(labels=titles, retrieval=faq, senteval_dir=None, output=output)[1] == out and encoded == []


def test_samples_and_tasks_compared_by_seed(run, bert, titles, tmp_path):
    other = another(bert, tmp_path / "other")
    assert run("--tasks", "STS-B", labels=titles, output=tmp_path / "before.json")[0] == 0
    models, compare = [other, another(bert, tmp_path / "third", 0.2)], tmp_path / "before.json"
    code, out, _ = run("--seeds", "--tasks", "STS-B", model_name=models, labels=titles, compare=compare)
    sts, table, *_ = out.split("\n\n")
    assert code == 0 and sts.startswith("STS, ") and table.startswith("titles: 60 ")
    before, after = (float(line(table, f"{name}, cls  ")[0]) for name in ("tiny-bert", "other"))
    assert float(line(table, "other, cls - tiny-bert, cls")[0]) == pytest.approx(after - before, abs=0.011)
    assert table.count("mean ± sd of these 2") == 2


def test_prompt_is_part_of_the_results(run, titles, tmp_path):
    scores = []
    for prompt in (None, "the old"):
        code, out, _ = run(labels=titles, prompt=prompt, output=tmp_path / f"{prompt}.json")
        scores.append(read(tmp_path / f"{prompt}.json")["tasks"]["titles"]["measures"])
        assert code == 0 and read(tmp_path / f"{prompt}.json")["prompt"] == prompt
    assert scores[0] != scores[1] and "tiny-bert, cls, prompt 'the old'" in out
    code, _, err = run(labels=titles, output=tmp_path / "the old.json")
    assert code == 2 and "contains other results (prompt 'the old', now None)" in err


def test_results_on_another_file_of_the_same_name_are_not_compared(run, titles, tmp_path):
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
def test_unusable_samples_are_rejected(run, tmp_path, encoded, option, content, message):
    if content is not None:
        (tmp_path / "sample.tsv").write_text(content)
    code, out, err = run(**{option: tmp_path / "sample.tsv"})
    assert code == 2 and message in err and out == "" and encoded == []


def test_sample_with_nan_embeddings_has_no_score(run, bert, titles, tmp_path):
    def broken(weights):
        weights["bert.embeddings.word_embeddings.weight"][:] = float("nan")

    code, out, _ = run(model_name=changed(bert, tmp_path / "broken", broken), labels=titles, output=tmp_path / "a.json")
    assert code == 1 and "broken, cls: titles has no score: the embeddings of 60 of 60 sentences are not finite." in out
    assert read(tmp_path / "a.json")["tasks"]["titles"]["score"] is None


def test_columns_of_labeled_files(run, tmp_path, encoded):
    file, output = tmp_path / "tickets.csv", tmp_path / "out.json"
    rows = [f"{sentence},{n % 2},{n % 3}" for n, sentence in enumerate(make_sentences(60))]
    file.write_text("\n".join(["title,team,priority", *rows]))
    options = {"labels": file, "text_column": "title", "senteval_dir": None}
    code, out, _ = run(**options, label_column="team", output=output)
    assert code == 0 and out.startswith("tickets: 60 sentences of 2 classes, x 100")
    assert read(output)["tasks"]["tickets"]["data"]["tickets.csv"].endswith(" (title, team)")
    encoded.clear()
    assert run(**options, label_column="team", output=output)[0] == 0 and not encoded
    code, _, err = run(**options, label_column="priority", compare=output)
    assert code == 2 and "was scored on another tickets" in err


def test_columns_without_labeled_files_are_refused(run, faq):
    code, _, err = run(retrieval=faq, label_column="tag", senteval_dir=None)
    assert code == 2 and "--label_column has no effect without --labels" in err
