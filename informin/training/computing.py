"""How the rows of a run are computed: packed or padded, in threads, in chunks, or by CUDA graphs."""

import os
from typing import Any

import torch
from accelerate.utils import str_to_bool
from sentence_transformers import SentenceTransformer

from informin.errors import UsageError
from informin.models.forward import How, reads_packed_rows
from informin.models.packing import computes_at_once
from informin.threads import number_of_parts


def how_to_compute(
    st: SentenceTransformer, args: Any, needs: dict[str, str], length: int, prompt_tokens: int = 0
) -> How:
    """Return how the rows of a run are computed.

    Args:
        st: The model.
        args: `InforMinTrainingArguments`.
        needs: See `ActiveObjective.needs`.
        length: The most tokens of a text.
        prompt_tokens: Tokens of the prompt that the pooling leaves out.

    Raises:
        UsageError: `padding_free` is set, and something excludes it.
    """
    packed = _packs(st, args, needs)
    return How(
        packs=packed,
        device=args.device,
        threads=_parts(args) if packed else 1,
        chunk_size=args.gradient_cache_chunk_size,
        momentum="momentum" in needs,
        reads_maps="maps" in needs,
        bf16=args.device.type == "cpu" and args.mixed_precision == "bf16",
        prompt_tokens=prompt_tokens,
        graph_length=length if _takes_graphs(st, args, packed) else None,
        dtype=_dtype(args),
    )


def _dtype(args: Any) -> torch.dtype | None:
    """Return the data type of autocast; None without autocast."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(args.mixed_precision)


def _packs(st: SentenceTransformer, args: Any, needs: dict[str, str]) -> bool:
    """Return whether batches are packed: by default wherever the model, the options and the device allow it."""
    if args.padding_free is False:
        return False
    reason = _what_needs_padding(st, args, needs)
    if reason and args.padding_free:
        raise UsageError(f"cannot be combined with {reason}", option="padding_free", fix="Leave one out.")
    is_fast = args.device.type == "cpu" or computes_at_once(args.device, _dtype(args))
    return reason is None and (is_fast or bool(args.padding_free))


def _what_needs_padding(st: SentenceTransformer, args: Any, needs: dict[str, str]) -> str | None:
    """Return the first thing that requires padded batches; None if there is none."""
    reasons = {"`view_dropout`": "rates" in needs, "attention maps": "maps" in needs}
    found = [reason for reason, holds in reasons.items() if holds] + _what_needs_its_own_forward(args)
    if not found and not reads_packed_rows(st):
        return "a model whose modules need padded batches"
    return found[0] if found else None


def _what_needs_its_own_forward(args: Any) -> list[str]:
    """Return what requires the usual forward pass of the encoder: neither packed nor as a CUDA graph."""
    reasons = {
        "`gradient_checkpointing`": args.gradient_checkpointing,
        "`torch_compile`": args.torch_compile,
        "`neftune_noise_alpha`": args.neftune_noise_alpha is not None,  # scaled by the padded length of the batch
    }
    return [reason for reason, holds in reasons.items() if holds] + sharded_by(args)


def sharded_by(args: Any) -> list[str]:
    """Return which of FSDP and DeepSpeed shard weights, gradients or optimizer state across processes."""
    plugins = {"FSDP": args.fsdp, "DeepSpeed": args.deepspeed}
    launched = {name: str_to_bool(os.environ.get(f"ACCELERATE_USE_{name.upper()}", "false")) for name in plugins}
    return [name for name, value in plugins.items() if value or launched[name]]


def _parts(args: Any) -> int:
    """Return the number of parts that a packed batch is trained in, which the dropout masks depend on.

    The parts keep their activations until the backward pass, and gradient caching discards them.
    """
    is_split = args.device.type == "cpu" and not args.gradient_cache_chunk_size and args.mixed_precision != "fp16"
    return number_of_parts(torch.get_num_threads()) if is_split else 1


def _takes_graphs(st: SentenceTransformer, args: Any, packed: bool) -> bool:
    """Return whether CUDA graphs compute the encoder: by default wherever they can.

    They are for one GPU, and for one forward and backward pass in each step: with several processes, gradients are
    reduced while they are computed. Where packed attention is not computed at once, as in float32, a graph would repeat
    the lengths of the first batch.
    """
    if args.cuda_graphs is False:
        return False
    reason = _what_excludes_graphs(st, args, packed)
    if reason and args.cuda_graphs:
        raise UsageError(f"cannot be combined with {reason}", option="cuda_graphs", fix="Leave one out.")
    return reason is None


def _what_excludes_graphs(st: SentenceTransformer, args: Any, packed: bool) -> str | None:
    """Return the first thing that excludes CUDA graphs; None if there is none."""
    if args.device.type != "cuda":
        return f"the device {args.device.type}"
    reasons = {
        "several processes": args.world_size > 1,
        "`gradient_cache_chunk_size`": bool(args.gradient_cache_chunk_size),
        "`padding_free` without FlashAttention": packed and not computes_at_once(args.device, _dtype(args)),
    }
    found = [reason for reason, holds in reasons.items() if holds] + _what_needs_its_own_forward(args)
    if found:
        return found[0]
    if not reads_packed_rows(st):
        return "a model whose modules need padded batches"
    if any(module._forward_hooks or module._forward_pre_hooks for module in st[0].auto_model.modules()):
        return "hooks in the encoder"
    return None
