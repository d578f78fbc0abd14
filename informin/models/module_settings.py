"""Settings that the modules of a SentenceTransformer may have in their files.

sentence-transformers passes them to transformers: `model_args`, for example, become arguments of `from_pretrained`, one
of which loads pickles. So only the settings below are allowed, with these values.
"""

import inspect
import re
import sys

from torch import nn

from informin.errors import UsageError
from informin.models.checkpoint import Checkpoint
from informin.models.files import NotNativeError
from informin.models.modules import Module, joined
from informin.models.sentence_transformers_files import TRANSFORMER_FILES
from informin.schema import ANY, FLAG, TEXT, Keys, Kind, Schema, integer, list_of, one_of, or_none, problem

TRANSFORMERS = ("Transformer", "CLIPModel")
DTYPES = ("float32", "float16", "bfloat16")
ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
LENGTH = integer(1)
SIDE = one_of("left", "right")
SHARED: dict[str, Schema] = {
    "attn_implementation": one_of(*ATTENTIONS),  # other names are code on the Hub
    **dict.fromkeys(("dtype", "torch_dtype"), one_of("auto", *DTYPES, *(f"torch.{name}" for name in DTYPES))),
    "trust_remote_code": one_of(False),
}
NAMES_CODE = ("attn_implementation", "trust_remote_code")
MODEL = SHARED | {
    "add_pooling_layer": FLAG,
    "low_cpu_mem_usage": FLAG,
    "use_safetensors": one_of(True),
    "weights_only": one_of(True),
}
CONFIG = SHARED | dict.fromkeys(
    ("use_cache", "is_causal", "use_bidirectional_attention", "use_memory_efficient_attention", "unpad_inputs"), FLAG
)
PROCESSOR: dict[str, Schema] = {
    **dict.fromkeys(("model_max_length", "max_length", "min_pixels", "max_pixels"), LENGTH),
    **dict.fromkeys(("padding_side", "truncation_side"), SIDE),
    **dict.fromkeys(("use_fast", "do_lower_case", "add_prefix_space", "add_bos_token", "add_eos_token"), FLAG),
    **dict.fromkeys(("clean_up_tokenization_spaces", "fix_mistral_regex"), FLAG),
    "trust_remote_code": one_of(False),
}
CALL: dict[str, Schema] = {  # a tokenizer
    **dict.fromkeys(("padding", "truncation"), one_of(True, False, "longest", "max_length", "longest_first")),
    **dict.fromkeys(("max_length", "pad_to_multiple_of"), or_none(LENGTH)),
    "add_special_tokens": FLAG,
}
CHAT = dict.fromkeys(("add_generation_prompt", "continue_final_message", "enable_thinking", "restore_suffix"), FLAG)
METHOD: Kind = (
    lambda value: isinstance(value, str) and re.fullmatch(r"forward|get_[a-z]+_features", value) is not None,
    "forward, or a method such as get_text_features",
)
OUTPUT: Kind = (
    lambda value: value is None or isinstance(value, int) or (isinstance(value, str) and not value.startswith("_")),
    "the name of an output",
)
OUTPUTS: Kind = (lambda value: OUTPUT[0](value) or list_of(OUTPUT)[0](value), OUTPUT[1])
TASKS = ("feature-extraction", "fill-mask", "text-generation", "any-to-any", "sequence-classification", "retrieval")
DIMENSION: Kind = (lambda value: type(value) is int and 1 <= value <= 100_000, "an integer from 1 to 100,000")
LAYERS: Kind = (lambda value: type(value) is int and 1 <= value <= 1_000, "an integer from 1 to 1,000")
# By the names that the modules give them. Larger ones would fill the memory before the weights are compared.
SIZES = {
    **dict.fromkeys(("in_features", "out_features", "embedding_dimension", "word_embedding_dimension"), DIMENSION),
    **dict.fromkeys(("in_word_embedding_dimension", "in_embedding_dimension", "dimension"), DIMENSION),
    **dict.fromkeys(("out_channels", "hidden_dim"), DIMENSION),
    **dict.fromkeys(("num_layers", "num_hidden_layers"), LAYERS),
    "kernel_sizes": list_of(DIMENSION),
}
MOST_WEIGHTS = 10**9  # of a Dense module
FILES = {"CNN": "cnn_config.json", "LSTM": "lstm_config.json", "WordEmbeddings": "wordembedding_config.json"}
WORD_TOKENIZERS = r"sentence_transformers\.[\w.]+\.(WhitespaceTokenizer|PhraseTokenizer|TransformersTokenizerWrapper)"


