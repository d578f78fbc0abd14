"""Helpers of the tests that push folders to tests/hub_server.py with the real client."""

import shlex
from pathlib import Path

import torch
from transformers import AutoModel

from informin import program
from informin.cli import push as push_command
from informin.errors import PushError
from informin.evaluation.results import add_task, new_results, save_results
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_trainable
from informin.models.open_model import in_memory, load_model
from informin.publishing.export import export_folder
from tests.conftest import tokenizer_of
from tests.hub_server import HubServer
from tests.hub_state import GITATTRIBUTES

REPO = "alice/m"
SETTINGS = {"objective": "informin", "pooling": "cls", "projection_head": "mlp", "lm_head": False, "max_seq_length": 32}
WEIGHTS = "model.safetensors"
HEAD = "projection_head/model.safetensors"
PUBLISHED = {
    *("1_Pooling/config.json", "README.md", "config.json", "config_sentence_transformers.json", WEIGHTS, HEAD),
    *("modeling_informin.py", "modules.json", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"),
}
ATTRIBUTES = {".gitattributes": GITATTRIBUTES}  # in every repository that the Hub makes
FOREIGN = {"config.json": b'{"model_type": "bert"}', "pytorch_model.bin": b"weights", "README.md": b"# Another model\n"}
LOST = "no connection to the Hub ("


def export(bert: Path, folder: Path, seed: int = 0) -> Path:
    """Return an exported folder. Each seed gives other weights."""
    torch.manual_seed(seed)
    model = load_trainable(Checkpoint(bert), SETTINGS)
    model.get_input_embeddings().weight.data += seed
    export_folder(in_memory(model, tokenizer_of(bert)), folder)
    return folder


def load(name: str | Path, **options) -> dict[str, torch.Tensor]:
    """Load the weights of a model with the code in its folder."""
    model = AutoModel.from_pretrained(name, trust_remote_code=True, **options)
    assert type(model).__name__ == "BertForInforMinCL"
    return model.state_dict()


def read_files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def remote(hub: HubServer, repo: str = REPO, **revision) -> dict[str, bytes]:
    """Return the files on the Hub without those that it created itself."""
    return {name: content for name, content in hub.files(repo, **revision).items() if name != ".gitattributes"}


def state(hub: HubServer) -> dict:
    """Return everything that a push could change."""
    return {name: (repo.private, dict(repo.branches)) for (_, name), repo in hub.repos.items()}


def results_of(folder: Path, path: Path, score: float = 70.0) -> Path:
    """Write a results file for this folder's weights, as `add_results` does."""
    sha256 = load_model(str(folder), device="cpu").weights_sha256()
    identity = dict(pooler="cls", normalized=False, prompt=None, whitening=None, max_length=66)
    identity |= dict(precision="fp32", split="test")
    results = new_results("this model", identity | {"weights_sha256": sha256}, {"torch": "2"})
    entry = {"score": score, "n": 9, "truncated": 0, "data": {}, "seconds": {"encode": 1.0, "score": 1.0}}
    add_task(results, "STS12", entry)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_results(path, results)
    return path


def finish(error: PushError | str) -> int:
    """Run the command that finishes a push, or the one at the end of a message, split as in a shell."""
    printed = isinstance(error, str)
    command = error.partition("Finish with: ")[2] if printed else program.finishing_command(error)
    words = shlex.split(command)
    arguments = words[4:]
    assert words[:4] == ["python", "-m", "informin", "push"]
    return push_command.main(arguments)


def equal_weights(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
