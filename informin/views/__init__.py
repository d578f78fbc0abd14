"""Ways to make two views of a sentence, one per file."""

from informin.views.augment import Augment
from informin.views.crop import Crop
from informin.views.deletion import Deletion
from informin.views.dropout import Dropout
from informin.views.pair import Pair
from informin.views.repetition import Repetition
from informin.views.span_mask import SpanMask
from informin.views.view import MASK, View, ViewRows

_VIEWS: list[type[View]] = [Dropout, Repetition, Crop, Deletion, Pair, SpanMask, Augment]
VIEWS = {view.name: view for view in _VIEWS}  # values of the option `view`

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