def check_module(checkpoint: Checkpoint, module: Module, trusted: bool = False) -> None:
    """Raise UsageError, with the file and the key, for a setting of a module that is not allowed.

    Args:
        checkpoint: Files of the model.
        module: One of its modules.
        trusted: Code in the model's repository may run, so that settings that are not listed here are allowed.
    """
    if module.kind in TRANSFORMERS or (module.kind is None and trusted):
        file, values = checkpoint.first_json(joined(module.path, name) for name in TRANSFORMER_FILES)
        _check(checkpoint.name, file, values, transformer_settings(trusted))
    elif module.kind is not None:
        file = joined(module.path, FILES.get(module.kind, "config.json"))
        _check_sizes(checkpoint.name, module, file, checkpoint.json(file))


def transformer_settings(trusted: bool) -> Keys:
    """Return the schema of sentence_bert_config.json; with `trusted`, other keys are allowed, too."""
    others = ANY if trusted else None

    def keys(known: dict) -> Keys:
        own = {name: kind for name, kind in known.items() if not (trusted and name in NAMES_CODE)}
        return Keys(optional=own, others=others)

    modality = Keys({"method": TEXT if trusted else METHOD, "method_output_name": OUTPUTS}, {"format": TEXT})
    known: dict[str, Schema] = {
        **dict.fromkeys(("max_seq_length", "query_length", "document_length"), or_none(LENGTH)),
        "do_lower_case": or_none(FLAG),
        "transformer_task": one_of(*TASKS),
        "modality_config": Keys(others=modality),
        "module_output_name": OUTPUT,
        "unpad_inputs": or_none(FLAG),
        "query_expansion": Keys(others=ANY, null=True),
        **dict.fromkeys(("model_args", "model_kwargs"), keys(MODEL)),
        **dict.fromkeys(("config_args", "config_kwargs"), keys(CONFIG)),
        **dict.fromkeys(("tokenizer_args", "processor_kwargs"), keys(PROCESSOR)),
        "processing_kwargs": Keys(
            optional={**dict.fromkeys(("common", "text"), keys(CALL)), "chat_template": keys(CHAT)}, others=others
        ),
    }
    return keys(known)


def is_activation(name: object) -> bool:
    """Return whether a name is a class of PyTorch's layers, such as torch.nn.modules.activation.Tanh."""
    package, _, kind = str(name).rpartition(".")
    if package != "torch.nn" and not package.startswith("torch.nn.modules."):
        return False
    found = getattr(sys.modules.get(package), kind, None)
    return inspect.isclass(found) and issubclass(found, nn.Module)


def is_word_tokenizer(name: object) -> bool:
    """Return whether a name is a tokenizer of sentence-transformers' WordEmbeddings."""
    return re.fullmatch(WORD_TOKENIZERS, str(name)) is not None


def _check_sizes(model_name: str, module: Module, file: str, values: dict) -> None:
    """Raise UsageError for sizes that no real module has."""
    given = {name: value for name, value in values.items() if name in SIZES}
    _check(model_name, file, given, Keys(optional=SIZES))
    weights = values.get("in_features", 1) * values.get("out_features", 1)
    if module.kind == "Dense" and weights > MOST_WEIGHTS:
        found = f"{model_name}: {file} has in_features times out_features {weights:,}"
        raise UsageError(found, option="model_name", needed=f"at most {MOST_WEIGHTS:,}")


def _check(model_name: str, file: str, values: dict, schema: Keys) -> None:
    if found := problem(values, schema):
        raise NotNativeError(
            f"{model_name}: {file}: {found}",
            option="model_name",
            fix="Read that file, and remove the setting if you do not need it.",
        )
