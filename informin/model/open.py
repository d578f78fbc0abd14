"""Open finished models as SentenceTransformers, such that no code in a model's files runs unless it is trusted.

`load_model` is the one entry. Below it, in the order in which it needs them: finding the model, reading its files
safely, and preparing the opened model, so that no embedding depends on padding and every token has one.
"""

import copy
import json
import logging
import math
import posixpath
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Router, StaticEmbedding, Transformer
from tokenizers import Tokenizer
from torch import nn
from transformers import MODEL_FOR_MASKED_LM_MAPPING, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file

from informin.errors import UsageError, counted, error_line
from informin.fast.packing import copy_for_call, has_position_table, padding_index_of
from informin.fast.precision import Precision, chosen_precision, encoders, precision_of, set_precision
from informin.fast.speed import copy_of_tokenizer, set_inference
from informin.hub import MODEL_FILES, is_hub_id, names_of_model, raise_if_not_found
from informin.model.pooling import POOLERS, with_pooling
from informin.options import check_value, with_home
from modeling_informin import CLASSES, HEAD_FILE

logger = logging.getLogger(__name__)
MODULES = "modules.json"
LOADING = threading.RLock()  # held while a model is read: threads share the logger that reports missing weights
ROUTES = ("router_config.json", "config.json")  # of a Router; the second one in older versions
ADAPTER_CONFIG = "adapter_config.json"  # of peft
CLASS_NAMES = ("SentenceTransformer", *(kind.__name__ for kind in CLASSES.values()))  # of models without a name
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
FEWEST_TOKENS = 3  # of a text: one, between two special ones
# First in priority, before the arguments in a model's own files. The last three choose code from the Hub.
SAFE: dict[str, Any] = {
    "use_safetensors": True,
    "weights_only": True,
    "attn_implementation": None,
    "use_kernels": False,
    "allow_all_kernels": False,
}


class Loading(TypedDict, total=False):
    """Options of `load_model` besides the pooling, which other functions take as keyword arguments and pass on."""

    max_seq_length: int | None
    device: str | torch.device | None
    revision: str | None
    trust_remote_code: bool
    precision: Precision | None
    bf16: bool  # an older option: True is `precision` bf16


@dataclass(frozen=True)
class Source:
    """Where a finished model comes from.

    Attributes:
        name: Name or folder that the caller gave.
        folder: The folder; None for a model on the Hub or in memory.
        revision: Commit on the Hub; None for a folder or a model in memory.
    """

    name: str
    folder: Path | None = None
    revision: str | None = None

    @property
    def hub_id(self) -> str | None:
        """The name on the Hub; None for a folder, and for a model in memory that has a path or no name."""
        return self.name if not self.folder and self.name not in CLASS_NAMES and is_hub_id(self.name) else None


