"""Limitations that follow from the files of an exported folder."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from informin.errors import counted
from informin.files import read_json
from informin.publishing.card.markdown import Markdown, escape
from informin.publishing.card.scores import Results
from informin.publishing.metadata import NO_LANGUAGE, known_language

SHORT = 600  # seconds of training; the papers' runs take hours


def limitations(folder: Path, config: dict, record: dict, results: Results) -> Iterator[str]:
    """Yield the limitations as sentences."""
    options, rate = record["options"] or {}, record.get("sentences_per_second")
    if cut := config["informin"].get("max_seq_length"):
        longest = read_json(folder / "sentence_bert_config.json")["max_seq_length"]
        yield (
            f"Training truncated sentences to {cut} tokens. The model accepts up to {longest}, but longer sentences "
            "were not evaluated."
        )
    elif cut := options.get("max_seq_length"):
        yield f"Training truncated texts to {cut} tokens. Longer texts were not evaluated."
    language = known_language(record.get("language"))
    if language and language not in NO_LANGUAGE:
        yield f"The training sentences are in one language ({language})."
    sizes: list[Any] = [options.get(name) for name in ("sentences_per_step", "gradient_accumulation_steps")]
    if rate and all(isinstance(size, int) for size in sizes):
        seconds = record["steps"] * math.prod(sizes) / rate
        if seconds < SHORT:
            yield f"Training was short: {counted(record['steps'], 'step')} in about {seconds:.0f} seconds."
    if not results.seeds:
        yield "One seed. Scores differ by a few tenths between seeds."
    if results.model is not None and not results.base:
        yield "The source model was not evaluated, so the tables do not show what training changed."
    if (dtype := config.get("dtype", "float32")) != "float32":
        stored = f"The weights are stored in {escape(dtype)}, and transformers loads them in this precision"
        yield Markdown(f"{stored}. Pass `dtype=torch.float32` to compute in float32.")
    yield "Biases that the source model learned from its own training data remain."
