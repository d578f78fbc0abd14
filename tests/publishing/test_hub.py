"""Defaults from the Hub, with the real client and an empty cache."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from informin.evaluation.senteval_files import HUB_DATA, HUB_SENTEVAL
from informin.training.sentences import HUB_SENTENCES
from tests import forked
from tests.conftest import ROOT, make_sentences


def stsb_dev() -> str:
    """1,500 pairs in SentEval's layout. Some share words."""
    first, second = make_sentences(1500, seed=5), make_sentences(1500, seed=6)
    rows = [f"g\tf\t2012\t{i:04}\t{i % 6}.000\t{a}\t{b}" for i, (a, b) in enumerate(zip(first, second))]
    return "\n".join(rows) + "\n"


def senteval_tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        content = stsb_dev().encode()
        member = tarfile.TarInfo("STS/STSBenchmark/sts-dev.csv")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def default_data() -> dict[str, bytes]:
    """The data set with the default sentences and SentEval."""
    return {HUB_SENTENCES: ("\n".join(make_sentences(64)) + "\n").encode(), HUB_SENTEVAL: senteval_tar()}


@pytest.fixture
def tiny(hub, bert):
    """The Hub with a tiny model as org/tiny."""
    hub.add_repo("org/tiny", {path.name: path.read_bytes() for path in bert.iterdir()})
    return hub


# The Hub and the caches of a process that has already imported its client, which reads the environment once.
CLIENT = """
import os
import datasets
from huggingface_hub import constants

home = os.environ["HF_HOME"]
constants.ENDPOINT, constants.HF_HUB_OFFLINE = os.environ["HF_ENDPOINT"], False
constants.HUGGINGFACE_CO_URL_TEMPLATE = constants.ENDPOINT + "/{repo_id}/resolve/{revision}/{filename}"
constants.HF_HOME, constants.HF_HUB_CACHE = home, home + "/hub"
constants.HF_TOKEN_PATH = home + "/token"
datasets.config.HF_DATASETS_CACHE = home + "/datasets"
"""


def run(endpoint: str, home: Path, *options: str, fork: bool = True) -> subprocess.CompletedProcess:
    own = ("SENTEVAL_DATA", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "OMP_NUM_THREADS": "1"}
    arguments = "--model_name=org/tiny --max_steps=2 --eval_steps=2 --per_device_train_batch_size=16 --bf16=false"
    words = [*arguments.split(), "--disable_tqdm=true", *options]
    if fork:
        return forked.run(forked.script("run_unsup.py", words, CLIENT, env=environment, cwd=home.parent))
    command = [sys.executable, str(ROOT / "run_unsup.py"), *words]
    return subprocess.run(command, env=environment, cwd=home.parent, capture_output=True, text=True, timeout=120)


def test_a_model_name_is_enough(tiny, tmp_path):
    """Model, sentences and STS-B dev come from the Hub. A second run downloads no data again."""
    tiny.add_repo(HUB_DATA, default_data(), kind="dataset")
    first = run(tiny.url, tmp_path / "home", fork=False)
    assert first.returncode == 0, first.stderr[-3000:]
    assert ": 64 sentences, " in first.stdout and "STS-B dev, Spearman x 100" in first.stdout
    assert len(list(tmp_path.glob("outputs/tiny-informin-batch*-lr3e-5-seed42/model.safetensors"))) == 1
    data = [path for method, path in tiny.requests if method == "GET" and HUB_DATA in path]
    assert len(data) == 2
    second = run(tiny.url, tmp_path / "home", "--seed=7")
    assert second.returncode == 0, second.stderr[-3000:]
    assert [path for method, path in tiny.requests if method == "GET" and HUB_DATA in path] == data
    assert len(list(tmp_path.glob("outputs/tiny-informin-*-seed7"))) == 1


def test_data_missing_on_the_hub(tiny, tmp_path):
    """The error comes before training and says how to train without it."""
    files = default_data()
    del files[HUB_SENTEVAL]
    tiny.add_repo(HUB_DATA, files, kind="dataset")
    result = run(tiny.url, tmp_path / "home")
    assert result.returncode == 2
    assert "senteval.tar cannot be downloaded from the Hub data set" in result.stderr
    assert "--eval_strategy no" in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "outputs").exists()
