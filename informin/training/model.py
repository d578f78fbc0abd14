"""A model in training, beside the finished model, a SentenceTransformer, with which it shares its weights."""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from transformers import PreTrainedTokenizerBase, set_seed

from informin.files import last_name
from informin.models.checksums import settings_sha256, weights_sha256
from informin.models.embedding import width_of
from informin.models.forward import Forward, with_encoder
from informin.models.opening import load_model, source_of
from informin.models.speed import speed_up
from informin.models.vocabulary import raise_if_tokens_lack_embeddings
from informin.training.active_objective import ActiveObjective
from informin.training.computing import how_to_compute
from informin.training.lora import without_lora
from informin.training.model_checks import (
    check_dropout,
    check_embeddings,
    check_needs,
    check_recomputing,
    freeze_unused,
    naming,
)
from informin.training.modules import build_native, build_wrapper
from informin.training.sources import (
    UNLIMITED,
    check_one_route,
    is_native,
    opened,
    opened_around,
    training_tokenizer,
    with_same_weights,
)
from informin.training.wrapper import WrapperConfig
from informin.views.attention import prepare_encoder
from modeling_informin import CLASSES, InforMinMixin, with_default_prompt

CLASS_NAMES = {"SentenceTransformer", *(kind.__name__ for kind in CLASSES.values())}  # of objects without a name


