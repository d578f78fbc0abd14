"""Lines that many texts share: found, named and removed."""

import logging

import numpy as np
import pytest

import informin
from informin.cli import compare as compare_command
from informin.cli import fit as fit_command
from informin.jobs.shared_lines import FEWEST, SharedLine, checked_lines, find_shared_lines, without_shared_lines
from tests.conftest import make_sentences, raises_usage

BODIES = make_sentences(60)
END = "\n\n  Best regards,\nYour support\n"
TICKETS = [f"Hello,\n{text}\n{i}{END}" if i % 2 else f"{text}\n{i}" for i, text in enumerate(BODIES)]
PLAIN = [f"{text}\n{i}" for i, text in enumerate(BODIES)]
FOUND = {SharedLine("Hello,", False, 30), SharedLine("Your support", True, 30), SharedLine("Best regards,", True, 30)}
HOW = {"preset": "short_texts", "device": "cpu"}


def test_greeting_and_signature_are_found_and_removed():
    shared = find_shared_lines(TICKETS)
    assert {*shared} == FOUND and len(shared) == 3
    assert without_shared_lines(TICKETS, shared) == PLAIN
    assert find_shared_lines(PLAIN) == []


def test_the_only_line_stays_and_other_texts_do_not_change():
    texts = ["Hello,", "Hello,\n\nBest regards,\nYour support", " a \n", "\nb\n\n c\n"]
    expected = ["Hello,", "Best regards,", *texts[2:]]
    assert without_shared_lines(texts, find_shared_lines(TICKETS)) == expected


def test_rare_lines_and_few_texts_are_no_boilerplate():
    assert find_shared_lines(TICKETS[: FEWEST - 1] * 3) == [] == find_shared_lines(BODIES)
    assert find_shared_lines([*PLAIN, *(f"{i}\nRe: order" for i in range(5))]) == []
    assert len(find_shared_lines([*PLAIN, *(f"{i}\nRe: order" for i in range(6))])) == 1
    many = [f"{i}\nbody {i}" for i in range(1000)]
    assert find_shared_lines([*many, *(f"{i}\nRe: order" for i in range(50))]) == []
    assert find_shared_lines([*PLAIN, *["a\nthe same text"] * 50]) == []  # copies of one text


def test_the_sentence_about_them():
    texts, message = checked_lines(TICKETS, strip=False)
    assert texts == TICKETS and message.startswith(
        "30 texts begin with the line 'Hello,', and many share 2 other lines"
    )
    assert message.endswith("become each other's neighbors. `strip_shared_lines` removes these lines.")
    texts, message = checked_lines(TICKETS, strip=True)
    assert texts == PLAIN and message.endswith("`strip_shared_lines` removed them.")
    assert checked_lines(PLAIN, strip=True) == (PLAIN, None)


def test_fit_names_and_removes_them(sentences, caplog):
    with caplog.at_level(logging.WARNING):
        given = informin.fit(sentences, TICKETS, **HOW)
        assert "`strip_shared_lines` removes these lines" in caplog.text
        stripped = informin.fit(sentences, TICKETS, strip_shared_lines=True, **HOW)
        assert "`strip_shared_lines` removed them" in caplog.text
    plain = informin.fit(sentences, PLAIN, **HOW)
    assert np.array_equal(stripped.vectors, plain.vectors) and not np.allclose(given.vectors, plain.vectors)
    assert stripped.options["strip_shared_lines"] and "strip_shared_lines" not in given.options


def test_compare_has_a_note(sentences):
    given, plain = (informin.compare(sentences, texts, device="cpu") for texts in (TICKETS, PLAIN))
    stripped = informin.compare(sentences, TICKETS, strip_shared_lines=True, device="cpu")
    assert given.notes[-1].startswith("30 texts begin with the line 'Hello,'")
    assert stripped.entries[0].mean_cosine == plain.entries[0].mean_cosine != given.entries[0].mean_cosine
    assert stripped.notes[-1].endswith("`strip_shared_lines` removed them.")


def test_embeddings_of_the_original_texts_are_refused(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(60, 4))
    np.save(tmp_path / "x.npy", vectors)
    with raises_usage(option="strip_shared_lines", found="`embeddings` are those of the original ones"):
        informin.fit(texts=TICKETS, embeddings=vectors, strip_shared_lines=True)
    with raises_usage(option="strip_shared_lines", found="x.npy has the embeddings of the original ones"):
        informin.compare([str(tmp_path / "x.npy")], TICKETS, strip_shared_lines=True)


@pytest.mark.parametrize("command", [fit_command, compare_command], ids=["fit", "compare"])
def test_commands(command, sentences, tmp_path, capfd, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tickets.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in TICKETS))
    model = ["--model_name", str(sentences), "--preset", "short_texts"] if command is fit_command else [str(sentences)]
    options = [*model, "--train_file", "tickets.csv", "--output_dir", "o", "--strip_shared_lines", "--device", "cpu"]
    with caplog.at_level(logging.WARNING):
        assert command.main(options) == 0
    assert "strip_shared_lines` removed" in caplog.text or "--strip_shared_lines removed" in capfd.readouterr().out
    capfd.readouterr()
