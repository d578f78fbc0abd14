"""BERT and RoBERTa, trained, saved and published as the classes of `modeling_informin`."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import PreTrainedTokenizerBase, set_seed

from informin.errors import UsageError, counted
from informin.models.dropouts import DROPOUTS, own_dropouts
from informin.models.opening import SAFE, Source
from informin.models.pooling import NAMES
from informin.models.trained import Needs, TrainedModel, copied
from informin.views.attention import set_dropout
from modeling_informin import (
    SOURCE_SETTINGS,
    BertForInforMinCL,
    InforMinMixin,
    ProjectionHead,
    RobertaForInforMinCL,
)


class NativeModel(TrainedModel):
    """A BERT or RoBERTa in training; see `TrainedModel`."""

    def __init__(
        self,
        st: SentenceTransformer,
        source: Source,
        tokenizer: PreTrainedTokenizerBase | None = None,
        given: InforMinMixin | None = None,
    ):
        """Take a model; `given`, an object with its weights, is trained itself."""
        super().__init__(st, source, tokenizer)
        self._given: Any = given

    @property
    def config(self) -> Any:
        return self.st[0].config

    @property
    def pooling(self) -> str:
        return NAMES[self.st[1].pooling_mode]

    @property
    def length(self) -> int:
        return self.st.max_seq_length

    def _create(self, args: Any, needs: Needs) -> None:
        set_seed(args.seed)  # for newly initialized heads
        config = copy.deepcopy(self.config)
        config.output_hidden_states = config.output_attentions = False
        config.update(own_dropouts(getattr(config, "informin", None)))  # if this is a checkpoint
        heads = {"projection_head": "mlp" if needs.projection_head else "none", "lm_head": needs.lm_head}
        config.informin = {"pooling": self.pooling} | heads | needs.settings
        config.informin |= self.prompt_settings(args) | self._file_settings()
        if needs.dropout is not None:
            config.informin["dropouts"] = {name: getattr(config, name) for name in DROPOUTS}
            config.update(dict.fromkeys(DROPOUTS, needs.dropout))
        model = self._loaded(config, needs) if self._given is None else self._prepared(config, args, needs)
        # save_pretrained leaves tied weights out anyway. Listed here, Trainer does not warn about them.
        model._keys_to_ignore_on_save = set(model.all_tied_weights_keys)
        self.module = model
        self.st[0].model = model.base_model
        self.st[0].processor = self.tokenizer
        self.tokenizer.padding_side = "right"

    def _loaded(self, config: Any, needs: Needs) -> Any:
        """Return the model of the source with this configuration."""
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
        missing = sorted(name for name in report["missing_keys"] if ".pooler." not in f".{name}")
        if missing:
            raise UsageError(
                f"{self.name} lacks {counted(len(missing), 'weight')} that the objective needs, such as {missing[0]}",
                option="model_name",
                fix=f"Use a checkpoint with a language-model head, or set `{needs.option('lm_head')}` to 0.",
            )
        return model

    def _prepared(self, config: Any, args: Any, needs: Needs) -> Any:
        """Return the object that was given, with the heads and the dropout rate that the run needs."""
        model = self._given.float()
        if needs.lm_head and not model.config.informin["lm_head"]:
            raise UsageError(
                "The model was built without its language-model head",
                option=needs.option("lm_head"),
                fix='Load it with `config.informin = {"lm_head": True}`, or pass its name.',
            )
        if args.measure_drift:
            self.before = copied(self.st)
        config.informin["lm_head"] = model.config.informin["lm_head"]
        if needs.projection_head and not isinstance(getattr(model, "mlp", None), ProjectionHead):
            model.mlp = ProjectionHead(config.hidden_size)
            model.mlp.apply(model._init_weights)
        if not needs.projection_head:
            model.mlp = None
        if needs.dropout is not None:
            set_dropout(model.base_model, needs.dropout)
        model.config.update({name: getattr(config, name) for name in DROPOUTS})
        model.config.informin = config.informin
        return model

    def _file_settings(self) -> dict[str, Any]:
        """Return the settings that a checkpoint needs to be a SentenceTransformer; see `modeling_informin`."""
        st = self.st
        prompts = {name: text for name, text in st.prompts.items() if text}
        values = {"max_seq_length": st.max_seq_length, "do_lower_case": st[0].do_lower_case, "prompts": prompts}
        values |= {"default_prompt_name": st.default_prompt_name, "similarity_fn_name": st._similarity_fn_name}
        files = {name: values[name] for name in SOURCE_SETTINGS if values[name]}
        return {"sentence_transformers": files} | ({"normalize": True} if len(st) > 2 else {})

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
