"""The table of the predicted quality of an adapter by its number of dimensions."""

from collections.abc import Mapping, Sequence

from informin.adapters.prediction import CERTAIN, SMALL_LOSS
from informin.evaluation.table import Row, Table


def width_table(curve: Sequence[Mapping]) -> Table:
    """Return one row per number of dimensions.

    Args:
        curve: Records of `informin.adapters.prediction.Width`.
    """
    rows = []
    for width in curve:
        low, high = (width["loss"] + sign * CERTAIN * width["error"] for sign in (-1, 1))
        shown = {"rank": width["rank"], "loss": f"{width['loss']:+.2f}", "interval": f"{low:+.2f} to {high:+.2f}"}
        rows.append(Row(str(width["dimension"]), shown, digits=1))
    title = f"Rank of the right half by dimensions, and predicted loss against all; up to {SMALL_LOSS} is small"
    return Table(title, ["rank", "loss", "interval"], rows)
