"""Every family of models with every action: the table in docs/models.md. No cell is left out.

python -m tests.models.any_encoder.test_matrix prints the table. A cell is `yes`, or the beginning of the one-line
refusal.
"""

import functools
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from informin.cli import compare as compare_command
from informin.cli import embed as embed_command
from informin.cli import eval as eval_command
from informin.cli import fit as fit_command
from informin.errors import UsageError
from informin.models.open_model import load_model
from tests.conftest import ROOT, make_sentences, save_bert
from tests.models.any_encoder.helpers import changed, general_trainer, interrupted, sentence_transformer, weights
from tests.models.any_encoder.st_models import FAMILIES, NATIVE, save_family

TEXTS = make_sentences(10)
TITLES = {
    "bert": "BERT, mean (native): all-MiniLM",
    "bge": "BERT, [CLS] (native): bge",
    "xlm-roberta": "XLM-RoBERTa, mean (native): multilingual-e5",
    "qwen3": "Qwen3 decoder, last token, left padding: Qwen3-Embedding",
    "gemma": "Gemma 3, mean, two Dense: EmbeddingGemma",
    "labse": "BERT, [CLS], Dense with Tanh: LaBSE, distiluse",
    "t5": "T5 encoder, mean, Dense: gtr-t5, sentence-t5",
    "static": "StaticEmbedding without config.json: static-retrieval-mrl-en",
    "potion": "StaticEmbedding with the files of model2vec: potion",
    "remote": "own modeling file: gte, jina v2, nomic",
}


def reference(folder: Path, trust: bool) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=trust)


def close(one: np.ndarray, other: np.ndarray) -> None:
    np.testing.assert_allclose(one, other, atol=1e-5)


def arguments(model: Path, **options) -> list[str]:
    more = ["--trust_remote_code"] if model.name == "remote" else []
    return [*(f"--{name}={value}" for name, value in options.items()), *more]


def embed(model: Path, out: Path) -> None:
    """Equal to sentence-transformers, from Python and from the command."""
    trust = model.name == "remote"
    encoder = load_model(str(model), device="cpu", trust_remote_code=trust)
    close(next(iter(encoder(TEXTS).values())), reference(model, trust).encode(TEXTS))
    file = out / "texts.txt"
    file.write_text("\n".join(TEXTS))
    options = dict(model_name=model, train_file=file, output=out / "vectors.npy", device="cpu")
    require(embed_command.main(arguments(model, **options)))
    close(np.load(out / "vectors.npy").astype(np.float32), reference(model, trust).encode(TEXTS))


def evaluate(model: Path, out: Path) -> None:
    """Labels, and retrieval with prompts for queries and documents."""
    labels, pairs, texts = out / "labels.tsv", out / "pairs.tsv", make_sentences(60)
    rows = [f"{text}\t{i % 3}" for i, text in enumerate(texts)]
    labels.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    rows = [f"{query}\t{document}" for query, document in zip(texts[:20], texts[20:40])]
    pairs.write_text("\n".join(["query\tdocument", *rows]) + "\n")
    prompts = dict(query_prompt="the ", document_prompt="a ")
    options = dict(model_name=model, labels=labels, retrieval=pairs, output=out / "scores", device="cpu") | prompts
    require(eval_command.main(arguments(model, **options)))


def fit(model: Path, out: Path) -> None:
    file = out / "texts.txt"
    file.write_text("\n".join(make_sentences(120)))
    require(fit_command.main(arguments(model, model_name=model, train_file=file, output_dir=out / "fit", device="cpu")))
    reference(out / "fit", model.name == "remote").encode(TEXTS)


def compare(model: Path, out: Path) -> None:
    file = out / "texts.txt"
    file.write_text("\n".join(make_sentences(120)))
    require(compare_command.main([str(model), *arguments(model, train_file=file, output_dir=out / "compare")]))


def guide(model: Path, out: Path) -> None:
    student = sentence_transformer(save_bert(out / "plain"), out / "student", prompt=None)
    options = dict(objective="guided", guided_weight=1.0, guide_model=str(model), view="dropout")
    run = general_trainer(student, out / "run", trust_remote_code=model.name == "remote", **options)
    run.train()
    assert np.isfinite(run.state.log_history[0]["loss"])


def train(model: Path, out: Path) -> None:
    run = general_trainer(model, out / "run")
    before = run.encode(TEXTS)
    run.train()
    assert np.abs(run.encode(TEXTS) - before).max() > 1e-4


def resume(model: Path, out: Path) -> None:
    whole, again = interrupted(general_trainer, model, out)
    assert not changed(weights(whole.model), weights(again.model))


def export(model: Path, out: Path) -> None:
    run = general_trainer(model, out / "run")
    run.train()
    run.export(out / "export")
    close(reference(out / "export", model.name == "remote").encode(TEXTS), run.encode(TEXTS))


def lora(model: Path, out: Path) -> None:
    run = general_trainer(model, out / "run", lora_r=4)
    run.train()
    run.export(out / "export")
    close(reference(out / "export", model.name == "remote").encode(TEXTS), run.encode(TEXTS))


def dropout_views(model: Path, out: Path) -> None:
    general_trainer(model, out / "run", view="dropout").train()


def require(code: int) -> None:
    assert code == 0


ACTIONS: dict[str, Callable[[Path, Path], None]] = {
    "embed": embed,
    "eval": evaluate,
    "fit": fit,
    "compare": compare,
    "guide": guide,
    "train": train,
    "resume": resume,
    "export": export,
    "LoRA": lora,
    "dropout views": dropout_views,
}


def cell(action: str, model: Path) -> str:
    """Return what a cell of the table says."""
    with tempfile.TemporaryDirectory() as out:
        try:
            ACTIONS[action](model, Path(out))
        except UsageError as error:
            return f"no: {error.found.replace(str(model), 'the model').partition(',')[0]}"
    return "yes"


def table(model_of: Callable[[str], Path]) -> str:
    """Return the table as Markdown."""
    lines = [f"| | {' | '.join(ACTIONS)} |", f"|---|{'---|' * len(ACTIONS)}"]
    for name, title in TITLES.items():
        lines.append(f"| {title} | {' | '.join(cell(action, model_of(name)) for action in ACTIONS)} |")
    return "\n".join(lines)


@functools.cache
def shown() -> dict[tuple[str, str], str]:
    """Return the cells of the table in the docs, by family and action."""
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|")]
    return {
        (name, action): text
        for row in rows
        for name, title in TITLES.items()
        if row[0] == title
        for action, text in zip(ACTIONS, row[1:], strict=True)
    }


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("name", TITLES)
def test_the_docs_show_what_every_cell_does(family, name, action):
    assert TITLES.keys() == {*NATIVE, *FAMILIES}
    assert shown()[name, action] == cell(action, family(name))


def test_the_page_has_every_family():
    rows = re.findall(r"^\| (.*?) \|.*tiny random copy", (ROOT / "docs" / "models.md").read_text(), re.MULTILINE)
    assert len(rows) >= len(FAMILIES)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(table(functools.cache(lambda name: save_family(name, Path(folder, f"of-{name}")))))
