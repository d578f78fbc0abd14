"""Ways to make the second view of a sentence, one per file."""

from informin.views.crop import Crop
from informin.views.deletion import Deletion
from informin.views.dropout import Dropout
from informin.views.repetition import Repetition
from informin.views.view import SecondView, View

# Values of the option `view`.
VIEWS: dict[str, type[View]] = {"dropout": Dropout, "repetition": Repetition, "crop": Crop, "deletion": Deletion}

__all__ = ["VIEWS", "Crop", "Deletion", "Dropout", "Repetition", "SecondView", "View"]
