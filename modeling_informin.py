"""Sentence encoders for InforMin-CL and related objectives.

A model returns one embedding per sentence: the [CLS] vector, or another pooling set in `config.informin`. In training,
a projection head is applied to the embedding (Gao et al., EMNLP 2021, section 3; Chen et al., COLING 2022, section
4.1). With masked language modeling, the pretrained language-model head predicts the masked tokens. An objective adds
its own heads to `heads`.

BERT and RoBERTa have custom classes, which AutoModel loads from published folders with trust_remote_code=True.
Other encoders are trained as `informin.training.model.SentenceTransformerForInforMinCL`, with the same heads.

This file is copied into every saved checkpoint and imported from there. It may import only the standard library, torch
and transformers.
"""

import inspect
import itertools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Optional

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from transformers.modeling_utils import load_state_dict, safe_save_file
from transformers.models.bert.modeling_bert import BertModel, BertOnlyMLMHead, BertPreTrainedModel
from transformers.models.roberta.modeling_roberta import RobertaLMHead, RobertaModel, RobertaPreTrainedModel
from transformers.utils import ModelOutput, cached_file
from transformers.utils.hub import is_offline_mode

# Published folders keep the projection head in its own file: some servers reject weights that a plain BERT lacks.
HEAD_FILE = "projection_head/model.safetensors"
ADAPTER_FILE = "3_Dense/model.safetensors"  # the linear adapter
HEADS = {"projection_head": "mlp", "lm_head": False}  # settings in config.informin that build heads, with defaults
POOLINGS = ("cls", "mean", "last")
# Names of poolings in sentence-transformers. Version 2.2 rejects other modes than the first four, and turns mean_tokens
# on if it is not listed.
POOLING_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
SOURCE_SETTINGS = ("max_seq_length", "do_lower_case", "prompts", "default_prompt_name", "similarity_fn_name")
MODE_OF = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}
# Allowed values of the settings in config.informin that this file uses.
CHOICES = {
    "projection_head": ("mlp", "none"),
    "lm_head": (False, True),
    "pooling": POOLINGS,
    "normalize": (False, True),
    "adapter": (False, True),
}


@dataclass
class InforMinOutput(ModelOutput):
    """Output of the models for N sentences of L tokens, with hidden size d and M masked tokens.

    Attributes:
        last_hidden_state: (N, L, d); None with `split_batch`.
        pooler_output: (N, d), sentence embeddings. Outside training they are normalized if the settings say so.
        projection: (N, d), output of the projection head; only in training mode.
        lm_losses: (M,) float32, cross entropy of the masked tokens; only if `lm_labels` is given.
        heads: Output of each of `model.heads` by name; only in training mode, if `views` is given.
        hidden_states: As in every transformers model.
        attentions: As in every transformers model.
    """

    last_hidden_state: Optional[Tensor] = None
    pooler_output: Optional[Tensor] = None
    projection: Optional[Tensor] = None
    lm_losses: Optional[Tensor] = None
    heads: Optional[dict[str, Any]] = None
    hidden_states: Optional[tuple[Tensor, ...]] = None
    attentions: Optional[tuple[Tensor, ...]] = None


@dataclass
class HeadInputs:
    """What the heads of an objective's terms read in training: V views of B sentences of L tokens, hidden size d.

    The rows of view 1 come first, then those of view 2. V is 1 if each sentence is encoded once.

    Attributes:
        embedding: Embeddings before the projection head, (V*B, d).
        projection: Their projections, (V*B, d). Equal to `embedding` if the model has no projection head.
        states: Hidden states of the tokens, (V*B, L, d), undefined at padding. None unless a term sets `reads_states`.
        input_ids: Token ids, (V*B, L).
        attention_mask: 1 for tokens, 0 for padding, (V*B, L).
        sentence_ids: Ids of the sentences, equal for equal sentences, (B,) int64.
        gather: Concatenates tensors (B, ...) from all processes, with gradient.
        original_ids: Token ids of the sentences, (B, L'), which no view encodes if V is 1 and it has other tokens.
        original_mask: Their attention mask, (B, L').
    """

    embedding: Tensor
    projection: Tensor
    states: Optional[Tensor]
    input_ids: Tensor
    attention_mask: Tensor
    sentence_ids: Tensor
    gather: Callable[[Tensor], Tensor]
    original_ids: Tensor
    original_mask: Tensor


