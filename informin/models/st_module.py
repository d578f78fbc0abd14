"""Train a SentenceTransformer as it is: its own modules compute the embedding, and it is saved in its own format.

The terms of an objective see the same output as from a native encoder. Terms
that need internals of the encoder (attention maps, masked tokens, a momentum copy) need a native encoder.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from informin.errors import UsageError, error_line
from informin.models.checkpoint import Checkpoint
from informin.models.embedding_config import embedding_of
from informin.models.lora import LoRA, merged
from informin.models.modules import copy_module_code
from informin.models.padding import HALF_TOLERANCE, TOLERANCE
from informin.models.remote_code import remote_code
from informin.models.st_loading import POOLER, UNLIMITED, load_sentence_transformer
from modeling_informin import InforMinOutput, with_default_prompt

MODEL_TYPE = "sentence-transformers"
HEADS_FILE = "heads.safetensors"  # of the objective's terms, in checkpoints
TRAINED_FILE = "trained.safetensors"  # with LoRA: all weights that training changes, in checkpoints
SAMPLE = ["A dog sleeps.", "The price of the old house by the river fell again last year."]


class StConfig(PreTrainedConfig):
    """Replaces the configuration of a native encoder: `hidden_size` is the dimension of the embeddings."""

    model_type = MODEL_TYPE

    def __init__(self, hidden_size: int = 768, informin: dict | None = None, **kwargs):
        super().__init__(**kwargs)
        self.hidden_size, self.informin = hidden_size, informin or {}


class StModule(nn.Module):
    """A SentenceTransformer with the interface of the native models in training.

    Attributes:
        encoder: The same SentenceTransformer as an `StModel`.
        st: The SentenceTransformer.
        config: Dimension of the embeddings, and `informin`, the settings of the run.
        heads: Heads of the objective's terms.
        tokenizer: A tokenizer of transformers, also for static embeddings.
        lora: Low-rank adaptation; None if training changes the encoder's own weights.
        runs_code: Whether code in the model's repository runs.
        chunk_size: See `modeling_informin.InforMinMixin`.
        prompt_tokens: Tokens of the prompt that the pooling leaves out; 0 if it does not.
    """

    supports_gradient_checkpointing = True

    def __init__(self, encoder: Any, lora: LoRA | None = None):
        super().__init__()
        self.encoder, self.st, self.lora = encoder, encoder.module, lora
        files, trusted = encoder.checkpoint, encoder.trusted
        self.runs_code = bool(trusted and files and remote_code(files, with_base=True))
        self.heads = nn.ModuleDict()
        self.chunk_size: int | None = None
        self.is_static = type(next(iter(self.st))).__name__ == "StaticEmbedding"
        self.tokenizer = _tokenizer_of(encoder, self.is_static)
        tokens = {name: getattr(self.tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        self.config = StConfig(encoder.width, name_or_path=encoder.name, **tokens)
        self.prompt_tokens = self._tokens_left_out()

    @property
    def _no_split_modules(self) -> list[str]:
        """The classes of layers that FSDP wraps; a name that accelerate reads."""
        transformers = [module.auto_model for module in self.st if hasattr(module, "auto_model")]
        return [name for model in transformers for name in getattr(model, "_no_split_modules", None) or []]

    @property
    def device(self) -> torch.device:
        return next(self.st.parameters()).device

    def _init_weights(self, module: nn.Module) -> None:
        """Initialize a new layer of a head as PyTorch does: not every model has an initialization for all layers."""
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()

    def _tokens_left_out(self) -> int:
        """Return the number of tokens of the prompt, without a special token at its end, if the pooling skips them."""
        if not self.encoder.prompt or all(getattr(module, "include_prompt", True) for module in self.st):
            return 0
        ids = self.tokenizer(self.encoder.prompt)["input_ids"]
        return len(ids) - (ids[-1] in self.tokenizer.all_special_ids)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        lm_labels: Tensor | None = None,
        output_attentions: bool = False,
        views: dict[str, Any] | None = None,
    ) -> InforMinOutput:
        """Embed N rows of L tokens; see `modeling_informin.InforMinMixin.forward`. There is no projection head."""
        parts = [torch.arange(len(input_ids), device=input_ids.device)]
        if self.training and self.chunk_size and len(input_ids) > self.chunk_size:
            parts = list(parts[0].split(self.chunk_size))
            found = [checkpoint(self._embed, input_ids[i], attention_mask[i], use_reentrant=False) for i in parts]
            embeddings = torch.cat(found)
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
        embeddings = self.st(features)["sentence_embedding"]
        size = self.st.truncate_dim
        return embeddings if size is None else embeddings[:, :size]

    def encode(
        self,
        sentences: Sequence[str],
        batch_size: int,
        prompt: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        """Return the embeddings (N, d) float32 of N sentences by the model's own `encode`, in evaluation mode.

        Args:
            prompt: Text before every sentence; None for the prompt of `encoder`.
        """
        encoder, before = self.encoder, (self.encoder.batch_size, self.encoder.prompt, self.training)
        encoder.batch_size, encoder.prompt = batch_size, encoder.prompt if prompt is None else prompt
        self.eval()
        try:
            return encoder(sentences, progress)[POOLER]
        finally:  # progress may raise
            encoder.batch_size, encoder.prompt = before[:2]
            self.train(before[2])

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Recompute the activations of the transformer's layers in the backward pass; see transformers' method."""
        for model in (module.auto_model for module in self.st if hasattr(module, "auto_model")):
            # transformers 5.20 has only the second name.
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable(**options)
            if self.lora:  # the frozen embeddings give the first layer an input without gradient
                model.enable_input_require_grads()

    gradient_checkpointing_enable = activation_checkpointing_enable

    def save(self, folder: Path, merge: bool = False) -> None:
        """Save the SentenceTransformer, with the default prompt of `config.informin`.

        Args:
            folder: An existing folder.
            merge: With LoRA: save a complete model with merged weights, instead of the low-rank matrices alone.
        """
        with _default_prompt(self.st, embedding_of(self).prompt), merged(self.st) if merge else nullcontext():
            self.st.save_pretrained(str(folder), create_model_card=False)
        copy_module_code(folder)

    def save_state(self, folder: Path) -> None:
        """Save what a resumed run needs in addition to `save`: the heads, and with LoRA the trained weights."""
        if self.heads:
            save_file(self.heads.state_dict(), folder / HEADS_FILE, {"format": "pt"})
        if self.lora:
            trained = {name: x.data for name, x in self.named_parameters() if x.requires_grad}
            save_file(trained, folder / TRAINED_FILE, {"format": "pt"})

    def load(self, folder: str | Path) -> None:
        """Load the weights of a checkpoint into this model."""
        if self.lora:
            self.load_state_dict(load_file(Path(folder, TRAINED_FILE)), strict=False)
        else:
            saved = load_sentence_transformer(Checkpoint(folder), self.encoder.trusted)
            self.st.load_state_dict(saved.state_dict())
        if self.heads:
            self.heads.load_state_dict(load_file(Path(folder, HEADS_FILE)))


