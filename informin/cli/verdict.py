"""The verdict of `informin fit`: whether the adapter is likely to help, and the choice of --recipe auto."""

import argparse

import numpy as np

from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import FEWEST, HURTS, MOST_ALIKE, TRACK_RECORD, Prediction, choose, make_test
from informin.distributed import rank
from informin.encoders.encoder import Encoder
from informin.errors import UsageError

RECIPES = ("linear", "auto")


def chosen_adapter(
    args: argparse.Namespace, encoder: Encoder | None, vectors: np.ndarray, texts: list[str]
) -> tuple[LinearAdapter, Prediction | None]:
    """Return the adapter to fit and its predicted effect, and print the verdict.

    Without a model, there is no prediction.

    Raises:
        UsageError: With the recipe `auto`, no adapter is likely to help.
    """
    options: dict = {"n_neighbors": args.n_neighbors, "random_state": args.seed}
    linear = {"whitening": args.whitening, "self_weight": args.self_weight}
    if encoder is None:
        return LinearAdapter(**options, **linear), None
    (pooler,) = encoder.poolers
    test = make_test(texts, vectors, lambda halves: encoder(halves)[pooler], args.seed)
    if args.recipe == "auto":
        name, chosen, predicted = choose(test, **options)
        if rank() == 0:
            print(f"Adapter chosen by recipe auto: {name}.")
        if predicted.verdict == HURTS:
            print_verdict(predicted)
            raise UsageError(
                "auto finds that every adapter is likely to hurt",
                option="recipe",
                fix="Use the model as it is, or write the default adapter anyway with the recipe linear.",
            )
    else:
        chosen = linear
        predicted = test.predict(LinearAdapter(**options, **linear))
    print_verdict(predicted)
    return LinearAdapter(**{**options, **chosen}), predicted


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