def pool(pooling: str, hidden: Tensor, mask: Optional[Tensor] = None) -> Tensor:
    """Pool the hidden states of N sentences of L tokens into embeddings (N, d).

    Args:
        pooling: `cls` for the first token, `mean` for the mean over all tokens, `last` for the last token.
        hidden: Hidden states (N, L, d), padded on either side.
        mask: Attention mask (N, L), 1 for tokens, 0 for padding; None without padding.
    """
    if mask is None:
        mask = hidden.new_ones(hidden.shape[:2])
    if pooling == "mean":
        weights = mask[..., None].to(hidden.dtype)
        dtype = torch.promote_types(hidden.dtype, torch.float32)  # half precision would round sums
        total = (hidden * weights).sum(1, dtype=dtype)
        return (total / weights.sum(1, dtype=dtype).clamp(min=1)).to(hidden.dtype)
    if pooling == "cls":
        position = mask.int().argmax(1)
    elif pooling == "last":
        position = mask.shape[1] - 1 - mask.int().flip(1).argmax(1)
    else:
        raise ValueError(f"Unknown pooling {pooling!r}; expected one of: {', '.join(POOLINGS)}.")
    return hidden[torch.arange(len(hidden), device=hidden.device), position]


def with_defaults(given: Any) -> dict[str, Any]:
    """Return the settings in `config.informin` with defaults for those that are missing.

    Raises:
        ValueError: A setting has a value that is not in `CHOICES`.
    """
    if not isinstance(given, dict):
        raise ValueError(f"config.informin is a {type(given).__name__}; expected a dict.")
    settings = HEADS | {"pooling": "cls"} | given
    for name, choices in CHOICES.items():
        if name in settings and settings[name] not in choices:
            expected = ", ".join(map(str, choices))
            raise ValueError(f"config.informin has {name} = {settings[name]!r}; expected one of: {expected}.")
    return settings


def sentence_transformers_files(
    settings: dict[str, Any], width: int, longest: Optional[int], pooler: bool
) -> dict[str, Any]:
    """Return the files with which any version of sentence-transformers loads an encoder, by name.

    Args:
        settings: `config.informin`. Its `sentence_transformers` has the settings of the source model.
        width: Hidden size.
        longest: Maximum number of tokens per sentence; None for that of the tokenizer.
        pooler: The encoder's class has a pooler, which transformers would create with random weights.
    """
    source = settings.get("sentence_transformers") or {}
    modes = dict.fromkeys(POOLING_MODES, False) | {MODE_OF[settings.get("pooling") or "cls"]: True}
    prompts = with_default_prompt(
        source.get("prompts") or {}, source.get("default_prompt_name"), settings.get("prompt", "")
    )
    return {
        "modules.json": module_list(settings.get("normalize", False), settings.get("adapter", False)),
        "1_Pooling/config.json": {
            "word_embedding_dimension": width,
            **{f"pooling_mode_{mode}": on for mode, on in modes.items()},
        },
        "sentence_bert_config.json": {
            **({"max_seq_length": longest} if longest else {}),
            "do_lower_case": source.get("do_lower_case", False),
            **({"model_args": {"add_pooling_layer": False}} if pooler else {}),
        },
        "config_sentence_transformers.json": {
            **dict(zip(("prompts", "default_prompt_name"), prompts)),
            "similarity_fn_name": source.get("similarity_fn_name", "cosine"),
        },
    }


