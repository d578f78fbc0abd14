"""What the lines of a run's log hold."""

from collections.abc import Mapping

TRAINERS_OWN = ("loss", "grad_norm", "learning_rate", "epoch", "step", "total_flos", "num_input_tokens_seen")


def logged_terms(entry: Mapping) -> list[str]:
    """The names of the objective's terms in a line of the log, in the order in which they were logged."""
    return [name for name in entry if name not in TRAINERS_OWN and not name.startswith(("train_", "eval_"))]