def trainable_module(encoder: Any, args: Any) -> StModule:
    """Return the module that trains a loaded SentenceTransformer, which it changes.

    Args:
        encoder: An `StModel` with weights, on the CPU.
        args: Resolved arguments of the run.

    Raises:
        UsageError: Its tokens do not give its embeddings, or it has nothing to train.
    """
    if encoder.routed:
        raise UsageError(
            f"{encoder.name} has a Router: training would change the route of documents and not that of queries",
            option="model_name",
            needed="a model with one route",
            fix="Train the modules of one route as a model of their own, or adapt this one with `informin fit`.",
        )
    for part in encoder.module:
        if type(part).__name__ == "Dense" and not args.train_dense:
            part.requires_grad_(False)
    if args.lora:
        args.lora.add_to(encoder.module)
    for weight in encoder.module.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    loaded = StModule(encoder, args.lora)
    settings = {name: value for name, value in args.model_settings.items() if name != "prompt"}
    loaded.config.informin = settings | args.embedding.settings
    _require_same_embeddings(loaded)
    _freeze_unused(loaded)
    if not any(weight.requires_grad for weight in loaded.parameters()):
        raise UsageError(f"{encoder.name} has no weights to train", option="model_name")
    if not args.train_dense and not any(type(module).__name__ == "Dense" for module in loaded.st):
        raise UsageError("is false, but the model has no Dense module", option="train_dense", fix="Leave it out.")
    return loaded


