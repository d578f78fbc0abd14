"""Entries of a run's log: how often, the names of terms and scores, and losses as text."""

from collections.abc import Mapping

from informin.evaluation.measures import ALL

LOGGING_STEPS = 25  # steps between log lines by default
TERM = "terms/"  # prefix of the objective's terms in the log: terms/NAME, and terms/NAME/ENTRY for further values


def logged_terms(entry: Mapping) -> dict[str, float]:
    """Return the unweighted terms in a log entry by name, in the order of summation."""
    names = {name: name.removeprefix(TERM) for name in entry if name.startswith(TERM)}
    return {short: entry[name] for name, short in names.items() if "/" not in short}


def logged_scores(entry: Mapping) -> dict[str, float]:
    """Return the evaluation scores in a log entry by name: those of this project first, in the order of `ALL`.

    Trainer sorts the entries by name when it saves a checkpoint.
    """
    scores = {name.removeprefix("eval_"): value for name, value in entry.items() if name.startswith("eval_")}
    scores.pop("runtime", None)
    ordered = [name for name in ALL if name in scores]
    return {name: scores[name] for name in dict.fromkeys([*ordered, *scores])}


def evaluations(log_history: list[dict]) -> list[dict]:
    """Return the log entries of a run's evaluations in order."""
    return [entry for entry in log_history if logged_scores(entry) and "aside" not in entry]


def loss_text(value: float) -> str:
    """Return a loss with four decimals, or, if it is small, with two digits: not 0.0000 for a contrast near 0."""
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"
