"""The method as the papers print it: one padded batch, one forward pass, the terms of the loss, one backward pass.

    sentences   B, as token ids and attention mask (B, L)
    rows        (2B, L): view 1 of every sentence, then view 2; with a masked copy for MLM (3B, L)
    encoder     (2B, L) -> hidden states (2B, L, d). Each row has its own dropout masks, so two equal rows differ
    pooling     (2B, L, d) -> embeddings (2B, d)
    projection  (2B, d) -> (2B, d), in training alone; row i is z1_i, row B + i is z2_i
    loss        the weighted sum of the terms, each a function of the views

InforMin-CL (Chen et al., 2022, eq. 9) is the sum of two terms, and of a third one if its weight is above 0:

    contrast        eq. 4    informin/objectives/contrast.py         z1_i is near z2_i, and far from z2_k
    reconstruction  eq. 8    informin/objectives/reconstruction.py   lambda |z1_i - z2_i|^2, or a scaled form
    masked LM       beta     informin/objectives/masked_lm.py        cross-entropy at the masked tokens

SimCSE is the first of them alone. A term is a subclass of `Term` (informin/objectives/term.py), whose docstring shows
how to write one.

`InforMinTrainer` computes every loss by `forward`, `two_views` and `weighted_losses`. With `--fast false` this is all:
the model runs its own forward pass. By default informin/fast adds the entry `split_batch`: the same rows in parts,
without padding where the encoder allows it. The numbers are the same up to rounding and dropout masks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from informin.distributed import gather_with_gradient
from informin.objectives.contrast import copies
from informin.objectives.term import Term, Views, losses_of
from informin.training.batch import at_shared
from informin.views.encoder import dense_factors, scaled_embeddings
from modeling_informin import InforMinOutput

FOR_HEADS = ("sentence_ids", "number_of_views", "original_ids", "original_mask")  # see `modeling_informin.HeadInputs`


def plain_step(
    model: nn.Module, terms: Sequence[Term], batch: dict[str, Tensor], stack: Callable[..., dict[str, Any]], seed: int
) -> Tensor:
    """Add the gradient of a batch to that of the weights, and return its loss. A step of the optimizer follows.

    This is the step in one piece. Trainer calls its parts one after the other, and tests compare both bit for bit.

    Args:
        model: The model in training mode.
        terms: The terms of the objective.
        batch: Padded `input_ids` and `attention_mask`, (B, L).
        stack: Makes the rows, such as `informin.training.batch.StackedViews`.
        seed: Seed of the second views and of the masked tokens. Dropout draws from PyTorch's generator.
    """
    rows = stack(batch, seed)  # (2B, L)
    outputs = forward(model, rows, reads_maps=any(term.reads_maps for term in terms))  # (2B, d)
    views = two_views(outputs, rows)  # z1, z2 (B, d)
    weighted, _ = weighted_losses(terms, views)
    loss: Any = sum(weighted.values())  # eq. 9
    loss.backward()
    return loss.detach()


def forward(model: nn.Module, rows: dict[str, Any], reads_maps: bool = False) -> InforMinOutput:
    """Return the embeddings and projections (N, d) of N rows, and what the heads of the terms compute from them.

    The model is called once per batch, because DDP reduces gradients after each call.
    """
    factors = None
    if "factors" in rows and "split_batch" not in rows:  # a view scales the output of the embedding layer
        mask = rows["attention_mask"]
        factors = dense_factors(rows["factors"], mask.cpu()[: len(rows["factors"])])
        factors = None if factors is None else factors.to(mask.device)
    with scaled_embeddings(factors):
        return model(
            input_ids=rows["input_ids"],
            attention_mask=rows["attention_mask"],
            lm_labels=rows.get("lm_labels"),
            output_attentions=reads_maps,
            views={"gather": gather_with_gradient} | {name: rows[name] for name in FOR_HEADS if name in rows},
            split_batch=rows.get("split_batch"),
        )


def two_views(outputs: InforMinOutput, rows: dict[str, Any]) -> Views:
    """Return what the terms read of a forward pass. If each sentence is encoded once, a single view stands for both."""
    projection, pooled, ids = outputs.projection, outputs.pooler_output, rows["sentence_ids"]
    assert projection is not None and pooled is not None, "the model is in training mode"
    size, views = len(ids), rows.get("number_of_views", 2)
    first, second = slice(size), slice((views - 1) * size, views * size)
    mask, maps1, maps2 = rows["attention_mask"][first], None, None
    if maps := [layer for layer in outputs.attentions or () if layer is not None]:  # T selected layers (2B, H, L, L)
        maps1, maps2 = (torch.stack([layer[view] for layer in maps], dim=1) for view in (first, second))
        if "shared" in rows:  # view 2 has other tokens: compare those that both have
            maps2, mask = at_shared(maps2, rows["shared"]), (rows["shared"] >= 0).to(mask.dtype)
    general = rows.get("general_row")  # replayed sentences are the last rows
    return Views(
        z1=projection[first],
        z2=projection[second],
        mask=mask,
        embedding1=pooled[first],
        embedding2=pooled[second],
        row=rows.get("row"),
        second_row=rows.get("second_row", rows.get("row")),
        general=None if general is None else pooled[-len(general) :],
        general_row=general,
        sentence_ids=ids,
        negatives=negatives_of(rows),
        maps1=maps1,
        maps2=maps2,
        heads=outputs.heads or {},
        lm_losses=outputs.lm_losses,
    )


def negatives_of(rows: dict[str, Any]) -> Tensor:
    """Return which candidates of all processes are negatives of each anchor, (B, W*B): not the copies of a sentence.

    In pairs, candidates of an equal first text, and those that equal either text of the anchor, are left out, too.
    """
    ids = rows["sentence_ids"]
    negatives = ~copies(ids, gather_with_gradient(ids))
    if "second_ids" in rows:
        candidates = gather_with_gradient(rows["second_ids"])
        negatives &= ~copies(ids, candidates) & ~copies(rows["second_ids"], candidates)
    return negatives


def weighted_losses(terms: Sequence[Term], views: Views) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return each term times its weight, whose sum is the loss, and the unweighted values to log."""
    weighted, logged = {}, {}
    for term in terms:
        loss, others = losses_of(term, views)
        weighted[term.name] = term.weight * loss
        logged[term.name] = loss.detach()
        logged |= {f"{term.name}/{name}": value for name, value in others.items()}
    return weighted, logged
