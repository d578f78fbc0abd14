"""Resuming a run: the same command gives the same weights, and changes are refused or recorded."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import run_unsup
from informin.evaluation import pairs
from informin.files import write_manifest
from informin.publishing.record import load_record
from informin.training.checkpoints import LAST
from informin.training.command_line import parse
from informin.training.resume_checks import differences
from tests.cli.test_run import assert_same_weights
from tests.cli.test_run_errors import fails
from tests.conftest import make_sentences, save_bert, save_pairs
from tests.training.resuming_helpers import assert_same_weights_of_export


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def other_inputs(tmp_path) -> dict[str, Path]:
    """Sentences, pairs and a model that differ from those of `command`."""
    (tmp_path / "others.txt").write_text("\n".join(make_sentences(96, seed=9)) + "\n")
    return {
        "train_file": tmp_path / "others.txt",
        "eval_pairs": save_pairs(tmp_path / "others.tsv", seed=5),
        "model_name": save_bert(tmp_path / "other-bert", initializer_range=0.1),
    }


def test_resuming_gives_the_same_weights(command, interrupted_run, finished_run, tmp_path, sentences_file):
    """File names, logging, the number of checkpoints and the description may change."""
    moved = shutil.copy(sentences_file, tmp_path / "moved.txt")
    free = dict(
        train_file=moved, logging_steps=1, save_total_limit=3, run_name="x", data_description="words", verbose="true"
    )
    assert run_unsup.main([*command(**free), "--resume_from_checkpoint"]) == 0
    assert_same_weights(interrupted_run / "checkpoint-4", finished_run / "checkpoint-4")
    assert load_record(interrupted_run)["earlier"] == []


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(objective="simcse"), "objective informin, now simcse; reconstruction_weight 0.4, now none"),
        (dict(seed=7), "seed 42, now 7"),
        (dict(temperature=0.1), "temperature 0.05, now 0.1"),
        (dict(reconstruction_weight=4), "reconstruction_weight 0.4, now 4.0"),
        (dict(reconstruction_form="squared_l2"), "reconstruction_form reference, now squared_l2"),
        (dict(per_device_train_batch_size=8), "sentences_per_step 16, now 8"),
        (dict(learning_rate=2e-3), "learning_rate 0.001, now 0.002"),
        (dict(max_steps=6), "max_steps 4, now 6"),
        (dict(data_seed=3), "data_seed none, now 3"),
        (dict(max_seq_length=8), "max_seq_length 32, now 8"),
        (dict(train_file="others"), "sentences 96 from sentences.txt (SHA-256 "),
        (dict(max_train_samples=64), "now 64 from sentences.txt (SHA-256 "),
        (dict(eval_pairs="others"), "evaluation data pairs.tsv, now others.tsv"),
        (dict(eval_pairs=None, eval_strategy="no"), "evaluation data pairs.tsv, now none"),
        (dict(metric_for_best_model="alignment"), "metric_for_best_model none, now alignment"),
        (dict(load_best_model_at_end="false"), "load_best_model_at_end none, now False"),
        (dict(accelerator_config='{"use_seedable_sampler": false}'), "use_seedable_sampler none, now False"),
        (dict(optim_args="foreach=True"), "optim_args none, now foreach=True"),
        (dict(lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs='{"min_lr": 0.1}'), "now min_lr 0.1"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_changed_options_are_refused(command, interrupted_run, other_inputs, capsys, changes, message):
    before = files(interrupted_run)
    changes = {name: other_inputs[name] if value == "others" else value for name, value in changes.items()}
    error = fails(capsys, [*command(**changes), "--resume_from_checkpoint"])
    assert (
        f"{interrupted_run / 'checkpoint-2'} belongs to another run: " in error
        and message in error
        and "\n" not in error
    )
    assert "--resume_with_changes" in error
    assert files(interrupted_run) == before


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(optim="adafactor"), "has the state of --optim adamw_torch_fused, which adafactor cannot load."),
        (
            dict(lr_scheduler_type="reduce_lr_on_plateau"),
            "has the state of --lr_scheduler_type linear, which",
        ),
        (dict(mlm_weight=0.1), "was trained with lm_head False, and now it is True (set by --mlm_weight)"),
    ],
    ids=["optim", "scheduler", "heads"],
)
def test_changes_that_are_always_refused(command, interrupted_run, capsys, options, message):
    error = fails(capsys, [*command(**options), "--resume_from_checkpoint", "--resume_with_changes"])
    assert message in error and "\n" not in error


@pytest.mark.parametrize("change", ["dropout", "tokenizer"])
def test_changed_configuration_or_tokenizer_is_refused(command, interrupted_run, bert, tmp_path, capsys, change):
    other = shutil.copytree(bert, tmp_path / "models" / "tiny-bert")
    name, old, new = {
        "dropout": ("config.json", '"hidden_dropout_prob": 0.1', '"hidden_dropout_prob": 0.3'),
        "tokenizer": ("tokenizer.json", '"dog"', '"hound"'),
    }[change]
    assert old in (other / name).read_text()
    (other / name).write_text((other / name).read_text().replace(old, new))
    error = fails(capsys, [*command(model_name=other), "--resume_from_checkpoint"])
    assert "belongs to another run: configuration or tokenizer of tiny-bert (SHA-256 " in error


def test_streams_are_compared_by_name():
    def record(*sources):
        data = {"sources": list(sources), "sha256": None, "sentences": None}
        return {"seed": 1, "options": {}, "data": data, "base_model": None, "development_sha256": None}

    assert differences(record("a"), record("a")) == []
    assert differences(record("a"), record("b")) == ["sentences a, now b"]


@pytest.mark.parametrize("epochs", [None, 0.7])
def test_a_finished_run_takes_no_further_step(command, finished_run, tmp_path, epochs):
    """Four steps of an epoch of six; Trainer itself would continue the epoch."""
    options = dict(max_steps=None, num_train_epochs=epochs) if epochs else {}
    for more in ([], ["--resume_from_checkpoint"], ["--resume_from_checkpoint"]):
        assert run_unsup.main([*command(**options), *more]) == 0
    record = load_record(tmp_path / "run")
    assert record["steps"] == 4 + bool(epochs)
    assert [entry["step"] for entry in record["history"]] == [0, 2, 4] + [5] * bool(epochs)


def test_best_checkpoint_is_found_in_a_renamed_run(command, interrupted_run, finished_run, tmp_path, caplog):
    """The old name now belongs to another run."""
    state = json.loads((interrupted_run / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == str(interrupted_run / "checkpoint-2")
    renamed = interrupted_run.rename(tmp_path / "renamed")
    shutil.copytree(finished_run, interrupted_run)  # other weights under the old name
    (interrupted_run / "checkpoint-2" / "model.safetensors").write_bytes(b"not ours")
    assert run_unsup.main([*command(output_dir=renamed), "--resume_from_checkpoint"]) == 0
    record = load_record(renamed)
    assert record["chosen"] and record["kept_step"] == load_record(finished_run)["kept_step"]
    assert_same_weights_of_export(renamed, finished_run)
    assert "damaged" not in caplog.text and "The best checkpoint" not in caplog.text


def test_missing_best_checkpoint_is_reported(command, interrupted_run, tmp_path, caplog, monkeypatch):
    shutil.copytree(interrupted_run / "checkpoint-2", interrupted_run / "checkpoint-3")
    state = json.loads((interrupted_run / "checkpoint-3" / "trainer_state.json").read_text())
    (interrupted_run / "checkpoint-3" / "trainer_state.json").write_text(json.dumps(state | {"best_global_step": 1}))
    write_manifest(interrupted_run / "checkpoint-3")
    low = {"spearman": -100.0, "alignment": 0.0, "uniformity": 0.0}
    monkeypatch.setattr(pairs, "score_pairs", lambda *_: low)
    assert run_unsup.main([*command(), "--resume_from_checkpoint"]) == 0
    assert f"{interrupted_run / 'checkpoint-1'}, the best checkpoint so far, no longer exists" in caplog.text
    assert load_record(interrupted_run)["chosen"] is False


def test_resume_without_callback_states(command, interrupted_run):
    path = interrupted_run / "checkpoint-2" / "trainer_state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"stateful_callbacks": None}))
    write_manifest(interrupted_run / "checkpoint-2")
    assert run_unsup.main([*command(), "--resume_from_checkpoint"]) == 0


def test_a_run_changed_twice_has_three_parts(command, interrupted_run, monkeypatch):
    better = iter([10.0, 20.0])  # so that the last step is kept
    scores = {"alignment": 0.0, "uniformity": 0.0}
    monkeypatch.setattr(pairs, "score_pairs", lambda *_: scores | {"spearman": next(better)})
    for step, temperature in ((4, 0.1), (6, 0.2)):
        options = command(max_steps=step, temperature=temperature)
        assert run_unsup.main([*options, "--resume_from_checkpoint", "--resume_with_changes"]) == 0
    record = load_record(interrupted_run)
    parts = [(part["until_step"], part["options"]["temperature"]) for part in record["earlier"]]
    assert parts == [(2, 0.05), (4, 0.1)] and record["options"]["temperature"] == 0.2
    assert all(part["environment"]["device"].startswith("cpu") for part in record["earlier"])
    again = ", then 2 steps with other options"
    assert f"2 steps of InforMin-CL{again}{again} on 96 sentences" in (interrupted_run / "README.md").read_text()


@pytest.mark.parametrize("flag", [[], ["--resume_with_changes"]], ids=["", "with-changes"])
def test_another_encoder_is_refused(command, interrupted_run, other_inputs, capsys, flag):
    """Only its settings and tokenizer would be used, not its weights."""
    error = fails(capsys, [*command(model_name=other_inputs["model_name"]), "--resume_from_checkpoint", *flag])
    assert "checkpoint-2 began with the encoder tiny-bert, and the weights of other-bert differ from it" in error


def test_another_number_of_processes_is_refused(command, interrupted_run, capsys):
    record = json.loads((interrupted_run / "checkpoint-2" / "training.json").read_text())
    record["options"]["processes"] = 2
    (interrupted_run / "checkpoint-2" / "training.json").write_text(json.dumps(record))
    write_manifest(interrupted_run / "checkpoint-2")
    assert "processes 2, now 1." in fails(capsys, [*command(), "--resume_from_checkpoint"])


def test_accepted_changes_are_recorded_as_parts(command, interrupted_run, finished_run, other_inputs, capsys):
    """The new options take effect. The optimizer keeps its moments but uses the new learning rates."""
    changes = dict(
        objective="simcse", learning_rate=5e-3, eval_pairs=other_inputs["eval_pairs"], weight_decay=0.1, logging_steps=1
    )
    changes |= dict(max_steps=6, lr_scheduler_type="constant", train_file=other_inputs["train_file"])
    assert run_unsup.main([*command(**changes), "--resume_from_checkpoint", "--resume_with_changes"]) == 0
    assert "Load the model:" in capsys.readouterr().out
    record, began = load_record(interrupted_run), load_record(finished_run)
    (part,) = record["earlier"]
    assert part["until_step"] == 2 and part["options"] == began["options"] and part["data"] == began["data"]
    assert part["development"] == "pairs.tsv" and [entry["step"] for entry in part["history"]] == [0, 2]
    assert record["options"]["objective"] == "simcse" and record["steps"] == 6
    assert record["development"] == "others.tsv" and [entry["step"] for entry in record["history"]] == [4, 6]
    assert record["kept_step"] in (4, 6), "the best of those scored on the same pairs"
    assert record["data"]["sources"] == ["others.txt"]
    card = (interrupted_run / "README.md").read_text()
    assert "2 steps of InforMin-CL on 96 sentences (sentences.txt), then " in card
    assert f"then {record['kept_step'] - 2} steps of unsupervised SimCSE on 96 sentences (others.txt)." in card
    assert "The options changed during training." in card and "| setting | steps 1 to 2 | steps 3 to 6 |" in card
    assert "| objective | informin | simcse |" in card and "| learning_rate | 0.001 | 0.005 |" in card
    assert "- simcse" in card and "{gao-etal-2021-simcse" in card and "{chen-etal-2022-information" in card
    groups = torch.load(interrupted_run / "checkpoint-6" / "optimizer.pt", weights_only=True)["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    log = json.loads((interrupted_run / "checkpoint-6" / "trainer_state.json").read_text())["log_history"]
    assert [entry["learning_rate"] for entry in log if entry["step"] > 2 and "loss" in entry] == [5e-3] * 4
    assert all(("terms/reconstruction" in entry) == (entry["step"] <= 2) for entry in log if "loss" in entry)
    # Resuming without further changes keeps the parts.
    shutil.rmtree(interrupted_run / "checkpoint-6")
    assert run_unsup.main([*command(**changes), "--resume_from_checkpoint"]) == 0
    assert load_record(interrupted_run)["earlier"] == record["earlier"]


def test_resume_with_changes_without_changes_gives_the_same_weights(command, interrupted_run, finished_run):
    assert run_unsup.main([*command(), "--resume_from_checkpoint", "--resume_with_changes"]) == 0
    assert_same_weights(interrupted_run / "checkpoint-4", finished_run / "checkpoint-4")
    assert load_record(interrupted_run)["earlier"] == []


def test_an_accepted_new_seed_takes_effect(command, interrupted_run, tmp_path):
    """Runs resumed with different seeds differ, and each can be repeated."""
    for name, seed in (("a", 7), ("b", 8), ("c", 7)):
        shutil.copytree(interrupted_run, tmp_path / name)
        arguments = command(output_dir=tmp_path / name, seed=seed, data_seed=1)  # so that dropout alone differs
        assert run_unsup.main([*arguments, "--resume_from_checkpoint", "--resume_with_changes"]) == 0
        assert [part["seed"] for part in load_record(tmp_path / name)["earlier"]] == [42]
    last = {name: tmp_path / name / "checkpoint-4" for name in "abc"}
    assert_same_weights(last["a"], last["c"])
    with pytest.raises(AssertionError):
        assert_same_weights(last["a"], last["b"])


@pytest.mark.parametrize(
    "changes, flags",
    [(dict(max_steps=1), []), (dict(max_steps=None, num_train_epochs=0.1), ["--resume_with_changes"])],
    ids=["steps", "epochs"],
)
def test_resuming_past_the_last_step_is_refused(command, interrupted_run, capsys, changes, flags):
    error = fails(capsys, [*command(**changes), "--resume_from_checkpoint", *flags])
    assert f"{interrupted_run / 'checkpoint-2'} is already past the end of training: 2 steps are done, and " in error
    assert not (interrupted_run / "model.safetensors").exists()


@pytest.mark.parametrize("word", [[], ["true"], ["True"], ["yes"], ["last"]], ids=str)
def test_true_means_last(command, word):
    _, _, _, args = parse([*command(), "--resume_from_checkpoint", *word])
    assert args.resume_from_checkpoint == LAST


def test_yes_resumes(command, interrupted_run, finished_run):
    assert run_unsup.main([*command(), "--resume_from_checkpoint", "yes"]) == 0
    assert_same_weights(interrupted_run / "checkpoint-4", finished_run / "checkpoint-4")


def test_false_means_a_new_run(command, tmp_path):
    assert run_unsup.main([*command(max_steps=1), "--resume_from_checkpoint=false"]) == 0
    assert load_record(tmp_path / "run")["steps"] == 1
