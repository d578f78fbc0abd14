"""What a trainer is given as a model: a name, a folder, or an object, of which a copy with the same weights trains."""

import copy
import tempfile
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Router, Transformer
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from informin.errors import UsageError
from informin.models.model_files import file_of
from informin.models.opening import Source, found_name, load_model, name_of, source_of, with_pooling
from informin.models.pooling import MODES
from modeling_informin import CLASSES

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
UNLIMITED = 1_000_000  # tokens; maximum length of models that do not truncate, such as static embeddings


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


def opened(model: str | Path, args: Any) -> SentenceTransformer:
    """Return a model with the pooling of training.

    A model that stores no pooling gets [CLS]. A pooling other than the model's own drops its normalization.

    Args:
        model: Hub id or folder.
        args: `InforMinTrainingArguments`.
    """
    name = found_name(name_of(model), args.revision)
    how = {"revision": args.revision, "trust_remote_code": args.trust_remote_code, "device": "cpu"}
    asks = args.pooler not in ("auto", "st")
    if file_of(name, "modules.json", args.revision) is None:
        return load_model(name, pooler=args.pooler if asks else "cls", **how)
    st = load_model(name, **how)
    own = st[1].pooling_mode if len(st) > 1 and isinstance(st[1], Pooling) else None
    if not asks or MODES[args.pooler] == own:
        return st
    changed = with_pooling(st, args.pooler)
    changed.informin_source = source_of(st)
    changed = load_model(changed)
    if args.lora_r is not None or not is_native(changed):
        raise UsageError(
            f"is {args.pooler}, but a SentenceTransformer has its own pooling", option="pooler", needed="auto"
        )
    return changed


def opened_around(model: Any, tokenizer: PreTrainedTokenizerBase | None) -> SentenceTransformer:
    """Return an object of `modeling_informin` as a SentenceTransformer with other weights."""
    if tokenizer is None:
        raise UsageError("is missing", option="processing_class", fix="Pass the tokenizer of the model.")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        st = load_model(folder, device="cpu")
    st.informin_source = Source(model.config._name_or_path or type(model).__name__)
    return st


def is_native(st: SentenceTransformer) -> bool:
    """Return whether a model consists of a BERT or RoBERTa, a pooling that this project has, and normalization."""
    modules = list(st)
    return (
        [type(module) for module in modules[:2]] == [Transformer, Pooling]
        and all(type(module) is Normalize for module in modules[2:])
        and len(modules) <= 3
        and modules[0].config.model_type in CLASSES
        and not getattr(modules[0].auto_model, "peft_config", None)
        and not modules[0].config.is_decoder
        and modules[1].pooling_mode in MODES.values()
        and modules[1].include_prompt
        and st.truncate_dim is None
    )


def check_one_route(st: SentenceTransformer) -> None:
    """Raise UsageError for a model whose documents and queries take different routes."""
    if any(isinstance(module, Router) for module in st.modules()):
        raise UsageError(
            f"{name_of(st)} has a Router: training would change the route of documents and not that of queries",
            option="model_name",
            needed="a model with one route",
        )


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
