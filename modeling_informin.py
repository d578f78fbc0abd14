"""BERT and RoBERTa encoders that give sentence embeddings, with the heads that InforMin-CL trains.

The [CLS] vector is the embedding. In training, a projection head sits on top of it (Gao et al., EMNLP 2021, section 3;
Chen et al., COLING 2022, section 3.1) and, where masked language modelling is on, the pretrained language-model head
reads the masked copy of each sentence.

This file is copied beside every saved checkpoint and imported from there, so it may import only the standard library,
torch and transformers.
"""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor, nn
from transformers.modeling_utils import load_state_dict
from transformers.models.bert.modeling_bert import BertModel, BertOnlyMLMHead, BertPreTrainedModel
from transformers.models.roberta.modeling_roberta import RobertaLMHead, RobertaModel, RobertaPreTrainedModel
from transformers.utils import ModelOutput, cached_file

# Published folders keep the projection head in a file of its own: servers refuse or misread weights that a plain BERT
# does not have.
HEAD_FILE = "projection_head/model.safetensors"


@dataclass
class InforMinOutput(ModelOutput):
    """What the encoders return. N sentences, L tokens, d hidden size, V words, M masked positions.

    Attributes:
        last_hidden_state: (N, L, d).
        pooler_output: (N, d), the [CLS] vector: the sentence embedding.
        projection: (N, d), what the objectives compare; only in training mode.
        mlm_logits: (M, V), at the positions of `mlm_mask` in row-major order; only when `mlm_mask` is given.
        hidden_states, attentions: as in every transformers model.
    """

    last_hidden_state: Optional[Tensor] = None
    pooler_output: Optional[Tensor] = None
    projection: Optional[Tensor] = None
    mlm_logits: Optional[Tensor] = None
    hidden_states: Optional[tuple[Tensor, ...]] = None
    attentions: Optional[tuple[Tensor, ...]] = None


class ProjectionHead(nn.Module):
    """Linear d -> d and tanh on the [CLS] vector: a fresh layer, not BERT's pooler, used only in training."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, cls: Tensor) -> Tensor:
        return torch.tanh(self.dense(cls))


class InforMinMixin:
    """What the two architectures share: which heads are built, and the forward pass.

    `config.informin` says which heads exist: `projection_head` is "mlp" (default) or "none", `lm_head` true or false
    (default). A head that no objective reads would never get a gradient, so it is not built.
    """

    # Encoder checkpoints bring heads that are not ours; the projection head is fresh unless it was trained before.
    _keys_to_ignore_on_load_missing = [r"^mlp\."]
    _keys_to_ignore_on_load_unexpected = [r"(^|\.)pooler\.", r"^cls\.", r"^lm_head\.", r"^mlp\."]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """Transformers', and the projection head from `HEAD_FILE` of a published folder."""
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        published = getattr(model.config, "auto_map", None) and cls.__name__ not in (model.config.architectures or [])
        if not published or model.config.informin["projection_head"] != "mlp":
            return loaded
        where = {
            name: kwargs[name] for name in kwargs if name in ("cache_dir", "local_files_only", "token", "revision")
        }
        where["_raise_exceptions_for_missing_entries"] = False
        path = cached_file(pretrained_model_name_or_path, HEAD_FILE, **where)
        if path is not None:
            # Some versions leave weights that they did not find on the meta device: put these in their place.
            model.mlp.load_state_dict(load_state_dict(path), assign=True)
            model.mlp.to(device=model.device, dtype=model.dtype)
        return loaded

    def _build_heads(self, lm_head_name: str, lm_head_class: type[nn.Module], tied: dict[str, str]) -> None:
        config = self.config
        config.informin = {"projection_head": "mlp", "lm_head": False} | (getattr(config, "informin", None) or {})
        self._lm_head_name = lm_head_name
        if config.informin["projection_head"] == "mlp":
            self.mlp = ProjectionHead(config.hidden_size)
        if config.informin["lm_head"]:
            setattr(self, lm_head_name, lm_head_class(config))
            # transformers 5 looks up every name listed here: name only weights that exist.
            self._tied_weights_keys = tied
        self.post_init()

    def get_output_embeddings(self):
        return None

    def forward(
        self,
        input_ids: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
        token_type_ids: Optional[Tensor] = None,
        position_ids: Optional[Tensor] = None,
        inputs_embeds: Optional[Tensor] = None,
        mlm_mask: Optional[Tensor] = None,
        return_dict: Optional[bool] = None,
        **kwargs,
    ) -> "InforMinOutput | tuple":
        """Encodes N sentences of L tokens.

        Args:
            mlm_mask: (N, L) bool, the positions whose language-model logits are wanted. Needs the LM head.
            Everything else is passed on to the encoder and means what it means there.

        Raises:
            ValueError: `mlm_mask` is given and the model was built without its LM head.
        """
        outputs = self.base_model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            return_dict=True,
            **kwargs,
        )
        hidden = outputs.last_hidden_state  # (N, L, d)
        cls = hidden[:, 0]  # (N, d)
        projection = None
        if self.training:
            projection = self.mlp(cls) if self.config.informin["projection_head"] == "mlp" else cls
        mlm_logits = None
        if mlm_mask is not None:
            if not self.config.informin["lm_head"]:
                raise ValueError(
                    "mlm_mask was given, but this model has no language-model head. Load it with "
                    'config.informin = {"lm_head": True} from a checkpoint that has one.'
                )
            mlm_logits = getattr(self, self._lm_head_name)(hidden[mlm_mask])  # (M, V)
        result = InforMinOutput(
            last_hidden_state=hidden,
            pooler_output=cls,
            projection=projection,
            mlm_logits=mlm_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        return result.to_tuple() if return_dict is False else result


class BertForInforMinCL(InforMinMixin, BertPreTrainedModel):
    """BERT with the [CLS] vector as sentence embedding, for InforMin-CL and its family."""

    def __init__(self, config):
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self._build_heads(
            "cls",
            BertOnlyMLMHead,
            tied={
                "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
                "cls.predictions.decoder.bias": "cls.predictions.bias",
            },
        )


class RobertaForInforMinCL(InforMinMixin, RobertaPreTrainedModel):
    """RoBERTa with the <s> vector as sentence embedding, for InforMin-CL and its family."""

    def __init__(self, config):
        super().__init__(config)
        self.roberta = RobertaModel(config, add_pooling_layer=False)
        self._build_heads(
            "lm_head",
            RobertaLMHead,
            tied={
                "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
                "lm_head.decoder.bias": "lm_head.bias",
            },
        )


# save_pretrained then writes auto_map and copies this file beside the weights.
BertForInforMinCL.register_for_auto_class("AutoModel")
RobertaForInforMinCL.register_for_auto_class("AutoModel")
