"""Train any SentenceTransformer as it is: its own modules compute the embedding.

The terms of an objective see the same output as from a native model. Terms that need internals of the encoder
(attention maps, masked tokens, a momentum copy) need a native model.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Router
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from informin.errors import UsageError
from informin.models.embedding import width_of
from informin.models.lora import add_lora, without_lora
from informin.models.opening import Source, load_model
from informin.models.trained import Encode, Needs, TrainedModel, copied
from modeling_informin import InforMinOutput

HEADS_FILE = "heads.safetensors"  # of the objective's terms, in checkpoints
TRAINED_FILE = "trained.safetensors"  # with LoRA: all weights that training changes, in checkpoints
SAMPLE = ["A dog sleeps.", "The price of the old house by the river fell again last year."]
UNLIMITED = 1_000_000  # tokens; maximum length of models that do not truncate, such as static embeddings
TOLERANCE, HALF_TOLERANCE = 1e-3, 0.05  # of the length of an embedding, the second with weights in bfloat16


class WrapperConfig(PreTrainedConfig):
    """Replaces the configuration of a native model: `hidden_size` is the dimension of the embeddings."""

    model_type = "sentence-transformers"

    def __init__(self, hidden_size: int = 768, informin: dict | None = None, **kwargs):
        super().__init__(**kwargs)
        self.hidden_size, self.informin = hidden_size, informin or {}
        self.num_hidden_layers = self.num_attention_heads = 12  # read for attention maps, which `build` refuses


class SentenceTransformerForInforMinCL(nn.Module):
    """A SentenceTransformer whose forward returns `InforMinOutput`. There is no projection head.

    Attributes:
        st: The SentenceTransformer.
        config: Dimension of the embeddings, and `informin`, the settings of the run.
        heads: Heads of the objective's terms.
        chunk_size: See `modeling_informin.InforMinMixin`.
        prompt_tokens: Tokens of the prompt that the pooling leaves out.
    """

    supports_gradient_checkpointing = True

    def __init__(self, st: SentenceTransformer, config: WrapperConfig, prompt_tokens: int = 0):
        super().__init__()
        self.st, self.config, self.prompt_tokens = st, config, prompt_tokens
        self.heads = nn.ModuleDict()
        self.chunk_size: int | None = None
        self.is_static = type(st[0]).__name__ == "StaticEmbedding"

    @property
    def _no_split_modules(self) -> list[str]:  # read by accelerate, for FSDP
        return self.st._no_split_modules

    @property
    def device(self) -> torch.device:
        return next(self.st.parameters()).device

    def _init_weights(self, module: nn.Module) -> None:
        """Initialize a new layer of a head as PyTorch does: not every model has an initialization for all layers."""
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        lm_labels: Tensor | None = None,
        output_attentions: bool = False,
        views: dict[str, Any] | None = None,
        packed: Any = None,
    ) -> InforMinOutput:
        """Embed N rows of L tokens; see `modeling_informin.InforMinMixin.forward`."""
        if self.training and self.chunk_size and len(input_ids) > self.chunk_size:
            chunks = zip(input_ids.split(self.chunk_size), attention_mask.split(self.chunk_size))
            parts = [checkpoint(self._embed, ids, mask, use_reentrant=False) for ids, mask in chunks]
            embeddings = torch.cat(parts)
        else:
            embeddings = self._embed(input_ids, attention_mask)
        heads = None
        if self.training and views is not None:
            rows = slice(2 * len(views["sentence_ids"]))
            inputs = {"input_ids": input_ids[rows], "attention_mask": attention_mask[rows], **views}
            heads = {name: head(self, embeddings[rows], **inputs) for name, head in self.heads.items()}
        return InforMinOutput(pooler_output=embeddings, projection=embeddings, heads=heads)

    def _embed(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        features: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.is_static:
            ends = attention_mask.sum(1).cumsum(0)
            features = {"input_ids": input_ids[attention_mask.bool()], "offsets": ends - attention_mask.sum(1)}
        elif self.prompt_tokens:
            features["prompt_length"] = self.prompt_tokens
        return self.st(features)["sentence_embedding"][:, : self.st.truncate_dim]

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Recompute the activations of the transformer's layers in the backward pass; see transformers' method."""
        self.st.gradient_checkpointing_enable(**options)
        if self.config.informin.get("lora"):  # the frozen embeddings give the first layer an input without gradient
            self.st[0].auto_model.enable_input_require_grads()

    gradient_checkpointing_enable = activation_checkpointing_enable


