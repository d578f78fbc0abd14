"""run_push.py and run_unsup.py --push_to_hub as people run them, against tests/hub_server.py."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard, snapshot_download
from safetensors.torch import load_file, save_file

import run_push
import run_unsup
from informin.cli import train as train_command
from informin.encoders.encoder import load_encoder
from informin.encoders.loading import load_config, load_model
from informin.publishing.hub import prepare, push_in_background
from informin.publishing.published import published_files
from tests.conftest import ROOT, make_sentences, raises_usage, tokenizer_of
from tests.hub_server import HubServer
from tests.publishing.test_push import (
    HEAD,
    PUBLISHED,
    REPO,
    SETTINGS,
    WEIGHTS,
    equal_weights,
    finish,
    load,
    read_files,
    remote,
    results_of,
    state,
)
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

OPTIONS = dict(max_steps=4, eval_steps=2, logging_steps=2, learning_rate=1e-3, per_device_train_batch_size=16)
FLAGS = dict(bf16="false", use_cpu="true", disable_tqdm="true")
UPLOADED = PUBLISHED | {"training.json"}
STATE = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin"}


pytestmark = pytest.mark.usefixtures("logged_in", "logging_as_before")


@pytest.fixture(scope="module")
def trained(bert, sentences_file, pairs_file, tmp_path_factory) -> Path:
    """What a run without a push leaves."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    options = dict(model_name=bert, train_file=sentences_file, eval_pairs=pairs_file, output_dir=folder)
    assert run_unsup.main([f"--{name}={value}" for name, value in (options | OPTIONS | FLAGS).items()]) == 0
    return folder


@pytest.fixture
def folder(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "model"))


@pytest.fixture
def train(command):
    """Runs run_unsup.py with a push; returns the exit code."""

    def run(**changes) -> int:
        options = dict(push_to_hub="true", hub_model_id=REPO, hub_always_push="true", save_total_limit=None) | changes
        return run_unsup.main(command(**options))

    return run


def fails(capsys, code: int, *arguments: object) -> str:
    """Runs run_push.py into an error; returns its message."""
    assert run_push.main([str(argument) for argument in arguments]) == code
    error = capsys.readouterr().err
    error = error[error.index("error: ") :].strip()
    assert "\n" not in error and "Traceback" not in error
    return error


# run_push.py


def test_push(hub, folder, capsys):
    """What goes up and what does not is shown, then done."""
    assert run_push.main([str(folder), "m", "--private"]) == 0
    out = capsys.readouterr().out
    sizes = {name: (folder / name).stat().st_size for name in UPLOADED}
    for name in UPLOADED - {"README.md"}:  # which is pinned after that
        assert f"{sizes[name]:>13,}  {name}\n" in out
    assert f" bytes in {len(UPLOADED)} files\n" in out and "Not uploaded: checkpoint-2, checkpoint-4\n" in out
    assert out.endswith(f"The model is at {hub.url}/alice/m\n")
    assert remote(hub) == {name: (folder / name).read_bytes() for name in UPLOADED} and state(hub)[REPO][0]
    assert run_push.main([str(folder), REPO]) == 0


def test_dry_run(hub, folder, capsys, monkeypatch):
    """Nobody is asked, not even for a token; the card is written, and the list is the one of the push."""
    monkeypatch.delenv("HF_TOKEN")
    (folder / "notes.txt").write_text("mine")
    results = results_of(folder, folder.parent / "scores" / "m.json", 12.34)
    assert run_push.main([str(folder), "bob/m", "--results", str(results), "--dry_run"]) == 0
    assert hub.requests == []
    out = capsys.readouterr().out
    assert out.endswith(
        f"{sum((folder / name).stat().st_size for name in UPLOADED | {'results/model.json'}):>13,}"
        f"  bytes in {len(UPLOADED) + 1} files\nNot uploaded: checkpoint-2, checkpoint-4, notes.txt\n"
        "Nothing was uploaded to bob/m.\n"
    )
    listed = [line.split("  ")[-1] for line in out.splitlines()[: len(UPLOADED) + 1]]
    assert listed == [path.as_posix() for path in published_files(folder)]
    assert set(listed) == UPLOADED | {"results/model.json"}
    card = (folder / "README.md").read_text()
    assert 'from_pretrained("bob/m")' in card and "12.34" in card


