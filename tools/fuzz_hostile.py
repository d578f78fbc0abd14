"""Model folders with code that must not run: each example's code creates a folder, the canary."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
from huggingface_hub import constants
from sentence_transformers import SentenceTransformer

from informin.models.lora import LoRA
from informin.models.open_model import load_model
from tests.conftest import make_sentences, save_bert
from tests.models.any_encoder.folders import in_router, in_subfolder, pickle
from tests.models.any_encoder.st_models import save_family
from tools.fuzz_mutations import JSON

CANARY = "canary"  # in the working folder of a case
CODE = f"import os\nos.makedirs({CANARY!r}, exist_ok=True)\nclass Evil:\n    pass\n"
PICKLES = {"weights_only": False, "use_safetensors": False}
KERNEL = {"attn_implementation": "evil/kernel"}
DANGERS = (
    *({name: PICKLES} for name in ("model_args", "model_kwargs", "config_args", "config_kwargs")),
    *({name: KERNEL} for name in ("model_args", "model_kwargs", "config_args", "config_kwargs")),
    *({name: {"tokenizer_class": "evil.Evil"}} for name in ("tokenizer_args", "processor_kwargs")),
    *({"type": name} for name in ("torch.Evil", "evil.Evil", "sentence_transformers.evil.Evil")),
    *({"types": {"query": name}} for name in ("torch.Evil", "evil.Evil", "sentence_transformers.models.Router")),
    *({"activation_function": name} for name in ("torch.Evil", "evil.Evil", "torch.hub.load")),
    *({"tokenizer_class": name} for name in ("evil.Evil", "torch.Evil")),
    {"auto_map": {"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}},
    *({"path": name} for name in ("../elsewhere", "/tmp", "")),
    *({"base_model_name_or_path": name} for name in ("../elsewhere", "elsewhere", "evil/base")),
    {"megatron_config": {"a": 1}, "megatron_core": "evil"},
    {"auto_mapping": {"base_model_class": "Evil", "parent_library": "evil"}},
    *(PICKLES, KERNEL, {"trust_remote_code": True}, {"tokenizer_name_or_path": "../elsewhere"}),
)
HOSTILE = replace(JSON, dangers=DANGERS)
FILES = {  # by folder
    "general": (
        "sentence_bert_config.json",
        "modules.json",
        "config.json",
        "tokenizer_config.json",
        "2_Dense/config.json",
    ),
    "subfolder": ("0_T/sentence_bert_config.json",),
    "router": ("0_R/router_config.json",),
    "lora": ("adapter_config.json",),
}


def hostile_kinds() -> dict[str, tuple[Callable[[], object], str, str]]:
    """Create the folders. Return, by name, the function that reads a folder, the folder and the file to mutate."""
    source = save_family("labse", Path("families"))
    for name, move in {"general": None, "subfolder": in_subfolder, "router": in_router}.items():
        folder = shutil.copytree(source, Path(f"hostile-{name}"))
        pickle(folder, CANARY, keep=True)
        if move:
            move(folder)
        _write_code(folder)
    _save_adapter(source)
    cache = str(Path("hub").absolute())

    def read(name: str) -> None:
        with patch.object(constants, "HF_HUB_CACHE", cache):
            embeddings = load_model(f"hostile-{name}", device="cpu").encode(make_sentences(4))
        if not np.isfinite(embeddings).all():
            raise RuntimeError("wrong result without an error")

    for name in FILES:  # run lazy imports here, not in the process of each case
        read(name)
    return {
        f"hostile, {name}, {file}": (partial(read, name), f"hostile-{name}", file)
        for name, files in FILES.items()
        for file in files
    }


def _write_code(folder: Path) -> None:
    for name in ("torch.py", "evil.py", "sentence_transformers/evil.py"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(CODE)


def _save_adapter(source: Path) -> None:
    """Save low-rank matrices of a model that is in a cache of the Hub."""
    snapshot = Path("hub/models--owner--base/snapshots") / ("0" * 40)
    save_bert(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    model = SentenceTransformer(str(source), device="cpu")
    LoRA(r=2).add_to(model)
    model.save_pretrained("hostile-lora", create_model_card=False)
    path = Path("hostile-lora/adapter_config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": "owner/base"}))
    _write_code(path.parent)
