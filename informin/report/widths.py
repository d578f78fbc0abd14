"""The table of the predicted quality of an adapter by its number of dimensions."""

from collections.abc import Mapping, Sequence

import numpy as np

from informin.evaluation.table import Row, Table


def width_table(curve: Sequence[Mapping]) -> Table:
    """Return one row per number of dimensions.

    Args:
        curve: Records of `informin.adapters.prediction.Width`.
    """
    rows = []
    for width in curve:
        low, high = (np.exp(width["loss"] + sign * 2 * width["error"]) for sign in (-1, 1))
        shown = {
            "rank": width["rank"],
            "factor": f"{np.exp(width['loss']):.2f}",
            "interval": f"{low:.2f} to {high:.2f}",
        }
        rows.append(Row(str(width["dimension"]), shown, digits=1))
    return Table(
        "Predicted rank of the right text by dimensions, and factor against all", ["rank", "factor", "interval"], rows
    )
