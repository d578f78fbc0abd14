"""A part of tools/interrupted_commands.py: killed commands leave no half of an output, and run again.

Two processes give the numbers of one, and end if the other one is killed.
"""

import pytest

from tools.interrupted_commands import COMMANDS, TOGETHER, one_killed, row, save_inputs, undisturbed


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    folder = tmp_path_factory.mktemp("inputs")
    save_inputs(folder, outputs=False)
    return folder


@pytest.mark.parametrize(
    "name, situation", [("fit --embeddings", "SIGKILL"), ("fit --embeddings", "SIGTERM"), ("embed", "second run")]
)
def test_interrupted(inputs, name, situation):
    cells, wrong = row(inputs, name, situation, undisturbed(inputs, COMMANDS[name]))
    assert wrong == [], cells


@pytest.mark.parametrize("name, killed", zip(TOGETHER, (1, 0, 1)))
def test_one_of_two_processes_is_killed(inputs, name, killed):
    cells, wrong = one_killed(inputs, name, killed)
    assert wrong == [], cells