def source_settings(model_name: str, **where) -> dict[str, Any]:
    """Return the settings in the files of sentence-transformers that config.json lacks, such as named prompts."""
    found: dict[str, Any] = {}
    for name in ("sentence_bert_config.json", "config_sentence_transformers.json"):
        path = cached_file(model_name, name, **where)
        found |= {} if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
    return {name: found[name] for name in SOURCE_SETTINGS if found.get(name)}


def stored_pooling(model_name: str, **where) -> dict[str, Any]:
    """Return `pooling` and `normalize` as the files of sentence-transformers store them; empty without such files.

    Raises:
        ValueError: The model has a pooling that is not in `POOLINGS`.
    """
    path = cached_file(model_name, "modules.json", **where)
    modules = [] if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    if "Pooling" not in kinds:
        return {}
    path = cached_file(model_name, f"{modules[kinds.index('Pooling')]['path']}/config.json", **where)
    stored = {} if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
    flags = [name for name, on in stored.items() if name.startswith("pooling_mode_") and on]  # before version 6
    given = stored.get("pooling_mode") or [name.removeprefix("pooling_mode_") for name in flags] or "mean"
    modes = [given] if isinstance(given, str) else given
    known = {mode: pooling for pooling, mode in MODE_OF.items()} | {"mean": "mean", "cls": "cls"}
    if len(modes) > 1 or modes[0] not in known:
        raise ValueError(f"{model_name} has the pooling {' and '.join(modes)}; expected one of: {', '.join(POOLINGS)}.")
    return {"pooling": known[modes[0]]} | ({"normalize": True} if kinds[2:] == ["Normalize"] else {})


def module_list(normalized: bool, adapted: bool) -> list[dict[str, Any]]:
    """Return the content of modules.json. The linear adapter reads embeddings of unit length."""
    kinds = ["Transformer", "Pooling"]
    kinds += ["Normalize", "Dense"] if adapted else []
    kinds += ["Normalize"] if normalized else []
    return [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]


def with_default_prompt(
    prompts: dict[str, str], default: Optional[str], prompt: str
) -> tuple[dict[str, str], Optional[str]]:
    """Return the prompts by name and the name of the default one, after a text became the default prompt.

    It gets a new name unless one of the prompts equals it: `default`, or `default_2` and so on.
    """
    if not prompt:
        return prompts, None
    if prompts.get(default or "") == prompt:
        return prompts, default
    own = [name for name, text in prompts.items() if text == prompt]
    new = itertools.chain(["default"], (f"default_{i}" for i in itertools.count(2)))
    name = own[0] if own else next(name for name in new if name not in prompts)
    return {**prompts, name: prompt}, name