def test_results_and_update_card(hub, folder, capsys):
    """--results go into the folder, its card and the Hub; --update_card sends no weights."""
    results = results_of(folder, folder.parent / "scores" / "m.json", 12.34)
    assert run_push.main([str(folder), REPO, "--results", str(results)]) == 0
    assert json.loads(remote(hub)["results/model.json"])["model"] == "this model"
    results_of(folder, results, 56.78)
    head, sent = hub.commits(REPO)[0].sha, len(hub.requests)
    assert run_push.main([str(folder), REPO, "--update_card", "--results", str(results.parent)]) == 0
    assert f"The card is at {hub.url}/alice/m" in capsys.readouterr().out
    assert not [path for _, path in hub.requests[sent:] if "lfs" in path]
    assert hub.commits(REPO)[0].changed == ["README.md", "results/model.json"]
    card = remote(hub)["README.md"].decode()
    assert "56.78" in card and "12.34" not in card and f'revision="{head}"' in card


def test_mistakes(hub, folder, capsys, tmp_path, bert):
    """Each is one line, exit code 2, and nothing is uploaded."""
    assert "gone does not exist; expected a folder that training" in fails(capsys, 2, tmp_path / "gone", REPO)
    assert "is not an InforMin-CL model" in fails(capsys, 2, bert, REPO)
    assert "--seeds is set without --results. Give the results" in fails(capsys, 2, folder, REPO, "--seeds", folder)
    assert f"{REPO} does not exist. Push the model first, without --update_card." in fails(
        capsys, 2, folder, REPO, "--update_card"
    )
    before = read_files(folder)
    for name in ('me/m")\nimport evil\n("', "me/<b>", "a/b/c"):  # it would get into the card's code
        assert "is not a valid repository name" in fails(capsys, 2, folder, name, "--dry_run")
    assert read_files(folder) == before
    with pytest.raises(SystemExit) as caught:
        run_push.main([str(folder), REPO, "--force"])
    assert caught.value.code == 2
    assert not any(remote(hub, name) for _, name in hub.repos)


def test_checkpoint_is_refused_with_the_command_that_exports_it(hub, folder, capsys, tmp_path):
    import run_export

    error = fails(capsys, 2, folder / "checkpoint-4", REPO)
    assert f"{folder / 'checkpoint-4'} is a checkpoint, which cannot be published: it has no" in error
    *command, checkpoint, new = error.partition("Export it first: ")[2].split()
    assert command == ["python", "-m", "informin", "export"] and new == "NEW_FOLDER" and hub.requests == []
    assert run_export.main([checkpoint, str(tmp_path / "new")]) == 0
    assert run_push.main([str(tmp_path / "new"), REPO]) == 0
    assert remote(hub).keys() == UPLOADED


@pytest.mark.parametrize("how", ["", "--dry_run", "--update_card", "--results"])
@pytest.mark.parametrize(
    ("name", "to"),
    [("vocab.txt", "notes.txt"), ("README.md", "notes.txt"), ("README.md", "new.txt"), ("onnx", ""), ("results", "")],
)
def test_link_is_refused(hub, folder, capsys, tmp_path, name, to, how):
    """Before the Hub is asked, and before anything is written through it."""
    results = results_of(folder, tmp_path / "scores" / "m.json")
    private = tmp_path / "private"
    private.mkdir()
    (private / "notes.txt").write_text("mine")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(private / to)
    error = fails(capsys, 2, folder, REPO, *[how] * bool(how), *[results] * (how == "--results"))
    assert f"{folder / name} is a link; expected regular files, because a link may lead to private data." in error
    assert error.endswith("Replace each link with a copy of its target, or remove it.")
    assert hub.requests == [] and read_files(private) == {"notes.txt": b"mine"} and (folder / name).is_symlink()


