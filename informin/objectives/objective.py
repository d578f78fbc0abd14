"""The objective of a run: a preset by its name, one term, or a list of terms."""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from typing import Any, TypeAlias

from informin.errors import UsageError
from informin.objectives.presets import PRESETS, Encoder, Preset
from informin.objectives.terms import Term, as_term
from informin.options import check_value

Objective: TypeAlias = str | Preset | Term | Sequence[Any] | Any  # what `InforMinTrainer` takes; see `as_preset`
CUSTOM = "custom"  # name of an objective that is not a preset


def as_preset(objective: Objective) -> Preset:
    """Return a preset by its name, or the given terms under the name `custom`.

    Raises:
        UsageError: The name is unknown, or an object is not a term.
    """
    if isinstance(objective, Preset):
        return objective
    if isinstance(objective, str):
        check_value(objective in PRESETS, "objective", objective, f"one of: {', '.join(PRESETS)}")
        return PRESETS[objective]
    given = objective if isinstance(objective, list | tuple) else [objective]
    terms = [as_term(one) for one in given]
    title = f"a custom objective ({', '.join(term.title for term in terms)})"
    return Preset(name=CUSTOM, title=title, terms=lambda encoder: terms)


def active_terms(preset: Preset, encoder: Encoder) -> list[Term]:
    """Return the terms whose weight is not 0, in the order of summation.

    A term that needs a guide is copied, because it keeps the guide of its run.

    Raises:
        UsageError: There are no terms, two have the same name, or a name would be ambiguous in the log.
    """
    terms = [copy(term) if term.guide_needs else term for term in preset.terms(encoder) if term.weight]
    if not terms:
        raise UsageError(
            f"{preset.name} has no term with a weight above 0",
            option="objective",
            fix="Set the weight of a term, or pass a list of terms.",
        )
    for term in terms:
        check_value("/" not in term.name, "name", term.name, "the name of a term without /, which the log adds")
    for kind in ("name", "head_name"):
        repeated = [name for name, number in Counter(getattr(term, kind) for term in terms).items() if number > 1]
        if repeated:
            raise UsageError(
                f"has two terms with the {kind} {repeated[0]}",
                option="objective",
                fix=f"Give one of them another `{kind}`.",
            )
    return terms
