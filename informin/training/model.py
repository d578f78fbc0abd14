"""The model in training: how it is opened, built, checked, saved and loaded.

`TrainedModel` holds it in two forms that share their weights. `model` is the module in training: a class of
`modeling_informin` for BERT and RoBERTa, and a wrapper for any other SentenceTransformer. `finished` is the
SentenceTransformer that is evaluated and exported. `before` gives the model as it was before training.
"""

import copy
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from accelerate.utils import str_to_bool
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Router, StaticEmbedding, Transformer
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    set_seed,
)
from transformers.modeling_outputs import BaseModelOutput

from informin.distributed import skeleton, with_weights
from informin.errors import UsageError, counted
from informin.fast.forward import FastForward, with_encoder
from informin.fast.plan import plan_of
from informin.fast.precision import weights_sha256
from informin.fast.speed import set_inference
from informin.files import last_name
from informin.model.checksums import settings_sha256
from informin.model.embedding import encode, width_of
from informin.model.lora import add_lora, without_lora
from informin.model.open import (
    DROPOUTS,
    MODULES,
    SAFE,
    Source,
    file_of,
    forget_truncation,
    found_name,
    has_own_code,
    length_limit,
    limit_length,
    load_model,
    own_dropouts,
    raise_if_tokens_lack_embeddings,
    source_of,
)
from informin.model.pooling import MODES, NAME_OF_MODE, with_pooling
from informin.model.records import HEADS_FILE
from informin.objectives.term import Term, fill_heads
from informin.options import with_home
from informin.training.arguments import InforMinTrainingArguments
from informin.training.objective import ActiveObjective
from informin.views import View
from informin.views.encoder import kept_maps, prepare_encoder, scale_embeddings, set_dropout
from modeling_informin import (
    CLASSES,
    SOURCE_SETTINGS,
    InforMinMixin,
    InforMinOutput,
    ProjectionHead,
    TrainingMixin,
    with_default_prompt,
)

TRAINED_FILE = "trained.safetensors"  # with LoRA: all weights that training changes, in checkpoints
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
UNLIMITED = 1_000_000  # tokens; maximum length of models that do not truncate, such as static embeddings
TEXTS = ["A dog sleeps.", "The price of the old house by the river fell again last year."]
OWN = ("auto", "st")  # values of `pooler` that do not change the pooling of a SentenceTransformer
TOLERANCE, HALF_TOLERANCE = 1e-3, 0.05  # of the length of an embedding, the second with weights in bfloat16