def test_snapshot_of_the_hubs_cache_is_copied_first(hub, folder, capsys, tmp_path):
    """There every file is a link; the command in the message makes a folder that can be pushed."""
    assert run_push.main([str(folder), REPO]) == 0
    snapshot = Path(snapshot_download(REPO))
    error = fails(capsys, 2, snapshot, "other")
    assert f"is a link (so are {len(UPLOADED) - 1} others); expected" in error
    command = error.partition("with the targets of its links: ")[2].replace("NEW_FOLDER", str(tmp_path / "new"))
    subprocess.run(command, shell=True, check=True)
    assert run_push.main([str(tmp_path / "new"), "other"]) == 0
    weights = {name: content for name, content in remote(hub, "alice/other").items() if name != "README.md"}
    assert weights == {name: (folder / name).read_bytes() for name in UPLOADED - {"README.md"}}


@pytest.mark.parametrize(("file", "value"), [(WEIGHTS, float("nan")), (HEAD, float("inf"))])
def test_broken_weights_are_refused(hub, folder, capsys, file, value):
    weights = load_file(folder / file)
    name = max(weights)
    weights[name][3] = value
    save_file(weights, folder / file, metadata={"format": "pt"})
    error = fails(capsys, 2, folder, REPO)
    assert f"NaN or infinity in 1 weight, such as {name}" in error and hub.requests == []
    (folder / file).write_bytes(b"cut off")
    assert f"{folder} cannot be read: " in fails(capsys, 2, folder, REPO) and hub.requests == []


def test_results_of_another_model_are_refused(hub, folder, trained, capsys, tmp_path):
    other = Path(shutil.copytree(trained, tmp_path / "other"))
    weights = load_file(other / WEIGHTS)
    save_file({name: 2 * tensor for name, tensor in weights.items()}, other / WEIGHTS, metadata={"format": "pt"})
    results = results_of(other, tmp_path / "scores" / "other.json")
    error = fails(capsys, 2, folder, REPO, "--results", results)
    assert f"{results} has results of another model (other); expected the weights of {folder}, of its source" in error
    assert hub.requests == [] and not (folder / "results").exists()


def test_failed_push_exits_with_1(hub, folder, capsys):
    hub.fail("POST", "/commit/main", status=403)
    error = fails(capsys, 1, folder, REPO)
    assert f"The push to alice/m failed: the token has no write access to {REPO} (403: " in error
    assert finish(error) == 0
    assert remote(hub) == {name: (folder / name).read_bytes() for name in UPLOADED}


def test_refused_push_exits_with_2(hub, folder, capsys, monkeypatch):
    hub.add_repo(REPO, {"a.txt": b"mine"}, author="alice")
    assert "has files that InforMin-CL did not upload" in fails(capsys, 2, folder, REPO)
    assert run_push.main([str(folder), REPO, "--overwrite"]) == 0
    assert remote(hub).keys() == UPLOADED | {"a.txt"}
    monkeypatch.setenv("HF_TOKEN", "hf_gone")
    assert "the token is unknown to the Hub" in fails(capsys, 2, folder, REPO)


# run_unsup.py --push_to_hub


@pytest.mark.parametrize(
    ("strategy", "below"),
    [
        ("end", set()),
        ("every_save", set()),
        ("checkpoint", {"last-checkpoint"}),
        ("all_checkpoints", {"checkpoint-2", "checkpoint-4"}),
    ],
)
def test_strategies(hub, train, trained, tmp_path, monkeypatch, capfd, caplog, strategy, below):
    """The root is always the export and nothing else; optimizer states go up on request alone; no token anywhere."""
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    hub.add_user("bob", token="hf_secret")
    assert train(hub_strategy=strategy, hub_model_id="m", hub_private_repo="true", hub_token="hf_secret") == 0
    run, repo = tmp_path / "run", "bob/m"
    text = "".join(capfd.readouterr()) + caplog.text
    assert f"The model is at {hub.url}/bob/m" in text and state(hub)[repo][0]
    assert "failed" not in text and not list((tmp_path / "temporary").iterdir())

    files = remote(hub, repo)
    root = {name: content for name, content in files.items() if name.partition("/")[0] not in below}
    assert root == {name: (run / name).read_bytes() for name in UPLOADED}
    assert {name.split("/")[0] for name in files.keys() - root.keys()} == below
    for name in below:
        assert {f"{name}/{part}" for part in STATE - {"training_args.bin"}} <= files.keys()
    assert equal_weights(load(run), load(trained))  # the pushes in between draw no random number
    best = json.loads((run / "checkpoint-4" / "trainer_state.json").read_text())["best_model_checkpoint"]
    assert Path(best).is_dir()  # here it is still the path, which resuming needs

    titles = [commit.title for commit in reversed(hub.commits(repo))]
    steps = [] if strategy == "end" else [f"Training in progress, step {step}" for step in (2, 4)]
    expected = [title for step in steps for title in ([step, f"{step}, checkpoint"] if below else [step])]
    assert titles == ["initial commit", *expected, "End of training", *titles[-1:]] and "pin" in titles[-1]
    for commit in hub.commits(repo):
        assert commit.author == "bob"
        at_root = {name for name in commit.files if "/" not in name}
        assert not at_root & STATE and "training_args.bin" not in {Path(name).name for name in commit.files}
        for name, blob in commit.files.items():
            assert b"hf_secret" not in blob.content, name
            assert os.fsencode(tmp_path.parent) not in blob.content, name  # no path of this machine
    assert not [name for name, content in read_files(tmp_path).items() if b"hf_secret" in content]
    assert "hf_secret" not in text
    pinned = remote(hub, repo)["README.md"].decode().partition('revision="')[2][:40]
    assert hub.files(repo, revision=pinned)[WEIGHTS] == (run / WEIGHTS).read_bytes()


