"""Limitations that follow from the files of an exported folder."""

import math
from collections.abc import Iterator
from pathlib import Path

from informin.errors import counted
from informin.files import read_json
from informin.publishing.card.markdown import Markdown, escape
from informin.publishing.card.scores import Results
from informin.publishing.metadata import NO_LANGUAGE, known_language

SHORT = 600  # seconds of training; the papers' runs take hours


def limitations(folder: Path, config: dict, record: dict, results: Results) -> list[str]:
    """Return the limitations as sentences."""
    found = [*_data(folder, config, record), *_duration(record), *_evaluation(results)]
    if (dtype := config.get("dtype", "float32")) != "float32":
        stored = f"The weights are stored in {escape(dtype)}, and transformers loads them in this precision"
        found.append(Markdown(f"{stored}. Pass `dtype=torch.float32` to compute in float32."))
    return [*found, "Biases that the source model learned from its own training data remain."]


def _data(folder: Path, config: dict, record: dict) -> Iterator[str]:
    if cut := config["informin"].get("max_seq_length"):
        longest = read_json(folder / "sentence_bert_config.json")["max_seq_length"]
        yield (
            f"Training truncated sentences to {cut} tokens. The model accepts up to {longest}, but longer sentences "
            "were not evaluated."
        )
    elif cut := (record["options"] or {}).get("max_seq_length"):
        yield f"Training truncated texts to {cut} tokens. Longer texts were not evaluated."
    language = known_language(record.get("language"))
    if language and language not in NO_LANGUAGE:
        yield f"The training sentences are in one language ({language})."


def _duration(record: dict) -> Iterator[str]:
    """Say that training was short, if it was."""
    options, rate = record["options"] or {}, record.get("sentences_per_second")
    named = [options.get(name) for name in ("sentences_per_step", "gradient_accumulation_steps")]
    sizes = [size for size in named if isinstance(size, int)]
    if rate and len(sizes) == len(named):
        seconds = record["steps"] * math.prod(sizes) / rate
        if seconds < SHORT:
            yield f"Training was short: {counted(record['steps'], 'step')} in about {seconds:.0f} seconds."


def _evaluation(results: Results) -> Iterator[str]:
    if not results.seeds:
        yield "One seed. Scores differ by a few tenths between seeds."
    if results.model is None:
        return
    if not results.base:
        yield "The source model was not evaluated, so the tables do not show what training changed."
