"""The small files of a model are read once."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from informin.models.checkpoint import Checkpoint, once
from informin.models.model_config import load_config
from informin.models.tokenizer import load_tokenizer
from tests.conftest import make_sentences, raises_usage, save_pairs
from tests.forked import Forked
from tests.models.any_encoder.helpers import sentence_transformer

ADAPT = "--model_name m --recipe adapt --max_steps 1 --train_file sentences.txt --eval_pairs pairs.tsv --output_dir out"
ADAPT += " --per_device_train_batch_size 16 --bf16 false --measure_drift false"


def count_opens(folder: Path) -> Counter:
    """Count from now on how often this process opens each file of a folder."""
    opens: Counter = Counter()

    def hook(event, args):
        if event == "open" and isinstance(args[0], str | os.PathLike):
            path = Path(os.path.abspath(args[0]))
            if path.is_relative_to(folder):
                opens[path.relative_to(folder).as_posix()] += 1

    sys.addaudithook(hook)  # it cannot be removed: call this in a process of its own
    return opens


def train_and_count(backend: str) -> None:
    from informin.cli.train import main

    opens = count_opens(Path("m").absolute())
    code = main([*ADAPT.split(), f"--backend={backend}"])
    print("\nOPENS " + json.dumps({"code": code, **opens}))


@pytest.mark.parametrize(("backend", "most"), [("auto", 15), ("st", 33)])
def test_a_run_opens_each_file_of_the_model_once(bert, tmp_path, backend, most):
    """Apart from what transformers and sentence-transformers open themselves to load the tokenizer and the model."""
    sentence_transformer(bert, tmp_path / "m")
    (tmp_path / "sentences.txt").write_text("\n".join(make_sentences(300)) + "\n")
    save_pairs(tmp_path / "pairs.tsv")
    out, err = Forked(train_and_count, backend, cwd=tmp_path).communicate()
    opens = json.loads(out.rpartition("OPENS ")[2])
    assert opens.pop("code") == 0, err
    assert sum(opens.values()) <= most, opens
    assert backend == "st" or opens["config.json"] <= 3


def test_values_are_read_once_and_cannot_be_changed(tmp_path):
    file = tmp_path / "modules.json"
    file.write_text('[{"type": "a", "path": ""}]')
    checkpoint = Checkpoint(tmp_path)
    first = checkpoint.json("modules.json", list)
    first[0]["type"] = "b"
    file.write_text("[]")
    assert checkpoint.json("modules.json", list) == [{"type": "a", "path": ""}]
    assert Checkpoint(tmp_path).json("modules.json", list) == []
    assert checkpoint.json("none.json") == {} and checkpoint.path("none.json") is None


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "modules.json").write_text("{}")
    checkpoint = Checkpoint(tmp_path)
    for _ in range(2):
        with raises_usage(found="found dict", needed="list"):
            checkpoint.json("modules.json", list)
    with raises_usage(option="model_name", found="outside of the folder"):
        checkpoint.path("../config.json")


def test_names_and_checkpoints_are_accepted(tmp_path):
    checkpoint = Checkpoint(tmp_path, "v1")
    assert Checkpoint.of(checkpoint) is checkpoint and Checkpoint.of("a", "v2").revision == "v2"
    assert str(checkpoint) == str(tmp_path) and checkpoint.is_folder and checkpoint.commit is None


def test_what_a_function_finds_is_kept_for_the_checkpoint(tmp_path):
    calls = []
    found = once(lambda checkpoint: calls.append(checkpoint) or len(calls))
    one, other = Checkpoint(tmp_path), Checkpoint(tmp_path)
    assert [found(one), found(one), found(other)] == [1, 1, 2]


def test_configurations_and_tokenizers_are_copies(bert):
    """A training run changes the configuration and the tokenizer; the guide reads the same checkpoint."""
    checkpoint = Checkpoint(bert)
    config, tokenizer = load_config(checkpoint), load_tokenizer(checkpoint)
    before = tokenizer.backend_tokenizer.to_str()
    config.hidden_dropout_prob = 0.9
    tokenizer.add_tokens("surprise")
    tokenizer("a dog", truncation=True, max_length=4, padding="max_length")
    assert load_config(checkpoint).hidden_dropout_prob == 0.1
    assert load_tokenizer(checkpoint).backend_tokenizer.to_str() == before