def test_checkpoints_that_go_up_before_the_end(hub, train, trained, tmp_path):
    """What is at the root after a save is the export of that checkpoint, without scores of the model before it."""
    hub.add_repo(REPO, {name: (trained / name).read_bytes() for name in UPLOADED}, author="alice")
    hub.commit(REPO, {"results/model.json": b"{}"}, author="alice")
    assert train(hub_strategy="every_save") == 0
    for commit in hub.commits(REPO)[2:4]:
        step = int(commit.title.rpartition(" ")[2])
        assert commit.files.keys() == UPLOADED
        assert 'AutoModel.from_pretrained("alice/m")' in commit.files["README.md"].content.decode()
        assert json.loads(commit.files["training.json"].content)["kept_step"] == step
        assert equal_weights(load(REPO, revision=commit.sha), load(tmp_path / "run" / f"checkpoint-{step}"))


def test_resuming_from_the_hub(hub, train, command, tmp_path, capsys):
    """A last-checkpoint, downloaded with its remote code, goes on as the run itself went on."""
    assert train(hub_strategy="checkpoint", max_steps=6) == 0
    [early] = [commit.sha for commit in hub.commits(REPO) if commit.title == "Training in progress, step 4, checkpoint"]
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")  # another machine
    downloaded = Path(snapshot_download(REPO, revision=early, local_dir=tmp_path / "downloaded")) / "last-checkpoint"
    assert (downloaded / "modeling_informin.py").is_file()
    capsys.readouterr()
    assert run_unsup.main(command(max_steps=6, resume_from_checkpoint=downloaded)) == 0
    assert equal_weights(load(tmp_path / "run" / "checkpoint-6"), load(tmp_path / "elsewhere" / "checkpoint-6"))
    record = json.loads((tmp_path / "run" / "training.json").read_text())
    assert equal_weights(load(tmp_path / "run"), load(tmp_path / "run" / f"checkpoint-{record['kept_step']}"))
    assert f"after (step {record['kept_step']})" in capsys.readouterr().out
    assert [entry["step"] for entry in record["history"]] == [0, 2, 4, 6] and record["sentences_per_second"] > 0


