"""Natural pairs: the two views are two texts of a row, such as title and body."""

from dataclasses import dataclass

import torch
from torch import Tensor

from informin.views.view import SentenceTokens, View, ViewRows


@dataclass
class Pair(View):
    """Reads two columns: the first text is the first view, and the second text is the second view.

    Use it for texts that belong together without labels: title and body, question and answer, a text and its summary.
    The columns are `anchor` and `positive`, as in sentence-transformers, or those of `text_column`. A row with a blank
    text or with two equal texts is skipped.

    A text may occur in several pairs. A candidate in the batch is not a negative of an anchor if it belongs to the same
    first text, equals the anchor's own second text, or equals the first text itself.

    Source:
        Reimers and Gurevych (2019), Sentence-BERT, and Wang et al. (2022), E5, section 3, train on such pairs; Yu et
        al. (2022), COCO-DR, and Wang et al. (2022), GPL, for domains without labels.

    Example:
        >>> from informin.views import Pair
        >>> Pair().columns
        ('anchor', 'positive')
        >>> trainer = InforMinTrainer(  # doctest: +SKIP
        ...     model, args, train_dataset=papers, view=Pair(), text_column=("title", "abstract")
        ... )
    """

    title = "natural pairs"
    columns = ("anchor", "positive")

    def change(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        return tokens

    def both_views(
        self, batch: dict[str, Tensor], tokens: SentenceTokens, seed: int
    ) -> tuple[ViewRows | None, ViewRows]:
        """Return the second texts as they are; see `View.both_views`."""
        ids, masks = batch["positive_input_ids"], batch["positive_attention_mask"]
        return None, ViewRows([row[mask.bool()].tolist() for row, mask in zip(ids, masks)])
