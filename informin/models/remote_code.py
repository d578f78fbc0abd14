"""Find the code that loading a model with sentence-transformers would run."""

import re
from collections.abc import Iterator

from informin.errors import UsageError
from informin.models.adapter_config import base_model
from informin.models.checkpoint import Checkpoint
from informin.models.module_settings import FILES, is_activation, is_word_tokenizer
from informin.models.modules import Module, all_modules, joined

# Files with an `auto_map`, next to a module.
WITH_AUTO_MAP = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
OWN_CODE = "modeling_informin."  # classes of this project, which plain classes replace: see `model_config.own_code`
OF = "--"  # between a repository and a class in it
KERNEL = re.compile(r"_?(attn|experts)_implementation(_internal)?")  # keys whose values can be code on the Hub
CLASS = re.compile(r"(tokenizer|processor|image_processor|feature_extractor|video_processor)_(class|type)")


def refuse_remote_code(checkpoint: Checkpoint) -> None:
    """Raise UsageError, with the name of the file, if loading a model would run code from its repository."""
    if file := remote_code(checkpoint, with_base=True):
        raise UsageError(
            f"{checkpoint} needs code from its repository: it would run {file}",
            option="model_name",
            fix="Read that file. If you trust it, set `trust_remote_code`.",
        )


def remote_code(checkpoint: Checkpoint, with_base: bool = False) -> str | None:
    """Return the file with code that loading a model would run; None if there is none.

    Args:
        checkpoint: Files of the model.
        with_base: Also look at the base model of an adapter.
    """
    modules = all_modules(checkpoint)
    classes = [name for module in modules for name in _classes_of(checkpoint, module)]
    for path in dict.fromkeys(["", *(module.path for module in modules)]):
        classes += _classes_in(checkpoint, path)
        if base := with_base and base_model(checkpoint, path):
            classes += [name if OF in name else f"{base}{OF}{name}" for name in _classes_in(Checkpoint(base), "")]
    return _file(classes[0]) if classes else None


def _classes_of(checkpoint: Checkpoint, module: Module) -> list[str]:
    """Return the classes outside of sentence-transformers and PyTorch that a module needs."""
    if module.kind is None:
        return [module.type]
    checks = {"Dense": ("activation_function", is_activation), "WordEmbeddings": ("tokenizer_class", is_word_tokenizer)}
    if module.kind not in checks:
        return []
    key, is_known = checks[module.kind]
    name = checkpoint.json(joined(module.path, FILES.get(module.kind, "config.json"))).get(key)
    return [] if name is None or is_known(name) else [str(name)]


def _classes_in(checkpoint: Checkpoint, path: str) -> list[str]:
    """Return the classes outside of transformers that the files of one folder name, at any depth."""
    files = (checkpoint.json(joined(path, name)) for name in WITH_AUTO_MAP)
    return [name for values in files for name in _named(values) if not name.startswith(OWN_CODE)]


def _named(values: object) -> Iterator[str]:
    if isinstance(values, list):
        for item in values:
            yield from _named(item)
    if not isinstance(values, dict):
        return
    for key, value in values.items():
        if key == "auto_map":
            yield from _texts(value)
        elif KERNEL.fullmatch(key):
            yield from (f"{name}{OF}kernel.Attention" for name in _texts(value) if "/" in name)
        elif CLASS.fullmatch(key) and isinstance(value, str):
            yield from [value] if "." in value else []
        else:
            yield from _named(value)


def _texts(value: object) -> Iterator[str]:
    """Yield the strings of a value of any depth, except for empty ones."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
    elif value:
        yield str(value)


def _file(name: str) -> str:
    """Return the file of a class such as `modeling.Model`, or `owner/repository--modeling.Model`."""
    repository, _, path = name.rpartition(OF)
    file = f"{path.rpartition('.')[0].replace('.', '/') or path}.py"
    return f"{file} of {repository}" if repository else file
