"""Encoders that give sentence embeddings, with a projection head and a place for an objective's heads.

The embedding is the [CLS] vector, or what else `config.informin` says. In training, a projection head sits on top of it
(Gao et al., EMNLP 2021, section 3; Chen et al., COLING 2022, section 3.1); where masked language modeling is on, the
pretrained language-model head reads the masked copy of each sentence. Other heads are an objective's own: it puts them
into `heads`.

BERT and RoBERTa have classes of their own, which a published folder names, for AutoModel with trust_remote_code=True.
Those of other encoders are made by `sister`; their published folders are plain encoders.

This file is copied beside every saved checkpoint and imported from there, so it may import only the standard library,
torch and transformers.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.checkpoint import checkpoint
from transformers.modeling_utils import PreTrainedModel, load_state_dict
from transformers.models.bert.modeling_bert import BertModel, BertOnlyMLMHead, BertPreTrainedModel
from transformers.models.roberta.modeling_roberta import RobertaLMHead, RobertaModel, RobertaPreTrainedModel
from transformers.utils import ModelOutput, cached_file

# Published folders keep the projection head in its own file: servers refuse weights that a plain BERT does not have.
HEAD_FILE = "projection_head/model.safetensors"
ADAPTER_FILE = "3_Dense/model.safetensors"  # of a model with a linear adapter on its embedding
# Of config.informin: which heads are built.
HEADS = {"projection_head": "mlp", "lm_head": False}  # mlp or none
TRAINING_HEADS = {"lm_head": False}  # what an exported model does without
POOLINGS = ("cls", "mean", "last")
# What else config.informin may say of what is read here.
CHOICES = {
    "projection_head": ("mlp", "none"),
    "lm_head": (False, True),
    "pooling": POOLINGS,
    "normalize": (False, True),
    "adapter": (False, True),
}


@dataclass
class InforMinOutput(ModelOutput):
    """What the encoders return. N rows, L tokens, d hidden size, V words, M labeled positions.

    Attributes:
        last_hidden_state: (N, L, d); None where `reader` read the rows.
        pooler_output: (N, d), the sentence embedding, pooled and, outside training, scaled as the settings say.
        projection: (N, d), what the objectives compare; only in training mode.
        lm_losses: (M,) float32, cross entropy at the M labeled positions; only when `lm_labels` is given.
        heads: what each of `model.heads` gave, by its name; only in training mode, when `views` is given.
        hidden_states, attentions: as in every transformers model.
    """

    last_hidden_state: Optional[Tensor] = None
    pooler_output: Optional[Tensor] = None
    projection: Optional[Tensor] = None
    lm_losses: Optional[Tensor] = None
    heads: Optional[dict[str, Any]] = None
    hidden_states: Optional[tuple[Tensor, ...]] = None
    attentions: Optional[tuple[Tensor, ...]] = None


def pool(pooling: str, hidden: Tensor, mask: Optional[Tensor] = None) -> Tensor:
    """(N, d): one vector for each of N sentences of L tokens, padded on either side.

    `cls` is the first token, `mean` the mean over the tokens, `last` the last token.

    Args:
        hidden: (N, L, d).
        mask: (N, L), 1 at tokens, 0 at padding; None where there is no padding.
    """
    if mask is None:
        mask = hidden.new_ones(hidden.shape[:2])
    if pooling == "mean":
        weights = mask[..., None].to(hidden.dtype)
        dtype = torch.promote_types(hidden.dtype, torch.float32)  # sums of half precision would be rounded
        total = (hidden * weights).sum(1, dtype=dtype)
        return (total / weights.sum(1, dtype=dtype).clamp(min=1)).to(hidden.dtype)
    if pooling == "cls":
        at = mask.int().argmax(1)
    elif pooling == "last":
        at = mask.shape[1] - 1 - mask.int().flip(1).argmax(1)
    else:
        raise ValueError(f"The pooling {pooling!r} is unknown; needed one of: {', '.join(POOLINGS)}.")
    return hidden[torch.arange(len(hidden), device=hidden.device), at]


def with_defaults(given: Any) -> dict[str, Any]:
    """What `config.informin` says, with its defaults.

    Raises:
        ValueError: a setting that is read here has another value than those of `CHOICES`.
    """
    if not isinstance(given, dict):
        raise ValueError(f"config.informin is a {type(given).__name__}; needed a dict.")
    settings = HEADS | {"pooling": "cls"} | given
    for name, choices in CHOICES.items():
        if name in settings and settings[name] not in choices:
            needed = ", ".join(map(str, choices))
            raise ValueError(f"config.informin has {name} = {settings[name]!r}; needed one of: {needed}.")
    return settings


class ProjectionHead(nn.Module):
    """Linear d -> d and tanh on the embedding: a fresh layer, not BERT's pooler, used only in training."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, embedding: Tensor) -> Tensor:
        return torch.tanh(self.dense(embedding))


