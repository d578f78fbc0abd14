"""The cards in model_cards/."""

import numpy as np
import pytest
from huggingface_hub import ModelCard

from informin.objectives import OBJECTIVES
from informin.publishing.card import is_untouched, render_card
from informin.studies.summary import load_study
from tests.conftest import ROOT
from tests.publishing.card_helpers import tables

CARDS = sorted((ROOT / "model_cards").glob("*.md"))


def test_every_published_objective_has_a_card():
    published = [name for name, objective in OBJECTIVES.items() if objective.rows]
    assert [path.name for path in CARDS] == sorted(f"all-MiniLM-L6-v2-{objective}.md" for objective in published)


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_card_in_the_repository_has_the_measured_scores(path):
    """The seed of the main study with the best development score."""
    card, objective = path.read_text(encoding="utf-8"), path.stem.rpartition("-")[2]
    assert is_untouched(card)
    study, runs = load_study(ROOT / "results" / "studies" / "main-small" / "summary.json")
    records = [run for (setting, _), run in runs.items() if setting == objective]
    best = max(records, key=lambda record: record["dev"]["spearman"])
    data = ModelCard(card).data
    scores = {result.dataset_config: result.metric_value for result in data.eval_results}
    assert scores == {task: round(best["scores"][task], 2) for task in study.tasks} and data.model_name == path.stem
    table = tables(card)["STS, Spearman x 100"]
    assert table[f"this model (seed {best['seed']})"][-1] == f"{best['averages']['sts']:.2f}"
    averages = [record["averages"]["sts"] for record in records]
    assert table["mean ± sd of these 5"][-1] == f"{np.mean(averages):.2f} ± {np.std(averages, ddof=1):.2f}"


def test_no_model_index_without_scores(folder):
    """`model_name` belongs to the model-index. Alone, it would be an unknown key."""
    metadata = ModelCard(render_card(folder)).data.to_dict()
    assert "model_name" not in metadata and "model-index" not in metadata
