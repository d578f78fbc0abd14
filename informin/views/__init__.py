"""Ways to make two views of a sentence, one per file."""

from informin.views.augment import Augment
from informin.views.crop import Crop
from informin.views.deletion import Deletion
from informin.views.dropout import Dropout
from informin.views.pair import Pair
from informin.views.repetition import Repetition
from informin.views.span_mask import SpanMask
from informin.views.view import MASK, View, ViewRows

# Values of the option `view`.
VIEWS: dict[str, type[View]] = {
    "dropout": Dropout,
    "repetition": Repetition,
    "crop": Crop,
    "deletion": Deletion,
    "pair": Pair,
    "span_mask": SpanMask,
    "augment": Augment,
}

__all__ = [
    "MASK",
    "VIEWS",
    "Augment",
    "Crop",
    "Deletion",
    "Dropout",
    "Pair",
    "Repetition",
    "SpanMask",
    "View",
    "ViewRows",
]