def refuse_identical_views(model: StModule) -> None:
    """Raise UsageError if a model without dropout would give two equal views of a sentence."""
    if model.lora and model.lora.dropout:  # has an effect from the first step on
        return
    batch = model.tokenizer(SAMPLE, padding=True, return_tensors="pt").to(model.device)
    was = model.training
    model.train()
    with torch.no_grad():
        one, other = (model(batch["input_ids"], batch["attention_mask"]).pooler_output for _ in range(2))
    model.train(was)
    if torch.equal(one, other):
        raise UsageError(
            f"{model.encoder.name} has no dropout, so the two views of a sentence would be identical",
            option="view",
            needed="views that differ in their tokens: crop, neighbor or repetition",
            fix="Set `view` to crop, or use a term with a guide alone (objective guided).",
        )


def _tokenizer_of(encoder: Any, is_static: bool) -> PreTrainedTokenizerBase:
    """Return the transformers tokenizer that gives the tokens that the model reads."""
    own = encoder.tokenizer
    if is_static:
        backend = type(own).from_str(own.to_str()) if hasattr(own, "to_str") else own.backend_tokenizer
        backend.post_processor = TemplateProcessing(single="$A", special_tokens=[])
        backend.no_truncation()
        backend.no_padding()
        return PreTrainedTokenizerFast(
            tokenizer_object=backend, pad_token=backend.id_to_token(0), model_max_length=UNLIMITED
        )
    if isinstance(own, PreTrainedTokenizerBase) and not own.is_fast:
        found = f"{encoder.name} has a slow tokenizer, {type(own).__name__}"
        raise UsageError(found, option="model_name", needed="a tokenizer.json for training")
    if not isinstance(own, PreTrainedTokenizerBase) or own.pad_token_id is None:
        found = f"{encoder.name} has no tokenizer of transformers with a padding token, which training needs"
        raise UsageError(found, option="model_name")
    return own


def _require_same_embeddings(model: StModule) -> None:
    """Raise UsageError if the rows of tokens in training would not give the model's own embeddings."""
    encoder, tokenizer = model.encoder, model.tokenizer
    half = _is_half(model)
    try:
        texts = [encoder.prompt + text for text in SAMPLE]
        batch = tokenizer(texts, padding=True, truncation=True, max_length=encoder.length, return_tensors="pt")
        model.eval()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16) if half else nullcontext():
            ours = model(batch["input_ids"], batch["attention_mask"]).pooler_output.float().numpy()
            theirs = encoder(SAMPLE)[POOLER]
        difference = float(np.abs(ours - theirs).max() / np.linalg.norm(theirs, axis=1).max())
    except Exception as error:  # from the model's own code
        found = f"{encoder.name} cannot be trained: {error_line(error)} ({type(error).__name__})"
        raise UsageError(found, option="model_name") from None
    if not difference < (HALF_TOLERANCE if half else TOLERANCE):
        raise UsageError(
            f"{encoder.name} cannot be trained: its tokens give other embeddings than its `encode` ({difference:.2g})",
            option="model_name",
            needed="a model whose modules read input_ids and attention_mask",
        )


def _freeze_unused(model: StModule) -> None:
    """Freeze weights that no embedding depends on, such as BERT's pooler: processes would wait for their gradients."""
    batch = model.tokenizer(SAMPLE, padding=True, return_tensors="pt")
    model.eval()
    with torch.autocast("cpu", torch.bfloat16) if _is_half(model) else nullcontext():
        model(batch["input_ids"], batch["attention_mask"]).pooler_output.float().sum().backward()
    for weight in model.parameters():
        if weight.requires_grad and weight.grad is None:
            weight.requires_grad_(False)
    model.zero_grad()


def _is_half(model: nn.Module) -> bool:
    return any(weight.dtype != torch.float32 for weight in model.parameters())


@contextmanager
def _default_prompt(model: Any, prompt: str) -> Iterator[None]:
    """Make a text the default prompt of a SentenceTransformer; see `modeling_informin.with_default_prompt`."""
    before = model.prompts, model.default_prompt_name
    model.prompts, model.default_prompt_name = with_default_prompt(*before, prompt)
    try:
        yield
    finally:
        model.prompts, model.default_prompt_name = before