class WrappedModel(TrainedModel):
    """A SentenceTransformer in training; see `TrainedModel`."""

    backend = "st"
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
        self._config = WrapperConfig(width_of(st), pad_token_id=self.tokenizer.pad_token_id)
        self._lora = self._trusted = False

    @property
    def config(self) -> WrapperConfig:
        return self._config

    @property
    def length(self) -> int:
        return int(min(self.st.max_seq_length or UNLIMITED, UNLIMITED))

    @property
    def takes_head(self) -> bool:
        return False

    @property
    def packing(self) -> dict[str, Any]:
        return {}

    @property
    def record_entries(self) -> dict[str, Any]:
        return {"dimensions": self._config.hidden_size}

    def _check(self, args: Any, needs: Needs) -> None:
        """Raise UsageError for what the modules of a SentenceTransformer cannot do."""
        unsupported = {
            needs.option("map_layers"): needs.map_layers and "attention maps",
            needs.option("lm_head"): needs.lm_head and "a language-model head",
            needs.option("momentum"): needs.momentum and "a momentum copy of the encoder",
            needs.option("projection_head"): needs.projection_head and "a projection head",
            needs.option("dropout"): (needs.dropout is not None or needs.view_rates) and "another dropout rate",
            "padding_free": args.padding_free and "packing",
        }
        for name, what in unsupported.items():
            if what:
                raise UsageError(
                    f"requires a native BERT or RoBERTa for {what}; this model is trained as a SentenceTransformer",
                    option=name,
                    fix=f"Leave `{name}` out, or use a BERT-like encoder.",
                )

    def build(self, args: Any, needs: Needs) -> None:
        self._check(args, needs)
        st = self.st
        self._lora, self._trusted = args.lora_r is not None, args.trust_remote_code
        if not self.source.folder and self.source.revision is None and args.measure_drift and not self._lora:
            self.before = copied(st)
        if self._lora:
            if args.bf16:
                st.to(torch.bfloat16)
            add_lora(st, args)
        for weight in st.parameters():
            if weight.requires_grad:
                weight.data = weight.data.float()
        heads = {"projection_head": "none", "lm_head": False}
        self._config.informin = needs.settings | heads | {"pooling": "st", "lora": self._lora}
        self._config.informin |= self.prompt_settings(args)
        self.module = SentenceTransformerForInforMinCL(st, self._config)
        self.module.prompt_tokens = self._prompt_tokens()
        self._check_embeddings()
        self._freeze_unused()
        self.module.chunk_size = args.gradient_cache_chunk_size
        if needs.views_differ_by_dropout and not (self._lora and args.lora_dropout):  # of an effect from the first step
            with torch.random.fork_rng():
                self._check_dropout()

    def _prompt_tokens(self) -> int:
        """Return the number of tokens of the prompt, without a special token at its end, if the pooling skips them."""
        if not self.prompt or all(getattr(module, "include_prompt", True) for module in self.st):
            return 0
        ids = self.tokenizer(self.prompt)["input_ids"]
        return len(ids) - (ids[-1] in self.tokenizer.all_special_ids)

    def _batch(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        batch = self.tokenizer(texts, padding=True, truncation=True, max_length=self.length, return_tensors="pt")
        return batch["input_ids"].to(self.module.device), batch["attention_mask"].to(self.module.device)

    def _precision(self) -> tuple[float, Any]:
        """Return the tolerance of embeddings, and a context of the precision of the weights."""
        half = any(weight.dtype != torch.float32 for weight in self.module.parameters())
        return (HALF_TOLERANCE, torch.autocast("cpu", torch.bfloat16)) if half else (TOLERANCE, nullcontext())

    def _check_embeddings(self) -> None:
        """Raise UsageError if the rows of tokens in training would not give the model's own embeddings."""
        self.module.eval()
        tolerance, precision = self._precision()
        with torch.no_grad(), precision:
            ours = self.module(*self._batch([self.prompt + text for text in SAMPLE])).pooler_output.float().cpu()
            theirs = torch.as_tensor(self.encode(SAMPLE, 2)).float()
        difference = float((ours - theirs).abs().max() / theirs.norm(dim=1).max())
        if not difference < tolerance:
            raise UsageError(
                f"{self.name} cannot be trained: its tokens give other embeddings than its `encode` ({difference:.2g})",
                option="model_name",
                needed="a model whose modules read input_ids and attention_mask",
            )

    def _freeze_unused(self) -> None:
        """Freeze weights that no embedding depends on, such as BERT's pooler: processes would wait for gradients."""
        self.module.eval()
        if not any(weight.requires_grad for weight in self.module.parameters()):
            raise UsageError(f"{self.name} has no weights to train: all are frozen", option="model_name")
        with self._precision()[1]:
            self.module(*self._batch(SAMPLE)).pooler_output.float().sum().backward()
        for weight in self.module.parameters():
            if weight.requires_grad and weight.grad is None:
                weight.requires_grad_(False)
        self.module.zero_grad()

    def _check_dropout(self) -> None:
        """Raise UsageError if two forward passes give the same embeddings."""
        batch, training = self._batch(SAMPLE), self.module.training
        self.module.train()
        with torch.no_grad():
            one, other = (self.module(*batch).pooler_output for _ in range(2))
        self.module.train(training)
        if torch.equal(one, other):
            raise UsageError(
                f"{self.name} has no dropout, so the two views of a sentence would be identical",
                option="view",
                needed="views that differ in their tokens: crop or repetition",
                fix="Set `view` to crop, or use a term with a guide alone (objective guided).",
            )

    def original(self, args: Any) -> Encode:
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
        if trained.heads:
            save_file(trained.heads.state_dict(), folder / HEADS_FILE, {"format": "pt"})
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
        if self.module.heads:
            self.module.heads.load_state_dict(load_file(Path(folder, HEADS_FILE)))

    @contextmanager
    def reading(self, module: nn.Module | None) -> Iterator[None]:
        own = self.st
        try:
            self.st = own if module is None else module.st
            yield
        finally:
            self.st = own


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
