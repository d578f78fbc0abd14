"""BERT and RoBERTa encoders that give sentence embeddings, with the heads that InforMin-CL trains.

The [CLS] vector is the embedding. In training, a projection head sits on top of it (Gao et al., EMNLP 2021, section 3;
Chen et al., COLING 2022, section 3.1); where masked language modelling is on, the pretrained language-model head
reads the masked copy of each sentence; SCD adds a projector (Klein and Nabi, ACL 2022), miCSE a momentum encoder and a
queue (Klein and Nabi, ACL 2023).

This file is copied beside every saved checkpoint and imported from there, so it may import only the standard library,
torch and transformers.
"""

import copy
from collections.abc import Callable
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
# Of config.informin: which heads are built.
HEADS = {
    "projection_head": "mlp",  # or none
    "lm_head": False,
    "projector_size": 0,  # width of SCD's projector; 0: none
    "queue_size": 0,  # embeddings that miCSE's queue holds; 0: neither queue nor momentum encoder
    "momentum_decay": 0.995,
    "momentum_dropout": 0.3,
}
TRAINING_HEADS = {"lm_head": False, "projector_size": 0, "queue_size": 0}  # what an exported model does without


@dataclass
class InforMinOutput(ModelOutput):
    """What the encoders return. N rows, L tokens, d hidden size, V words, M masked positions; B sentences of each view.

    Attributes:
        last_hidden_state: (N, L, d).
        pooler_output: (N, d), the [CLS] vector: the sentence embedding.
        projection: (N, d), what the objectives compare; only in training mode.
        mlm_logits: (M, V), at the positions of `mlm_mask` in row-major order; only when `mlm_mask` is given.
        features: the projector's output for each of the two views, (W*B, D) each, W what `gather` joins.
        momentum_projection: (B, d), the momentum encoder's projection of the sentences, without gradient.
        hidden_states, attentions: as in every transformers model.
    """

    last_hidden_state: Optional[Tensor] = None
    pooler_output: Optional[Tensor] = None
    projection: Optional[Tensor] = None
    mlm_logits: Optional[Tensor] = None
    features: Optional[tuple[Tensor, Tensor]] = None
    momentum_projection: Optional[Tensor] = None
    hidden_states: Optional[tuple[Tensor, ...]] = None
    attentions: Optional[tuple[Tensor, ...]] = None