class TrainedModel:
    """A model in training, and what a trainer needs to know about it. `TrainedModel.open` creates it.

    Attributes:
        model: The module in training, after `build`: `trainer.model`. Its `config.informin` has the settings of the
            run, and its `heads` those of the terms.
        finished: The SentenceTransformer that shares its weights. After `build` it has the prompt of the export.
        source: Where the model comes from.
        name: Name or folder that the caller gave.
        is_native: Whether `model` is of a class of `modeling_informin`, and not the SentenceTransformer as it is.
        has_lora: Whether low-rank matrices are trained.
        trusts_code: Whether code from the model's repository may run.
        default_prompt: The prompt that the model stores for every text.
        prompt: The prompt of training.
        tokenizer: Tokenizer of the training sentences.
        config: Configuration with `model_type` and `hidden_size`.
    """

    # Opening

    @classmethod
    def open(
        cls,
        model: str | Path | SentenceTransformer | InforMinMixin,
        args: InforMinTrainingArguments,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> "TrainedModel":
        """Open a model to train.

        BERT and RoBERTa with [CLS], mean or last-token pooling are trained as the classes of `modeling_informin`. Every
        other SentenceTransformer, a SentenceTransformer in memory, and every model with LoRA is trained as it is. A
        model object is trained through a copy that shares its weights.

        Args:
            model: Hub id, folder, SentenceTransformer, or an object of a class of `modeling_informin`.
            args: Training arguments.
            tokenizer: Tokenizer that replaces the model's own. It is copied. Required for an object of a class of
                `modeling_informin`.

        Raises:
            UsageError: The model cannot be loaded, or an option does not fit it.
        """
        if not isinstance(model, str | Path | SentenceTransformer | InforMinMixin):
            needed = "a Hub id, a folder, a SentenceTransformer, or an object of a class of `modeling_informin`"
            raise UsageError(f"is a {type(model).__name__}", option="model", needed=needed)
        if not isinstance(args, InforMinTrainingArguments):
            fix = None if hasattr(args, "output_dir") else "Pass the sentences as `train_dataset`."
            raise UsageError(f"is a {type(args).__name__}", option="args", needed="InforMinTrainingArguments", fix=fix)
        set_seed(args.seed)  # of weights that are newly initialized
        if isinstance(model, InforMinMixin):
            given = with_same_weights(model)
            restore_dropouts(given.base_model)
            st = saved_and_opened(given, tokenizer)
            raise_if_pooled_otherwise(st, args.pooler)
            return cls(st, args, is_native=True, tokenizer=tokenizer, given=given)
        if isinstance(model, SentenceTransformer):
            raise_if_routed(model)
            raise_if_quantized(model)
            raise_if_pooled_otherwise(model, args.pooler)
            own = load_model(with_same_weights(model, are_frozen=args.lora_r is not None))
            return cls(own, args, tokenizer=tokenizer, is_object=True)
        st = load_to_train(with_home(model), args)
        raise_if_routed(st)
        return cls(st, args, is_native=args.lora_r is None and is_native(st), tokenizer=tokenizer)

    def __init__(
        self,
        st: SentenceTransformer,
        args: InforMinTrainingArguments,
        is_native: bool = False,
        tokenizer: PreTrainedTokenizerBase | None = None,
        given: InforMinMixin | None = None,
        is_object: bool = False,
    ):
        self.finished, self.source = st, source_of(st)
        self.name = self.source.name
        self.is_native, self._given = is_native, given
        self._is_object = is_object or given is not None  # its weights may differ from those of its files
        self._has_own_tokenizer = tokenizer is None
        if tokenizer is not None:
            set_tokenizer(st, tokenizer)
            raise_if_tokens_lack_embeddings(st[0], st.tokenizer, self.name)
        self.has_lora, self.trusts_code = args.lora_r is not None, args.trust_remote_code
        self.tokenizer: Any = training_tokenizer(st)
        if not self.is_static:
            restore_dropouts(st[0].auto_model)
        self.model: Any = None
        self._skeleton: nn.Module | None = None
        self._copy_before: SentenceTransformer | None = None  # of a model in memory
        self._trained_before: dict[nn.Parameter, Tensor] = {}  # with LoRA, of the modules after the encoder
        self.default_prompt = st.prompts.get(st.default_prompt_name or "") or ""
        self.prompt = self.default_prompt if args.prompt is None else args.prompt
        if is_native:
            self.tokenizer.padding_side = "right"
        self._checksums = {"weights_sha256": weights_sha256(st), "settings_sha256": settings_sha256(st)}
        self.config: Any = st[0].config if is_native else self._wrapper_config()

    def _wrapper_config(self) -> "WrapperConfig":
        """Return the dimension of the embeddings, and the numbers of layers and heads that maps have."""
        for module in self.finished.modules():  # the class that this project published is not the one that is saved
            if "modeling_informin" in str(getattr(getattr(module, "config", None), "auto_map", "")):
                del module.config.auto_map, module.config.informin
        encoder = None if self.is_static else self.finished[0].config
        names = ("num_hidden_layers", "num_attention_heads")
        values: dict[str, Any] = {name: getattr(encoder, name, 2) for name in names}  # else, `build` refuses maps
        values |= {"hidden_size": width_of(self.finished), "pad_token_id": self.tokenizer.pad_token_id}
        return WrapperConfig(**values)

    @property
    def length(self) -> int:
        """Maximum number of tokens of a text."""
        return int(min(self.finished.max_seq_length or UNLIMITED, UNLIMITED))

    @property
    def embedding_width(self) -> int:
        """Dimension of the output of the embedding layer; 0 without an encoder."""
        return 0 if self.is_static else self.finished[0].auto_model.get_input_embeddings().weight.shape[1]

    @property
    def architecture(self) -> str:
        """`model_type` of the encoder; empty without one."""
        return "" if self.is_static else self.finished[0].config.model_type

    @property
    def is_static(self) -> bool:
        """Whether the model is a table of token vectors, without an encoder."""
        return isinstance(self.finished[0], StaticEmbedding)

    @property
    def is_stored(self) -> bool:
        """Whether the model comes from a folder or the Hub, and not from memory."""
        return self.source.folder is not None or self.source.revision is not None

    def record_entry(self) -> dict[str, Any]:
        """Return where the model comes from, for the record of a run.

        An object in memory may have the name of its class, or a path.
        """
        folder, hub_id = self.source.folder, self.source.hub_id
        name = hub_id or last_name(folder.resolve() if folder else self.name)
        return {"name": name, "hub_id": hub_id, "revision": self.source.revision} | self._checksums

    # Building

    def build(self, args: InforMinTrainingArguments, objective: ActiveObjective) -> None:
        """Create `model` with newly initialized heads, in float32, ready to train.

        Args:
            args: Training arguments, with all values filled in.
            objective: What the run trains with.

        Raises:
            UsageError: The model cannot do what the run needs, an option excludes it, the views of a sentence would be
                identical, or weights of a term or a view would never be trained.
        """
        needs = objective.needs(args)
        self._check_options(needs, args)
        if args.measure_drift and self._is_object and not self.has_lora:
            self._copy_before = copy.deepcopy(self.finished).float()
        create = self._native_module if self.is_native else self._wrapper_module
        self.model = create(args, objective, self._settings(args, objective))
        if args.measure_drift and self.has_lora:
            others = [weight for module in list(self.finished)[1:] for weight in module.parameters()]
            self._trained_before = {weight: weight.data.clone() for weight in others}
        self._prepare_forward(args, objective, needs)
        self.model.eval()
        self._check_and_freeze()
        has_lora_dropout = args.lora_r and args.lora_dropout  # which has an effect after the first step only
        if objective.needs_dropout and "rates" not in needs and not has_lora_dropout:  # two rates are never equal
            self._check_dropout()
        fill_heads(self.model, objective.terms)
        self._check_trained(objective)
        st, prompt = self.finished, self.model.config.informin.get("prompt", "")
        st.prompts, st.default_prompt_name = with_default_prompt(st.prompts, st.default_prompt_name, prompt)

    def _settings(self, args: InforMinTrainingArguments, objective: ActiveObjective) -> dict[str, Any]:
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

    def _native_module(
        self, args: InforMinTrainingArguments, objective: ActiveObjective, settings: dict[str, Any]
    ) -> Any:
        """Return a module of a class of `modeling_informin`, which becomes the encoder of the finished model.

        Args:
            args: Training arguments.
            objective: What the run trains with.
            settings: What `config.informin` records.
        """
        st: Any = self.finished
        config = copy.deepcopy(self.config)
        config.output_hidden_states = config.output_attentions = False
        config.update(own_dropouts(getattr(config, "informin", None)))  # if this is a checkpoint
        config.informin = settings | {"pooling": NAME_OF_MODE[st[1].pooling_mode]} | settings_of_files(st)
        if objective.dropout is not None:
            config.informin["dropouts"] = {name: getattr(config, name) for name in DROPOUTS}
            config.update(dict.fromkeys(DROPOUTS, objective.dropout))
        option = objective.needs(args).get("lm_head", "mlm_weight")
        set_seed(args.seed)  # for newly initialized heads
        if self._given is not None:
            module = with_settings(self._given, config, objective.dropout, option)
        elif settings["lm_head"] or hasattr(self.config, "informin"):  # the files also have weights of heads
            module = self._from_source(CLASSES[config.model_type], option, config=config)
        else:
            module = around_encoder(st[0].auto_model, config, objective.dropout)
        for part in (module, module.base_model):  # else, files would get the old names of weights in the source
            vars(part).pop("_weight_conversions", None)
        # save_pretrained leaves tied weights out anyway. Listed here, Trainer does not warn about them.
        module._keys_to_ignore_on_save = set(module.all_tied_weights_keys)
        st[0].model = module.base_model
        st[0].processor = self.tokenizer
        return module

    def _wrapper_module(
        self, args: InforMinTrainingArguments, objective: ActiveObjective, settings: dict[str, Any]
    ) -> Any:
        """Return a module around all modules of the finished model, with LoRA if asked for; see `_native_module`."""
        st = self.finished
        if objective.dropout is not None:
            set_dropout(st[0].auto_model, objective.dropout)
        if args.lora_r is not None:
            if self._is_object and not args.lora_merge:
                raise_if_not_of_files(st[0].auto_model)
            st.to(torch.bfloat16 if args.bf16 else torch.float32)  # an object in memory may have either
            add_lora(st, args.lora_r, args.lora_dropout, args.revision and self.source.revision)
        for weight in st.parameters():
            if weight.requires_grad or (weight.is_floating_point() and not self.has_lora):
                # With LoRA, the weights of an object in memory stay.
                weight.data = weight.data.to(torch.float32, copy=self.has_lora)
        self.config.informin = settings | {"pooling": "st", "lora": self.has_lora}
        set_seed(args.seed)  # for newly initialized heads
        lm_head = None
        if settings["lm_head"]:
            option, encoder = objective.needs(args)["lm_head"], st[0].auto_model
            if type(encoder.config) not in MODEL_FOR_MASKED_LM_MAPPING or not self.is_stored:
                raise UsageError(
                    f"needs a pretrained language-model head, which transformers does not have for {self.name}",
                    option=option,
                    fix=f"Set `{option}` to 0, or use an encoder that was trained with masked language modeling.",
                )
            lm_head = LanguageModelHead(self._from_source(AutoModelForMaskedLM, option), encoder)
        return SentenceTransformerForInforMinCL(st, self.config, lm_head)

    def _from_source(self, kind: Any, option: str, **config: Any) -> Any:
        """Return a model of transformers with the weights of the source.

        Args:
            kind: Class of transformers, or of `modeling_informin`.
            option: The option that asks for a language-model head.
            config: `config`, if it is not that of the source.

        Raises:
            UsageError: The source lacks weights.
        """
        loaded, report = kind.from_pretrained(
            self.name,
            revision=self.source.revision,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
            **config,
            **SAFE,
        )
        missing = sorted(name for name in report["missing_keys"] if ".pooler." not in f".{name}")
        if missing:
            raise UsageError(
                f"{self.name} lacks {counted(len(missing), 'weight')} that the objective needs, such as {missing[0]}",
                option="model_name",
                fix=f"Use a checkpoint with a language-model head, or set `{option}` to 0.",
            )
        return loaded

    def _prepare_forward(
        self, args: InforMinTrainingArguments, objective: ActiveObjective, needs: dict[str, str]
    ) -> None:
        """Prepare the encoder for dropout rates by view and for attention maps, and choose how rows are computed."""
        if objective.view.scales_embeddings:
            scale_embeddings(self.finished[0].auto_model)
        if not self.is_static:
            try:
                encoder = self.finished[0].auto_model
                prepare_encoder(encoder, objective.rates_by_copy, objective.map_layers(self.config))
            except UsageError as error:
                if error.option == "model_name":  # name what asks for it
                    error.option = needs.get("maps") or needs.get("rates") or error.option
                raise
        length = min(self.length, self.model.config.informin["max_seq_length"] or self.length)
        self.model.forward_pass = None  # that of an earlier trainer, if this one was given its model
        if args.fast:
            plan = plan_of(
                self.finished,
                needs,
                args.device,
                args.mixed_precision,
                length,
                prompt_tokens=self._prompt_tokens(),
                padding_free=args.padding_free,
                cuda_graphs=args.cuda_graphs,
                chunk_size=args.gradient_cache_chunk_size,
                processes=args.world_size,
                excluded_by=options_of_usual_forward(args),
                numpy_masks=not args.torch_compile and not sharded_by(args),
            )
            self.model.forward_pass = FastForward(self.finished, plan)
        elif not self.is_native:
            self.model.prompt_tokens = self._prompt_tokens()

    def _prompt_tokens(self) -> int:
        """Return the number of tokens of the prompt, without a special token at its end, if the pooling skips them."""
        if not self.prompt or all(getattr(module, "include_prompt", True) for module in self.finished):
            return 0
        ids = self.tokenizer(self.prompt)["input_ids"]
        return len(ids) - (ids[-1] in self.tokenizer.all_special_ids)

    def split(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Return the rows of a forward pass, with `split_batch` on the device of the training unless `fast` is false.

        Args:
            rows: `input_ids`, `attention_mask` (N, L), `sentence_ids` (B,), and further values, on the CPU.
        """
        forward = self.model.forward_pass
        if forward is None:
            return rows
        others = {name: value for name, value in rows.items() if name != "factors"}  # the parts have them
        return others | {"split_batch": forward.split(rows)}

    @property
    def packing(self) -> dict[str, Any]:
        """Options of the record about packing, which the dropout masks depend on, after `build`."""
        forward = self.model.forward_pass
        return {} if forward is None else forward.plan.record()

    # Checks

    def _check_options(self, needs: dict[str, str], args: InforMinTrainingArguments) -> None:
        """Raise UsageError if an option, or a model without an encoder, excludes what a run needs.

        Args:
            needs: See `ActiveObjective.needs`.
            args: Training arguments.
        """
        given = [name for name in ("neftune_noise_alpha", "lora_r") if getattr(args, name) is not None]
        if self.is_static and (of_encoder := [*needs.values(), *given]):
            raise UsageError(
                "needs an encoder, and this model is a table of token vectors",
                option=of_encoder[0],
                fix=f"Leave `{of_encoder[0]}` out, or use another model.",
            )
        if args.torch_compile and "embedding layer" in needs:
            found = (
                f"cannot be combined with `{needs['embedding layer']}`, which changes the embedding layer in each step"
            )
            raise UsageError(found, option="torch_compile", fix="Leave one out.")
        encoder = None if self.is_static else self.finished[0].auto_model
        if args.gradient_checkpointing and not getattr(encoder, "supports_gradient_checkpointing", False):
            raise UsageError(
                f"is not supported by {self.name if encoder is None else type(encoder).__name__}",
                option="gradient_checkpointing",
                fix="Leave it out. `gradient_cache_chunk_size` also needs less memory.",
            )
        if args.gradient_cache_chunk_size and "maps" in needs:
            raise UsageError(
                f"discards activations, and `{needs['maps']}` needs the attention maps of the whole batch at once",
                option="gradient_cache_chunk_size",
                fix="Leave one out.",
            )
        sharding = sharded_by(args)
        if sharding and "whole weights" in needs:
            option = needs["whole weights"]
            raise UsageError(
                f"needs all weights of the encoder in each process, and {sharding[0]} shards them across processes",
                option=option,
                fix=f"Set `{option}` to 0, or use another file from configs/accelerate.",
            )

    def _check_and_freeze(self) -> None:
        """Raise UsageError if a step would not give the model's own embeddings. Freeze weights that none depends on.

        In distributed training, processes would wait for the gradients of such weights, for example of BERT's pooler.
        Frozen copies replace them, because an object that was passed in shares the weights.
        """
        st = self.finished
        if st.truncate_dim is not None:
            raise UsageError(
                f"{self.name} keeps only {st.truncate_dim} dimensions of its embeddings (truncate_dim)",
                option="model_name",
                fix="Train it with `truncate_dim` None, and set `truncate_dim` when you load the result.",
            )
        if not any(weight.requires_grad for weight in st.parameters()):
            raise UsageError(f"{self.name} has no weights to train: all are frozen", option="model_name")
        with self._autocast():
            ours = self._embeddings_in_training([self.prompt + text for text in TEXTS]).float()
            ours.sum().backward()
            theirs = torch.as_tensor(encode(st, TEXTS, prompt=self.prompt))
        ours = normalize(ours) if isinstance(list(st)[-1], Normalize) else ours
        difference = float((ours.detach().cpu() - theirs).abs().max() / theirs.norm(dim=1).max())
        if not difference < (HALF_TOLERANCE if self._is_half else TOLERANCE):
            raise UsageError(
                f"{self.name} cannot be trained: embeddings of tokens differ from those of `encode` by "
                f"{difference:.2g}",
                option="model_name",
                needed="a model whose modules read input_ids and attention_mask",
            )
        for part in list(st.modules()):
            for name, weight in list(part.named_parameters(recurse=False)):
                if weight.requires_grad and weight.grad is None:
                    setattr(part, name, nn.Parameter(weight.data, requires_grad=False))
        self.model.zero_grad()

    def _check_dropout(self) -> None:
        """Raise UsageError if two copies of a text in one batch have the same embedding in training."""
        self.model.train()
        with torch.no_grad(), torch.random.fork_rng(), self._autocast():
            one, other = self._embeddings_in_training(2 * TEXTS).float().chunk(2)
        self.model.eval()
        if (one - other).norm() > (HALF_TOLERANCE if self._is_half else TOLERANCE) * one.norm():
            return
        if any(isinstance(part, nn.Dropout) for part in self.finished.modules()):
            raise UsageError(
                "Every dropout rate of this model is 0, so the two views of a sentence would be identical",
                fix="Set `view_dropout`, for example to 0.1, or `view` to crop.",
            )
        raise UsageError(
            f"{self.name} has no dropout, so the two views of a sentence would be identical",
            option="view",
            needed="views that differ in their tokens: crop or repetition",
            fix="Set `view` to crop, or use a term with a guide alone (objective guided).",
        )

    def _check_trained(self, objective: ActiveObjective) -> None:
        """Raise UsageError if a term or the view holds weights to train that are not part of `model`."""
        trained = {id(weight) for weight in self.model.parameters()}
        owners: list[tuple[str, Term | View]] = [("view", objective.view)]
        owners = [*(("objective", term) for term in objective.terms), *owners]
        for option, owner in owners:
            if any(id(weight) not in trained for weight in weights_to_train(owner, set())):
                raise UsageError(
                    f"{owner.name} holds weights that would never be trained",
                    option=option,
                    fix="Put them in an informin.objectives.term.Head, which `head` of a term returns, or freeze them "
                    "with `requires_grad_(False)`.",
                )

    def _embeddings_in_training(self, texts: list[str]) -> Tensor:
        """Return the embeddings (N, d) of texts as a step computes them."""
        reading = {"padding": True, "truncation": True, "max_length": self.length, "return_token_type_ids": False}
        batch = self.tokenizer(texts, return_tensors="pt", **reading)
        device = next(self.finished.parameters()).device
        encoder = None if self.is_static else self.finished[0].auto_model
        return self.model.embed_with(encoder, batch["input_ids"].to(device), batch["attention_mask"].to(device))

    @property
    def _is_half(self) -> bool:
        """Whether some weights have half precision."""
        return any(weight.dtype != torch.float32 for weight in self.model.parameters())

    def _autocast(self) -> AbstractContextManager:
        """Return the context in which a model with some weights in half precision computes on a CPU."""
        return torch.autocast("cpu", torch.bfloat16) if self._is_half else nullcontext()

    # Saving and loading

    def save(self, folder: str | Path, weights: dict[str, Tensor] | None = None) -> None:
        """Write a checkpoint, which is a finished model with the heads of training beside it.

        Args:
            folder: Folder to write.
            weights: Weights of `model` by name, if they are sharded; None for its own.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        forget_truncation(self.tokenizer)
        if self.is_native:
            self.model.save_pretrained(folder, state_dict=weights)
            self.tokenizer.save_pretrained(folder)
            return
        self.finished.save_pretrained(str(folder), create_model_card=False)
        written = {id(weight) for weight in self.finished.parameters()}  # also that of the LM head's decoder
        others = self.model.state_dict(keep_vars=True).items()
        # By weight: tied ones, such as the bias of BERT's LM head, have two names.
        named = {id(x): (name, x.data) for name, x in others if not name.startswith("st.")}
        heads = dict(entry for key, entry in named.items() if key not in written)
        if heads:
            save_file(heads, folder / HEADS_FILE, {"format": "pt"})
        if self.has_lora:
            trained = {name: x.data for name, x in self.model.named_parameters() if x.requires_grad}
            save_file(trained, folder / TRAINED_FILE, {"format": "pt"})

    def load(self, folder: str | Path) -> None:
        """Load the weights of a checkpoint of a SentenceTransformer; Trainer loads those of a native model."""
        if self.has_lora:
            self.model.load_state_dict(load_file(Path(folder, TRAINED_FILE)), strict=False)
        else:
            # A checkpoint has BERT's own pooler, even if the model was opened without it.
            saved = load_model(folder, device="cpu", trust_remote_code=self.trusts_code).state_dict()
            missing = self.finished.load_state_dict(saved, strict=False).missing_keys
            if missing := [name for name in missing if ".pooler." not in name]:
                raise UsageError(f"{folder} lacks weights, such as {missing[0]}", fix="Use another checkpoint.")
        if Path(folder, HEADS_FILE).exists():
            self.model.load_state_dict(load_file(Path(folder, HEADS_FILE)), strict=False)

    @property
    def is_sharded(self) -> bool:
        """Whether FSDP shards the weights of `model`."""
        return self._skeleton is not None

    def prepare_gathering(self) -> None:
        """Note the modules before FSDP shards their weights, for `gathered`."""
        self._skeleton = self._skeleton or skeleton(self.model)

    def gathered(self, weights: dict[str, Tensor] | None) -> "TrainedModel":
        """Return the same model with these weights of `model`, if FSDP shards its own."""
        if self._skeleton is None or weights is None:
            return self
        whole = copy.copy(self)
        whole.model = with_weights(self._skeleton, weights)
        if self.is_native:
            st: Any = copy.copy(self.finished)
            st._modules = st._modules | {"0": with_encoder(st[0], whole.model.base_model)}
            whole.finished = set_inference(st)
        else:
            st = whole.finished = whole.model.st
            st.prompts, st.default_prompt_name = self.finished.prompts, self.finished.default_prompt_name
        return whole

    @contextmanager
    def before(self, args: InforMinTrainingArguments) -> Iterator[SentenceTransformer]:
        """Yield the model before training, with the pooling of training, on its device."""
        if self.has_lora:
            with without_lora(self.finished, self._trained_before):
                yield self.finished
        else:
            st = self._copy_before
            if st is None:
                st = load_to_train(self.name, args)
                if not self._has_own_tokenizer:
                    set_tokenizer(st, self.tokenizer)
            yield st.to(args.device)


# What `TrainedModel.open` needs


def load_to_train(model: str | Path, args: InforMinTrainingArguments) -> SentenceTransformer:
    """Return a model with the pooling of training.

    A model that stores no pooling gets [CLS]. A pooling other than the model's own drops its normalization.

    Args:
        model: Hub id or folder.
        args: Training arguments.
    """
    name = found_name(str(model), args.revision)
    how: dict[str, Any] = {"revision": args.revision, "trust_remote_code": args.trust_remote_code, "device": "cpu"}
    if file_of(name, MODULES, args.revision) is None:
        return load_model(name, pooler="cls" if args.pooler in OWN else args.pooler, **how)
    st = load_model(name, **how)
    if pools_as(st, args.pooler):
        return st
    changed = with_pooling(st, args.pooler)
    changed.informin_source = source_of(st)
    if args.lora_r is not None or not is_native(changed):
        raise_if_pooled_otherwise(st, args.pooler)
    return changed


def pools_as(st: SentenceTransformer, pooler: str) -> bool:
    """Return whether a model has the pooling that `pooler` asks for."""
    own = st[1].pooling_mode if len(st) > 1 and isinstance(st[1], Pooling) else None
    return pooler in OWN or MODES[pooler] == own


def raise_if_pooled_otherwise(st: SentenceTransformer, pooler: str) -> None:
    """Raise UsageError for a model that is trained with its own modules if `pooler` asks for another pooling."""
    if not pools_as(st, pooler):
        raise UsageError(f"is {pooler}, but a SentenceTransformer has its own pooling", option="pooler", needed="auto")


def saved_and_opened(model: Any, tokenizer: PreTrainedTokenizerBase | None) -> SentenceTransformer:
    """Return an object of `modeling_informin` as a SentenceTransformer with other weights."""
    if tokenizer is None:
        raise UsageError("is missing", option="processing_class", fix="Pass the tokenizer of the model.")
    raise_if_unfit(tokenizer, "processing_class")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        st = load_model(folder, device="cpu")
    st.informin_source = Source(model.config._name_or_path or type(model).__name__)
    return st


def with_same_weights(model: Any, are_frozen: bool = False) -> Any:
    """Return a copy of a model with modules and settings of its own, and the weights of the model.

    Training changes modules, hooks, attention functions and configurations. These changes stay in the copy. The weights
    are shared, so the original model is trained, too.

    Args:
        model: The model.
        are_frozen: Whether training changes no weight, but adds some. The copy can then have another data type and
            device, and the memory is shared until it has.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        if not are_frozen:
            memo[id(module._buffers)] = module._buffers  # as a whole, because a device replaces its values
        for name in HOOKS:
            memo |= {id(hook): hook for hook in getattr(module, name).values()}
    for weight in model.parameters():
        memo[id(weight)] = nn.Parameter(weight.data, weight.requires_grad) if are_frozen else weight
    return copy.deepcopy(model, memo)


def is_native(st: SentenceTransformer) -> bool:
    """Return whether a model consists of a BERT or RoBERTa, a pooling that this project has, and normalization."""
    modules = list(st)
    return (
        [type(module) for module in modules[:2]] == [Transformer, Pooling]
        and all(type(module) is Normalize for module in modules[2:])
        and len(modules) <= 3
        and modules[0].config.model_type in CLASSES
        and not has_own_code(modules[0])
        and not getattr(modules[0].auto_model, "peft_config", None)
        and not modules[0].config.is_decoder
        and modules[1].pooling_mode in NAME_OF_MODE
        and modules[1].include_prompt
        and st.truncate_dim is None
    )


def raise_if_routed(st: SentenceTransformer) -> None:
    """Raise UsageError for a model whose documents and queries take different routes."""
    if any(isinstance(module, Router) for module in st.modules()):
        raise UsageError(
            f"{source_of(st).name} has a Router: training would change the route of documents and not that of queries",
            option="model_name",
            needed="a model with one route",
        )


def raise_if_quantized(model: nn.Module) -> None:
    """Raise UsageError for a model in memory whose weights torch has quantized."""
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor) or value.is_quantized:
            raise UsageError(
                f"has quantized weights, such as {name}, which cannot be trained",
                option="model",
                fix="Train the model before it is quantized, and quantize the result.",
            )


def set_tokenizer(st: Any, tokenizer: Any) -> None:
    """Give a model a copy of another tokenizer. Texts are at most as long as with its own.

    Args:
        st: The model.
        tokenizer: The tokenizer. For static embeddings, it may be one of the package tokenizers.

    Raises:
        UsageError: The tokenizer is not a fast one with a padding token.
    """
    first, is_static = st[0], isinstance(st[0], StaticEmbedding)
    length = length_limit(st)
    if not (is_static and isinstance(tokenizer, Tokenizer)):
        raise_if_unfit(tokenizer, "processing_class")
    given = copy.deepcopy(tokenizer)
    if is_static:
        first.tokenizer = getattr(given, "backend_tokenizer", given)
        first.tokenizer.no_padding()
        limit_length(st, length)
        return
    if isinstance(getattr(first, "processor", None), PreTrainedTokenizerBase):
        first.processor = given
    else:  # of texts and images
        getattr(first, "processor", first).tokenizer = given
    if length is not None:
        limit_length(st, min(length, given.model_max_length))


def raise_if_unfit(tokenizer: Any, option: str) -> None:
    """Raise UsageError for a tokenizer that training cannot use."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or tokenizer.pad_token_id is None:
        is_own = option == "model_name"
        raise UsageError(
            f"{'The model has' if is_own else 'is'} no fast tokenizer with a padding token, which training needs",
            option=option,
            fix="If it is fast, set its `pad_token`" + (", and save it in the folder of the model." if is_own else "."),
        )


def training_tokenizer(st: SentenceTransformer) -> PreTrainedTokenizerBase:
    """Return the transformers tokenizer that gives the tokens that a model reads."""
    tokenizer: Any = st.tokenizer
    if isinstance(st[0], StaticEmbedding):
        is_plain = hasattr(tokenizer, "to_str")
        backend = type(tokenizer).from_str(tokenizer.to_str()) if is_plain else tokenizer.backend_tokenizer
        backend.post_processor = TemplateProcessing(single="$A", special_tokens=[])
        backend.no_truncation()
        backend.no_padding()
        pad = backend.id_to_token(0)
        return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=pad, model_max_length=UNLIMITED)
    raise_if_unfit(tokenizer, "model_name")
    return tokenizer


def restore_dropouts(encoder: Any) -> None:
    """Give an encoder its own dropout rates again if a run before this one has set another (`view_dropout`)."""
    own = own_dropouts(getattr(getattr(encoder, "config", None), "informin", None))
    if not own:
        return
    encoder.config.update(own)
    with torch.device("meta"):
        usual = type(encoder)(encoder.config)
    for name, part in usual.named_modules():
        if isinstance(part, nn.Dropout):
            encoder.set_submodule(name, part)


# What `TrainedModel.build` needs


def settings_of_files(st: Any) -> dict[str, Any]:
    """Return the settings that a checkpoint needs to be a SentenceTransformer; see `modeling_informin`."""
    prompts = {name: text for name, text in st.prompts.items() if text}
    values = {"max_seq_length": st.max_seq_length, "do_lower_case": st[0].do_lower_case, "prompts": prompts}
    values |= {"default_prompt_name": st.default_prompt_name, "similarity_fn_name": st._similarity_fn_name}
    files = {name: values[name] for name in SOURCE_SETTINGS if values[name]}
    return {"sentence_transformers": files} | ({"normalize": True} if len(st) > 2 else {})


def with_settings(module: Any, config: Any, rate: float | None, option: str) -> Any:
    """Return an object of our classes with the configuration, the heads and the dropout rate that a run needs."""
    module.float()
    has_lm_head = module.config.informin["lm_head"]
    if config.informin["lm_head"] and not has_lm_head:
        raise UsageError(
            "The model was built without its language-model head",
            option=option,
            fix='Load it with `config.informin = {"lm_head": True}`, or pass its name.',
        )
    config.informin["lm_head"] = has_lm_head
    if config.informin["projection_head"] == "none":
        module.mlp = None
    elif not isinstance(getattr(module, "mlp", None), ProjectionHead):
        module.mlp = ProjectionHead(config.hidden_size)
        module.mlp.apply(module._init_weights)
    if rate is not None:
        set_dropout(module.base_model, rate)
    module.config.update({name: getattr(config, name) for name in DROPOUTS})
    module.config.informin = config.informin
    return module


def raise_if_not_of_files(encoder: Any) -> None:
    """Raise UsageError if an encoder in memory has other weights than its files, which others load low-rank matrices
    onto."""
    files = encoder.name_or_path
    try:
        stored = type(encoder).from_pretrained(files, **SAFE).state_dict()
    except (OSError, ValueError):  # such as a folder that no longer exists
        stored = {}
    for name, own in encoder.state_dict().items():
        if name.startswith("pooler."):  # which no embedding depends on
            continue
        if name not in stored or not stored[name].to(own.dtype).equal(own.cpu()):
            raise UsageError(
                f"is false, and the model in memory has other weights than {files or 'its files'}, such as {name}",
                option="lora_merge",
                fix="Merge the matrices, or save the model and pass the folder.",
            )


def around_encoder(encoder: Any, config: Any, rate: float | None) -> Any:
    """Return an object of our classes with newly initialized heads and this encoder, instead of reading it again."""
    with torch.device("meta"):
        module: Any = CLASSES[config.model_type](config)
    config.dtype = torch.float32
    encoder.pooler = None
    for part in encoder.modules():
        if hasattr(part, "config"):
            part.config = config
    if rate is not None:
        set_dropout(encoder, rate)
    setattr(module, module.base_model_prefix, encoder)
    if hasattr(module, "mlp"):
        module.mlp.to_empty(device="cpu").apply(module._init_weights)
    return module.eval()


def weights_to_train(owner: Any, seen: set[int]) -> Iterator[Tensor]:
    """Yield the tensors with gradient in an object: in modules, containers and attributes, each object once.

    Args:
        owner: The object.
        seen: Ids of the objects that were searched.
    """
    if id(owner) in seen or isinstance(owner, str | bytes | np.ndarray | type):
        return
    seen.add(id(owner))
    if isinstance(owner, Tensor):
        yield from [owner] if owner.requires_grad else []
        return
    is_module = isinstance(owner, nn.Module) and callable(owner.__hash__)  # of a term, its attributes have them
    parts: list[Any] = list(owner.parameters()) if is_module else []
    parts += owner.values() if isinstance(owner, Mapping) else []
    parts += owner if isinstance(owner, list | tuple | set) else []
    parts += getattr(owner, "__dict__", {}).values() if not isinstance(owner, FunctionType | ModuleType) else []
    for part in parts:
        yield from weights_to_train(part, seen)


# Modules


class WrapperConfig(PreTrainedConfig):
    """Describes a SentenceTransformer in training: `hidden_size` is the dimension of its embeddings."""

    model_type = "sentence-transformers"


class SentenceTransformerForInforMinCL(TrainingMixin, nn.Module):
    """A SentenceTransformer whose forward pass in training returns `InforMinOutput`.

    Attributes:
        st: The SentenceTransformer.
        config: Dimension of the embeddings, and `informin`, the settings of the run.
        mlp: The projection head; None without one.
        lm_head: The language-model head; None without one.
        prompt_tokens: Tokens of the prompt that the pooling leaves out.
    """

    supports_gradient_checkpointing = True
    prompt_tokens = 0

    def __init__(self, st: SentenceTransformer, config: WrapperConfig, lm_head: nn.Module | None):
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
    def base_model(self) -> PreTrainedModel:
        """The encoder, which heads may copy."""
        return self.st[0].auto_model

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embeddings that the encoder reads, to which `neftune_noise_alpha` adds noise.

        T5 has two modules with these weights, and `get_input_embeddings` of transformers returns the unused one.
        """
        encoder: Any = self.base_model
        weight = encoder.get_input_embeddings().weight
        modules = encoder.modules()
        return [module for module in modules if isinstance(module, nn.Embedding) and module.weight is weight][-1]

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
        split_batch: Any = None,
    ) -> InforMinOutput:
        """Embed N rows of L tokens in training; see `modeling_informin.InforMinMixin.forward`."""
        if split_batch is not None:
            return self.training_outputs(split_batch, input_ids, attention_mask, views)
        features = self._features(list(self.st), input_ids, attention_mask)
        pooled = features["sentence_embedding"]
        projection = self.project(pooled)
        lm_losses = None
        if lm_labels is not None:
            wanted = lm_labels >= 0
            lm_losses = self.lm_losses(features["token_embeddings"][wanted], lm_labels[wanted])
        return InforMinOutput(
            pooler_output=pooled,
            projection=projection,
            lm_losses=lm_losses,
            heads=self.head_outputs(
                pooled, projection, features.get("token_embeddings"), input_ids, attention_mask, views
            ),
            attentions=kept_maps(self.base_model) or None if output_attentions else None,
        )

    def embed_with(self, encoder: nn.Module | None, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return embeddings (B, d) of the first view (B, L) by a copy of the encoder, not normalized."""
        if self.forward_pass is not None:
            return self.forward_pass.embed_with(encoder, input_ids, attention_mask)
        first, *others = self.st
        own = first if encoder is None else with_encoder(first, encoder)
        return self._features([own, *others], input_ids, attention_mask)["sentence_embedding"]

    def _features(self, modules: list[nn.Module], input_ids: Tensor, attention_mask: Tensor) -> dict[str, Any]:
        """Return what the modules of a SentenceTransformer compute for N rows, without a normalization at the end."""
        features: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if isinstance(modules[0], StaticEmbedding):  # which reads texts that follow each other
            lengths = attention_mask.sum(1)
            features = {"input_ids": input_ids[attention_mask.bool()], "offsets": lengths.cumsum(0) - lengths}
        if self.prompt_tokens:
            features["prompt_length"] = self.prompt_tokens
        if len(modules) > 1 and isinstance(modules[-1], Normalize):
            modules = modules[:-1]
        for module in modules:
            features = module(features)
        return features

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Recompute the activations of the layers in the backward pass; see the method of transformers."""
        self.base_model.activation_checkpointing_enable(**options)

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """Do what `activation_checkpointing_enable` does. Older versions of transformers call this method."""
        self.base_model.gradient_checkpointing_enable(**options)


class GivenStates(nn.Module):
    """Replaces an encoder, and returns the hidden states that it is given."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **others: Any) -> BaseModelOutput:
        """Return `inputs_embeds` (1, M, d) as the last hidden state. ELECTRA passes token ids by position."""
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


# What the fast path leaves to the encoder


def options_of_usual_forward(args: InforMinTrainingArguments) -> list[str]:
    """Return the options with which the encoder needs its usual forward pass, neither packed nor as a CUDA graph."""
    reasons = {
        "`gradient_checkpointing`": args.gradient_checkpointing,
        "`torch_compile`": args.torch_compile,
        "`neftune_noise_alpha`": args.neftune_noise_alpha is not None,  # scaled by the padded length of the batch
    }
    return [reason for reason, holds in reasons.items() if holds] + sharded_by(args)


def sharded_by(args: InforMinTrainingArguments) -> list[str]:
    """Return which of FSDP and DeepSpeed shard weights, gradients or optimizer state across processes."""
    plugins = {"FSDP": args.fsdp, "DeepSpeed": args.deepspeed}
    launched = {name: str_to_bool(os.environ.get(f"ACCELERATE_USE_{name.upper()}", "false")) for name in plugins}
    return [name for name, value in plugins.items() if value or launched[name]]
