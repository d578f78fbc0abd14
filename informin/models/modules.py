"""List the modules of a SentenceTransformer: those in modules.json, and those of each route of a Router."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from informin.errors import UsageError
from informin.models.checkpoint import Checkpoint, once
from informin.models.files import refuse_outside

MODULES_FILE, ROUTER_FILE = "modules.json", "router_config.json"
ROUTERS = ("Router", "Asym")
# Modules of sentence-transformers that compute embeddings. Its other modules belong to sparse models and rerankers.
KINDS = (
    *("Transformer", "CLIPModel", "StaticEmbedding", "WordEmbeddings", "BoW", "CNN", "LSTM", "WordWeights"),
    *("Pooling", "WeightedLayerPooling", "Dense", "Dropout", "LayerNorm", "Normalize", *ROUTERS),
)
PACKAGES = r"sentence_transformers\.(models|base\.modules|sentence_transformer\.modules)(\.\w+)?"
DEEPEST = 8  # nested folders; a link to its own folder would have no end
FIX = "Copy the model again from its source."


@dataclass(frozen=True)
class Module:
    """A module of a SentenceTransformer.

    Attributes:
        type: Its class, such as `sentence_transformers.models.Pooling`.
        path: Its folder, relative to the model's folder; empty for the model's folder itself.
        named_in: The file that lists it.
    """

    type: str
    path: str
    named_in: str

    @property
    def kind(self) -> str | None:
        return kind_of(self.type)


def kind_of(name: object) -> str | None:
    """Return the name of a module's class if the class is in sentence-transformers; None for any other class."""
    package, _, kind = str(name).rpartition(".")
    return kind if kind in KINDS and re.fullmatch(PACKAGES, package) else None


def joined(*parts: str) -> str:
    """Return a path inside a model's folder, with `/` on all systems; empty for the folder itself."""
    path = str(PurePosixPath(*parts))
    return "" if path == "." else path


@once
def listed_modules(checkpoint: Checkpoint) -> list[dict]:
    """Return the modules in modules.json, each with a type and a path; an empty list if there is no such file.

    Raises:
        UsageError: A module has no type or path, has the name of another one, or is outside of the folder.
    """
    modules = checkpoint.json(MODULES_FILE, list)
    if not all(
        isinstance(module, dict) and isinstance(module.get("type"), str) and "path" in module for module in modules
    ):
        found = f"{checkpoint}: {MODULES_FILE} lists a module without type or path"
        raise UsageError(found, option="model_name", fix=FIX)
    names = [str(module["name"]) for module in modules if "name" in module]
    if len(set(names)) < len(names):  # sentence-transformers would keep only the last one
        raise UsageError(f"{checkpoint}: {MODULES_FILE} gives two modules the same name", option="model_name", fix=FIX)
    for module in modules:
        refuse_outside(checkpoint.name, module["path"], MODULES_FILE)
    return modules


@once
def all_modules(checkpoint: Checkpoint) -> list[Module]:
    """Return the modules in modules.json, each Router followed by the modules of its routes.

    Raises:
        UsageError: See `listed_modules`; also for the modules of a Router.
    """
    found = []
    waiting = [Module(module["type"], joined(module["path"]), MODULES_FILE) for module in listed_modules(checkpoint)]
    while waiting:
        module = waiting.pop(0)
        found.append(module)
        if module.kind in ROUTERS:
            waiting = [*_routed(checkpoint, module.path), *waiting]
    return found


def _routed(checkpoint: Checkpoint, path: str) -> list[Module]:
    """Return the modules of a Router's routes. Older versions list them in config.json."""
    file, values = checkpoint.first_json(joined(path, name) for name in (ROUTER_FILE, "config.json"))
    types = values.get("types")
    if not isinstance(types, dict) or not all(isinstance(name, str) for name in types.values()):
        needed = "types, a mapping from folders to classes"
        raise UsageError(f"{checkpoint}: {file} lists no modules", option="model_name", needed=needed, fix=FIX)
    for folder in types:
        refuse_outside(checkpoint.name, joined(path, folder), file)
        if joined(folder) == "" or joined(path, folder).count("/") >= DEEPEST:
            found = f"{checkpoint}: {file} names the folder {folder!r:.60} for a module"
            raise UsageError(found, option="model_name", needed="a folder inside", fix=FIX)
    return [Module(name, joined(path, folder), file) for folder, name in types.items()]


def copy_module_code(folder: Path) -> None:
    """Copy code that was saved in the folder of its module to the model's folder, from which it is loaded."""
    for module in all_modules(Checkpoint(folder)):
        name = f"{module.type.rpartition('.')[0].replace('.', '/')}.py"
        saved = folder / module.path / name
        if module.kind is None and saved.is_file() and not (folder / name).exists():
            shutil.copyfile(saved, folder / name)
