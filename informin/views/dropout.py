"""Dropout as the only difference between the views."""

from dataclasses import dataclass

from informin.views.view import View


@dataclass
class Dropout(View):
    """The same tokens twice: the encoder's dropout makes the embeddings differ.

    Source:
        Gao et al. (2021), SimCSE, section 3.
    """

    title = "dropout"
    same_tokens = True