def load_model(
    model: str | Path | SentenceTransformer,
    *,
    pooler: str = "auto",
    max_seq_length: int | None = None,
    device: str | torch.device | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    precision: Precision | None = None,
    bf16: bool = False,
) -> SentenceTransformer:
    """Open an embedding model, and speed it up. A model from files is in evaluation mode.

    The default is float32, because the model may be saved or trained. If you only embed, set `precision` to auto, the
    default of `embed`, `fit`, `distill`, `duplicates` and `Index`.

    Args:
        model: Hub id or folder. A model that this function opened is returned unchanged, unless `precision` differs.
            For any other SentenceTransformer, which is not changed, the result is a copy that shares its modules and
            pads like a model from files.
        pooler: `auto` for the pooling that the model stores, or one of `informin.model.pooling.POOLERS` in its place,
            without the modules after it, such as Dense and Normalize. `mlp` keeps all but a Normalize at the end.
        max_seq_length: Maximum number of tokens of a text; None for the model's own.
        device: Device; None for a GPU if there is one.
        revision: Branch, tag or commit on the Hub.
        trust_remote_code: Allow code from the model's repository to run.
        precision: Precision of the weights of the encoder: fp32, bf16, fp16, or auto, the fastest of them on the device
            (bf16 if the CPU has AMX or AVX-512 with bf16; bf16 or fp16 on an NVIDIA GPU; else fp32). Pooling and
            normalization are in float32. None for fp32, or for the precision of a given SentenceTransformer.
        bf16: An older option. True is `precision` bf16.

    Raises:
        UsageError: The model cannot be loaded, its weights are incomplete, its tokenizer has more tokens than it has
            embeddings, it stores no pooling for `pooler` auto, it is static and `pooler` is not auto, `max_seq_length`
            leaves no token of a text between two special ones or exceeds the positions of the model, one of both is set
            for a SentenceTransformer, or torch cannot use the device.
    """
    if isinstance(model, SentenceTransformer):
        for option, is_set in {"pooler": pooler != "auto", "max_seq_length": max_seq_length is not None}.items():
            if is_set:
                fix = "Set it when you open the model from its files, or leave it out."
                raise UsageError("has no effect on a SentenceTransformer in memory", option=option, fix=fix)
        chosen = chosen_precision(precision, bf16, model.device)
        if "informin_source" in vars(model):
            return in_precision(model, chosen)
        check_tokenizers(model, name_of(model))
        own = set_inference(_with_own_tokenizers(copy.copy(model)))
        fit_to_positions(own)
        return in_precision(own, chosen)
    is_boolean = isinstance(trust_remote_code, bool)  # any text would count as True
    check_value(is_boolean, "trust_remote_code", trust_remote_code, "True or False")
    if max_seq_length is not None and max_seq_length < FEWEST_TOKENS:
        raise UsageError(f"is {max_seq_length}", option="max_seq_length", needed=f"{FEWEST_TOKENS} or more")
    raise_if_no_device(device)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    chosen = chosen_precision(precision, bf16, device)
    name = found_name(str(with_home(model)), revision)
    try:
        raise_if_code_in_adapter(name, revision)
        has_modules = file_of(name, MODULES, revision) is not None
        if pooler == "auto" and not has_modules:
            found = f"is auto, but {name} has no {MODULES} and so stores no pooling"
            raise UsageError(found, option="pooler", needed=f"one of: {', '.join(POOLERS)}")
        code = None if trust_remote_code else code_of(name, revision)
        with weights_checked(name, code):
            opened = _from_files(name, has_modules, revision, trust_remote_code)
    except UsageError:
        raise
    except Exception as error:  # of any type, depending on what is wrong with the files
        raise_if_quantized_table(name, revision)
        raise UsageError(f"{name} cannot be loaded: {error_line(error)}", option="model_name") from error
    if code:
        forget_code(opened, name, code)
    fit_to_positions(opened)
    check_tokenizers(opened, name)
    if pooler != "auto":
        opened = with_pooling(opened, pooler, file_of(name, HEAD_FILE, revision) if pooler == "mlp" else None)
    if max_seq_length is not None:
        raise_if_too_long(opened, max_seq_length)
        limit_length(opened, max_seq_length)
    folder = Path(name).absolute() if Path(name).is_dir() else None
    cached = file_of(name, MODULES if has_modules else "config.json", revision)
    commit = Path(cached).parent.name if cached and folder is None else None  # snapshots/COMMIT/FILE
    opened.informin_source = Source(name, folder, commit)
    if chosen is not None and (precision != "auto" or encoders(opened)):  # of auto, a table needs no warning
        set_precision(opened, chosen, device)
    return set_inference(opened.to(device))


def in_precision(model: SentenceTransformer, precision: str | None) -> SentenceTransformer:
    """Return a copy of a model that has this precision; the model itself if it has it, and for None."""
    if precision is None or precision == precision_of(model):
        return model
    own = copy_for_call(_with_own_tokenizers(model))
    set_precision(own, precision, model.device)
    return set_inference(own)


def loading_to_embed(model: str | Path | SentenceTransformer, loading: Loading) -> Loading:
    """Return options of loading for a function that only embeds: by default, `auto` for a model from files."""
    is_set = loading.get("precision") is not None or loading.get("bf16")
    return loading if is_set or isinstance(model, SentenceTransformer) else {**loading, "precision": "auto"}


