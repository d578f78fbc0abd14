"""Low-rank adaptation (LoRA): train small matrices next to the frozen linear layers of a SentenceTransformer.

Hu et al. (2022), "LoRA: Low-Rank Adaptation of Large Language Models". The layers are those of the package peft.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from informin.errors import UsageError, error_line

ADAPTER_FILE = "adapter_model.safetensors"
EXTRA = "Install the extra `lora` (see Install in README)."
AUTO = ["auto"]


@dataclass(frozen=True)
class LoRA:
    """The options of low-rank adaptation.

    Attributes:
        r: Rank of the matrices.
        alpha: The update of a layer is multiplied by alpha / r.
        dropout: Dropout rate of the layers' inputs, which also makes two views of a sentence differ.
        targets: Names of the linear layers; `auto` alone for all of the transformer.
    """

    r: int = 16
    alpha: int = 32
    dropout: float = 0.05
    targets: tuple[str, ...] = ("auto",)

    def add_to(self, model: Any) -> None:
        """Add the matrices to the transformer of a SentenceTransformer, and freeze the weights of the transformer.

        Raises:
            UsageError: peft is not installed, or the model has no such layers.
        """
        require_peft()
        from peft import LoraConfig

        transformer = getattr(next(iter(model)), "auto_model", None)
        layers = [] if transformer is None else linear_layers(transformer)
        missing = [] if self.targets == ("auto",) else sorted(set(self.targets) - set(layers))
        if transformer is None or not layers or missing:
            found = "The model has no linear layers in a transformer" if not layers else f"is {' '.join(missing)}"
            raise UsageError(
                found,
                option="lora_target_modules" if layers else "lora_r",
                needed=f"auto, or one of: {', '.join(layers)}" if layers else "a model with a transformer",
            )
        names = layers if self.targets == ("auto",) else list(self.targets)
        config = LoraConfig(r=self.r, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=names)
        try:
            transformer.add_adapter(config)
        except (ValueError, TypeError) as error:  # an unknown kind of layer
            raise UsageError(f"peft cannot adapt this model: {error_line(error)}", option="lora_r") from None
        for settings in transformer.peft_config.values():
            settings.target_modules = sorted(settings.target_modules)  # a set is saved in any order
        for weight in transformer.parameters():
            if weight.requires_grad:  # peft gives them the data type of the frozen weights
                weight.data = weight.data.float()


def require_peft() -> None:
    """Raise UsageError if peft is not installed."""
    try:
        import peft  # noqa: F401
    except ImportError:
        raise UsageError("needs the package peft, which is not installed", option="lora_r", fix=EXTRA) from None


def linear_layers(transformer: nn.Module) -> list[str]:
    """Return the distinct last parts of the names of a transformer's linear layers, such as q_proj."""
    found = (name for name, module in transformer.named_modules() if isinstance(module, nn.Linear))
    return list(dict.fromkeys(name.rpartition(".")[2] for name in found))


def lora_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers with low-rank matrices by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


@contextmanager
def without_lora(model: nn.Module) -> Iterator[None]:
    """Disable the low-rank matrices, which gives the model before training without a copy of its weights."""
    layers = lora_layers(model).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@contextmanager
def merged(model: Any) -> Iterator[None]:
    """Replace each layer of a SentenceTransformer by a linear layer with the sum of its weights, in float32.

    At the end of the block the model is bit-equal to the one before, which adding and subtracting would not give.
    """
    transformer = next(iter(model)).auto_model
    layers = lora_layers(transformer)
    before = {weight: weight.data for weight in model.parameters()}
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
        for name, layer in layers.items():
            transformer.set_submodule(name, layer)
        for weight, data in before.items():
            weight.data = data
