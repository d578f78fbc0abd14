"""Changes to the folder of a SentenceTransformer: where its transformer is, and weights that are a pickle with code."""

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.models.any_encoder.helpers import change, read


def modules(folder: Path, number: int, **values) -> None:
    listed = read(folder, "modules.json")
    listed[number] |= values
    (folder / "modules.json").write_text(json.dumps(listed))


def in_subfolder(folder: Path) -> None:
    """Move the transformer into a folder of its own."""
    (folder / "0_T").mkdir()
    kept = ("modules.json", "config_sentence_transformers.json")
    for path in [path for path in folder.iterdir() if path.is_file() and path.name not in kept]:
        shutil.move(path, folder / "0_T" / path.name)
    modules(folder, 0, path="0_T")


def in_router(folder: Path) -> None:
    """Make the transformer, in a folder of its own, the route of a Router."""
    in_subfolder(folder)
    (folder / "0_R").mkdir()
    shutil.move(folder / "0_T", folder / "0_R" / "query")
    modules(folder, 0, path="0_R", type="sentence_transformers.models.Router")
    routes = {"query": "sentence_transformers.models.Transformer"}
    router = {"types": routes, "structure": {"query": ["query"]}, "parameters": {"default_route": "query"}}
    (folder / "0_R" / "router_config.json").write_text(json.dumps(router))


PLACES = {"": lambda folder: None, "0_T/": in_subfolder, "0_R/query/": in_router}


class Marker:
    """Creates a folder when it is unpickled."""

    def __init__(self, mark: str | Path):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def pickle(folder: Path, mark: str | Path, keep: bool = False) -> None:
    """Save the weights as a pickle with code, which creates a folder; `keep` keeps the safe file."""
    weights = load_file(folder / "model.safetensors")
    if not keep:
        (folder / "model.safetensors").unlink()
    torch.save(weights | {"marker": Marker(mark)}, folder / "pytorch_model.bin")
    change(folder, "config.json", dtype=None)  # with a type, transformers first loads the weights without values
