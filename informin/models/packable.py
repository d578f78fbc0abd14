"""Whether an encoder can be packed: its hidden states for a few texts in one row are those of the padded batch."""

import inspect
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from informin.models.call_copy import copy_for_call, has_other_forward
from informin.models.packing import HALF, pack, packed_copy
from informin.models.positions import padding_index_of
from informin.views.attention import takes_attention_functions

SAMPLE_LENGTHS = (12, 5, 5)  # lengths of the texts that are compared
TOLERANCE, HALF_TOLERANCE = 1e-4, 0.05  # of the largest hidden state
_packs: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def can_pack(encoder: nn.Module) -> bool:
    """Return whether an encoder takes attention functions, and gives the same hidden states for packed texts.

    An encoder with a state beside attention, or with code of its own, may take such functions and mix the texts.
    """
    if not isinstance(encoder, PreTrainedModel) or not takes_attention_functions(encoder):
        return False
    parameters = inspect.signature(encoder.forward).parameters.values()
    kinds = {one.kind for one in parameters}
    if inspect.Parameter.VAR_KEYWORD not in kinds or "position_ids" not in {one.name for one in parameters}:
        return False
    if has_other_forward(encoder):
        return False
    if encoder not in _packs:
        _packs[encoder] = _gives_equal_states(encoder)
    return _packs[encoder]


@torch.no_grad()
def _gives_equal_states(encoder: PreTrainedModel) -> bool:
    """Compare the hidden states of a few packed tokens with those of the padded batch."""
    lengths = torch.tensor(SAMPLE_LENGTHS)
    table: Any = encoder.get_input_embeddings()
    mask = (torch.arange(max(SAMPLE_LENGTHS)) < lengths[:, None]).long()
    words = torch.arange(mask.numel()).view_as(mask) % min(table.num_embeddings, 100)
    index = padding_index_of(encoder)
    ids = torch.where(words == index, words + 1, words) if index is not None else words
    device = table.weight.device
    packed = pack(ids, mask, index).to(device)
    row = packed.features()
    embeddings = table(row.pop("input_ids"))
    try:
        with torch.autocast(device.type, enabled=False):  # its rounding is larger than the tolerance
            usual, own = copy_for_call(encoder, training=False), packed_copy(encoder, training=False)
            padded = usual(input_ids=ids.to(device), attention_mask=mask.to(device)).last_hidden_state
            states = own(inputs_embeds=embeddings, **row).last_hidden_state
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return False  # whatever a stranger's code does with a row
    expected = padded[packed.rows][mask[packed.rows.cpu()].bool()]
    tolerance = HALF_TOLERANCE if states.dtype in HALF else TOLERANCE
    return bool((states[0] - expected).abs().max() <= tolerance * expected.abs().max())
