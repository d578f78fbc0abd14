"""How to compute embeddings with the model: the values of the card's usage section."""

import json
from pathlib import Path
from typing import Any

from informin.files import read_json
from informin.publishing.card.markdown import Markdown, code, escape, in_quotes

ST = "st"  # the pooling of a SentenceTransformer: `informin.models.st_loading.POOLER`
EMBEDDINGS = {
    "cls": "the [CLS] vector",
    "mean": "the mean of its token vectors",
    "last": "the vector of its last token",
    ST: "the output of the model's own modules",
}


def usage(settings: dict, training_prompt: str) -> dict[str, str]:
    """Describe the embedding in words and in code, for torch and for NumPy.

    Args:
        settings: `config.informin`.
        training_prompt: Prompt used in training.
    """
    pooling, prompt = settings.get("pooling", "cls"), settings.get("prompt", "")
    unit = ", normalized to unit length" if settings.get("normalize") else ""
    pooled = {
        "cls": "{}[:, 0]",
        "mean": '{}\nmask = batch["attention_mask"][..., None]\nembeddings = (embeddings * mask).sum(1) / mask.sum(1)',
        "last": '{}\nembeddings = embeddings[range(len(embeddings)), batch["attention_mask"].sum(1) - 1]',
        ST: "{}",  # the card shows no such code
    }[pooling]
    if unit:
        pooled += "\nembeddings = embeddings / (embeddings**2).sum(1)[:, None] ** 0.5"
    texts = [training_prompt + text for text in ("A dog sleeps.", "The dog is asleep.")]
    embedding = EMBEDDINGS[pooling] + unit
    return {
        "embedding": embedding,
        "pooler_output": embedding if embedding == EMBEDDINGS["cls"] else "the embedding",
        "prompt": _prompt_note(prompt, training_prompt),
        "encode_prompt": Markdown("" if prompt == training_prompt else f', prompt="{in_quotes(training_prompt)}"'),
        "texts": Markdown(json.dumps(texts, ensure_ascii=False)),
        "torch_embeddings": Markdown(pooled.format("model(**batch).last_hidden_state")),
        "onnx_embeddings": Markdown(pooled.format('session.run(["last_hidden_state"], inputs)[0]')),
    }


def _prompt_note(prompt: str, training_prompt: str) -> Markdown:
    """Say which prompt to use. `prompt` is the default prompt of sentence-transformers, which may be empty."""
    default, trained = (code(" ".join(text.split())) if text else "" for text in (prompt, training_prompt))
    if prompt == training_prompt:
        note = f"Every sentence needs the prompt {default}, which sentence-transformers adds automatically."
        return Markdown(note if default else "")
    training = f"Training used the prompt {trained}" if trained else "Training used no prompt"
    added = f"sentence-transformers adds {default} by default" if default else "sentence-transformers adds none"
    advice = "pass `prompt` to `encode`" + (", or prepend it to your sentences" if not default else "")
    return Markdown(f"{training}, but {added}: {advice}.")


def onnx_files(folder: Path) -> Markdown:
    """List the ONNX files, with their scores if they were evaluated."""
    path = folder / "onnx" / "scores.json"
    scored: dict[str, Any] = read_json(path) if path.is_file() else {"pairs": "", "spearman": {}}
    files = []
    for file in sorted(folder.glob("onnx/*.onnx")):
        score = scored["spearman"].get(file.name)
        note = f" ({escape(scored['pairs'])} {score:.2f})" if score is not None else ""
        files.append(code(f"onnx/{file.name}") + note)
    return Markdown(", ".join(files))