class ProjectionHead(nn.Module):
    """Linear layer (d to d) with tanh, applied to the embedding in training. It is not BERT's pretrained pooler."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, embedding: Tensor) -> Tensor:
        return torch.tanh(self.dense(embedding))


class TrainingMixin:
    """The forward pass in training, which all models share: embeddings, projection, language-model losses and heads.

    Attributes:
        heads: Modules of the objective's terms, called with the model and `HeadInputs`.
        forward_pass: Object that makes `split_batch`, see `informin.fast.forward`; None outside a trainer.
    """

    heads: nn.ModuleDict
    forward_pass: Any = None
    _lm_head_name: ClassVar[str] = "lm_head"

    def train(self, mode: bool = True):
        """Set the mode of all modules. Trainer does so in each step, and most of the time nothing has changed."""
        if all(module.training == mode for module in self.modules()):  # type: ignore[attr-defined]
            return self
        return super().train(mode)  # type: ignore[misc]

    def training_outputs(
        self, split_batch: Any, input_ids: Tensor, attention_mask: Tensor, views: Optional[dict[str, Any]]
    ) -> InforMinOutput:
        """Compute what the terms read.

        Args:
            split_batch: The rows, from `informin.fast.forward.FastForward.split`.
            input_ids, attention_mask, views: See `InforMinMixin.forward`.
        """
        pooled, states, tokens, attentions = split_batch.forward.run(split_batch)
        projection = self.project(pooled)
        split_batch.forward.batch = split_batch  # for heads that encode the first view again
        heads = self.head_outputs(pooled, projection, states, input_ids, attention_mask, views)
        split_batch.forward.batch = None
        return InforMinOutput(
            pooler_output=pooled,
            projection=projection,
            lm_losses=None if tokens is None else self.lm_losses(tokens, split_batch.labels),
            heads=heads,
            attentions=attentions or None,
        )

    def head_outputs(
        self,
        pooled: Tensor,
        projection: Tensor,
        states: Optional[Tensor],
        input_ids: Tensor,
        attention_mask: Tensor,
        views: Optional[dict[str, Any]],
    ) -> Optional[dict[str, Any]]:
        """Return the outputs of the heads by name, from all rows (N, ...); None without `views`."""
        if views is None:
            return None
        first = len(views["sentence_ids"])
        others = {"original_ids": input_ids[:first], "original_mask": attention_mask[:first], **views}
        rows = slice(others.pop("number_of_views", 2) * first)  # masked copies may follow
        inputs = HeadInputs(
            embedding=pooled[rows],
            projection=projection[rows],
            states=None if states is None else states[rows],
            input_ids=input_ids[rows],
            attention_mask=attention_mask[rows],
            **others,
        )
        return {name: head(self, inputs) for name, head in self.heads.items()}

    def project(self, pooled: Tensor) -> Tensor:
        """Apply the projection head to embeddings (N, d); without a head, return them unchanged."""
        head = getattr(self, "mlp", None)
        return pooled if head is None else head(pooled)

    def lm_losses(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy (M,) float32 of the labels (M,), from the hidden states (M, d) of their tokens."""
        return cross_entropy(self.lm_logits(tokens).float(), labels, reduction="none")

    def lm_logits(self, tokens: Tensor) -> Tensor:
        """Return the logits (M, V) of the language-model head for hidden states (M, d)."""
        head = getattr(self, self._lm_head_name, None)
        if head is None:
            raise ValueError(
                "lm_labels was given, but this model has no language-model head. Load it with "
                'config.informin = {"lm_head": True} from a checkpoint that has one.'
            )
        return head(tokens)


