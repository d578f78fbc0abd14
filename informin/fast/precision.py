"""Precision of the weights: which one a device computes fastest, and models whose encoder has it.

Half precision is that of the encoder. Its hidden states become float32, as do the weights of all modules after it: in
bfloat16, the length of a normalized embedding would be off by up to 0.002.
"""

import hashlib
import logging
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Transformer
from torch import Tensor, nn
from transformers import PreTrainedModel

from informin.errors import UsageError
from informin.options import check_value

logger = logging.getLogger(__name__)

Precision = Literal["auto", "fp32", "bf16", "fp16"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
AnyModule = TypeVar("AnyModule", bound=nn.Module)


def processor_has_bf16() -> bool:
    """Return whether the CPU has instructions for products in bfloat16 (AMX or AVX-512), and PyTorch may use them."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512") and (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


def native_precision(device: str | torch.device) -> str:
    """Return the precision that `auto` means on a device: bf16 or fp16 if it has fast products in it, else fp32."""
    device = torch.device(device)
    if device.type == "cpu":
        return "bf16" if processor_has_bf16() else "fp32"
    if device.type != "cuda":
        return "fp32"
    capability = torch.cuda.get_device_capability(device)
    return "bf16" if capability >= (8, 0) else "fp16" if capability >= (7, 0) else "fp32"


def chosen_precision(precision: str | None, bf16: bool | None, device: str | torch.device) -> str | None:
    """Return the precision that is asked for on a device; None if none is.

    Args:
        precision: auto, fp32, bf16, fp16, or None.
        bf16: An older option. True is `precision` bf16.
        device: The device.

    Raises:
        UsageError: A value is not one of these, or the two contradict each other.
    """
    check_value(precision is None or precision in ("auto", *DTYPES), "precision", precision, "auto, fp32, bf16 or fp16")
    check_value(bf16 is None or isinstance(bf16, bool), "bf16", bf16, "True or False")  # any text would count as True
    if not bf16:
        return native_precision(device) if precision == "auto" else precision
    if precision in ("fp32", "fp16"):
        raise UsageError(f"is set, and `precision` is {precision}", option="bf16", fix="Set `precision` alone.")
    return "bf16"


def precision_of(model: nn.Module) -> str:
    """Return the precision of the weights of a model's encoder: fp32, bf16 or fp16; fp32 without an encoder."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    for encoder in encoders(model):
        for weight in encoder.parameters():
            if weight.is_floating_point():
                return names.get(weight.dtype, "fp32")
    return "fp32"


def encoders(model: nn.Module) -> list[nn.Module]:
    """Return the encoders of transformers in a SentenceTransformer; one that ONNX Runtime runs is not included."""
    found = (module.auto_model for module in model.modules() if isinstance(module, Transformer))
    return [encoder for encoder in found if isinstance(encoder, nn.Module)]


def set_precision(model: SentenceTransformer, precision: str, device: str | torch.device | None = None) -> None:
    """Convert the weights of the encoders of a model, and let it pool and normalize in float32.

    Weights are replaced and not changed in place, so models that share them keep the originals. A model without an
    encoder of transformers, such as a StaticEmbedding, stays in float32, which is logged.

    Args:
        model: The model.
        precision: fp32, bf16 or fp16.
        device: Device that will run the model; None for the one it is on.
    """
    if precision == precision_of(model):
        return
    device = torch.device(device or model.device)
    found = encoders(model)
    if not found:
        logger.warning(f"The model has no encoder of transformers, and computes in fp32 instead of {precision}.")
        return
    native = native_precision(device)
    if device.type == "cpu" and precision not in ("fp32", native):
        logger.warning(f"On this processor, {precision} may be slower than {native}, which `precision` auto chooses.")
    vars(model).pop("informin_rounded", None)  # weights that were rounded before stay so in float32
    before = weights_sha256(model)
    converted: dict[Tensor, Tensor] = {}  # tied weights stay tied
    for encoder in found:
        for module in encoder.modules():
            _convert(module, DTYPES[precision], converted)
    pool_in_float32(model)
    vars(model)["informin_rounded"] = {weights_sha256(model): before}


def pool_in_float32(module: AnyModule) -> AnyModule:
    """Let the encoders in a model return float32, convert the weights of its other modules, and return the model."""
    if not isinstance(module, Transformer):
        _convert(module, torch.float32, {})
        for child in module.children():
            pool_in_float32(child)
    elif returns_float32 not in module._forward_hooks.values():
        module._forward_hooks = module._forward_hooks.copy()  # copies of a model share it
        module.register_forward_hook(returns_float32)
    return module


def returns_float32(module: nn.Module, given: Any, features: dict[str, Any]) -> dict[str, Any]:
    """Convert what an encoder returns from half precision; a forward hook."""
    for name in ("token_embeddings", "sentence_embedding", "all_layer_embeddings"):
        value = features.get(name)
        if isinstance(value, tuple):
            features[name] = tuple(each.float() for each in value)
        elif isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16):
            features[name] = value.float()
    return features


def _convert(module: nn.Module, dtype: torch.dtype, converted: dict[Tensor, Tensor]) -> None:
    """Replace the floating-point weights and buffers of a module, without its submodules."""

    def new(name: str, value: Tensor | None) -> Tensor | None:
        if value is None or not value.is_floating_point() or value.dtype == dtype or "inv_freq" in name:
            return value  # frequencies of rotary positions, which far positions multiply
        if value not in converted:
            other = value.detach().to(dtype)
            is_weight = isinstance(value, nn.Parameter)
            converted[value] = nn.Parameter(other, value.requires_grad) if is_weight else other
        return converted[value]

    for kind in ("_parameters", "_buffers"):
        vars(module)[kind] = {name: new(name, value) for name, value in vars(module)[kind].items()}


def weights_sha256(model: nn.Module) -> str:
    """Return the SHA-256 of the names and float32 values of a model's weights, before `set_precision` rounded them.

    Weights in float32 that were rounded earlier have a different checksum.
    BERT's own pooler is left out: no embedding depends on it, and it is random if a checkpoint has none.
    """
    digest = hashlib.sha256()
    poolers = [f"{name}.pooler." for name, part in model.named_modules() if isinstance(part, PreTrainedModel)]
    unused = tuple(name.removeprefix(".") for name in poolers)
    for name, value in sorted(model.state_dict().items()):
        if not name.startswith(unused):
            digest.update(name.encode())
            for part in value if isinstance(value, tuple) else (value,):  # weight and bias, in torch.ao
                digest.update(_bytes(part))
    found = digest.hexdigest()
    return vars(model).get("informin_rounded", {}).get(found, found)  # other weights since then have another one


def _bytes(value: Any) -> Any:
    """Return the float32 values of a tensor, or what torch.ao stores beside tensors, such as a data type, as text."""
    if not isinstance(value, Tensor):
        return str(value).encode()
    value = value.dequantize() if value.is_quantized else value
    return np.ascontiguousarray(value.detach().cpu().float().numpy()).data