def test_default_name_is_that_of_the_folder(hub, train, tmp_path):
    assert train(hub_model_id=None, output_dir=tmp_path / "tiny-informin") == 0
    assert list(state(hub)) == ["alice/tiny-informin"]
    assert 'AutoModel.from_pretrained("alice/tiny-informin"' in (tmp_path / "tiny-informin" / "README.md").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(hub_model_id="carol/m"), "Cannot push to carol/m: the token has no write access to carol/m (403: "),
        (dict(hub_model_id="carol/old"), "Cannot push to carol/old: the token has no write access to carol/old (403: "),
        (
            dict(hub_model_id="foreign"),
            "alice/foreign has files that InforMin-CL did not upload (a.txt, 1 in total)",
        ),
        (
            dict(hub_model_id="foreign", hub_private_repo="true"),
            "alice/foreign is public; expected a private repository",
        ),
        (dict(hub_token="hf_gone"), "the token is unknown to the Hub or has expired (401)."),
        (dict(hub_model_id="a b"), "'a b' is not a valid repository name"),
        (None, "No Hub token was found. "),
    ],
)
def test_what_cannot_be_pushed_is_not_trained(hub, train, tmp_path, monkeypatch, capsys, changes, message):
    """Said before the data is read: exit code 2, no folder, no repository."""
    hub.add_repo("carol/old", {"a.txt": b"a"})
    hub.add_repo("alice/foreign", {"a.txt": b"a"}, author="alice")
    before = state(hub)
    if changes is None:
        monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(train_command, "load_sentences", lambda *_: pytest.fail("the data was read"))
    assert train(**changes or {}) == 2
    error = capsys.readouterr().err
    error = error[error.index("error: ") :].strip()
    assert message in error and "\n" not in error
    assert state(hub) == before and not (tmp_path / "run").exists()


def test_push_that_was_no_option_of_the_run(hub, bert, tmp_path):
    """trainer.push_to_hub(), as the Trainer's users know it."""
    model = load_model(load_config(str(bert)), str(bert), SETTINGS)
    tokenizer = tokenizer_of(bert)
    options = dict(eval_strategy="no", use_cpu=True, per_device_train_batch_size=4, hub_model_id="own")
    args = InforMinTrainingArguments(output_dir=str(tmp_path / "run"), **options)
    rows = [tokenizer(sentence) for sentence in make_sentences(8)]
    trainer = InforMinTrainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer)
    assert hub.requests == []
    assert trainer.push_to_hub(commit_message="My own", private=True) == f"{hub.url}/alice/own"
    assert remote(hub, "alice/own").keys() == UPLOADED and state(hub)["alice/own"][0]
    assert hub.commits("alice/own")[1].title == "My own"
    with raises_usage(found="the token is unknown to the Hub"):  # another token counts, also after a push
        trainer.push_to_hub(token="hf_nobodys")


def test_hub_overwrite(hub, train):
    hub.add_repo(REPO, {"a.txt": b"a"}, author="alice")
    assert train(hub_overwrite="true", max_steps=2) == 0
    assert remote(hub).keys() == UPLOADED | {"a.txt"}


def test_upload_that_fails_after_training(hub, train, trained, tmp_path, capsys):
    """Exit code 1; the model is in the output folder, and the command in the message finishes, consent included."""
    hub.add_repo(REPO, {"a.txt": b"a"}, author="alice")
    hub.fail("POST", "/commit/main")
    assert train(hub_overwrite="true", hub_strategy="end") == 1
    captured = capsys.readouterr()
    error = captured.err[captured.err.index("error: ") :]
    assert "The push to alice/m failed: the Hub answered 500: Internal Server Error. Try again later." in error
    assert "after (step " in captured.out and "The model is at" not in captured.out and "Traceback" not in captured.err
    assert remote(hub).keys() == {"a.txt"}
    assert equal_weights(load(tmp_path / "run"), load(trained))
    assert finish(error) == 0
    assert remote(hub) == {"a.txt": b"a"} | {name: (tmp_path / "run" / name).read_bytes() for name in UPLOADED}


def test_push_in_the_background_that_fails(hub, train, trained, tmp_path, caplog):
    """It is logged; training goes on, the next push works, and the model is the same."""
    hub.fail("POST", "/commit/main", status=403)
    assert train(hub_strategy="every_save") == 0
    assert "The push of checkpoint-2 failed: the token has no write access to alice/m (403: Forbidden)." in caplog.text
    assert "Training continues." in caplog.text and "push of checkpoint-4 failed" not in caplog.text
    assert [commit.title for commit in hub.commits(REPO)][2] == "Training in progress, step 4"
    assert equal_weights(load(tmp_path / "run"), load(trained))
    assert remote(hub) == {name: (tmp_path / "run" / name).read_bytes() for name in UPLOADED}