class InforMinMixin:
    """What the architectures share: which heads are built, and the forward pass.

    `config.informin` says which of `HEADS` exist, the `pooling`, and whether to `normalize` the embedding and apply a
    linear `adapter`. Heads without a use are not built, since they would never get a gradient. `heads` is empty;
    training fills it with modules that are called with the model, the projection of the two views and their inputs.

    Attributes:
        dropouts: Names of the dropout rates in config.json.
        reader: Encodes rows in training instead of the encoder's own forward pass, as
            `informin.encoders.packing.read_packed` does; None for none.
        chunk_size: Number of rows whose activations are in memory at once; None for all (gradient caching, Gao et al.,
            2021).
    """

    dropouts: ClassVar[tuple[str, ...]] = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    reader: Optional[Callable[..., tuple[Tensor, Optional[Tensor]]]] = None
    chunk_size: Optional[int] = None

    # The projection head is fresh unless it was trained before. Checkpoints bring heads that are not wanted here.
    _keys_to_ignore_on_load_missing = [r"^(mlp|adapter)\."]
    _keys_to_ignore_on_load_unexpected = [r"(^|\.)pooler\.", r"^(mlp|heads|cls|lm_head)\."]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """Transformers', and the projection head from `HEAD_FILE` of a published folder."""
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        published = getattr(model.config, "auto_map", None) and cls.__name__ not in (model.config.architectures or [])
        if not published:
            return loaded
        where = {
            name: kwargs[name] for name in kwargs if name in ("cache_dir", "local_files_only", "token", "revision")
        }
        where["_raise_exceptions_for_missing_entries"] = False
        for name, file in (("mlp", HEAD_FILE), ("adapter", ADAPTER_FILE)):
            head = getattr(model, name, None)
            path = None if head is None else cached_file(pretrained_model_name_or_path, file, **where)
            if path is not None:
                weights = {key.removeprefix("linear."): x for key, x in load_state_dict(path).items()}
                # Some versions leave weights that they did not find on the meta device: put these in their place.
                head.load_state_dict(weights, assign=True)
                head.to(device=model.device, dtype=model.dtype)
        return loaded

    def _build_heads(
        self, lm_head_name: str = "", lm_head_class: Optional[type[nn.Module]] = None, tied: Optional[dict] = None
    ) -> None:
        config = self.config
        config.informin = with_defaults(getattr(config, "informin", None) or {})
        self._lm_head_name = lm_head_name
        if config.informin["projection_head"] == "mlp":
            self.mlp = ProjectionHead(config.hidden_size)
        if config.informin.get("adapter"):
            self.adapter = nn.Linear(config.hidden_size, config.hidden_size)
        self.heads = nn.ModuleDict()
        if config.informin["lm_head"]:
            if lm_head_class is None:
                raise ValueError(f"{type(self).__name__} has no language-model head.")
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
        lm_labels: Optional[Tensor] = None,
        views: Optional[dict[str, Any]] = None,
        return_dict: Optional[bool] = None,
        **kwargs,
    ) -> "InforMinOutput | tuple":
        """Encodes N sentences of L tokens.

        Args:
            lm_labels: (N, L), the words to be predicted, and a negative number where none is. Needs the LM head.
            views: in training, where rows 0 to B are one view of B sentences and rows B to 2B the other: what the
                `heads` are to know beside these rows, by name: `sentence_ids` (B,) and what else they take.
            Everything else that is given is passed on to the encoder and means what it means there.

        Raises:
            ValueError: `lm_labels` is given and the model was built without its LM head.
        """
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
        }
        given = {name: x for name, x in inputs.items() if x is not None}  # not every encoder takes all of them
        asked = given.keys() - {"input_ids", "attention_mask"} or any(kwargs.values())
        if self.training and not asked and (self.reader or self.chunk_size):
            outputs, hidden = InforMinOutput(), None
            pooled, lm_losses = self._read_chunks(input_ids, attention_mask, lm_labels, views)
        else:
            outputs = self.base_model(**given, return_dict=True, **kwargs)
            hidden = outputs.last_hidden_state  # (N, L, d)
            pooled = self.pool(hidden, attention_mask)  # (N, d)
            lm_losses = None if lm_labels is None else self._lm_losses(hidden[lm_labels >= 0], lm_labels)
        projection = self.project(pooled) if self.training else None
        heads = None
        if self.training and views is not None:
            rows = slice(2 * len(views["sentence_ids"]))
            inputs = {"input_ids": input_ids[rows], "attention_mask": attention_mask[rows], **views}
            heads = {name: head(self, projection[rows], **inputs) for name, head in self.heads.items()}
        result = InforMinOutput(
            last_hidden_state=hidden,
            pooler_output=pooled if self.training else self.finish(pooled),
            projection=projection,
            lm_losses=lm_losses,
            heads=heads,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        return result.to_tuple() if return_dict is False else result

    def _read_chunks(
        self, input_ids: Tensor, mask: Tensor, lm_labels: Optional[Tensor], views: Optional[dict[str, Any]]
    ) -> tuple[Tensor, Optional[Tensor]]:
        """Embeddings and language-model losses of N rows, `chunk_size` of them at a time.

        The backward pass encodes each chunk again, under the same random state. A chunk has the same sentences of every
        view, so that whatever tells views apart by their position in a batch does so in a chunk.
        """
        number = len(input_ids)
        if self.chunk_size is None or number <= self.chunk_size:
            return self._read_rows(input_ids, mask, lm_labels)
        order = torch.arange(number, device=input_ids.device)
        if views is not None and number % (size := len(views["sentence_ids"])) == 0:
            copies = number // size
            parts = order.view(copies, size).split(max(1, self.chunk_size // copies), dim=1)
            chunks = [part.flatten() for part in parts]
        else:
            chunks = order.split(self.chunk_size)
        read = [
            checkpoint(
                self._read_rows,
                input_ids[rows],
                mask[rows],
                None if lm_labels is None else lm_labels[rows],
                use_reentrant=False,
            )
            for rows in chunks
        ]
        back = torch.cat(list(chunks)).argsort()
        losses = None if lm_labels is None else torch.cat([losses for _, losses in read])
        return torch.cat([pooled for pooled, _ in read])[back], losses

    def _read_rows(
        self, input_ids: Tensor, mask: Tensor, lm_labels: Optional[Tensor]
    ) -> tuple[Tensor, Optional[Tensor]]:
        """Embeddings (N, d) and language-model losses (M,) of N rows."""
        wanted = None if lm_labels is None else lm_labels >= 0
        if self.reader:
            pooled, tokens = self.reader(self.base_model, input_ids, mask, self._pooling, wanted)
        else:
            hidden = self.base_model(input_ids=input_ids, attention_mask=mask).last_hidden_state
            pooled, tokens = self.pool(hidden, mask), None if wanted is None else hidden[wanted]
        return pooled, None if wanted is None else self._lm_losses(tokens, lm_labels)

    def pool(self, hidden: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """(N, d), the embeddings as the settings say, not scaled; see `pool`."""
        return pool(self._pooling, hidden, mask)

    def finish(self, pooled: Tensor) -> Tensor:
        """Apply the linear adapter to pooled embeddings (N, d) and scale them to unit length, as the settings say."""
        if self.config.informin.get("adapter"):
            pooled = self.adapter(normalize(pooled))
        return normalize(pooled) if self.config.informin.get("normalize") else pooled

    def read(self, encoder: nn.Module, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(N, d), the embeddings by another encoder of this one's form, not scaled."""
        rows = zip(*(x.split(self.chunk_size or len(x)) for x in (input_ids, attention_mask)))
        if self.reader:
            return torch.cat([self.reader(encoder, ids, mask, self._pooling)[0] for ids, mask in rows])
        return torch.cat(
            [self.pool(encoder(input_ids=ids, attention_mask=mask).last_hidden_state, mask) for ids, mask in rows]
        )

    @property
    def _pooling(self) -> str:
        return self.config.informin["pooling"]

    def project(self, pooled: Tensor) -> Tensor:
        """(N, d), the projection head on embeddings (N, d); without one, themselves."""
        return self.mlp(pooled) if self.config.informin["projection_head"] == "mlp" else pooled

    def _lm_losses(self, tokens: Tensor, lm_labels: Tensor) -> Tensor:
        """(M,) float32, cross entropy of the words at the M labeled positions, whose vectors are (M, d)."""
        if not self.config.informin["lm_head"]:
            raise ValueError(
                "lm_labels was given, but this model has no language-model head. Load it with "
                'config.informin = {"lm_head": True} from a checkpoint that has one.'
            )
        logits = getattr(self, self._lm_head_name)(tokens)  # (M, V)
        return cross_entropy(logits.float(), lm_labels[lm_labels >= 0], reduction="none")


class BertForInforMinCL(InforMinMixin, BertPreTrainedModel):
    """BERT with a sentence embedding, for InforMin-CL and its family."""

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
    """RoBERTa with a sentence embedding, for InforMin-CL and its family."""

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


@functools.cache
def sister(
    encoder: type[PreTrainedModel],
    lm_head: Optional[type[nn.Module]] = None,
    dropouts: tuple[str, ...] = InforMinMixin.dropouts,
) -> type[PreTrainedModel]:
    """The class for one more encoder of transformers, as `BertForInforMinCL` is BERT's: DistilBertForInforMinCL.

    Args:
        encoder: what AutoModel gives.
        lm_head: of RoBERTa's form; None where there is none, or one of another form.
        dropouts: the rates in its config.json.
    """
    family = next(kind for kind in encoder.__mro__[1:] if issubclass(kind, PreTrainedModel) and kind.base_model_prefix)
    prefix = family.base_model_prefix
    options = {"add_pooling_layer": False} if has_pooler(encoder) else {}
    tied = {
        "lm_head.decoder.weight": f"{prefix}.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }

    class Sister(InforMinMixin, family):
        _keys_to_ignore_on_load_unexpected = [r"(^|\.)pooler\.", rf"^(?!{prefix}\.)"]

        def __init__(self, config):
            super().__init__(config)
            setattr(self, prefix, encoder(config, **options))
            self._build_heads("lm_head", lm_head, tied)

    Sister.dropouts = dropouts
    Sister.__name__ = Sister.__qualname__ = f"{encoder.__name__.removesuffix('Model')}ForInforMinCL"
    Sister.__doc__ = f"{encoder.__name__} with a sentence embedding, for InforMin-CL and its family."
    return Sister


def has_pooler(encoder: type[PreTrainedModel]) -> bool:
    """Whether an encoder's class has a pooling layer of its own, which `add_pooling_layer=False` leaves out."""
    return "add_pooling_layer" in inspect.signature(encoder.__init__).parameters


BertForInforMinCL.register_for_auto_class("AutoModel")
RobertaForInforMinCL.register_for_auto_class("AutoModel")
