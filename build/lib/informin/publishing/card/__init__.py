"""The model card, generated from the files of an exported folder and nothing else."""

from informin.publishing.card.page import CARD, is_edited, render_card, write_card

__all__ = ["CARD", "is_edited", "render_card", "write_card"]
