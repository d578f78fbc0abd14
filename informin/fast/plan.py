"""How the fast path computes a run: by default, with every optimization that model, options and device allow.

An experiment decides whether a model can be packed: its hidden states for a few texts in one row must equal those of
the padded batch.
"""

import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from torch import nn
from transformers import PreTrainedModel

from informin.errors import UsageError
from informin.fast.packing import HALF, computes_at_once, copy_for_call, pack, packed_copy, padding_index_of
from informin.fast.threads import number_of_parts
from informin.views.encoder import takes_attention_functions

# Modules after the pooling that read only the embedding.
AFTER_POOLING = ("Normalize", "Dense", "Dropout", "LayerNorm")
SAMPLE_LENGTHS = (12, 5, 5)  # lengths of the texts that are compared
TOLERANCE, HALF_TOLERANCE = 1e-4, 0.05  # of the largest hidden state
_packs: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


@dataclass
class Plan:
    """How the rows of a run are computed.

    Attributes:
        packs: Pack them without padding.
        sorts: Split padded rows into parts of nearly equal length, on a CPU.
        device: Device of the training.
        threads: Number of parts that threads compute on a CPU. The dropout masks depend on it.
        chunk_size: Rows whose activations are kept at once (gradient caching); None for all.
        second_encoder: Whether a head has its own encoder, which also encodes the first view.
        splits_views: Whether a part has rows of one view only, because packed views have their own dropout rates.
        reads_maps: Whether the attention maps of selected layers are kept.
        reads_states: Whether the hidden states of all tokens are returned.
        bf16: Whether a CPU computes in bfloat16.
        prompt_tokens: Tokens of the prompt that the pooling leaves out.
        graph_length: The most tokens of a text, if CUDA graphs compute the encoder; None without them.
        dtype: Data type of autocast on a GPU; None without autocast.
        numpy_masks: Whether NumPy draws the dropout masks, on a CPU; see `informin.fast.masks`.
    """

    packs: bool
    device: torch.device
    sorts: bool = False
    threads: int = 1
    chunk_size: int | None = None
    second_encoder: bool = False
    splits_views: bool = False
    reads_maps: bool = False
    reads_states: bool = False
    bf16: bool = False
    prompt_tokens: int = 0
    graph_length: int | None = None
    dtype: torch.dtype | None = None
    numpy_masks: bool = False

    def record(self) -> dict[str, Any]:
        """Return what the dropout masks depend on, for the record of a run."""
        parts = {"cpu_parts": self.threads} if self.threads > 1 else {}
        return {"padding_free": True} | parts if self.packs else {}


def plan_of(
    st: SentenceTransformer,
    needs: Collection[str],
    device: torch.device,
    precision: str,
    longest: int,
    *,
    prompt_tokens: int = 0,
    padding_free: bool | None = None,
    cuda_graphs: bool | None = None,
    chunk_size: int | None = None,
    processes: int = 1,
    excluded_by: Sequence[str] = (),
    numpy_masks: bool = True,
) -> Plan:
    """Return how the rows of a run are computed.

    Args:
        st: The model.
        needs: See `ActiveObjective.needs`.
        device: Device of the training.
        precision: "no", "bf16" or "fp16".
        longest: The most tokens of a text.
        prompt_tokens: Tokens of the prompt that the pooling leaves out.
        padding_free, cuda_graphs: What the user asked for; None for the default.
        chunk_size: See `Plan`.
        processes: Number of processes.
        excluded_by: Names of options that need the encoder's usual forward pass.
        numpy_masks: Whether NumPy may draw dropout masks.

    Raises:
        UsageError: `padding_free` or `cuda_graphs` is set, and something excludes it.
    """
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    at_once = computes_at_once(device, dtype)
    on_cpu = device.type == "cpu"

    against_packing = ["attention maps of padding"] * ("maps of padding" in needs)
    if not on_cpu:  # one kernel there computes all rows with one rate, and returns no maps
        against_packing += ["`view_dropout`"] * ("rates" in needs) + ["attention maps"] * ("maps" in needs)
    against_packing += excluded_by
    if padding_free is not False and not against_packing and not reads_packed_rows(st):
        against_packing = ["a model whose modules need padded batches"]
    raise_if_excluded("padding_free", padding_free, against_packing)
    packs = padding_free is not False and not against_packing and bool(on_cpu or at_once or padding_free)
    by_row = {"maps", "rates"}.isdisjoint(needs) and not excluded_by and not chunk_size and computes_rows_alone(st)

    against_graphs = [] if cuda_graphs is False else _against_graphs(st, device, processes, chunk_size, excluded_by)
    if packs and not at_once and device.type == "cuda":  # a graph would repeat the lengths of the first batch
        against_graphs.append("`padding_free` without FlashAttention")
    raise_if_excluded("cuda_graphs", cuda_graphs, against_graphs)
    has_graphs = cuda_graphs is not False and not against_graphs

    # Parts keep their activations until the backward pass, and gradient caching discards them.
    is_split = packs and on_cpu and not chunk_size and precision != "fp16"
    return Plan(
        packs=packs,
        device=device,
        sorts=on_cpu and not packs and padding_free is None and by_row,
        threads=number_of_parts(torch.get_num_threads()) if is_split else 1,
        chunk_size=chunk_size,
        second_encoder="second encoder" in needs,
        splits_views=packs and "rates" in needs,
        reads_maps="maps" in needs,
        reads_states="states" in needs,
        bf16=on_cpu and precision == "bf16",
        prompt_tokens=prompt_tokens,
        graph_length=longest if has_graphs else None,
        dtype=dtype,
        numpy_masks=on_cpu and numpy_masks,
    )


