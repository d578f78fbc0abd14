"""Prepare the encoder of a run for the views and terms: its forward pass, its dropout rates, its attention maps."""

from collections.abc import Sequence
from typing import cast

from transformers import PreTrainedModel

from informin.models.architectures import InforMinModel, architecture_of
from informin.models.packing import packed_forward
from informin.models.st_model import StModel, refuse_identical_views
from informin.models.trainable import refuse_without_dropout
from informin.training.options import InforMinTrainingArguments
from informin.views.attention import prepare_encoder


def prepare_model(
    model: InforMinModel | StModel,
    args: InforMinTrainingArguments,
    map_layers: Sequence[int],
    copies: int,
    dropout_only: bool,
) -> None:
    """Prepare a model of either backend.

    Args:
        model: Model in training, which is changed.
        args: Arguments of the run.
        map_layers: Layers whose attention maps the terms need.
        copies: Copies of each sentence in a batch.
        dropout_only: Whether the compared views of a sentence differ only by dropout.

    Raises:
        UsageError: The views of a sentence would be identical, or the encoder's attention cannot be replaced.
    """
    model.chunk_size = args.gradient_cache_chunk_size
    if isinstance(model, StModel):
        if dropout_only:
            refuse_identical_views(model)
        return
    model.packed_forward = packed_forward if args.padding_free else None
    # None: a masked copy has the encoder's own dropout.
    rates = args.view_dropout and [*args.view_dropout, None][:copies]
    encoder = cast(PreTrainedModel, model.base_model)
    prepare_encoder(encoder, architecture_of(model.config).attentions(encoder), rates, map_layers)
    if dropout_only:
        refuse_without_dropout(encoder)