def load_finished(
    model: str | Path | SentenceTransformer, option: str, needed: str, **loading: Any
) -> SentenceTransformer:
    """Open a model that must store its pooling, because no option sets it.

    Args:
        model: See `load_model`.
        option: Option that names the model.
        needed: Which model is expected, for an error about this option.
        loading: See `load_model`.

    Raises:
        UsageError: As `load_model`, but about `option` for a model without a pooling.
    """
    try:
        return load_model(model, **loading)
    except UsageError as error:
        if error.option != "pooler":
            raise
        raise UsageError(f"is {model}, which stores no pooling", option=option, needed=needed) from error


def source_of(model: SentenceTransformer) -> Source:
    """Return where a model comes from. A model that `load_model` did not open is in memory."""
    source = getattr(model, "informin_source", None)
    return source or Source(str(getattr(model.model_card_data, "base_model", None) or "SentenceTransformer"))


def name_of(model: str | Path | SentenceTransformer) -> str:
    """Return the name or folder of a model."""
    return source_of(model).name if isinstance(model, SentenceTransformer) else str(model)


def has_own_code(model: nn.Module) -> bool:
    """Return whether a part of a model has a class from the model's repository, apart from those of this project."""
    return bool(own_code_of(model.modules()))


def own_code_of(parts: Iterable[Any]) -> set[str]:
    """Return the modules that define the classes of objects, if they come from a model's repository."""
    homes = {type(part).__module__ for part in parts if type(part).__module__.startswith("transformers_modules.")}
    return {home for home in homes if not home.endswith(".modeling_informin")}


def code_of(name: str, revision: str | None = None) -> str | None:
    """Return the class with a model's own code that its configuration names; None for those of this project."""
    for folder in {"", *(path for path, _ in modules_of(name, revision))}:
        classes = json_of(name, posixpath.join(folder, "config.json"), revision).get("auto_map") or {}
        named = str(classes.get("AutoModel") or "")
        if named and not named.rpartition("--")[2].startswith("modeling_informin."):
            return named
    return None


def forget_code(model: SentenceTransformer, name: str, code: str) -> None:
    """Warn that a model's own code did not run, and leave it out of what is saved later."""
    for module in model.modules():
        if isinstance(module, Transformer) and getattr(module.config, "auto_map", None):
            del module.config.auto_map
            logger.warning(
                f"{name} has its own code ({code}), which did not run: {type(module.auto_model).__name__} of "
                "transformers computes the embeddings, which may differ. If you trust its author, set "
                "`trust_remote_code`."
            )


# Find the model and its files


def found_name(name: str, revision: str | None = None) -> str:
    """Return the folder or the name on the Hub of a model, whose owner may be left out as in sentence-transformers.

    Raises:
        UsageError: It is neither a folder nor cached while the Hub cannot be reached.
    """
    raise_if_not_found(name, revision)
    names = names_of_model(name)
    if len(names) > 1:
        for one in names:
            with suppress(OSError):  # no such repository
                if any(file_of(one, file, revision) for file in MODEL_FILES):
                    return one
    return name


