"""Pushed models: hostile names and files, and loading them on another machine."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard

from informin.cli import push as push_command
from informin.models.open_model import load_model
from tests.cli.push_command.helpers import UPLOADED, fails
from tests.conftest import make_sentences
from tests.hub_server import HubServer
from tests.publishing.push.push_helpers import (
    REPO,
    remote,
)
from trainer_informin import InforMinTrainer

pytestmark = pytest.mark.usefixtures("logged_in", "logging_as_before")


HOSTILE = "<script>x</script><!-- [a](http://x) ![b](http://y) `c` | $d$"


def test_nothing_hostile_is_uploaded(
    hub, train, bert, sentences_file, pairs_file, tmp_path, monkeypatch, capsys, caplog
):
    """Names, a description and a foreign card contain HTML. Links are next to the files of the run, then among them."""
    name = HOSTILE.replace("/", "")
    encoder = Path(shutil.copytree(bert, tmp_path / name))
    (encoder / "README.md").write_text("---\nlicense: [{evil: <b>}]\ntags: <b>\n---\n<b>\n")
    sentences = shutil.copy(sentences_file, tmp_path / f"{name}.txt")
    pairs = shutil.copy(pairs_file, tmp_path / f"{name}.tsv")
    (tmp_path / "private.txt").write_text("a private line")
    export = InforMinTrainer.export

    def export_beside_links(trainer, folder=None, **options):
        export(trainer, folder, **options)
        for stray in ("notes.txt", "runs", "checkpoint-9"):
            Path(trainer.args.output_dir, stray).unlink(missing_ok=True)
            Path(trainer.args.output_dir, stray).symlink_to(tmp_path / "private.txt")

    monkeypatch.setattr(InforMinTrainer, "export", export_beside_links)
    given = dict(model_name=encoder, train_file=sentences, eval_pairs=pairs, data_description=HOSTILE, max_steps=2)
    assert train(**given) == 0
    assert "has the license [{'evil': '<b>'}], which the Hub does not know. It is ignored;" in caplog.text
    (tmp_path / "run" / "vocab.txt").symlink_to(tmp_path / "private.txt")
    assert "vocab.txt is a link; expected regular files" in fails(capsys, 2, tmp_path / "run", REPO)

    assert remote(hub).keys() == UPLOADED
    for commit in hub.commits(REPO):
        for path, blob in commit.files.items():
            assert b"a private line" not in blob.content, path
            if path == "README.md":
                page, _, mark = blob.content.decode().rstrip().rpartition("\n")
                assert "<" not in page and mark.startswith("<!-- Written from the run;")
                links = set(re.findall(r"(?<!\\)\]\((.*?)\)", page))
                assert links == {"https://sbert.net", "https://huggingface.co/docs/transformers"}
                data = ModelCard(blob.content.decode()).data.to_dict()
                assert data.keys() == {"library_name", "pipeline_tag", "tags"} and "<" not in str(data)


def environment(hub: HubServer, home: Path) -> dict[str, str]:
    dropped = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
    return kept | own


LOAD = """
import json, sys
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer, pipeline

repo, sha, sentences = json.loads(sys.argv[1])


def cls(model, revision):
    tokenizer = AutoTokenizer.from_pretrained(repo, revision=revision)
    with torch.no_grad():
        batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="pt")
        return model.eval()(**batch)


pinned = AutoModel.from_pretrained(repo, trust_remote_code=True, revision=sha)
read = {
    "remote code": cls(pinned, sha).pooler_output,
    "transformers": cls(AutoModel.from_pretrained(repo), None).last_hidden_state[:, 0],
    "sentence-transformers": torch.tensor(SentenceTransformer(repo, device="cpu").encode(sentences)),
    "pipeline": torch.tensor([e[0][0] for e in pipeline("feature-extraction", model=repo)(sentences)]),
}
print(json.dumps([type(pinned).__name__, {name: value.tolist() for name, value in read.items()}]))
"""


def test_all_libraries_give_the_same_embeddings(hub, folder, tmp_path, monkeypatch, capsys):
    """Pushed by the command, then loaded in four ways by a new process with an empty cache and without the folder."""
    monkeypatch.chdir(tmp_path)
    assert push_command.main(["model", "m"]) == 0
    assert capsys.readouterr().out.endswith(f"The model is at {hub.url}/alice/m\n")
    sentences = make_sentences(20, seed=9)
    expected = load_model(str(folder), device="cpu")(sentences)["cls"]
    shutil.rmtree(folder)
    sha = hub.commits(REPO)[1].sha
    load = subprocess.run(
        [sys.executable, "-c", LOAD, json.dumps([REPO, sha, sentences])],
        env=environment(hub, tmp_path / "stranger"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert load.returncode == 0, load.stderr[-3000:]
    kind, read = json.loads(load.stdout.splitlines()[-1])
    assert kind == "BertForInforMinCL" and len(read) == 4
    for name, embeddings in read.items():
        np.testing.assert_allclose(embeddings, expected, atol=1e-5, err_msg=name)
