"""Whole models from weights that FSDP shards across processes, for files and for evaluation.

A sharded model computes only if all processes take part in each forward pass, and its weights are not those of a file.
"""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from informin.distributed import gather_objects, gather_shares, rank, world_size


def skeleton(model: Any) -> nn.Module:
    """Return a copy of a model without storage for its weights. Call it before FSDP wraps the model.

    It also leaves the embedding module out of the modules that FSDP wraps: accelerate 1.15 wraps the word embeddings
    in it a second time, which torch refuses.
    """
    names = getattr(model, "_no_split_modules", None) or []
    if any("Embeddings" in name for name in names):
        model._no_split_modules = type(names)(name for name in names if "Embeddings" not in name)
    weights = {
        id(weight): nn.Parameter(torch.empty_like(weight, device="meta"), weight.requires_grad)
        for weight in model.parameters()
    }
    return copy.deepcopy(model, dict(weights))


def with_weights(bones: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    """Return a `skeleton` with the weights of a full state dict. It shares them, and `bones` stays as it is."""
    whole = copy.deepcopy(bones)
    whole.load_state_dict(state, strict=False, assign=True)
    return whole


def own_share(whole: bool, sentences: list[str]) -> list[str]:
    """Return the sentences that this process encodes; all of them in the first process unless each is `whole`.

    Args:
        whole: Whether each process has all weights.
        sentences: N sentences.
    """
    if whole:
        return sentences[rank() :: world_size()]
    return sentences if rank() == 0 else []


def join(whole: bool, own: np.ndarray, number: int) -> np.ndarray:
    """Return the embeddings (N, d) of N sentences in every process, from those of each `own_share`."""
    return gather_shares(own, number) if whole else gather_objects(own)[0]
