"""The recipe and the verdict of `informin fit`: which adapter, and whether it is likely to help."""

import argparse

import numpy as np

from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import (
    FEWEST,
    HURTS,
    MOST_ALIKE,
    RECIPES,
    TRACK_RECORD,
    Prediction,
    choose,
    make_test,
)
from informin.distributed import rank
from informin.errors import UsageError
from informin.models.model import Model

AUTO = "auto"


def chosen_adapter(
    args: argparse.Namespace, encoder: Model | None, vectors: np.ndarray, texts: list[str]
) -> tuple[LinearAdapter, Prediction | None]:
    """Return the adapter to fit and its predicted effect, and print the verdict.

    Without a model, there is no prediction, and auto means documents.

    Raises:
        UsageError: With the recipe auto, both adapters are likely to hurt.
    """
    given = {"n_neighbors": args.n_neighbors, "whitening": args.whitening, "self_weight": args.self_weight}
    options: dict = {name: value for name, value in given.items() if value is not None} | {"random_state": args.seed}
    recipe = "documents" if args.recipe == AUTO and encoder is None else args.recipe
    if encoder is None:
        if recipe != args.recipe:
            print_once("Recipe: documents. For titles, questions and other short texts, use --recipe short_texts.")
        return LinearAdapter(**{**RECIPES[recipe], **options}), None
    (pooler,) = encoder.poolers
    test = make_test(texts, vectors, lambda halves: encoder(halves)[pooler], args.seed)
    if recipe == AUTO:
        recipe, options, predicted = choose(test, **options)
        print_once(f"Recipe: {recipe}, {_reason(predicted)}.")
    else:
        options = {**RECIPES[recipe], **options}
        predicted = test.predict(LinearAdapter(**options))
    print_verdict(predicted)
    if args.recipe == AUTO and predicted.verdict == HURTS:
        raise UsageError(
            "auto finds that the adapter is likely to hurt",
            option="recipe",
            fix=f"Use the model as it is, or write the adapter anyway with the recipe {recipe}.",
        )
    return LinearAdapter(**options), predicted


def _reason(predicted: Prediction) -> str:
    """Return why `choose` chose a recipe."""
    if predicted.texts < FEWEST:
        return "the safer one"
    return "because its predicted gain is larger" if predicted.reliable else "because the embeddings are nearly alike"


def print_once(line: str) -> None:
    """Print a line in the first process only."""
    if rank() == 0:
        print(line)


def print_verdict(predicted: Prediction) -> None:
    """Print the verdict and how often it was right, in the first process only."""
    if rank() > 0:
        return
    if predicted.texts < FEWEST:
        print(
            f"Verdict: {predicted.verdict} ({predicted.texts} texts of four words or more held out, {FEWEST} needed)."
        )
        return
    if not predicted.reliable:
        print(
            f"Verdict: {predicted.verdict} (the mean cosine of the texts is {predicted.mean_cosine:.2f}, above "
            f"{MOST_ALIKE}, as in encoders that were never trained for embeddings)."
        )
        return
    given, helped = TRACK_RECORD[predicted.verdict]
    print(
        f"Verdict: {predicted.verdict}. For the first half of {predicted.texts:,} held-out texts, the rank of the "
        f"second half changes by a factor of {np.exp(-predicted.gain):.2f} (below 1 is better). In our tests, scores "
        f"rose after {helped} of {given} such verdicts."
    )
