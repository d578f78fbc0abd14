"""The architectures that can be trained, a row each: what the rest knows of one is in its row and in its class.

Other encoders of transformers have a row made for them, where what training needs is found in their configuration and
in their class (`generic`).
"""

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import MODEL_MAPPING, DistilBertModel, ElectraModel, PreTrainedConfig, PreTrainedModel
from transformers.models.camembert.modeling_camembert import CamembertLMHead, CamembertModel
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Model
from transformers.models.modernbert.modeling_modernbert import ModernBertModel
from transformers.models.mpnet.modeling_mpnet import MPNetLMHead, MPNetModel
from transformers.models.xlm_roberta.modeling_xlm_roberta import XLMRobertaLMHead, XLMRobertaModel

from informin.errors import UsageError
from modeling_informin import BertForInforMinCL, InforMinMixin, RobertaForInforMinCL, sister

if TYPE_CHECKING:

    class InforMinModel(InforMinMixin, PreTrainedModel):
        """A model of any architecture, for type checkers."""

else:
    InforMinModel = InforMinMixin
TWO, THREE = ("input_ids", "attention_mask"), ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Architecture:
    """What differs from one architecture to the next. Paths are of modules: of the encoder, of a layer, of the model.

    Attributes:
        model: our class.
        lm_head: path of the language-model head, in the model and in checkpoints; None where there is none to train.
        onnx_inputs: of an ONNX file, as optimum names and orders them: readers feed by name, some by place; None where
            no file is made.
        offset_positions: the positions start after the padding index.
        layers: path of the list of layers.
        attention: path of a layer's self-attention, which is transformers' exchangeable one (`AttentionInterface`);
            None where it is the architecture's own, whose maps and rates are out of reach.
        rate: of a self-attention that keeps its dropout rate as a number, the number's name.
        packs: its layers have the form of BERT's, and can be read without padding (`informin.encoders.packing`).
    """

    model: type[InforMinModel]
    lm_head: str | None
    onnx_inputs: tuple[str, ...] | None
    offset_positions: bool = False
    layers: str = "encoder.layer"
    attention: str | None = "attention.self"
    rate: str | None = None
    packs: bool = False

    @property
    def dropouts(self) -> tuple[str, ...]:
        """The rates in config.json."""
        return self.model.dropouts

    def attentions(self, encoder: nn.Module) -> list[nn.Module]:
        """The self-attention of each layer, from the first to the last; none where `attention` is None.

        Each has its dropout as the module `dropout`: one that keeps a number is given it.
        """
        if self.attention is None:
            return []
        found = [layer.get_submodule(self.attention) for layer in encoder.get_submodule(self.layers)]
        for attention in found if self.rate else ():
            attention.dropout = nn.Dropout(getattr(attention, self.rate))
        return found


# By `config.model_type`.
ARCHITECTURES = {
    "bert": Architecture(BertForInforMinCL, "cls", THREE, packs=True),
    "roberta": Architecture(RobertaForInforMinCL, "lm_head", TWO, offset_positions=True, packs=True),
    "xlm-roberta": Architecture(
        sister(XLMRobertaModel, XLMRobertaLMHead), "lm_head", TWO, offset_positions=True, packs=True
    ),
    "camembert": Architecture(
        sister(CamembertModel, CamembertLMHead), "lm_head", TWO, offset_positions=True, packs=True
    ),
    "distilbert": Architecture(
        sister(DistilBertModel, dropouts=("dropout", "attention_dropout")),
        None,
        TWO,
        layers="transformer.layer",
        attention="attention",
    ),
    "mpnet": Architecture(sister(MPNetModel, MPNetLMHead), "lm_head", TWO, offset_positions=True, attention=None),
    "electra": Architecture(sister(ElectraModel), None, THREE, packs=True),
    "deberta-v2": Architecture(sister(DebertaV2Model), None, THREE, attention=None),
    "modernbert": Architecture(
        sister(ModernBertModel, dropouts=("embedding_dropout", "mlp_dropout", "attention_dropout")),
        None,
        TWO,
        layers="layers",
        attention="attn",
        rate="attention_dropout",
    ),
}
# With those that have no row, and can embed sentences.
OFFSET_POSITIONS = (
    *(name for name, architecture in ARCHITECTURES.items() if architecture.offset_positions),
    *("roberta-prelayernorm", "xlm-roberta-xl", "xmod", "data2vec-text", "ibert", "longformer"),
)


def architecture_of(config: PreTrainedConfig) -> Architecture:
    """The row of an encoder; see `generic` for one that has none, and for what is raised."""
    return ARCHITECTURES.get(config.model_type) or generic(config)


def generic(config: PreTrainedConfig) -> Architecture:
    """A row for an encoder of transformers that has none: its class alone, without its heads and its attention.

    Raises UsageError: what training needs is not found, with what that is.
    """
    encoder = MODEL_MAPPING.get(type(config), None)
    lacking = None
    if not (inspect.isclass(encoder) and issubclass(encoder, PreTrainedModel)):
        lacking = "one class of its encoder in transformers"
    elif not set(TWO) <= inspect.signature(encoder.forward).parameters.keys():
        lacking = "an encoder that takes input_ids and attention_mask"
    elif not (dropouts := dropouts_of(encoder, type(config))):
        lacking = "a rate in its configuration that dropout modules of the encoder have"
    if lacking:
        raise UsageError(
            f"The architecture {config.model_type!r} cannot be trained here: needed {lacking}. Take an encoder of: "
            f"{', '.join(ARCHITECTURES)}."
        )
    return Architecture(sister(encoder, dropouts=dropouts), None, None, attention=None)


@functools.cache
def dropouts_of(encoder: type[PreTrainedModel], kind: type[PreTrainedConfig]) -> tuple[str, ...]:
    """The rates of a configuration that its encoder reads, found by building it with other rates.

    None where no dropout module has one of them: functions of the encoder's own cannot be seen to drop anything.
    """
    config = kind()
    names = [name for name, value in config.to_dict().items() if "dropout" in name and type(value) in (float, int)]
    rates = {name: (i + 1) / (len(names) + 2) for i, name in enumerate(names)}
    for name, rate in rates.items():
        setattr(config, name, rate)
    try:
        with torch.device("meta"):
            modules = list(encoder(config).modules())
    except Exception:  # some have no defaults that they can be built with, and raise what they like
        return ()
    if not {module.p for module in modules if isinstance(module, nn.Dropout)} & set(rates.values()):
        return ()
    read = {value for module in modules for value in vars(module).values() if isinstance(value, float)}
    return tuple(name for name, rate in rates.items() if rate in read)