class InforMinMixin(TrainingMixin):
    """Heads, pooling and forward pass shared by all architectures.

    `config.informin` sets which of `HEADS` are built, the `pooling`, and whether to `normalize` embeddings and apply a
    linear `adapter`. Unused heads are not built, since they would never get a gradient. `heads` starts empty.

    Attributes:
        source_settings: Settings of the loaded folder that `config` lacks, for `save_pretrained`.
        has_own_pooling: Whether `config` names the pooling. Otherwise `from_pretrained` reads it from the files of
            sentence-transformers, or it is [CLS].
    """

    has_own_pooling: bool
    source_settings: ClassVar[dict[str, Any]] = {}

    # The projection head may be newly initialized, and checkpoints may have heads that are not used.
    _keys_to_ignore_on_load_missing = [r"^(mlp|adapter)\."]
    _keys_to_ignore_on_load_unexpected = [r"(^|\.)pooler\.", r"^(mlp|heads|cls|lm_head)\."]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """Load a model as transformers does, with the projection head and adapter of a published folder.

        Raises:
            ValueError: The folder is that of a SentenceTransformer with a pooling that is not in `POOLINGS`.
        """
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        saved = cls.__name__ in (model.config.architectures or [])
        published = bool(getattr(model.config, "auto_map", None)) and not saved
        where = {
            name: kwargs[name]
            for name in kwargs
            if name in ("cache_dir", "local_files_only", "token", "revision", "subfolder")
        }
        where["_raise_exceptions_for_missing_entries"] = False
        if pretrained_model_name_or_path is not None and not model.has_own_pooling:
            # Offline, a file that was never asked for counts as missing.
            online = not (is_offline_mode() or kwargs.get("local_files_only"))
            model.config.informin |= stored_pooling(
                pretrained_model_name_or_path, **where, _raise_exceptions_for_connection_errors=online
            )
        if published or saved:
            model.source_settings = source_settings(pretrained_model_name_or_path, **where)
        if not published:
            return loaded
        for name, file in (("mlp", HEAD_FILE), ("adapter", ADAPTER_FILE)):
            head = getattr(model, name, None)
            path = None if head is None else cached_file(pretrained_model_name_or_path, file, **where)
            if name == "adapter" and head is not None and path is None:
                raise OSError(
                    f"{pretrained_model_name_or_path} has a linear adapter, but {file} is missing. Copy or download "
                    "the whole folder again."
                )
            if path is not None:
                weights = {key.removeprefix("linear."): x for key, x in load_state_dict(path).items()}
                # assign: some versions of transformers leave missing weights on the meta device
                head.load_state_dict(weights, assign=True)
                head.to(device=model.device, dtype=model.dtype)
        return loaded

    def save_pretrained(self, save_directory, is_main_process=True, *args, **kwargs):
        """Save a model as transformers does, with the files of sentence-transformers.

        Without them, sentence-transformers would load any model with mean pooling.
        """
        if is_main_process and not os.path.isfile(save_directory):
            for name, content in self._sentence_transformers_files().items():
                path = Path(save_directory, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, nn.Module):
                    weights = {f"linear.{key}": x.contiguous() for key, x in content.state_dict().items()}
                    safe_save_file(weights, path, metadata={"format": "pt"})
                else:
                    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return super().save_pretrained(save_directory, is_main_process, *args, **kwargs)

    def _upload_modified_files(self, working_dir, repo_id, files_timestamps, *args, **kwargs):
        # save_pretrained(push_to_hub=True) uploads what it wrote itself; the files above are older.
        written = {name.partition("/")[0] for name in self._sentence_transformers_files()}
        others = {name: when for name, when in files_timestamps.items() if name not in written}
        return super()._upload_modified_files(working_dir, repo_id, others, *args, **kwargs)

    def _sentence_transformers_files(self) -> dict[str, Any]:
        """Return the files of sentence-transformers by name: JSON values, and the linear adapter as a module."""
        config, encoder = self.config, self.base_model
        settings = {"sentence_transformers": self.source_settings} | config.informin
        longest = settings["sentence_transformers"].get("max_seq_length")
        table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
        if getattr(table, "padding_idx", None) is not None:  # RoBERTa's positions start after the padding index
            longest = min(longest or table.num_embeddings, table.num_embeddings - table.padding_idx - 1)
        files = sentence_transformers_files(settings, config.hidden_size, longest, has_pooler(type(encoder)))
        if config.informin.get("adapter"):
            sizes = {"in_features": config.hidden_size, "out_features": self._adapted_size}
            linear = {"bias": True, "activation_function": "torch.nn.modules.linear.Identity"}
            files |= {str(Path(ADAPTER_FILE).with_name("config.json")): sizes | linear, ADAPTER_FILE: self.adapter}
        return files

    def _build_heads(self, lm_head_class: type[nn.Module], tied: dict[str, str]) -> None:
        config = self.config
        given = getattr(config, "informin", None) or {}
        self.has_own_pooling = "pooling" in given
        config.informin = with_defaults(given)
        if config.informin["projection_head"] == "mlp":
            self.mlp = ProjectionHead(config.hidden_size)
        if config.informin.get("adapter"):
            self.adapter = nn.Linear(config.hidden_size, self._adapted_size)
        self.heads = nn.ModuleDict()
        if config.informin["lm_head"]:
            setattr(self, self._lm_head_name, lm_head_class(config))
            # transformers 5 looks up every name listed here, so list only weights that exist.
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
        split_batch: Any = None,
        return_dict: Optional[bool] = None,
        **kwargs,
    ) -> "InforMinOutput | tuple":
        """Encode N sentences of L tokens. Arguments not listed here are passed to the encoder.

        Args:
            lm_labels: (N, L), token ids to predict, negative for positions without a prediction. Needs the LM head.
            views: Further inputs of the `heads`, see `HeadInputs`, and the `number_of_views` (2). In training,
                rows 0 to B - 1 are one view of B sentences, and rows B to 2B - 1 are the other.
            split_batch: In training, the same rows as `informin.fast.forward` computes them.

        Raises:
            ValueError: `lm_labels` is given and the model was built without its LM head.
        """
        if self.training and split_batch is not None:
            return self.training_outputs(split_batch, input_ids, attention_mask, views)
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
        pooled = self.pool(hidden, attention_mask)  # (N, d)
        lm_losses = None
        if lm_labels is not None:
            wanted = lm_labels >= 0
            lm_losses = self.lm_losses(hidden[wanted], lm_labels[wanted])
        projection = heads = None
        if self.training:
            projection = self.project(pooled)
            heads = self.head_outputs(pooled, projection, hidden, input_ids, attention_mask, views)
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

    def pool(self, hidden: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """Return embeddings (N, d) with the model's own pooling, not normalized; see the function `pool`."""
        return pool(self.config.informin["pooling"], hidden, mask)

    def embed_with(self, encoder: nn.Module, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return embeddings (B, d) of the first view (B, L) by a copy of the encoder, not normalized."""
        if self.forward_pass is not None:
            return self.forward_pass.embed_with(encoder, input_ids, attention_mask)
        hidden = encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.pool(hidden, attention_mask)

    def finish(self, pooled: Tensor) -> Tensor:
        """Apply the linear adapter to pooled embeddings (N, d) and scale them to unit length, as the settings say.

        The adapter returns (N, m), with m up to d.
        """
        if self.config.informin.get("adapter"):
            pooled = self.adapter(normalize(pooled))
        return normalize(pooled) if self.config.informin.get("normalize") else pooled

    @property
    def _adapted_size(self) -> int:
        return self.config.informin.get("adapter_dimensions", self.config.hidden_size)


class BertForInforMinCL(InforMinMixin, BertPreTrainedModel):
    """BERT sentence encoder for InforMin-CL and related objectives."""

    _lm_head_name = "cls"

    def __init__(self, config, add_pooling_layer: bool = False):  # unused; sentence-transformers passes it
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self._build_heads(
            BertOnlyMLMHead,
            tied={
                "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
                "cls.predictions.decoder.bias": "cls.predictions.bias",
            },
        )


class RobertaForInforMinCL(InforMinMixin, RobertaPreTrainedModel):
    """RoBERTa sentence encoder for InforMin-CL and related objectives."""

    def __init__(self, config, add_pooling_layer: bool = False):
        super().__init__(config)
        self.roberta = RobertaModel(config, add_pooling_layer=False)
        self._build_heads(
            RobertaLMHead,
            tied={
                "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
                "lm_head.decoder.bias": "lm_head.bias",
            },
        )


def has_pooler(encoder: type[nn.Module]) -> bool:
    """Return whether an encoder's class has its own pooling layer, which `add_pooling_layer=False` leaves out."""
    return "add_pooling_layer" in inspect.signature(encoder.__init__).parameters


CLASSES = {  # by `model_type`
    "bert": BertForInforMinCL,
    "roberta": RobertaForInforMinCL,
    "xlm-roberta": RobertaForInforMinCL,
    "camembert": RobertaForInforMinCL,
}
BertForInforMinCL.register_for_auto_class("AutoModel")
RobertaForInforMinCL.register_for_auto_class("AutoModel")