def raise_if_excluded(option: str, wanted: bool | None, reasons: Sequence[str]) -> None:
    """Raise UsageError if the user asked for what something excludes."""
    if wanted and reasons:
        raise UsageError(f"cannot be combined with {reasons[0]}", option=option, fix="Leave one out.")


def _against_graphs(
    st: SentenceTransformer, device: torch.device, processes: int, chunk_size: int | None, excluded_by: Sequence[str]
) -> list[str]:
    """Return what excludes CUDA graphs.

    They are for one GPU, and for one forward and backward pass in each step: with several processes, gradients are
    reduced while they are computed.
    """
    if device.type != "cuda":
        return [f"the device {device.type}"]
    found = ["several processes"] * (processes > 1) + ["`gradient_cache_chunk_size`"] * bool(chunk_size)
    found += excluded_by
    if not found and not reads_packed_rows(st):
        return ["a model whose modules need padded batches"]
    if not found and any(part._forward_hooks or part._forward_pre_hooks for part in st[0].auto_model.modules()):
        return ["hooks in the encoder"]
    return found


def reads_packed_rows(st: SentenceTransformer) -> bool:
    """Return whether the modules of a model can compute embeddings of packed texts."""
    modules: Any = list(st)
    return computes_rows_alone(st) and can_pack(
        modules[0].auto_model, with_types="token_type_ids" in modules[0].tokenizer.model_input_names
    )


def computes_rows_alone(st: SentenceTransformer) -> bool:
    """Return whether each module of a model computes a text without the others of its batch."""
    modules = list(st)
    return (
        len(modules) > 1
        and type(modules[0]) is Transformer
        and modules[0].module_output_name == "token_embeddings"
        and not any(getattr(modules[0].config, name, False) for name in ("output_hidden_states", "output_attentions"))
        and type(modules[1]) is Pooling
        and {type(module).__name__ for module in modules[2:]} <= set(AFTER_POOLING)
    )


def can_pack(encoder: nn.Module, with_types: bool = False) -> bool:
    """Return whether an encoder takes attention functions, and gives the same hidden states for packed texts.

    An encoder with a recurrent state, or with its own code, may take such functions and mix the texts.

    Args:
        encoder: The encoder.
        with_types: Whether the tokenizer gives token types, which packed rows do not have. GPT-2 adds a vector for each
            of them.
    """
    if not isinstance(encoder, PreTrainedModel) or not takes_attention_functions(encoder):
        return False
    parameters = inspect.signature(encoder.forward).parameters.values()
    kinds = {one.kind for one in parameters}
    if inspect.Parameter.VAR_KEYWORD not in kinds or "position_ids" not in {one.name for one in parameters}:
        return False
    if any("forward" in vars(module) for module in encoder.modules()):  # such as by accelerate; a copy would share it
        return False
    if encoder not in _packs:
        tolerance = HALF_TOLERANCE if encoder.dtype in HALF else TOLERANCE
        _packs[encoder] = packed_difference(encoder, with_types) <= tolerance
    return _packs[encoder]


@torch.no_grad()
def packed_difference(encoder: PreTrainedModel, with_types: bool = False) -> float:
    """Return how far the hidden states of a few packed tokens are from those of the padded batch; see `can_pack`.

    The largest difference, as a fraction of the largest state; infinity if the encoder cannot read a packed row.
    """
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
            given = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
            if with_types and "token_type_ids" in inspect.signature(encoder.forward).parameters:
                given["token_type_ids"] = torch.zeros_like(given["input_ids"])
            padded = usual(**given).last_hidden_state
            states = own(inputs_embeds=embeddings, **row).last_hidden_state
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return float("inf")  # a model with its own code may raise any of these
    expected = padded[packed.rows][mask[packed.rows.cpu()].bool()]
    return float((states[0] - expected).abs().max() / expected.abs().max())