class TrainedModel:
    """A model in training, and what a trainer needs to know about it. `open_to_train` creates it.

    Attributes:
        st: The finished model, which shares its weights with `module`.
        source: Where the model comes from.
        name: Name or folder that the caller gave.
        is_native: Whether `module` is of a class of `modeling_informin`, and not the SentenceTransformer as it is.
        has_lora: Whether low-rank matrices are trained.
        given: An object of such a class to train; None to load one.
        trusts_code: Whether code from the model's repository may run.
        default_prompt: The prompt that the model stores for every text.
        prompt: The prompt of training.
        tokenizer: Tokenizer of the training sentences.
        config: Configuration with `model_type` and `hidden_size`.
        module: The module in training, after `build`. Its `config.informin` has the settings of the run, and its
            `heads` those of the terms.
        before: Copy of a model in memory before training, for the drift report.
    """

    def __init__(
        self,
        st: SentenceTransformer,
        args: Any,
        is_native: bool = False,
        tokenizer: PreTrainedTokenizerBase | None = None,
        given: InforMinMixin | None = None,
    ):
        self.st, self.source = st, source_of(st)
        self.name = self.source.name
        self.is_native, self.given = is_native, given
        raise_if_tokens_lack_embeddings(st[0], tokenizer, self.name)
        self.has_lora, self.trusts_code = args.lora_r is not None, args.trust_remote_code
        self.tokenizer: Any = tokenizer or (st.tokenizer if is_native else training_tokenizer(st))
        self.module: Any = None
        self.before: SentenceTransformer | None = None
        self.default_prompt = st.prompts.get(st.default_prompt_name or "") or ""
        self.prompt = self.default_prompt if args.prompt is None else args.prompt
        self._checksums = {"weights_sha256": weights_sha256(st), "settings_sha256": settings_sha256(st)}
        self.config: Any = st[0].config if is_native else self._wrapper_config()

    def _wrapper_config(self) -> WrapperConfig:
        """Return the dimension of the embeddings, and the numbers of layers and heads that maps have."""
        for module in self.st.modules():  # the class that this project published is not the one that is saved
            if "modeling_informin" in str(getattr(getattr(module, "config", None), "auto_map", "")):
                del module.config.auto_map, module.config.informin
        encoder = None if self.is_static else self.st[0].config
        names = ("num_hidden_layers", "num_attention_heads")
        values: dict[str, Any] = {name: getattr(encoder, name, 2) for name in names}  # else, `build` refuses maps
        values |= {"hidden_size": width_of(self.st), "pad_token_id": self.tokenizer.pad_token_id}
        return WrapperConfig(**values)

    @property
    def length(self) -> int:
        """Maximum number of tokens of a text."""
        return int(min(self.st.max_seq_length or UNLIMITED, UNLIMITED))

    @property
    def is_static(self) -> bool:
        """Whether the model is a table of token vectors, without an encoder."""
        return type(self.st[0]).__name__ == "StaticEmbedding"

    @property
    def is_stored(self) -> bool:
        """Whether the model comes from a folder or the Hub, and not from memory."""
        return self.source.folder is not None or self.source.revision is not None

    def build(self, args: Any, objective: ActiveObjective) -> None:
        """Create `module` with newly initialized heads, in float32, ready to train.

        Args:
            args: Training arguments, with all values filled in.
            objective: What the run trains with.

        Raises:
            UsageError: The model cannot do what the run needs, an option excludes it, or the views of a sentence would
                be identical.
        """
        needs = objective.needs(args)
        check_needs(needs, args, self.is_static)
        check_recomputing(self, args)
        if args.measure_drift and not self.is_stored and not self.has_lora:
            self.before = copy.deepcopy(self.st).float()
        create = build_native if self.is_native else build_wrapper
        self.module = create(self, args, objective, self._settings(args, objective))
        if not self.is_static:
            with naming(needs.get("maps") or needs.get("rates")):
                prepare_encoder(self.st[0].auto_model, objective.rates_by_copy, objective.map_layers(self.config))
        length = min(self.length, self.module.config.informin["max_seq_length"] or self.length)
        self.module.forward_pass = Forward(self.st, how_to_compute(self.st, args, needs, length, self._prompt_tokens()))
        self.module.eval()
        check_embeddings(self)
        freeze_unused(self)
        has_lora_dropout = args.lora_r and args.lora_dropout  # which has an effect after the first step only
        if objective.views_differ_by_dropout and not has_lora_dropout:
            check_dropout(self)

    def _settings(self, args: Any, objective: ActiveObjective) -> dict[str, Any]:
        """Return what `config.informin` records: the options of the objective, the heads and the prompts.

        `prompt` is that of the exported model, and `training_prompt` that of training if it differs.
        """
        by_default = objective.preset.projection_head == "mlp" and not self.is_static
        has_head = by_default if args.projection_head == "auto" else args.projection_head == "mlp"
        exported = self.prompt if args.export_prompt else self.default_prompt
        settings = dict(objective.options)
        settings["max_seq_length"] = args.max_seq_length or objective.preset.max_seq_length
        settings["projection_head"] = "mlp" if has_head else "none"
        settings["lm_head"] = "lm_head" in objective.needs(args)
        if exported:
            settings["prompt"] = exported
        if self.prompt != exported:
            settings["training_prompt"] = self.prompt
        return settings

    def _prompt_tokens(self) -> int:
        """Return the number of tokens of the prompt, without a special token at its end, if the pooling skips them."""
        if not self.prompt or all(getattr(module, "include_prompt", True) for module in self.st):
            return 0
        ids = self.tokenizer(self.prompt)["input_ids"]
        return len(ids) - (ids[-1] in self.tokenizer.all_special_ids)

    def collate(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Return the rows of a forward pass with `packed` for `module`, on the device of the training.

        Args:
            rows: `input_ids`, `attention_mask` (N, L), `sentence_ids` (B,), and further values, on the CPU.
        """
        return rows | {"packed": self.module.forward_pass.collate(rows)}

    def whole(self, module: Any = None) -> SentenceTransformer:
        """Return the finished model with the weights of another module, if they are sharded; None: its own."""
        if module is None or module is self.module:
            return self.st
        if not self.is_native:
            return module.st
        view: Any = copy.copy(self.st)
        view._modules = view._modules | {"0": with_encoder(self.st[0], module.base_model)}
        return speed_up(view)

    def finished(self, module: Any = None) -> SentenceTransformer:
        """Return the model as it is exported, with the default prompt that `export_prompt` asks for; see `whole`."""
        view = copy.copy(self.whole(module))
        prompt = self.module.config.informin.get("prompt", "")
        view.prompts, view.default_prompt_name = with_default_prompt(view.prompts, view.default_prompt_name, prompt)
        return view

    @contextmanager
    def original(self, args: Any) -> Iterator[SentenceTransformer]:
        """Yield the model before training, with the pooling of training, on its device."""
        if self.has_lora:
            with without_lora(self.st):
                yield self.st
        else:
            yield (self.before or opened(self.name, args)).to(args.device)

    @property
    def packing(self) -> dict[str, Any]:
        """Options of the record about packing, which the dropout masks depend on, after `build`."""
        how = self.module.forward_pass.how
        if not how.packs:
            return {}
        return {"padding_free": True} | ({"cpu_parts": how.threads} if how.threads > 1 else {})

    def record_entry(self) -> dict[str, Any]:
        """Return where the model comes from, for the record of a run.

        An object in memory may have the name of its class, or a path.
        """
        folder = self.source.folder
        is_path = folder is not None or os.path.isabs(self.name) or os.path.exists(self.name)
        is_on_hub = not is_path and self.name not in CLASS_NAMES
        name = self.name if is_on_hub else last_name(folder.resolve() if folder else self.name)
        hub_id = name if is_on_hub else None
        return {"name": name, "hub_id": hub_id, "revision": self.source.revision} | self._checksums


def open_to_train(
    model: str | Path | SentenceTransformer | InforMinMixin,
    args: Any,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> TrainedModel:
    """Open a model to train.

    BERT and RoBERTa with [CLS], mean or last-token pooling are trained as the classes of `modeling_informin`. Every
    other SentenceTransformer, a SentenceTransformer in memory, and every model with LoRA is trained as it is. A
    model object is trained through a copy that shares its weights.

    Args:
        model: Hub id, folder, SentenceTransformer, or an object of a class of `modeling_informin`.
        args: `InforMinTrainingArguments`.
        tokenizer: Tokenizer to use instead of that of a BERT or RoBERTa. Required for an object of `modeling_informin`.

    Raises:
        UsageError: The model cannot be loaded, or an option does not fit it.
    """
    set_seed(args.seed)  # of weights that are newly initialized
    if isinstance(model, InforMinMixin):
        given = with_same_weights(model)
        return TrainedModel(opened_around(given, tokenizer), args, is_native=True, tokenizer=tokenizer, given=given)
    if isinstance(model, SentenceTransformer):
        check_one_route(model)
        st = load_model(with_same_weights(model, are_frozen=args.lora_r is not None))
        return TrainedModel(st, args)
    st = opened(model, args)
    check_one_route(st)
    if args.lora_r is None and is_native(st):
        return TrainedModel(st, args, is_native=True, tokenizer=tokenizer)
    return TrainedModel(st, args)
