"""What the lines of a run's log hold."""

from collections.abc import Mapping

from informin.evaluation.measures import ALL

TERM = "terms/"  # before the name of each term of the objective


def logged_terms(entry: Mapping) -> dict[str, float]:
    """The objective's terms in a line of the log, unweighted, by name, in the order in which they are added up."""
    return {name.removeprefix(TERM): value for name, value in entry.items() if name.startswith(TERM)}


def logged_scores(entry: Mapping) -> dict[str, float]:
    """The scores of an evaluation in a line of the log, by measure; none in other lines."""
    return {name: entry[f"eval_{name}"] for name in ALL if f"eval_{name}" in entry}
