"""BERT and RoBERTa, trained as classes of this project: with packing, attention maps and the language-model head."""

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import str_to_bool
from torch import nn
from transformers import set_seed

from informin.errors import UsageError, counted
from informin.models.cpu_parts import packed_forward_in_parts, parts_in_training
from informin.models.dropouts import DROPOUTS, own_dropouts
from informin.models.opening import SAFE
from informin.models.packing import packed_forward
from informin.models.pooling import NAMES
from informin.models.trained import Needs, TrainedModel
from informin.views.attention import prepare_encoder
from modeling_informin import SOURCE_SETTINGS, BertForInforMinCL, RobertaForInforMinCL


class NativeModel(TrainedModel):
    """A BERT or RoBERTa in training; see `TrainedModel`."""

    backend = "native"

    @property
    def config(self) -> Any:
        return self.st[0].config

    @property
    def pooling(self) -> str:
        return NAMES[self.st[1].pooling_mode]

    @property
    def length(self) -> int:
        return self.st.max_seq_length

    @property
    def takes_head(self) -> bool:
        return True

    @property
    def packing(self) -> dict[str, Any]:
        if not self._packed:
            return {}
        return {"padding_free": True} | ({"cpu_parts": self._parts} if self._parts > 1 else {})

    def _check(self, args: Any, needs: Needs) -> None:
        """Raise UsageError for options that exclude each other."""
        reasons = unpackable(args, needs)
        if args.padding_free and reasons:
            raise UsageError(f"cannot be combined with {reasons[0]}", option="padding_free", fix="Leave one out.")
        if args.gradient_cache_chunk_size and needs.map_layers:
            option = needs.option("map_layers")
            raise UsageError(
                f"discards activations, and `{option}` needs the attention maps of the whole batch at once",
                option="gradient_cache_chunk_size",
                fix="Leave one out.",
            )
        sharding = sharded_by(args)
        if needs.momentum and sharding:
            option = needs.option("momentum")
            raise UsageError(
                f"needs whole weights for its momentum encoder, and {sharding[0]} shards them across processes",
                option=option,
                fix=f"Set `{option}` to 0, or use another file from configs/accelerate.",
            )

    def build(self, args: Any, needs: Needs) -> None:
        self._check(args, needs)
        set_seed(args.seed)  # for newly initialized heads
        config = copy.deepcopy(self.config)
        config.output_hidden_states = False
        config.update(own_dropouts(getattr(config, "informin", None)))  # if this is a checkpoint
        heads = {"projection_head": "mlp" if needs.projection_head else "none", "lm_head": needs.lm_head}
        config.informin = {"pooling": self.pooling} | heads | needs.settings
        config.informin |= self.prompt_settings(args) | self._file_settings()
        if needs.dropout is not None:
            config.informin["dropouts"] = {name: getattr(config, name) for name in DROPOUTS}
            config.update(dict.fromkeys(DROPOUTS, needs.dropout))
        kind: Any = BertForInforMinCL if config.model_type == "bert" else RobertaForInforMinCL
        model, report = kind.from_pretrained(
            self.name,
            config=config,
            revision=self.source.revision,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
            **SAFE,
        )
        if missing := sorted(name for name in report["missing_keys"] if ".pooler." not in f".{name}"):
            raise UsageError(
                f"{self.name} lacks {counted(len(missing), 'weight')} that the objective needs, such as {missing[0]}",
                option="model_name",
                fix="Use a checkpoint with a language-model head, or set `mlm_weight` to 0.",
            )
        # save_pretrained leaves tied weights out anyway. Listed here, Trainer does not warn about them.
        model._keys_to_ignore_on_save = set(model.all_tied_weights_keys)
        self.module = model
        self.st[0].model = model.base_model
        self.st[0].processor = self.tokenizer
        self.tokenizer.padding_side = "right"
        self._prepare(args, needs)

    def _file_settings(self) -> dict[str, Any]:
        """Return the settings that a checkpoint needs to be a SentenceTransformer; see `modeling_informin`."""
        st = self.st
        prompts = {name: text for name, text in st.prompts.items() if text}
        values = {"max_seq_length": st.max_seq_length, "do_lower_case": st[0].do_lower_case, "prompts": prompts}
        values |= {"default_prompt_name": st.default_prompt_name, "similarity_fn_name": st._similarity_fn_name}
        files = {name: values[name] for name in SOURCE_SETTINGS if values[name]}
        return {"sentence_transformers": files} | ({"normalize": True} if len(st) > 2 else {})

    def _prepare(self, args: Any, needs: Needs) -> None:
        """Choose how batches are computed, and set dropout rates and attention maps."""
        module = self.module
        by_default = args.device.type == "cpu" and not unpackable(args, needs)
        self._packed = by_default if args.padding_free is None else args.padding_free
        self._parts = parts_in_training(args) if self._packed else 1
        module.chunk_size = args.gradient_cache_chunk_size
        forward = packed_forward if self._parts == 1 else packed_forward_in_parts
        module.packed_forward = forward if self._packed else None
        rates = None
        if needs.view_rates:
            rates = [*needs.view_rates, None][: needs.copies]  # None: a masked copy has the encoder's own dropout.
        encoder = module.base_model
        attentions = [layer.attention.self for layer in encoder.encoder.layer]
        prepare_encoder(encoder, attentions, rates, needs.map_layers)
        has_dropout = any(part.p > 0 for part in encoder.modules() if isinstance(part, nn.Dropout))
        if needs.views_differ_by_dropout and not has_dropout:
            raise UsageError(
                "Every dropout rate of this model is 0, so the two views of a sentence would be identical",
                fix="Set `view_dropout`, for example to 0.1.",
            )

    def save(self, folder: str | Path, usual: Callable[[], None], module: nn.Module | None = None) -> None:
        usual()

    def load(self, folder: str | Path, usual: Callable[[], None]) -> None:
        usual()

    @contextmanager
    def reading(self, module: nn.Module | None) -> Iterator[None]:
        own = self.st[0].model
        try:
            self.st[0].model = own if module is None else module.base_model
            yield
        finally:
            self.st[0].model = own


def unpackable(args: Any, needs: Needs) -> list[str]:
    """Return the options that require padded batches."""
    reasons = {
        "`view_dropout`": needs.view_rates is not None,
        "attention maps": bool(needs.map_layers),
        "`gradient_checkpointing`": args.gradient_checkpointing,
        "`torch_compile`": args.torch_compile,
        "`neftune_noise_alpha`": args.neftune_noise_alpha is not None,  # scaled by the padded length of the batch
        **dict.fromkeys(sharded_by(args), True),
    }
    return [reason for reason, holds in reasons.items() if holds]


def sharded_by(args: Any) -> list[str]:
    """Return which of FSDP and DeepSpeed shard weights, gradients or optimizer state across processes."""
    plugins = {"FSDP": args.fsdp, "DeepSpeed": args.deepspeed}
    launched = {name: str_to_bool(os.environ.get(f"ACCELERATE_USE_{name.upper()}", "false")) for name in plugins}
    return [name for name, value in plugins.items() if value or launched[name]]
