"""run_unsup.py --push_to_hub, with tests/hub_server.py as the Hub."""

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

import run_unsup
from informin.cli import train as train_command
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_trainable
from informin.publishing import trainer as publishing_trainer
from informin.publishing.hub import prepare, push_card, push_folder, push_in_background
from tests.cli.push_command.helpers import UPLOADED
from tests.conftest import make_sentences, raises_usage, tokenizer_of
from tests.models.any_encoder.helpers import general_trainer, sentence_transformer
from tests.publishing.push.push_helpers import (
    REPO,
    SETTINGS,
    WEIGHTS,
    equal_weights,
    finish,
    load,
    read_files,
    remote,
    state,
)
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

STATE = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin"}


pytestmark = pytest.mark.usefixtures("logged_in", "logging_as_before")


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
    """The root has only the export. Optimizer states are uploaded only on request, and tokens never."""
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


def test_checkpoints_are_pushed_during_training(hub, train, trained, tmp_path):
    """After a save the root has the export of that checkpoint, without scores of the previous model."""
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
    """Resuming from a downloaded last-checkpoint gives the same run."""
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


def test_the_default_name_is_the_folders(hub, train, tmp_path):
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
def test_a_run_that_cannot_be_pushed_is_not_started(hub, train, tmp_path, monkeypatch, capsys, changes, message):
    """It exits with code 2 before the data is read, and creates no folder and no repository."""
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


def test_pushing_after_a_run_without_the_option(hub, bert, tmp_path):
    """trainer.push_to_hub(), as in Trainer."""
    model = load_trainable(Checkpoint(bert), SETTINGS)
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


def test_failed_upload_after_training(hub, train, trained, tmp_path, capsys):
    """The exit code is 1, the model is in the output folder, and the command in the message finishes the push."""
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


def test_failed_push_in_the_background(hub, train, trained, tmp_path, caplog):
    """It is logged. Training continues, the next push works, and the model is the same."""
    hub.fail("POST", "/commit/main", status=403)
    assert train(hub_strategy="every_save") == 0
    assert "The push of checkpoint-2 failed: the token has no write access to alice/m (403: Forbidden)." in caplog.text
    assert "Training continues." in caplog.text and "push of checkpoint-4 failed" not in caplog.text
    assert [commit.title for commit in hub.commits(REPO)][2] == "Training in progress, step 4"
    assert equal_weights(load(tmp_path / "run"), load(trained))
    assert remote(hub) == {name: (tmp_path / "run" / name).read_bytes() for name in UPLOADED}


def test_checkpoint_that_cannot_be_exported(hub, train, tmp_path, monkeypatch, caplog):
    """Like a failed upload, a full disk does not end the training."""

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
    """All files of a checkpoint are uploaded, whatever their names."""
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
    """Trainer deletes old checkpoints, even while they are being uploaded."""
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
    """The end of the run waits for uploads, so that the best model is uploaded last. Earlier saves may be skipped."""
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


@pytest.mark.parametrize(
    ("backend", "strategy"),
    [("native", "end"), ("native", "checkpoint"), ("st", "every_save"), ("st", "all_checkpoints")],
)
def test_no_strategy_uploads_other_files(hub, train, bert, sentences_file, tmp_path, monkeypatch, backend, strategy):
    """Files that lie in the output folder or in a checkpoint, and the report with its sentences."""
    strays = ("report.json", "notes.txt", "secrets.json", "x.py", "runs/log.txt", "1_Pooling/notes.json", "x/y.pt")

    def beside(push):
        def pushed(folder, *args, **how):
            for name in strays:
                Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
                Path(folder, name).write_text("the private line")
            return push(folder, *args, **how)

        return pushed

    for name in ("push_in_background", "push_folder"):
        function = getattr(publishing_trainer, name)
        monkeypatch.setattr(publishing_trainer, name, beside(function))
    model = sentence_transformer(bert, tmp_path / "private-folder" / "base")
    assert train(hub_strategy=strategy, model_name=model, backend=backend, report_to="none") == 0
    texts = [b"the private line", b"private-folder", os.fsencode(tmp_path.parent)]
    texts += [line.encode() for line in sentences_file.read_text().splitlines() if line.count(" ") > 3]
    commits = hub.commits(REPO)
    assert len(commits) == {"end": 3, "every_save": 5}.get(strategy, 7)
    for commit in commits:
        assert not {name for name in commit.files if name.endswith(strays)}
        for name, blob in commit.files.items():
            assert not [text for text in texts if text in blob.content], name


def test_a_sentence_transformer_is_pushed_again(hub, bert, tmp_path):
    """Its config.json has no settings of this project. A report that an earlier version published is deleted."""
    run = general_trainer(sentence_transformer(bert, tmp_path / "base"), tmp_path / "run", backend="st")
    run.export(str(tmp_path / "run"))
    for _ in range(2):
        push_folder(tmp_path / "run", prepare(REPO, folder=tmp_path / "run"))
    names = remote(hub).keys()
    hub.commit(REPO, {"report.json": b"{}", "LICENSE.txt": b"x", "adapter_config.json": b"{}"}, author="alice")
    push_folder(tmp_path / "run", prepare(REPO, folder=tmp_path / "run"))
    assert remote(hub).keys() == names | {"LICENSE.txt"}
    push_card(tmp_path / "run", prepare(REPO, folder=tmp_path / "run"))
    hub.commit(REPO, {WEIGHTS: b"other"}, author="alice")
    with raises_usage(found="does not have the weights"):
        push_card(tmp_path / "run", prepare(REPO, folder=tmp_path / "run"))
