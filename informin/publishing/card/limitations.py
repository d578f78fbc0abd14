"""Limitations that follow from the files of an exported folder."""

from collections.abc import Iterator
from pathlib import Path

from informin.evaluation.measures import KINDS
from informin.evaluation.table import samples
from informin.files import read_json
from informin.publishing.card.markdown import Markdown, escape
from informin.publishing.card.scores import Results, pooling_name
from informin.publishing.metadata import NO_LANGUAGE, known_language


def limitations(folder: Path, config: dict, record: dict, results: Results) -> list[str]:
    """Return the limitations as sentences."""
    found = [*_data(folder, config, record), *_evaluation(results)]
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


def _evaluation(results: Results) -> Iterator[str]:
    if not results.seeds:
        yield "One seed. Scores differ by a few tenths between seeds."
    if results.model is None:
        return
    if not results.base:
        yield "The source model was not evaluated, so the tables do not show what training changed."
    for score, pooler, theirs, ours in _losses(results.model, results.base):
        yield (
            f"Without this training, the source model has a higher {score} ({pooling_name(pooler)}): "
            f"{theirs:.2f} instead of {ours:.2f}."
        )


def _losses(model: dict, base: dict[str, dict]) -> Iterator[tuple[str, str, float, float]]:
    """Yield each score that training lowered, as its name, the pooling, the source model's score and this model's."""
    for group, name in (("sts", "STS average"), ("transfer", "transfer average")):
        for pooler, before in base.items():
            ours, theirs = model["average"][group], before["average"][group]
            if ours is not None and theirs is not None and theirs > ours:
                yield name, pooler, theirs, ours
    for pooler, before in base.items():
        known = samples(before)
        for sample, entry in samples(model).items():
            ours, theirs = entry["score"], known.get(sample, {}).get("score")
            if ours is not None and theirs is not None and theirs > ours:
                yield f"{next(iter(KINDS[entry['kind']].values())).title} on {sample}", pooler, theirs, ours
