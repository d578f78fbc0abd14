"""The recipe and the verdict of a fit: which adapter, and whether it is likely to help."""

import numpy as np

from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import (
    FEWEST,
    MOST_ALIKE,
    NOT_PREDICTED,
    RECIPES,
    Prediction,
    choose,
    make_test,
    track_record,
)
from informin.models.model import Model

AUTO = "auto"


def chosen_adapter(
    recipe: str, options: dict, encoder: Model | None, vectors: np.ndarray, texts: list[str], seed: int = 0
) -> tuple[str, LinearAdapter, Prediction | None]:
    """Return the name of the recipe, the adapter to fit, and its predicted effect.

    Without a model, there is no prediction, and auto means documents.

    Args:
        recipe: `auto`, or a name in `RECIPES`.
        options: Options of the adapter, which override those of the recipe. None stands for the recipe's own.
        encoder: The model of the embeddings, with one pooling.
        vectors: (N, d) embeddings.
        texts: N texts, or none without a model.
        seed: Seed of the held-out texts and of the sample of rows.
    """
    given: dict = {name: value for name, value in options.items() if value is not None} | {"random_state": seed}
    if encoder is None:
        recipe = "documents" if recipe == AUTO else recipe
        return recipe, LinearAdapter(**{**RECIPES[recipe], **given}), None
    (pooler,) = encoder.poolers
    test = make_test(texts, vectors, lambda halves: encoder(halves)[pooler], seed)
    if recipe == AUTO:
        recipe, given, predicted = choose(test, **given)
    else:
        given = {**RECIPES[recipe], **given}
        predicted = test.predict(LinearAdapter(**given))
    return recipe, LinearAdapter(**given), predicted


def reason(predicted: Prediction) -> str:
    """Return why `choose` chose a recipe."""
    if predicted.texts < FEWEST:
        return "the safer one"
    return "because its predicted gain is larger" if predicted.reliable else "because the embeddings are nearly alike"


def verdict_line(predicted: Prediction) -> str:
    """Return the verdict, what it is based on, and how often it was right."""
    if predicted.texts < FEWEST:
        return f"{predicted.verdict} ({predicted.texts} texts of four words or more held out, {FEWEST} needed)."
    if not predicted.reliable:
        return (
            f"{NOT_PREDICTED} (the mean cosine of the texts is {predicted.mean_cosine:.2f}, above {MOST_ALIKE}, as in "
            f"encoders that were never trained for embeddings). {track_record(NOT_PREDICTED)}"
        )
    return f"{predicted.verdict}. {predicted.rank_change} {track_record(predicted.verdict)}"
