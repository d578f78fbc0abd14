"""Table of the architectures that can be trained.

`generic` creates a row for other encoders of transformers if their configuration and class have what training needs.
"""

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from transformers import MODEL_MAPPING, DistilBertModel, ElectraModel, PreTrainedConfig, PreTrainedModel
from transformers.models.camembert.modeling_camembert import CamembertLMHead, CamembertModel
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Model
from transformers.models.modernbert.modeling_modernbert import ModernBertModel
from transformers.models.mpnet.modeling_mpnet import MPNetLMHead, MPNetModel
from transformers.models.xlm_roberta.modeling_xlm_roberta import XLMRobertaLMHead, XLMRobertaModel

from informin.errors import UsageError
from modeling_informin import BertForInforMinCL, InforMinMixin, RobertaForInforMinCL, make_model_class

if TYPE_CHECKING:

    class InforMinModel(InforMinMixin, PreTrainedModel):
        """A model of any architecture, for type checkers."""

        _keys_to_ignore_on_load_missing: list[str]
        _keys_to_ignore_on_load_unexpected: list[str]
        _tied_weights_keys: dict[str, str]

else:
    InforMinModel = InforMinMixin
TWO, THREE = ("input_ids", "attention_mask"), ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Architecture:
    """Differences between architectures. Paths are paths of modules.

    Attributes:
        model: Our class.
        lm_head: Path of the language-model head in the model and in checkpoints; None if there is none to train.
        onnx_inputs: Inputs of an ONNX file, named and ordered as in optimum, since some libraries pass inputs by
            position; None if ONNX export is not supported.
        offset_positions: Position ids start after the padding index.
        layers: Path of the list of layers in the encoder.
        attention: Path of the self-attention in a layer, if it uses transformers' `AttentionInterface`; None otherwise,
            since its attention maps and dropout rate cannot be accessed then.
        rate: Name of the dropout rate, for a self-attention that stores it as a number.
        packs: The layers have the structure of BERT's and can run without padding (`informin.models.packing`).
    """

    model: type[PreTrainedModel]
    lm_head: str | None
    onnx_inputs: tuple[str, ...] | None
    offset_positions: bool = False
    layers: str = "encoder.layer"
    attention: str | None = "attention.self"
    rate: str | None = None
    packs: bool = False

    @property
    def dropouts(self) -> tuple[str, ...]:
        """Names of the dropout rates in config.json."""
        model: Any = self.model  # also an InforMinMixin
        return model.dropouts

    def attentions(self, encoder: nn.Module) -> list[nn.Module]:
        """Return the self-attention of each layer, from the first to the last; an empty list if `attention` is None.

        Each gets its dropout as a module `dropout`, also if it stores the rate as a number.
        """
        if self.attention is None:
            return []
        layers = cast(nn.ModuleList, encoder.get_submodule(self.layers))
        found = [layer.get_submodule(self.attention) for layer in layers]
        if self.rate is not None:
            for attention in found:
                attention.dropout = nn.Dropout(getattr(attention, self.rate))
        return found


# By `config.model_type`.
ARCHITECTURES = {
    "bert": Architecture(BertForInforMinCL, "cls", THREE, packs=True),
    "roberta": Architecture(RobertaForInforMinCL, "lm_head", TWO, offset_positions=True, packs=True),
    "xlm-roberta": Architecture(
        make_model_class(XLMRobertaModel, XLMRobertaLMHead), "lm_head", TWO, offset_positions=True, packs=True
    ),
    "camembert": Architecture(
        make_model_class(CamembertModel, CamembertLMHead), "lm_head", TWO, offset_positions=True, packs=True
    ),
    "distilbert": Architecture(
        make_model_class(DistilBertModel, dropouts=("dropout", "attention_dropout")),
        None,
        TWO,
        layers="transformer.layer",
        attention="attention",
    ),
    "mpnet": Architecture(
        make_model_class(MPNetModel, MPNetLMHead), "lm_head", TWO, offset_positions=True, attention=None
    ),
    "electra": Architecture(make_model_class(ElectraModel), None, THREE, packs=True),
    "deberta-v2": Architecture(make_model_class(DebertaV2Model), None, THREE, attention=None),
    "modernbert": Architecture(
        make_model_class(ModernBertModel, dropouts=("embedding_dropout", "mlp_dropout", "attention_dropout")),
        None,
        TWO,
        layers="layers",
        attention="attn",
        rate="attention_dropout",
    ),
}
# Including architectures without a row, which can compute embeddings.
OFFSET_POSITIONS = (
    *(name for name, architecture in ARCHITECTURES.items() if architecture.offset_positions),
    *("roberta-prelayernorm", "xlm-roberta-xl", "xmod", "data2vec-text", "ibert", "longformer"),
)


def architecture_of(config: PreTrainedConfig) -> Architecture:
    """Return the row of an encoder; see `generic` for encoders without a row, and for errors."""
    return ARCHITECTURES.get(config.model_type) or generic(config)


def generic(config: PreTrainedConfig) -> Architecture:
    """Create a row for an encoder of transformers that has none: its class, without heads and access to attention.

    Raises:
        UsageError: The encoder lacks something that training needs.
    """
    kind: Any = type(config)
    encoder = MODEL_MAPPING.get(kind, None)
    missing = None
    if not (inspect.isclass(encoder) and issubclass(encoder, PreTrainedModel)):
        missing = "transformers has no single class for it"
    elif not set(TWO) <= inspect.signature(encoder.forward).parameters.keys():
        missing = "it does not accept input_ids and attention_mask"
    dropouts = () if missing else dropouts_of(encoder, kind)
    if not (missing or dropouts):
        missing = "it has no dropout rate that dropout modules use"
    if missing:
        raise UsageError(
            f"The architecture {config.model_type!r} cannot be trained here: {missing}",
            needed=f"an encoder of: {', '.join(ARCHITECTURES)}",
        )
    return Architecture(make_model_class(encoder, dropouts=dropouts), None, None, attention=None)


@functools.cache
def dropouts_of(encoder: type[PreTrainedModel], kind: type[PreTrainedConfig]) -> tuple[str, ...]:
    """Return the names of the dropout rates that an encoder uses, found by building it with distinct rates.

    The result is empty if no dropout module uses one of them: dropout by function calls cannot be detected.
    """
    config = kind()
    names = [name for name, value in config.to_dict().items() if "dropout" in name and type(value) in (float, int)]
    rates = {name: (i + 1) / (len(names) + 2) for i, name in enumerate(names)}
    for name, rate in rates.items():
        setattr(config, name, rate)
    try:
        with torch.device("meta"):
            modules = list(encoder(config).modules())
    except Exception:  # some cannot be built with their defaults, and raise anything
        return ()
    if not {module.p for module in modules if isinstance(module, nn.Dropout)} & set(rates.values()):
        return ()
    read = {value for module in modules for value in vars(module).values() if isinstance(value, float)}
    return tuple(name for name, rate in rates.items() if rate in read)
