"""Train any SentenceTransformer as it is: its own modules compute the embedding."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Router
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    set_seed,
)
from transformers.modeling_outputs import BaseModelOutput

from informin.errors import UsageError, counted
from informin.models.embedding import width_of
from informin.models.lora import add_lora, without_lora
from informin.models.opening import SAFE, Source, load_model
from informin.models.trained import SAMPLE_TEXTS, EncodeTexts, Needs, TrainedModel, copied
from informin.views.attention import set_dropout
from modeling_informin import InforMinOutput, ProjectionHead, TrainingMixin

HEADS_FILE = "heads.safetensors"  # in checkpoints: the projection head, the language-model head, and those of the terms
TRAINED_FILE = "trained.safetensors"  # with LoRA: all weights that training changes, in checkpoints
UNLIMITED = 1_000_000  # tokens; maximum length of models that do not truncate, such as static embeddings
TOLERANCE, HALF_TOLERANCE = 1e-3, 0.05  # of the length of an embedding, the second with weights in bfloat16


class WrapperConfig(PreTrainedConfig):
    """Describes a SentenceTransformer in training: `hidden_size` is the dimension of its embeddings."""

    model_type = "sentence-transformers"

    def __init__(self, hidden_size: int = 768, informin: dict | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.hidden_size, self.informin = hidden_size, informin or {}


class SentenceTransformerForInforMinCL(TrainingMixin, nn.Module):
    """A SentenceTransformer whose forward pass in training returns `InforMinOutput`.

    Attributes:
        st: The SentenceTransformer.
        config: Dimension of the embeddings, and `informin`, the settings of the run.
        mlp: The projection head; None without one.
        lm_head: The language-model head; None without one.
    """

    supports_gradient_checkpointing = True

    def __init__(self, st: SentenceTransformer, config: WrapperConfig, lm_head: nn.Module | None = None):
        super().__init__()
        self.st, self.config, self.lm_head = st, config, lm_head
        self.heads = nn.ModuleDict()
        self.mlp: ProjectionHead | None = None
        if config.informin["projection_head"] == "mlp":
            self.mlp = ProjectionHead(config.hidden_size)
            self.mlp.apply(self._init_weights)

    @property
    def _no_split_modules(self) -> list[str]:  # read by accelerate, for FSDP
        return self.st._no_split_modules

    @property
    def device(self) -> torch.device:
        return next(self.st.parameters()).device

    @property
    def base_model(self) -> nn.Module:
        """The encoder, which a momentum encoder follows."""
        return self.st[0].auto_model

    def _init_weights(self, module: nn.Module) -> None:
        """Initialize a new layer as BERT does; not every model has an initialization for all layers."""
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        lm_labels: Tensor | None = None,
        output_attentions: bool = False,
        views: dict[str, Any] | None = None,
        packed: Any = None,
    ) -> InforMinOutput:
        """Embed the rows of `packed`; see `modeling_informin.InforMinMixin.forward`."""
        return self.training_outputs(packed, input_ids, attention_mask, views)

    def lm_logits(self, tokens: Tensor) -> Tensor:
        """Return the logits (M, V) of the language-model head for hidden states (M, d)."""
        assert self.lm_head is not None, "labels need a language-model head"
        return self.lm_head(tokens)

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Recompute the activations of the transformer's layers in the backward pass; see transformers' method."""
        self.st.gradient_checkpointing_enable(**options)
        if self.config.informin.get("lora"):  # the frozen embeddings give the first layer an input without gradient
            self.st[0].auto_model.enable_input_require_grads()

    gradient_checkpointing_enable = activation_checkpointing_enable


class GivenStates(nn.Module):
    """Stands for an encoder, and returns the states that it is given."""

    def forward(self, inputs_embeds: Tensor, **_: Any) -> BaseModelOutput:
        """Return (1, M, d) as the last hidden state."""
        return BaseModelOutput(last_hidden_state=inputs_embeds)


