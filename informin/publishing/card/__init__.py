"""The model card, generated from the files of an exported folder and nothing else."""

from informin.publishing.card.page import CARD, UNPUBLISHED, is_edited, is_untouched, render_card, stamped, write_card
from informin.publishing.card.training import CITATIONS

__all__ = ["CARD", "CITATIONS", "UNPUBLISHED", "is_edited", "is_untouched", "render_card", "stamped", "write_card"]
