"""run_unsup.py: wrong options and inputs end with a one-line error, and leave no files."""

import shutil

import pytest
from transformers import AutoModel

import run_unsup
from tests import forked
from tests.cli.test_run import ENVIRONMENT
from tests.conftest import make_sentences, save_bert


def fails(capsys, arguments: list[str], code: int = 2) -> str:
    """Run the command, which must fail with this exit code, and return its error message."""
    assert run_unsup.main(arguments) == code
    error = capsys.readouterr().err
    return error[error.index("error: ") :].strip()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(train_file="nowhere.txt"), "nowhere.txt does not exist"),
        (dict(model_name="no/such-model"), "--model_name no/such-model cannot be loaded"),
        (dict(eval_pairs="nowhere.tsv"), "nowhere.tsv does not exist"),
        (dict(eval_pairs=None, senteval_dir="nowhere"), "expected SentEval's data/downstream"),
        (dict(per_device_train_batch_size=1), "batch of 1 sentence, which is too small for contrast"),
        (dict(per_device_train_batch_size=97), "Found 96 sentences, fewer than one batch of 97"),
        (dict(seed="x"), "--seed is 'x'; expected an integer"),
        (dict(learning_rat=1), "--learning_rat=1: no such option. Did you mean --learning_rate? See --help."),
        (dict(attention_mi_form="code"), "--attention_mi_form is 'code'; expected one of: "),
        (dict(model_name=None), "--model_name is missing"),
        (dict(temperature=0), "--temperature is 0.0; expected a number above 0"),
        (dict(reconstruction_weight=-1), "--reconstruction_weight is -1.0; expected 0 or more"),
        (dict(mlm_weight=-0.1), "--mlm_weight is -0.1; expected 0 or more"),
        (dict(max_seq_length=1000), "expected at most 66"),
        (dict(save_steps=3), "round multiple"),
        (dict(resume_from_checkpoint="last"), "has no complete checkpoint"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_options_print_one_line_and_leave_no_files(command, tmp_path, capsys, changes, message):
    error = fails(capsys, command(**changes))
    assert message in error and "\n" not in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected at least one sentence"),
        (b"\n \n\t\n", "only 3 blank lines"),
        (b"the dog\nthe c\xe4t\n", "line 2: not UTF-8 (byte 0xe4"),
        (b"\x7fELF\0\0", "is a binary file"),
    ],
    ids=["empty", "blank", "latin-1", "binary"],
)
def test_unreadable_files_print_one_line_and_leave_no_files(command, tmp_path, capsys, content, message):
    (tmp_path / "bad.txt").write_bytes(content)
    error = fails(capsys, command(train_file=tmp_path / "bad.txt"))
    assert message in error and "bad.txt" in error
    assert not (tmp_path / "run").exists()


def test_missing_text_column_is_an_error(command, tmp_path, capsys):
    (tmp_path / "table.csv").write_text("id,sentence\n1,the dog\n")
    error = fails(capsys, command(train_file=tmp_path / "table.csv", text_column="txet"))
    assert "has no column 'txet'; its columns are id, sentence" in error


def test_blank_lines_are_skipped_and_counted(command, tmp_path, caplog):
    (tmp_path / "gaps.txt").write_text("\n\n".join(make_sentences(20)) + "\n")
    assert run_unsup.main(command(train_file=tmp_path / "gaps.txt", max_steps=1)) == 0
    assert "20 sentences" in caplog.text and "(19 blank lines skipped)" in caplog.text


def test_used_output_folder_is_an_error_and_unchanged(command, tmp_path, capsys):
    run_unsup.main(command())
    before = sorted(path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*"))
    assert "already contains" in fails(capsys, command())
    assert sorted(path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")) == before


def test_model_without_dropout_is_an_error(command, tmp_path, capsys):
    still = save_bert(tmp_path / "still", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    assert "Every dropout rate of this model is 0" in fails(capsys, command(model_name=still))


def test_mlm_without_language_model_head_is_an_error(command, bert, tmp_path, capsys):
    shutil.copytree(bert, tmp_path / "headless")
    AutoModel.from_pretrained(bert, add_pooling_layer=False).save_pretrained(tmp_path / "headless")
    error = fails(capsys, command(model_name=tmp_path / "headless", mlm_weight=0.1))
    assert "has no language-model head" in error
    assert not (tmp_path / "run").exists()


def test_model_without_tokenizer_is_an_error(command, bert, tmp_path, capsys):
    (tmp_path / "bare").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(bert / name, tmp_path / "bare")
    assert "tokenizer" in fails(capsys, command(model_name=tmp_path / "bare"))


def test_exploding_loss_exits_with_1(command, capsys):
    error = fails(capsys, command(learning_rate=1e30, max_grad_norm=0, max_steps=20), code=1)
    assert "The loss is nan at step" in error and "contrast" in error


def test_exit_code_of_the_script(command, tmp_path):
    run = forked.run(forked.script("run_unsup.py", command(train_file="nowhere.txt"), env=ENVIRONMENT))
    assert run.returncode == 2 and "Traceback" not in run.stderr
    assert "error: --train_file: nowhere.txt does not exist." in run.stderr