class LanguageModelHead(nn.Module):
    """The pretrained head of a masked language model, without its encoder. Its decoder shares the word embeddings.

    Attributes:
        model: The model of transformers, whose encoder is replaced.
    """

    def __init__(self, model: Any, encoder: Any):
        super().__init__()
        setattr(model, model.base_model_prefix, encoder)
        model.tie_weights()  # with the word embeddings that are trained
        setattr(model, model.base_model_prefix, GivenStates())
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (M, V) for hidden states (M, d)."""
        return self.model(inputs_embeds=tokens[None]).logits[0]


class WrappedModel(TrainedModel):
    """A SentenceTransformer in training; see `TrainedModel`."""

    pooling = "st"

    def __init__(self, st: SentenceTransformer, source: Source, tokenizer: PreTrainedTokenizerBase | None = None):
        if any(isinstance(module, Router) for module in st.modules()):
            raise UsageError(
                f"{source.name} has a Router: training would change the route of documents and not that of queries",
                option="model_name",
                needed="a model with one route",
            )
        super().__init__(st, source)
        for module in st.modules():  # the class that this project published is not the one that is saved
            if "modeling_informin" in str(getattr(getattr(module, "config", None), "auto_map", "")):
                del module.config.auto_map, module.config.informin
        self.tokenizer = training_tokenizer(st)
        shape: dict[str, Any] = shape_of(None if self.is_static else st[0].config)
        self._config = WrapperConfig(width_of(st), pad_token_id=self.tokenizer.pad_token_id, **shape)
        self._lora = self._trusted = False

    @property
    def config(self) -> WrapperConfig:
        return self._config

    @property
    def length(self) -> int:
        return int(min(self.st.max_seq_length or UNLIMITED, UNLIMITED))

    @property
    def record_entries(self) -> dict[str, Any]:
        return {"dimensions": self._config.hidden_size}

    def _create(self, args: Any, needs: Needs) -> None:
        st = self.st
        self._lora, self._trusted = args.lora_r is not None, args.trust_remote_code
        if not self.source.folder and self.source.revision is None and args.measure_drift and not self._lora:
            self.before = copied(st)
        if needs.dropout is not None:
            set_dropout(st[0].auto_model, needs.dropout)
        if self._lora:
            if args.bf16:
                st.to(torch.bfloat16)
            add_lora(st, args)
        for weight in st.parameters():
            if weight.requires_grad:
                weight.data = weight.data.float()
        heads = {"projection_head": "mlp" if needs.projection_head else "none", "lm_head": needs.lm_head}
        self._config.informin = needs.settings | heads | {"pooling": "st", "lora": self._lora}
        self._config.informin |= self.prompt_settings(args)
        set_seed(args.seed)  # for newly initialized heads
        lm_head = self._lm_head(needs) if needs.lm_head else None
        self.module = SentenceTransformerForInforMinCL(st, self._config, lm_head)

    def _lm_head(self, needs: Needs) -> nn.Module:
        """Return the pretrained language-model head of the source.

        Raises:
            UsageError: transformers has no such class for the model, or the source lacks the weights.
        """
        option, encoder = needs.option("lm_head"), self.st[0].auto_model
        if type(encoder.config) not in MODEL_FOR_MASKED_LM_MAPPING or len(self.st) < 1 or not self._is_stored:
            raise UsageError(
                f"needs a pretrained language-model head, which transformers does not have for {self.name}",
                option=option,
                fix=f"Set `{option}` to 0, or use an encoder that was trained with masked language modeling.",
            )
        model, report = AutoModelForMaskedLM.from_pretrained(
            self.name,
            revision=self.source.revision,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
            **SAFE,
        )
        if report["missing_keys"]:
            missing = sorted(report["missing_keys"])
            raise UsageError(
                f"{self.name} lacks {counted(len(missing), 'weight')} that the objective needs, such as {missing[0]}",
                option="model_name",
                fix=f"Use a checkpoint with a language-model head, or set `{option}` to 0.",
            )
        return LanguageModelHead(model, encoder)

    @property
    def _is_stored(self) -> bool:
        """Whether the model comes from a folder or the Hub, and not from memory."""
        return self.source.folder is not None or self.source.revision is not None

    def _finish(self, args: Any) -> None:
        self._check_embeddings()
        self._freeze_unused()

    def _check_embeddings(self) -> None:
        """Raise UsageError if the rows of tokens in training would not give the model's own embeddings."""
        self.module.eval()
        half = any(weight.dtype != torch.float32 for weight in self.module.parameters())
        with torch.no_grad(), self.precision():
            ours = self.embeddings_in_training([self.prompt + text for text in SAMPLE_TEXTS]).float().cpu()
            theirs = torch.as_tensor(self.encode(SAMPLE_TEXTS, 2)).float()
        ours = normalize(ours) if isinstance(list(self.st)[-1], Normalize) else ours
        difference = float((ours - theirs).abs().max() / theirs.norm(dim=1).max())
        if not difference < (HALF_TOLERANCE if half else TOLERANCE):
            raise UsageError(
                f"{self.name} cannot be trained: its tokens give other embeddings than its `encode` ({difference:.2g})",
                option="model_name",
                needed="a model whose modules read input_ids and attention_mask",
            )

    def _freeze_unused(self) -> None:
        """Freeze weights that no embedding depends on, such as BERT's pooler: processes would wait for gradients."""
        self.module.eval()
        if not any(weight.requires_grad for weight in self.st.parameters()):
            raise UsageError(f"{self.name} has no weights to train: all are frozen", option="model_name")
        with self.precision():
            self.embeddings_in_training(SAMPLE_TEXTS).float().sum().backward()
        for weight in self.st.parameters():
            if weight.requires_grad and weight.grad is None:
                weight.requires_grad_(False)
        self.module.zero_grad()

    def original(self, args: Any) -> EncodeTexts:
        if not self._lora:
            return super().original(args)
        encode = super().encode

        def before(texts: Sequence[str]):
            with without_lora(self.st):
                return encode(texts, args.per_device_eval_batch_size)

        return before

    def save(self, folder: str | Path, usual: Callable[[], None], module: nn.Module | None = None) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        trained: Any = module or self.module
        with self.finished(module):
            trained.st.save_pretrained(str(folder), create_model_card=False)
        shared = {id(weight) for weight in trained.st.parameters()}  # such as the decoder of the language-model head
        others = trained.state_dict(keep_vars=True).items()
        heads = {name: x.data for name, x in others if not name.startswith("st.") and id(x) not in shared}
        if heads:
            save_file(heads, folder / HEADS_FILE, {"format": "pt"})
        if self._lora:
            weights = {name: x.data for name, x in trained.named_parameters() if x.requires_grad}
            save_file(weights, folder / TRAINED_FILE, {"format": "pt"})

    def load(self, folder: str | Path, usual: Callable[[], None]) -> None:
        if self._lora:
            self.module.load_state_dict(load_file(Path(folder, TRAINED_FILE)), strict=False)
        else:
            # A checkpoint has BERT's own pooler, even if the model was opened without it.
            saved = load_model(folder, device="cpu", trust_remote_code=self._trusted).state_dict()
            missing = self.st.load_state_dict(saved, strict=False).missing_keys
            if missing := [name for name in missing if ".pooler." not in name]:
                raise UsageError(f"{folder} lacks weights, such as {missing[0]}", fix="Use another checkpoint.")
        if Path(folder, HEADS_FILE).exists():
            self.module.load_state_dict(load_file(Path(folder, HEADS_FILE)), strict=False)

    @contextmanager
    def reading(self, module: nn.Module | None) -> Iterator[None]:
        own = self.st
        try:
            self.st = own if module is None else module.st
            yield
        finally:
            self.st = own


def shape_of(config: Any) -> dict[str, int]:
    """Return the numbers of layers and heads of an encoder; 2 if it has none, and `build` then refuses its maps."""
    names = ("num_hidden_layers", "num_attention_heads")
    return {name: getattr(config, name, 2) for name in names}


def training_tokenizer(st: SentenceTransformer) -> PreTrainedTokenizerBase:
    """Return the transformers tokenizer that gives the tokens that a model reads."""
    tokenizer: Any = st.tokenizer
    if type(st[0]).__name__ == "StaticEmbedding":
        is_plain = hasattr(tokenizer, "to_str")
        backend = type(tokenizer).from_str(tokenizer.to_str()) if is_plain else tokenizer.backend_tokenizer
        backend.post_processor = TemplateProcessing(single="$A", special_tokens=[])
        backend.no_truncation()
        backend.no_padding()
        pad = backend.id_to_token(0)
        return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=pad, model_max_length=UNLIMITED)
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or tokenizer.pad_token_id is None:
        raise UsageError(
            "The model has no fast tokenizer with a padding token, which training needs", option="model_name"
        )
    return tokenizer
