"""A checkpoint of the code before 0.2.0, whose heads had other names, goes on as it would have there."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

import run_unsup
from informin.files import write_json, write_manifest
from tests.conftest import make_sentences, save_pairs

OLD = Path(__file__).parent / "old_checkpoint"


@pytest.fixture
def command(tmp_path):
    """The command that made the old checkpoint, in a folder that holds it."""
    checkpoint = shutil.copytree(OLD / "checkpoint-3", tmp_path / "run" / "checkpoint-3")
    record = json.loads((checkpoint / "training.json").read_text())
    if record["environment"]["transformers"] != transformers.__version__:
        # The checksum is of all that a configuration has, and another version has more, or less.
        from informin.encoders.encoder import settings_sha256
        from informin.encoders.loading import load_config, load_tokenizer

        config = load_config(str(OLD / "encoder"))
        tokenizer = load_tokenizer(str(OLD / "encoder"), config)
        record["base_model"]["settings_sha256"] = settings_sha256(config, tokenizer)
        write_json(checkpoint / "training.json", record)
        write_manifest(checkpoint)
    (tmp_path / "sentences.txt").write_text("\n".join(make_sentences(64)) + "\n")
    save_pairs(tmp_path / "pairs.tsv")
    options = f"""--objective informin --mlm_weight 0.1 --queue_size 24 --attention_mi_weight 0.01 --decorrelation_weight 0.005
        --projector_size 8 --per_device_train_batch_size 8 --learning_rate 1e-2 --warmup_steps 0 --max_steps 6
        --eval_steps 3 --logging_steps 3 --seed 7 --bf16 false --use_cpu true --disable_tqdm true
        --model_name {OLD / "encoder"} --train_file {tmp_path}/sentences.txt --eval_pairs {tmp_path}/pairs.tsv
        --output_dir {tmp_path}/run --resume_from_checkpoint last"""
    return options.split()


def test_it_goes_on_with_all_its_heads(command, tmp_path, logging_as_before):
    assert run_unsup.main(command) == 0
    weights = load_file(tmp_path / "run" / "checkpoint-6" / "model.safetensors")
    expected = load_file(OLD / "after_step_6.safetensors")
    new_names = {
        "projector.": "heads.decorrelation.layers.",
        "momentum_encoder.": "heads.queue.encoder.",
        "queue_ids": "heads.queue.ids",
        "queue": "heads.queue.embeddings",
    }
    for name in list(expected):
        old = next((old for old in new_names if name.startswith(old)), None)
        if old:
            expected[name.replace(old, new_names[old], 1)] = expected.pop(name)
    assert weights.keys() == expected.keys()
    for name, tensor in weights.items():
        if not name.endswith("key.bias"):  # it changes no attention: its gradient is rounding
            torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-5, msg=name)
    record = json.loads((tmp_path / "run" / "training.json").read_text())
    assert record["steps"] == 6 and record["earlier"] == []
    steps = [entry["step"] for entry in record["history"]]
    assert steps == [0, 3, 6]


@pytest.mark.parametrize(
    "changed, message",
    [
        ("--queue_size=16", "with queue_size 24, and now it is 16 (--queue_size says so)"),
        ("--queue_size=0", "with queue_size 24, and now it is 0 (--queue_size says so)"),
        ("--decorrelation_weight=0", "with projector_size 8, and now it is 0 (--projector_size, or a --decorrelation_"),
        ("--mlm_weight=0", "with lm_head True, and now it is False (--mlm_weight says so)"),
        ("--projection_head=none", "with projection_head mlp, and now it is none (--projection_head says so)"),
    ],
)
def test_other_heads_are_refused(command, changed, message, capsys, logging_as_before):
    projector = ["--projector_size", "8"]
    if changed == "--decorrelation_weight=0":  # nothing would read it
        at = command.index(projector[0])
        del command[at : at + 2]
    assert run_unsup.main([*command, changed, "--resume_with_changes=true"]) == 2
    assert message in capsys.readouterr().err
