"""Everything that a run prints, line by line."""

import math
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from informin.evaluation.development import Development
from informin.evaluation.labels import LabeledSentences
from informin.evaluation.pairs import GradedPairs
from informin.training.history import logged_scores
from informin.training.progress import Progress, scores
from informin.training.run_summary import headline, reconstruction_note
from tests.cli.test_run import ENVIRONMENT
from tests.conftest import ROOT, make_sentences
from trainer_informin import InforMinTrainer

SCORES = {"eval_spearman": 83.474, "eval_alignment": 0.15, "eval_uniformity": -2.4}
PAIRS = Development((GradedPairs("STS-B dev", [], [], []),))
OUTPUT = r"""InforMin-CL on tiny-bert: 96 sentences, batch size 16, max length 32, learning rate .*
step 0 pairs.tsv N alignment N uniformity N
step 2 loss N pairs.tsv N alignment N uniformity N
step 4 loss N pairs.tsv N alignment N uniformity N

pairs.tsv, Spearman x 100 N before, N after \(step [24]\)
pairs.tsv, alignment N before, N after \(step [24]\)
pairs.tsv, uniformity N before, N after \(step [24]\)
drift, 10 nearest neighbors kept, % N
drift, distance of old neighbors, % of all pairs N before, N after
drift, hubness N before, N after
drift, STS-B dev not scored
last terms, unweighted contrast N, reconstruction N; loss N
training speed N sentences/s \(1 process, fp32\)
peak memory N GiB
model run
losses and scores run/report.json, by step \(`informin report run` draws them\)
(
Note: .*
)?
Load the model:
 from transformers import AutoModel
 model = AutoModel.from_pretrained\("run", trust_remote_code=True\)
Report: run/report.html
"""


def test_output_of_a_first_run(command, tmp_path):
    """Without a terminal there is no progress bar, no dict and no message of a library, on stdout and stderr."""
    arguments = command(disable_tqdm=None, output_dir="run", learning_rate=None)
    run = subprocess.run(
        [sys.executable, str(ROOT / "run_unsup.py"), *arguments],
        env=ENVIRONMENT | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    shown = re.sub(" +", " ", run.stdout)  # columns are aligned
    assert re.fullmatch(re.sub(r"\bN\b", r"-?\\d+\\.\\d+", OUTPUT), shown), run.stdout


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("development", [None, PAIRS])
def test_one_line_per_evaluation_or_log_entry(capsys, development, verbose):
    progress, args = Progress(development, str), SimpleNamespace(verbose=verbose)
    state = SimpleNamespace(is_world_process_zero=True, global_step=125)
    progress.on_log(
        args,
        state,
        None,
        logs={"loss": 0.03149, "terms/contrast": 0.02, "projection_norm": 3.0, "learning_rate": 1e-5, "epoch": 1},
    )
    if development:
        progress.on_log(args, state, None, logs=SCORES)
    lines = capsys.readouterr().out.splitlines()
    evaluation = ["step 125  loss 0.0315  STS-B dev 83.47  alignment 0.150  uniformity -2.400"]
    log = ["step 125  loss 0.0315" + "  contrast 0.0200" * verbose]
    assert lines == (log if verbose or not development else []) + (evaluation if development else [])


@pytest.mark.parametrize(
    ("loss", "shown"), [(2.1e-6, "2.1e-06"), (9.99e-4, "1.0e-03"), (0.001, "0.0010"), (0, "0.0000"), (math.nan, "nan")]
)
def test_small_losses_are_not_printed_as_zero(capsys, loss, shown):
    """As of contrast with mean pooling and no projection head, whose views are almost equal."""
    state, args = SimpleNamespace(is_world_process_zero=True, global_step=1), SimpleNamespace(verbose=True)
    Progress(None, str).on_log(args, state, None, logs={"loss": loss, "terms/contrast": loss})
    assert capsys.readouterr().out == f"step 1  loss {shown}  contrast {shown}\n"


def test_undefined_scores_are_printed_as_such():
    undefined = logged_scores(dict.fromkeys(SCORES, math.nan))
    assert scores(undefined, PAIRS) == "STS-B dev undefined  alignment undefined  uniformity undefined"


def test_scores_of_several_data_sets():
    """The first number for pairs has no measure name; others do."""
    both = Development((LabeledSentences("titles.tsv", [], []), *PAIRS.sets))
    found = logged_scores(SCORES | {"eval_v_measure": 70.246, "eval_nearest_neighbor": 77.56, "eval_runtime": 3.0})
    pairs = "STS-B dev 83.47  alignment 0.150  uniformity -2.400"
    assert scores(found, both) == f"{pairs}  titles.tsv V-measure 70.25  1-NN 77.56"


def test_other_processes_are_silent(capsys):
    state = SimpleNamespace(is_world_process_zero=False, global_step=1)
    Progress(PAIRS, str).on_log(None, state, None, logs=SCORES)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "weight, form, steps, noted",
    [
        (0.4, "squared_l2", 199, False),
        (0.4, "squared_l2", 200, True),
        (0.4, "squared_l2", 7812, True),
        (0.01, "squared_l2", 200, False),
        (0.4, "reference", 7812, False),
        (None, None, 7812, False),
    ],
)
def test_long_runs_with_much_reconstruction_get_a_note(weight, form, steps, noted):
    """A weight of 0.4 in 200 steps was worse than SimCSE with three encoders."""
    options = {"objective": "informin", "reconstruction_weight": weight, "reconstruction_form": form}
    note = reconstruction_note({name: value for name, value in options.items() if value is not None}, steps)
    assert note.startswith(f"\n`reconstruction_weight` 0.4 over {steps:,} steps: ") if noted else note == ""


def test_the_note_is_below_the_headline(bert, arguments):
    how = dict(reconstruction_weight=30.0, reconstruction_form="squared_l2", eval_strategy="no")
    run = InforMinTrainer(str(bert), arguments(**how), make_sentences(64))
    run.state.max_steps = 4
    assert headline(run).splitlines()[1].startswith("`reconstruction_weight` 30 over 4 steps")
