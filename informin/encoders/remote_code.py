"""Find the code that loading a model with sentence-transformers would run."""

from pathlib import PurePosixPath

from informin.encoders.files import json_file
from informin.encoders.sentence_transformers_files import listed_modules
from informin.errors import UsageError

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
TRUSTED = ("torch.", "sentence_transformers.")


def refuse_remote_code(model_name: str, revision: str | None = None) -> None:
    """Raise UsageError, with the name of the file, if loading a model would run code from its repository."""
    if file := remote_code(model_name, revision):
        raise UsageError(
            f"{model_name} needs code from its repository: it would run {file}",
            option="model_name",
            fix="Read that file. If you trust it, set `trust_remote_code`.",
        )


def remote_code(model_name: str, revision: str | None = None) -> str | None:
    """Return the file with code that loading a model would run; None if there is none."""
    modules = listed_modules(model_name, revision)
    classes = [module["type"] for module in modules]
    for path in dict.fromkeys(["", *(module["path"] for module in modules)]):
        classes += _classes_in(model_name, path, revision)
    return next((_file(str(name)) for name in classes if not str(name).startswith(TRUSTED)), None)


def _classes_in(model_name: str, path: str, revision: str | None) -> list[str]:
    """Return the classes outside of transformers that the files of one module name."""
    found: list[str] = []
    for name in WITH_AUTO_MAP:
        values = json_file(model_name, str(PurePosixPath(path, name)), revision)
        named = values.get("auto_map") or {}
        for classes in named.values() if isinstance(named, dict) else [named]:
            found += [one for one in (classes if isinstance(classes, list) else [classes]) if one]
        found += [values[key] for key in ("activation_function",) if path and values.get(key)]
        kernels = (values.get(key) for key in ("_attn_implementation", "attn_implementation"))
        found += [f"{kernel}{OF}kernel.Attention" for kernel in kernels if isinstance(kernel, str) and "/" in kernel]
    routed = json_file(model_name, str(PurePosixPath(path, "router_config.json")), revision).get("types")
    found += routed.values() if isinstance(routed, dict) else []
    return [name for name in found if not str(name).startswith(OWN_CODE)]


def _file(name: str) -> str:
    """Return the file of a class such as `modeling.Model`, or `owner/repository--modeling.Model`."""
    repository, _, path = name.rpartition(OF)
    file = f"{path.rpartition('.')[0].replace('.', '/') or path}.py"
    return f"{file} of {repository}" if repository else file