class ProjectionHead(nn.Module):
    """Linear d -> d and tanh on the [CLS] vector: a fresh layer, not BERT's pooler, used only in training."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, cls: Tensor) -> Tensor:
        return torch.tanh(self.dense(cls))


class Projector(nn.Sequential):
    """Three linear layers, batch normalisation and ReLU between them (Klein and Nabi, 2022, section 3.2).

    The last batch normalisation, which has no weights, is the loss's.
    """

    def __init__(self, hidden_size: int, size: int):
        super().__init__(
            *(nn.Linear(hidden_size, size), nn.BatchNorm1d(size), nn.ReLU(inplace=True)),
            *(nn.Linear(size, size, bias=False), nn.BatchNorm1d(size), nn.ReLU(inplace=True)),
            nn.Linear(size, size, bias=False),
        )


class InforMinMixin:
    """What the two architectures share: which heads are built, and the forward pass.

    `config.informin` says which heads exist, see `HEADS`. A head that no objective reads would never get a gradient, so
    it is not built.
    """

    # Encoder checkpoints bring heads that are not ours; ours are fresh unless they were trained before.
    _keys_to_ignore_on_load_missing = [r"^mlp\.", r"^projector\.", r"^momentum_encoder\.", r"^queue(_ids)?$"]
    _keys_to_ignore_on_load_unexpected = [
        *(r"(^|\.)pooler\.", r"^cls\.", r"^lm_head\."),
        *_keys_to_ignore_on_load_missing,
    ]

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
        config.informin = HEADS | (getattr(config, "informin", None) or {})
        heads = config.informin
        self._lm_head_name = lm_head_name
        if heads["projection_head"] == "mlp":
            self.mlp = ProjectionHead(config.hidden_size)
        if heads["projector_size"]:
            self.projector = Projector(config.hidden_size, heads["projector_size"])
        if heads["queue_size"]:
            slow = copy.deepcopy(config)
            slow.hidden_dropout_prob = slow.attention_probs_dropout_prob = heads["momentum_dropout"]
            self.momentum_encoder = type(self.base_model)(slow, add_pooling_layer=False)
            self.register_buffer("queue", torch.zeros(heads["queue_size"], config.hidden_size))
            self.register_buffer("queue_ids", torch.zeros(heads["queue_size"], dtype=torch.int64))
        if heads["lm_head"]:
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
        num_sentences: Optional[int] = None,
        gather: Optional[Callable[[Tensor], Tensor]] = None,
        return_dict: Optional[bool] = None,
        **kwargs,
    ) -> "InforMinOutput | tuple":
        """Encodes N sentences of L tokens.

        Args:
            mlm_mask: (N, L) bool, the positions whose language-model logits are wanted. Needs the LM head.
            num_sentences: B, where rows 0 to B are one view of B sentences and rows B to 2B the other: in training,
                what the projector and the momentum encoder then give is in the output.
            gather: joins the rows (B, d) of all processes, with gradient, as the projector normalises over all of them;
                None for one process.
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
        features = momentum_projection = None
        if self.training and num_sentences is not None:
            if self.config.informin["projector_size"]:
                features = self._project_views(projection[: 2 * num_sentences], gather)
            if self.config.informin["queue_size"]:
                momentum_projection = self._project_slowly(input_ids[:num_sentences], attention_mask[:num_sentences])
        result = InforMinOutput(
            last_hidden_state=hidden,
            pooler_output=cls,
            projection=projection,
            mlm_logits=None if mlm_mask is None else self._mlm_logits(hidden[mlm_mask]),
            features=features,
            momentum_projection=momentum_projection,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        return result.to_tuple() if return_dict is False else result

    def _mlm_logits(self, masked: Tensor) -> Tensor:
        if not self.config.informin["lm_head"]:
            raise ValueError(
                "mlm_mask was given, but this model has no language-model head. Load it with "
                'config.informin = {"lm_head": True} from a checkpoint that has one.'
            )
        return getattr(self, self._lm_head_name)(masked)  # (M, V)

    def _project_views(self, projection: Tensor, gather: Optional[Callable]) -> tuple[Tensor, Tensor]:
        """(W*B, D) for each of the two views (B, d): by itself, or the two would share their statistics."""
        return tuple(self.projector(gather(view) if gather else view) for view in projection.chunk(2))

    @torch.no_grad()
    def _project_slowly(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        cls = self.momentum_encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]
        return self.mlp(cls) if self.config.informin["projection_head"] == "mlp" else cls  # (B, d)

    @torch.no_grad()
    def start_momentum(self) -> None:
        """Makes the momentum encoder a copy of the encoder, and empties the queue: how training begins."""
        self.momentum_encoder.load_state_dict(self.base_model.state_dict())
        self.momentum_encoder.requires_grad_(False)  # here, as from_pretrained makes every parameter one that learns
        self.queue.zero_()
        self.queue_ids.zero_()

    @torch.no_grad()
    def update_momentum(self) -> None:
        """Moves the momentum encoder towards the encoder: m <- decay m + (1 - decay) theta (He et al., 2020, eq. 2)."""
        for slow, fast in zip(self.momentum_encoder.parameters(), self.base_model.parameters()):
            slow.lerp_(fast, 1 - self.config.informin["momentum_decay"])

    @torch.no_grad()
    def enqueue(self, keys: Tensor, ids: Tensor) -> None:
        """Puts keys (K, d) of all processes before the queue's, with the ids (K,) of their sentences; the oldest leave.

        Rows of zeros are empty places.
        """
        self.queue.copy_(torch.cat([keys.to(self.queue.dtype), self.queue])[: len(self.queue)])
        self.queue_ids.copy_(torch.cat([ids, self.queue_ids])[: len(self.queue_ids)])


class BertForInforMinCL(InforMinMixin, BertPreTrainedModel):
    """BERT with the [CLS] vector as sentence embedding, for InforMin-CL and its family."""

    def __init__(self, config, add_pooling_layer: bool = False):  # sentence-transformers hands it on; there is none
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

    def __init__(self, config, add_pooling_layer: bool = False):
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
