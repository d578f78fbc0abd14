"""Ways to make two views of a sentence, one per file."""

from informin.views.crop import Crop
from informin.views.deletion import Deletion
from informin.views.dropout import Dropout
from informin.views.pair import Pair
from informin.views.repetition import Repetition
from informin.views.view import MASK, View, ViewRows

# Values of the option `view`.
VIEWS: dict[str, type[View]] = {
    "dropout": Dropout,
    "repetition": Repetition,
    "crop": Crop,
    "deletion": Deletion,
    "pair": Pair,
}

__all__ = ["MASK", "VIEWS", "Crop", "Deletion", "Dropout", "Pair", "Repetition", "View", "ViewRows"]
