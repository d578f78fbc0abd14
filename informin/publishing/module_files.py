"""Names of the files that sentence-transformers writes for the modules of a model.

They are computed from modules.json and the type of each module, so that no other file in a folder is published.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from transformers.dynamic_module_utils import get_relative_imports
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from informin.files import read_json
from informin.models.checkpoint import Checkpoint
from informin.models.lora import ADAPTER_FILE as LORA_WEIGHTS
from informin.models.modules import ROUTER_FILE, Module, all_modules
from informin.models.remote_code import OF, WITH_AUTO_MAP
from informin.models.sentence_transformers_files import TRANSFORMER_FILES

CONFIG = "config.json"
LORA_CONFIG = "adapter_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
WEIGHTS = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
VOCABULARIES = (
    *("tokenizer.json", "vocab.txt", "vocab.json"),
    *("spiece.model", "spm.model", "tokenizer.model", "sentencepiece.model", "sentencepiece.bpe.model"),
)
TOKENIZER = (
    *(*VOCABULARIES, TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("merges.txt", "bpe.codes"),
)
PROCESSOR = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
TRANSFORMER = (
    *(CONFIG, "generation_config.json", *TRANSFORMER_FILES, *WEIGHTS, LORA_CONFIG, LORA_WEIGHTS),
    *(*TOKENIZER, *PROCESSOR),
)
WITH_WEIGHTS = (CONFIG, SAFE_WEIGHTS_NAME)
# By the last part of the type in modules.json. The types of a model's own code may write what a Transformer writes.
OF_TYPE = {
    **dict.fromkeys(("Pooling", "Normalize", "Dropout", "BoW"), (CONFIG,)),
    **dict.fromkeys(("Dense", "LayerNorm", "WeightedLayerPooling", "WordWeights"), WITH_WEIGHTS),
    "StaticEmbedding": (*WITH_WEIGHTS, "tokenizer.json"),
    "CNN": ("cnn_config.json", SAFE_WEIGHTS_NAME),
    "LSTM": ("lstm_config.json", SAFE_WEIGHTS_NAME),
    "WordEmbeddings": (
        *("wordembedding_config.json", SAFE_WEIGHTS_NAME, "whitespacetokenizer_config.json"),
        *("phrasetokenizer_config.json", *TOKENIZER),
    ),
    "Router": (ROUTER_FILE,),
    "Asym": (CONFIG, ROUTER_FILE),
}
ROOT = tuple(dict.fromkeys([*TRANSFORMER, *(name for names in OF_TYPE.values() for name in names)]))


def module_files(folder: Path) -> list[str]:
    """Return the names of the files of all modules, relative to the folder, whether they exist or not.

    Raises:
        UsageError: modules.json or another file that names files is not valid, or names one outside of the folder.
    """
    modules = all_modules(Checkpoint(folder)) or [Module("Transformer", "", "")]
    return list(dict.fromkeys(name for one in modules for name in _files(folder, one.path, one.type)))


def _files(folder: Path, path: str, kind: str) -> Iterator[str]:
    """Yield the files of a module of this type."""
    inside = [(path, name) for name in OF_TYPE.get(kind.rpartition(".")[2], TRANSFORMER)]
    yield from (str(PurePosixPath(*parts)) for parts in inside)
    yield from _code(folder, path, kind)
    shards = _values(folder, path, SAFE_WEIGHTS_INDEX_NAME).get("weight_map")
    for name in dict.fromkeys(map(str, shards.values())) if isinstance(shards, dict) else ():
        if SHARD.fullmatch(name):
            yield str(PurePosixPath(path, name))


def _code(folder: Path, path: str, kind: str) -> Iterator[str]:
    """Yield the files with the model's own code: those of its classes, and what they import from the same folder."""
    classes = [kind]
    for name in WITH_AUTO_MAP:
        named = _values(folder, path, name).get("auto_map") or {}
        for found in named.values() if isinstance(named, dict) else [named]:
            classes += found if isinstance(found, list) else [found]
    own = [_file(str(name)) for name in classes if OF not in str(name)]
    waiting = [PurePosixPath(where, name) for name in own for where in (path, "")]
    seen: set[PurePosixPath] = set()
    while waiting:
        file = waiting.pop()
        if file in seen or ".." in file.parts or not (folder / file).is_file():
            continue
        seen.add(file)
        yield str(file)
        waiting += [file.parent / _file(f"{name}.") for name in get_relative_imports(folder / file)]


def _file(name: str) -> str:
    """Return the file of a class such as `modeling.Model`."""
    return f"{name.rpartition('.')[0].replace('.', '/')}.py"


def _values(folder: Path, path: str, name: str) -> dict:
    file = folder / path / name
    return read_json(file) if file.is_file() else {}
