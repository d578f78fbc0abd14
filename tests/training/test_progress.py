"""The bar of a run in a terminal, its table in a notebook, and its lines elsewhere."""

import re
from types import SimpleNamespace

import pytest

from informin.evaluation.development import as_development
from informin.training import callbacks
from informin.training.callbacks import FirstStepRatios, GradientRatio, NotebookProgress, Progress

ARGS = SimpleNamespace(disable_tqdm=False, per_device_train_batch_size=8, gradient_accumulation_steps=2, world_size=4)


def run(monkeypatch, capsys, development, in_terminal: bool) -> tuple[list[str], str]:
    """Run two of four steps, ten seconds each, with a loss at both and an evaluation at the second one.

    Returns:
        The printed lines, and what the bar shows after the last step.
    """
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(callbacks, "hidden", lambda: not in_terminal)
    progress = Progress(development, lambda: "headline", lambda: "first step")
    state = SimpleNamespace(is_world_process_zero=True, global_step=0, max_steps=4)
    control = SimpleNamespace(should_evaluate=False)
    progress.on_train_begin(ARGS, state, control)
    for step in (1, 2):
        clock.now += 10
        state.global_step = step
        progress.on_step_end(ARGS, state, control)
        control.should_evaluate = step == 2 and development is not None
        progress.on_log(ARGS, state, control, {"loss": 0.5 / step})
    if development:
        progress.on_log(ARGS, state, control, {"eval_spearman": 80.0, "eval_alignment": 0.1, "eval_uniformity": -2.0})
    shown = "" if progress._bar.disable else str(progress._bar)
    progress.on_train_end(ARGS, state, control)
    return capsys.readouterr().out.splitlines(), shown


@pytest.fixture
def development(pairs_file):
    return as_development(pairs_file)


def test_terminal_has_a_bar_with_loss_score_and_speed(monkeypatch, capsys, development):
    lines, bar = run(monkeypatch, capsys, development, in_terminal=True)
    assert [line for line in lines if line.startswith("step")] == [
        "step 1  first step",
        f"step 2  loss 0.2500  {development.sets[0].name} 80.00  alignment 0.100  uniformity -2.000",
    ]
    assert bar.startswith("step 2/4 |") and "sentences/s" in bar
    assert f"left, loss 0.2500, {development.sets[0].name} 80.00, " in bar


def test_a_run_needs_no_standard_output(monkeypatch, capsys, development):
    """As in pythonw."""
    monkeypatch.setattr("sys.stdout", None)
    assert run(monkeypatch, capsys, development, in_terminal=False) == ([], "")


@pytest.mark.parametrize("is_scored", [True, False])
def test_without_a_terminal_each_logged_loss_is_a_line(monkeypatch, capsys, development, is_scored):
    lines, bar = run(monkeypatch, capsys, development if is_scored else None, in_terminal=False)
    assert bar == ""
    assert lines[:3] == ["headline", "step 1  first step", "step 1  loss 0.5000  6 sentences/s  00:30 left"]
    assert len(lines) == 4 and lines[3].startswith("step 2  loss 0.2500")
    assert ("80.00" in lines[3]) == is_scored


def test_a_notebook_has_a_table_of_losses_terms_and_scores(monkeypatch, capsys, development):
    shown = []
    output = SimpleNamespace(update=shown.append)
    monkeypatch.setattr("IPython.display.display", lambda first, **_: shown.append(first) or output)
    progress = NotebookProgress(development, lambda: "headline", lambda: "first step")
    state = SimpleNamespace(is_world_process_zero=True, global_step=0, max_steps=2)
    progress.on_train_begin(ARGS, state, None)
    for state.global_step in (1, 2):
        progress.on_step_end(ARGS, state, None)
        terms = {"terms/contrast": 0.25, "terms/replay": 2.0, "terms/replay/rows": 7}
        progress.on_log(ARGS, state, None, {"loss": 0.5 / state.global_step, "learning_rate": 1e-5} | terms)
    progress.on_log(ARGS, state, None, {"eval_spearman": 80.0, "eval_alignment": 0.1, "eval_uniformity": -2.0})
    progress.on_log(ARGS, state, None, {"train_runtime": 3.0})
    progress.on_train_end(ARGS, state, None)
    rows = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in shown[-1].data.split("</tr>")]
    name = development.sets[0].name
    scores = [f"{name} Spearman x 100", f"{name} alignment", f"{name} uniformity"]
    assert rows[:-1] == [
        ["step", "loss", "contrast", "replay", *scores],
        ["1", "0.5000", "0.2500", "2.0000", "", "", ""],
        ["2", "0.2500", "0.2500", "2.0000", "80.00", "0.100", "-2.000"],
    ]
    assert "[2/2 " in shown[-1].data and capsys.readouterr().out.splitlines() == ["headline", "step 1  first step"]


@pytest.mark.parametrize(
    "ratio, text", [(8.31, "8.3 times the"), (73.4, "73 times the"), (0.008, "0.8% of the"), (-0.05, "-5% of the")]
)
def test_ratios_above_one_are_times(ratio, text):
    ratios = FirstStepRatios(False, False)
    ratios.found = {"reconstruction": GradientRatio(ratio, True)}
    assert ratios.line().startswith(f"reconstruction {text} contrast's pull")