def raise_if_no_device(device: str | torch.device | None) -> None:
    """Raise UsageError for a device that torch does not know or cannot use here. None is the default device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        found = f"is {device}, which torch cannot use here ({error_line(error).split('. ')[0]})"
        raise UsageError(found, option="device", needed="cpu, cuda, cuda:1 or mps") from error


def file_of(name: str, file: str, revision: str | None = None) -> str | None:
    """Return the path of a file of a model, downloaded if needed; None if there is none."""
    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    return cached_file(name, file, revision=revision, _raise_exceptions_for_gated_repo=False, **quiet)


def json_of(name: str, file: str, revision: str | None) -> Any:
    """Return the content of a JSON file of a model; an empty dictionary if there is no such file, or nothing in it."""
    path = file_of(name, file, revision)
    return (json.loads(Path(path).read_text(encoding="utf-8")) if path else None) or {}


def modules_of(name: str, revision: str | None = None) -> list[tuple[str, str]]:
    """Return the folder and the type of each module of a model. A Router lists its modules in a separate file."""
    waiting = [(str(one.get("path", "")), str(one.get("type", ""))) for one in json_of(name, MODULES, revision)]
    found: list[tuple[str, str]] = []
    while waiting:
        module = waiting.pop(0)
        if module in found:  # a file may name its own folder
            continue
        found.append(module)
        types = [json_of(name, posixpath.join(module[0], file), revision).get("types") for file in ROUTES]
        for route, kind in (route for each in types if isinstance(each, dict) for route in each.items()):
            waiting.append((posixpath.normpath(posixpath.join(module[0], route)), str(kind)))
    return found


# Read the files safely


def adapter_configs(name: str, revision: str | None = None) -> list[dict[str, Any]]:
    """Return the configurations of the low-rank matrices in any folder of a model."""
    folders = {"", *(path for path, _ in modules_of(name, revision))}
    configs = (json_of(name, posixpath.join(folder, ADAPTER_CONFIG), revision) for folder in folders)
    return [config for config in configs if config]


def raise_if_code_in_adapter(name: str, revision: str | None = None) -> None:
    """Raise UsageError if peft would import a module that adapter_config.json names, in any folder of a model."""
    for config in adapter_configs(name, revision):
        imported = [str((config.get("auto_mapping") or {}).get("parent_library", "transformers"))]
        if config.get("megatron_config"):
            imported.append(str(config.get("megatron_core", "megatron.core")))
        for module in imported:
            if module.partition(".")[0] not in ("transformers", "sentence_transformers"):
                raise UsageError(f"{name} would import {module}, named in {ADAPTER_CONFIG}", option="model_name")


def _from_files(name: str, has_modules: bool, revision: str | None, trust_remote_code: bool) -> SentenceTransformer:
    """Return the model of a Hub id or folder, in float32 and evaluation mode; without `modules.json`, a Transformer.

    Raises:
        UsageError: It is a cross-encoder, which sentence-transformers would convert with a pooling of its choice.
    """
    settings = json_of(name, "config_sentence_transformers.json", revision)
    if settings.get("model_type") == "CrossEncoder":
        found = f"is {name}, which is a cross-encoder: it scores pairs and has no embeddings"
        raise UsageError(found, option="model_name", needed="a SentenceTransformer")
    how = {"revision": revision, "trust_remote_code": trust_remote_code}
    safe: dict[str, Any] = dict(SAFE)
    if revision and adapter_configs(name, revision):
        safe["adapter_kwargs"] = {"revision": revision}  # else, low-rank matrices are those of the default branch
    with torch.random.fork_rng(devices=[]):  # a Dense module draws weights before it reads them
        if has_modules:
            model = SentenceTransformer(name, device="cpu", model_kwargs=safe, **how)
        else:
            hub = {each: dict(how) for each in ("processor_kwargs", "config_kwargs")}
            model = SentenceTransformer(modules=[Transformer(name, model_kwargs=safe | how, **hub)], device="cpu")
    for module in model.modules():
        if isinstance(module, Transformer):  # sdpa gives no maps, and transformers would not save such a configuration
            module.config.output_attentions = False
    return model.float().eval()


@contextmanager
def weights_checked(name: str, code: str | None) -> Iterator[None]:
    """Raise UsageError if weights were missing or had another shape, which transformers only reports.

    BERT's own pooler may be missing: no embedding depends on it. A model whose own code did not run may lack others.
    """
    log, reports, thread = logging.getLogger("transformers.modeling_utils"), [], threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        message = re.sub(r"\x1b\[[0-9;]*m", "", record.getMessage())
        is_report = "LOAD REPORT" in message and record.thread == thread
        reports.extend([message] if is_report else [])
        return not is_report and record.levelno >= shown

    with LOADING:
        level, shown = log.level, log.getEffectiveLevel()
        log.setLevel(logging.WARNING - 1)  # at WARNING, transformers also reports layers without a tensor-parallel plan
        log.addFilter(keep)
        try:
            yield
        finally:
            log.removeFilter(keep)
            log.setLevel(level)
    wrong = re.findall(r"^(\S.*?) *\| *(?:MISSING|MISMATCH)", "\n".join(reports), re.MULTILINE)
    if wrong := [weight for weight in wrong if not weight.startswith("pooler.")]:
        what = f"{name}: {counted(len(wrong), 'weight')} missing or of another shape, such as {wrong[0]}"
        if code:
            fix = f"It has its own code ({code}). If you trust its author, set `trust_remote_code`."
            raise UsageError(what, option="model_name", fix=fix)
        raise UsageError(what, option="model_name", fix="Copy the model again from its source.")


def raise_if_quantized_table(name: str, revision: str | None = None) -> None:
    """Raise UsageError if a model is a table of model2vec with whole numbers, which nothing else can open."""
    with suppress(OSError, SafetensorError):  # neither a folder nor a name on the Hub, or damaged
        path = file_of(name, "model.safetensors", revision)
        if path is None:
            return
        with safe_open(path, "pt") as file:
            kind = file.get_slice("embeddings").get_dtype() if "embeddings" in file.keys() else ""
        if not kind.startswith(("I", "U")):
            return
        raise UsageError(
            f"{name} is a model2vec model with vectors in {kind}, which sentence-transformers cannot open",
            option="model_name",
            needed="vectors in float32 or float16",
            fix='Convert it with model2vec: StaticModel.from_pretrained(FOLDER, quantize_to="float32").save_pretrained('
            "NEW_FOLDER).",
        )


def own_dropouts(settings: Any) -> dict[str, float]:
    """Return the encoder's own dropout rates by their names in config.json; empty if none are stored.

    The configuration of a checkpoint of training may have the rates of training, and these aside.

    Args:
        settings: `config.informin` of a model or of its config.json; it may be missing or of any type.

    Raises:
        UsageError: A rate is not a number from 0 to 1.
    """
    stored = settings.get("dropouts") if isinstance(settings, Mapping) else None
    if not isinstance(stored, Mapping):
        return {}
    rates = {name: stored[name] for name in DROPOUTS if name in stored}
    for name, rate in rates.items():
        is_number = isinstance(rate, int | float) and not isinstance(rate, bool) and math.isfinite(rate)
        if not is_number or not 0 <= rate <= 1:
            raise UsageError(
                f"stores {rate!r} as {name} in `informin.dropouts` of its config.json",
                option="model_name",
                needed="a number from 0 to 1",
                fix="Correct the file, or copy the model again from its source.",
            )
    return rates


# Prepare the opened model


def fit_to_positions(model: SentenceTransformer) -> None:
    """Pad on the right where an embedding would depend on the padding, and truncate texts to the positions there are.

    Position embeddings are looked up by a token's place in its row, and [CLS] pooling reads the first token.
    """
    for module in model.modules():
        if not isinstance(module, Transformer) or module.tokenizer is None:
            continue
        config, tokenizer = module.config, module.tokenizer
        has_table = has_position_table(module.auto_model)
        is_encoder = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
        if has_table or is_encoder:
            tokenizer.padding_side = "right"
        most = positions_of(module.auto_model)
        if most is not None:
            tokenizer.model_max_length = min(tokenizer.model_max_length, most)


def positions_of(encoder: Any) -> int | None:
    """Return how many tokens of a text an encoder has position embeddings for; None if it looks up no positions."""
    most = getattr(encoder.config, "max_position_embeddings", None)
    if not isinstance(most, int) or not has_position_table(encoder):
        return None
    index = padding_index_of(encoder)
    return most if index is None else most - index - 1


def raise_if_too_long(model: SentenceTransformer, length: int) -> None:
    """Raise UsageError if a Transformer of a model has fewer position embeddings than a length."""
    encoders = [module.auto_model for module in model.modules() if isinstance(module, Transformer)]
    most = min((number for one in encoders if (number := positions_of(one)) is not None), default=length)
    if length > most:
        raise UsageError(f"is {length}", option="max_seq_length", needed=f"at most {most}, the positions of the model")


def _with_own_tokenizers(module: Any) -> Any:
    """Return a module whose tokenizers are copies, in shallow copies of its parts down to its encoders."""
    if isinstance(module, Transformer):
        own = copy.copy(module)
        own.processor = copy_of_tokenizer(module.processor)
        return own
    parts = {name: _with_own_tokenizers(part) for name, part in module._modules.items()}
    if any(parts[name] is not part for name, part in module._modules.items()):
        module = copy.copy(module)
        module._modules = parts
    return module


def limit_length(model: SentenceTransformer, length: float | None) -> None:
    """Truncate texts to a number of tokens, on every route of a Router; None or infinity for no limit."""
    routes = model[0].sub_modules.values() if isinstance(model[0], Router) else [model]
    for first, *_ in routes:
        if not isinstance(first, StaticEmbedding):
            first.max_seq_length = length
        elif length is None or math.isinf(length):
            first.tokenizer.no_truncation()
        else:
            first.tokenizer.enable_truncation(int(length))


def length_limit(model: SentenceTransformer, side: str | None = None) -> int | None:
    """Return the maximum number of tokens of a text, in a Router on the route of a side; None for no limit."""
    first = first_module(model, side)
    if isinstance(first, StaticEmbedding):
        return (first.tokenizer.truncation or {}).get("max_length")
    length = getattr(first, "max_seq_length", None)
    return length if length and math.isfinite(length) else None


def first_module(model: SentenceTransformer, side: str | None = None) -> Any:
    """Return the module that reads texts; in a Router, that of the route of a side, or of the default route."""
    router = model[0]
    if not isinstance(router, Router):
        return router
    route = side if side in router.sub_modules else router.default_route
    return router.sub_modules[route][0] if route else router


def forget_truncation(tokenizer: PreTrainedTokenizerBase) -> None:
    """Reset the truncation and padding of the last call, which save_pretrained would write to tokenizer.json."""
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()


def check_tokenizers(model: SentenceTransformer, name: str) -> None:
    """Raise UsageError if a tokenizer of a model has more tokens than the model has embeddings."""
    for module in model.modules():
        raise_if_tokens_lack_embeddings(module, getattr(module, "tokenizer", None), name)


def raise_if_tokens_lack_embeddings(module: nn.Module, tokenizer: Any, name: str) -> None:
    """Raise UsageError if a text can have a token without an embedding, which would be an error of torch.

    Added special tokens are left out: a tokenizer that several models share may have some that a model never reads,
    such as that of images in EmbeddingGemma.
    """
    number = embeddings_of_tokens(module)
    if number is None or tokenizer is None:
        return
    if isinstance(tokenizer, Tokenizer):  # of StaticEmbedding
        size = tokenizer.get_vocab_size(with_added_tokens=False)
        added = tokenizer.get_added_tokens_decoder()
    else:
        size, added = tokenizer.vocab_size, tokenizer.added_tokens_decoder
    highest = max([size - 1, *(token_id for token_id, token in added.items() if not token.special)])
    if highest >= number:
        raise UsageError(
            f"{name} has embeddings for {number:,} tokens, and its tokenizer has token ids up to {highest:,}",
            option="model_name",
            needed="a tokenizer that fits the model",
            fix="Copy the model again from its source. After adding tokens, call "
            "`resize_token_embeddings(len(tokenizer))` and save the model.",
        )


def embeddings_of_tokens(module: Any) -> int | None:
    """Return how many tokens a module of a SentenceTransformer has embeddings for; None if it looks up no tokens."""
    if isinstance(module, StaticEmbedding):
        return module.embedding.num_embeddings
    encoder = getattr(module, "auto_model", None)
    if not isinstance(encoder, PreTrainedModel):  # such as one that ONNX Runtime runs
        return None
    try:
        table = encoder.get_input_embeddings()
    except NotImplementedError:  # of images, or several encoders
        return None
    return table.num_embeddings if isinstance(table, nn.Embedding) else None
