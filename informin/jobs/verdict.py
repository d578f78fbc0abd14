"""The preset and the verdict of a fit: which adapter, and whether it is likely to help."""

import numpy as np
from sklearn.base import clone

from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import (
    FEWEST,
    PRESETS,
    Choice,
    Prediction,
    Width,
    choose,
    make_tests,
    predict,
    track_record,
)
from informin.models.model import Model

AUTO = "auto"


def chosen_adapter(
    preset: str, options: dict, encoder: Model | None, vectors: np.ndarray, texts: list[str], seed: int = 0
) -> tuple[str, LinearAdapter, Prediction | None, list[Width]]:
    """Return the name of the preset, the adapter to fit, its predicted effect, and that of fewer dimensions.

    Without a model, there is no prediction and no curve, and auto means documents.

    Args:
        preset: `auto`, or a name in `PRESETS`.
        options: Options of the adapter, which override those of the preset. None stands for the preset's own.
        encoder: The model of the embeddings, with one pooling.
        vectors: (N, d) embeddings.
        texts: N texts, or none without a model.
        seed: Seed of the held-out texts and of the sample of rows.
    """
    given: dict = {name: value for name, value in options.items() if value is not None} | {"random_state": seed}
    if encoder is None:
        preset = "documents" if preset == AUTO else preset
        return preset, LinearAdapter(**{**PRESETS[preset], **given}), None, []
    (pooler,) = encoder.poolers
    searching = encoder.for_queries()
    tests = make_tests(texts, vectors, lambda parts: encoder(parts)[pooler], lambda few: searching(few)[pooler], seed)
    if preset == AUTO:
        found = choose(tests, **given)
    else:
        adapter = LinearAdapter(**{**PRESETS[preset], **given})
        found = Choice(preset, adapter, predict(tests, adapter))
    return found.preset, clone(found.adapter), found.prediction, tests[0].curve(found.adapter)


def reason(predicted: Prediction) -> str:
    """Return why `choose` chose a preset."""
    if predicted.texts < FEWEST:
        return "the safer one"
    return "because its predicted gain is larger"


def verdict_line(predicted: Prediction, chosen: bool) -> str:
    """Return the verdict, what it is based on, and how often it was right.

    Args:
        predicted: The prediction.
        chosen: Whether the preset was auto.
    """
    if predicted.texts < FEWEST:
        return f"{predicted.verdict} ({predicted.texts} texts of four words or more held out, {FEWEST} needed)."
    return f"{predicted.verdict}. {predicted.rank_change} {track_record(predicted.verdict, chosen)}"
