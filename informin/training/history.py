"""Read the entries of a run's log."""

from collections.abc import Mapping

from informin.evaluation.measures import ALL

TERM = "terms/"  # prefix of the objective's terms


def logged_terms(entry: Mapping) -> dict[str, float]:
    """Return the unweighted terms in a log entry by name, in the order of summation."""
    return {name.removeprefix(TERM): value for name, value in entry.items() if name.startswith(TERM)}


def loss_text(value: float) -> str:
    """Return a loss with four decimals, or, if it is small, with two digits: not 0.0000 for a contrast near 0."""
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"


def own_scores(entry: Mapping) -> dict[str, float]:
    """Return the scores of the user's own evaluations in a log entry by name."""
    others = {name.removeprefix("eval_"): value for name, value in entry.items() if name.startswith("eval_")}
    return {name: value for name, value in others.items() if name not in ALL and name != "runtime"}


def logged_scores(entry: Mapping) -> dict[str, float]:
    """Return the evaluation scores in a log entry by measure; empty for other entries."""
    return {name: entry[f"eval_{name}"] for name in ALL if f"eval_{name}" in entry}


def all_scores(entry: Mapping) -> dict[str, float]:
    """Return all evaluation scores in a log entry by name, those of the user's own evaluations last."""
    return logged_scores(entry) | own_scores(entry)
