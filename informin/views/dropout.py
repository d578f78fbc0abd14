"""Dropout as the only difference between the views."""

from dataclasses import dataclass

import torch
from torch import Tensor

from informin.views.view import View


@dataclass
class Dropout(View):
    """The same tokens twice: the encoder's dropout makes the embeddings differ.

    Source:
        Gao et al. (2021), SimCSE, section 3.
    """

    same_tokens = True

    def change(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        return tokens
