"""The encoder's own dropout rates, which a checkpoint stores while training runs with others.

A model folder can come from anyone, so nothing else is read from this entry.
"""

import math
from collections.abc import Mapping
from typing import Any

from informin.errors import UsageError

DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def own_dropouts(settings: Any) -> dict[str, float]:
    """Return the encoder's own dropout rates by their names in config.json; empty if none are stored.

    Args:
        settings: `config.informin` of a model or of its config.json; it may be missing or of any type.

    Raises:
        UsageError: A rate is not a number from 0 to 1.
    """
    stored = settings.get("dropouts") if isinstance(settings, Mapping) else None
    if not isinstance(stored, Mapping):
        return {}
    rates = {name: stored[name] for name in DROPOUTS if name in stored}
    for name, rate in rates.items():
        is_number = isinstance(rate, int | float) and not isinstance(rate, bool) and math.isfinite(rate)
        if not is_number or not 0 <= rate <= 1:
            raise UsageError(
                f"stores {rate!r} as {name} in `informin.dropouts` of its config.json",
                option="model_name",
                needed="a number from 0 to 1",
                fix="Correct the file, or copy the model again from its source.",
            )
    return rates
