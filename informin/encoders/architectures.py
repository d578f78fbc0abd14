"""The architectures that can be trained, a row each: what the rest knows of one is in its row and in its class."""

from dataclasses import dataclass

from torch import nn

from modeling_informin import BertForInforMinCL, InforMinMixin, RobertaForInforMinCL

InforMinModel = InforMinMixin  # of any architecture


@dataclass(frozen=True)
class Architecture:
    """What differs from one architecture to the next. Paths are of modules: of the encoder, of a layer, of the model.

    Attributes:
        model: our class.
        lm_head: path of the language-model head, in the model and in checkpoints.
        onnx_inputs: of an ONNX file, as optimum names and orders them: readers feed by name, some by place.
        offset_positions: the positions start after the padding index.
        layers: path of the list of layers.
        attention: path of a layer's self-attention.
        dropouts: the rates in config.json.
    """

    model: type[InforMinModel]
    lm_head: str
    onnx_inputs: tuple[str, ...]
    offset_positions: bool = False
    layers: str = "encoder.layer"
    attention: str = "attention.self"
    dropouts: tuple[str, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")

    def attentions(self, encoder: nn.Module) -> list[nn.Module]:
        """The self-attention of each layer, from the first to the last."""
        return [layer.get_submodule(self.attention) for layer in encoder.get_submodule(self.layers)]


# By `config.model_type`.
ARCHITECTURES = {
    "bert": Architecture(
        BertForInforMinCL, lm_head="cls", onnx_inputs=("input_ids", "attention_mask", "token_type_ids")
    ),
    "roberta": Architecture(
        RobertaForInforMinCL, lm_head="lm_head", onnx_inputs=("input_ids", "attention_mask"), offset_positions=True
    ),
}
# With those that are not trained here, and can embed sentences.
OFFSET_POSITIONS = (
    *(name for name, architecture in ARCHITECTURES.items() if architecture.offset_positions),
    *("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod", "camembert"),
    *("data2vec-text", "ibert", "longformer", "mpnet"),
)