def test_checkpoint_that_cannot_be_exported(hub, train, tmp_path, monkeypatch, caplog):
    """A full disk ends the training as little as a failing upload does."""

    def export_checkpoint(checkpoint: str, folder: Path):
        folder.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("informin.publishing.hub.export_checkpoint", export_checkpoint)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert train(hub_strategy="every_save", max_steps=2) == 0
    assert (
        "The push of checkpoint-2 failed: [Errno 28] No space left on device (OSError). Training continues."
        in caplog.text
    )
    assert not list(tmp_path.glob("informin-push-*")) and remote(hub).keys() == UPLOADED


@pytest.mark.parametrize("state_as", ["last-checkpoint", None])
@pytest.mark.parametrize("name", ["vocab.txt", "notes", "below/scheduler.pt"])
def test_checkpoint_with_a_link_is_not_pushed(hub, folder, tmp_path, caplog, name, state_as):
    """All of a checkpoint goes up, whatever it is called."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "notes.txt").write_text("mine")
    link = folder / "checkpoint-2" / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "private" / ("notes.txt" if link.suffix else ""))
    to = prepare(REPO)
    push_in_background(str(folder / "checkpoint-2"), to, "Training in progress", state_as).result()
    assert f"The push of checkpoint-2 failed: {link} is a link; expected regular files" in caplog.text
    assert remote(hub) == {} and read_files(tmp_path / "private") == {"notes.txt": b"mine"}


def test_slow_upload_of_a_checkpoint(hub, train, tmp_path, monkeypatch, caplog):
    """The Trainer deletes old checkpoints, also those that are still on their way."""
    next_failure = hub.next_failure
    gone, end = tmp_path / "run" / "checkpoint-2", time.monotonic() + 20

    def wait(method: str, path: str):
        while "/preupload/" in path and gone.exists() and time.monotonic() < end:
            time.sleep(0.01)
        return next_failure(method, path)

    monkeypatch.setattr(hub, "next_failure", wait)
    assert train(hub_strategy="checkpoint", eval_strategy="no", eval_pairs=None, save_steps=2, save_total_limit=1) == 0
    assert not gone.exists() and "failed" not in caplog.text
    titles = [commit.title for commit in hub.commits(REPO)]
    assert {f"Training in progress, step {step}, checkpoint" for step in (2, 4)} <= set(titles)


@pytest.mark.parametrize("always", ["true", "false"])
def test_uploads_that_take_longer_than_the_training(hub, train, tmp_path, monkeypatch, always):
    """The end waits for what is on its way, so that the best model stays on top; a save in between may be left out."""
    next_failure, last = hub.next_failure, tmp_path / "run" / "checkpoint-4" / "trainer_state.json"
    end = time.monotonic() + 20

    def wait(method: str, path: str):
        if "/preupload/" in path and not waited:
            while not last.exists() and time.monotonic() < end:
                time.sleep(0.01)
            waited.append(time.sleep(0.5))
        return next_failure(method, path)

    waited: list[None] = []
    monkeypatch.setattr(hub, "next_failure", wait)
    assert train(hub_strategy="every_save", hub_always_push=always) == 0
    steps = ["Training in progress, step 4"] * (always == "true") + ["Training in progress, step 2"]
    assert [commit.title for commit in hub.commits(REPO)][1:] == ["End of training", *steps, "initial commit"]


# Text from outside


HOSTILE = "<script>x</script><!-- [a](http://x) ![b](http://y) `c` | $d$"


def test_nothing_hostile_arrives(hub, train, bert, sentences_file, pairs_file, tmp_path, monkeypatch, capsys, caplog):
    """Names, a description and a foreign card full of HTML; links beside the files of the run, then among them."""
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


# From another machine


def environment(hub: HubServer, home: Path, **more: str) -> dict[str, str]:
    dropped = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
    return kept | own | more


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


def test_everybody_reads_the_same_embeddings(hub, folder, tmp_path):
    """Pushed by the command itself; then, the folder gone, read in four ways by a fresh process with an empty cache."""
    push = subprocess.run(
        [sys.executable, str(ROOT / "run_push.py"), "model", "m"],
        env=environment(hub, tmp_path / "home", HF_TOKEN="hf_alice"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert push.returncode == 0, push.stderr[-3000:]
    assert push.stdout.endswith(f"The model is at {hub.url}/alice/m\n") and "Traceback" not in push.stderr
    sentences = make_sentences(20, seed=9)
    expected = load_encoder(str(folder), device="cpu")(sentences)["cls"]
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
