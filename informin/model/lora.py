"""Low-rank adaptation (LoRA): train small matrices next to the frozen linear layers of a SentenceTransformer.

Hu et al. (2022), "LoRA: Low-Rank Adaptation of Large Language Models". The layers are those of the package peft.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from informin.errors import UsageError
from informin.model.open import file_of

ALPHA = 32  # the update is multiplied by 32 / r: by 2 with the usual rank of 16


def add_lora(model: SentenceTransformer, rank: int, dropout: float, revision: str | None) -> None:
    """Add low-rank matrices to the transformer of a model, and freeze the transformer's own weights.

    Args:
        model: The model, which is changed.
        rank: Rank of the matrices.
        dropout: Dropout rate of their inputs.
        revision: Commit on the Hub that the model was loaded from. Libraries load matrices onto the default branch
            instead, so the files name the folder of this commit in the cache. None for the default branch.

    Raises:
        UsageError: peft cannot add them.
    """
    from peft import LoraConfig  # an optional package

    transformer: Any = model[0].auto_model
    linear = (name for name, module in transformer.named_modules() if isinstance(module, nn.Linear | Conv1D))  # GPT-2
    names = sorted({name.rpartition(".")[2] for name in linear})
    config = LoraConfig(r=rank, lora_alpha=ALPHA, lora_dropout=dropout, target_modules=names)
    try:
        model.add_adapter(config)
    except ValueError as error:  # as if the installed versions of transformers and peft do not work together
        raise UsageError(f"cannot be used: {error}", option="lora_r") from error
    for settings in transformer.peft_config.values():
        settings.target_modules = sorted(settings.target_modules)  # a set is saved in any order
        if revision and (cached := file_of(settings.base_model_name_or_path, "config.json", revision)):
            settings.base_model_name_or_path = str(Path(cached).parent)
    for weight in transformer.parameters():
        if weight.requires_grad:  # peft gives them the data type of the frozen weights
            weight.data = weight.data.float()


@contextmanager
def without_lora(model: nn.Module, before: Mapping[nn.Parameter, Tensor]) -> Iterator[None]:
    """Disable the low-rank matrices, which gives the model before training without a copy of its frozen weights.

    Args:
        model: The model.
        before: The values before training of weights that are trained beside the matrices, such as those of a Dense.
    """
    layers: list[Any] = [module for module in model.modules() if hasattr(module, "lora_A")]
    after = {weight: weight.data for weight in before}
    for layer in layers:
        layer.enable_adapters(False)
    for weight, data in before.items():
        weight.data = data.to(weight.device)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for weight, data in after.items():
            weight.data = data


@contextmanager
def merged(model: SentenceTransformer) -> Iterator[None]:
    """Replace each adapted layer by a linear layer with the sum of its weights, in float32.

    At the end of the block the model is bit-equal to the one before, which adding and subtracting would not give.
    """
    transformer: Any = model[0].auto_model
    layers: dict[str, Any] = {name: part for name, part in transformer.named_modules() if hasattr(part, "lora_A")}
    before = {weight: weight.data for weight in model.parameters()}
    # Of a model that was loaded with its matrices: all weights would be saved with the prefix of theirs.
    conversions = vars(transformer).pop("_weight_conversions", None)
    try:
        for weight in before:
            weight.data = weight.data.float()
        for name, layer in layers.items():
            base = layer.get_base_layer()
            base.weight.data = base.weight.data + layer.get_delta_weight("default")
            transformer.set_submodule(name, base)
        transformer._hf_peft_config_loaded = False
        yield
    finally:
        transformer._hf_peft_config_loaded = True
        if conversions is not None:
            transformer._weight_conversions = conversions
        for name, layer in layers.items():
            transformer.set_submodule(name, layer)
        for weight, data in before.items():
            weight.data = data
