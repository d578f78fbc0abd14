"""The cards in model_cards/: one per kind of model, of real runs, as today's templates write them."""

import json

import numpy as np
import pytest
from huggingface_hub import ModelCard

from informin.adapters.linear import LinearAdapter
from informin.models.checkpoint import Checkpoint
from informin.publishing.adapted import adapter_card
from informin.publishing.card import is_untouched, render_card
from tests.conftest import ROOT
from tests.publishing.card_helpers import tables

FOLDER = ROOT / "model_cards"
CARDS = sorted(FOLDER.glob("*.md"))
RECORDS = FOLDER / "records"  # the small files of each run, from which its card is written
FITTED = "all-MiniLM-L6-v2-cisi"
START = "sentence-transformers/all-MiniLM-L6-v2"


def read(path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [path for path in CARDS if path.stem != FITTED], ids=lambda path: path.stem)
def test_the_card_of_a_trained_model_is_what_its_record_gives(path):
    assert read(path) == render_card(RECORDS / path.stem, f"YOUR_NAME/{path.stem}") and is_untouched(read(path))
    record = json.loads(read(RECORDS / path.stem / "training.json"))
    assert record["base_model"]["hub_id"] == ModelCard(read(path)).data.base_model == START
    assert f"after {record['steps']} steps of" in read(path) and "Training was short: " in read(path)


def test_the_card_of_a_fitted_model_is_what_its_record_gives(tmp_path):
    """The folder of all-MiniLM-L6-v2 has its license."""
    (tmp_path / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    record = json.loads(read(RECORDS / FITTED / "report.json"))
    adapter = LinearAdapter(**record["options"])
    given = (FITTED, Checkpoint(tmp_path), record["texts"], adapter, record["drift"], "", "ours", START)
    assert read(FOLDER / f"{FITTED}.md") == adapter_card(*given)
    old, new = (record["drift"][side]["stsb_dev"] for side in ("old", "new"))
    assert new < old and f"* Spearman x 100 on STS-B dev is {new:.2f}, and {old:.2f} before." in read(
        FOLDER / f"{FITTED}.md"
    )


def test_there_is_a_card_for_each_kind_of_model():
    kinds = {path.stem: read(path) for path in CARDS}
    assert sorted(kinds) == sorted(path.name for path in RECORDS.iterdir())
    assert [name for name, card in kinds.items() if "of InforMin-CL on" in card] == ["all-MiniLM-L6-v2-informin"]
    assert [name for name, card in kinds.items() if "guided training" in card] == ["all-MiniLM-L6-v2-stackoverflow"]
    assert [name for name, card in kinds.items() if "with a linear adapter" in card] == [FITTED]


def test_the_card_of_the_papers_objective_says_that_mean_pooling_was_better():
    """It starts from [CLS], for which all-MiniLM-L6-v2 was not tuned."""
    results = {
        name: RECORDS / "all-MiniLM-L6-v2-informin" / "results" / f"{name}.json" for name in ("model", "base-mean")
    }
    ours, theirs = (json.loads(read(path))["tasks"]["STS-B"]["score"] for path in results.values())
    card = read(FOLDER / "all-MiniLM-L6-v2-informin.md")
    assert (
        theirs > ours
        and (f"source model has a higher score on STS-B (mean pooling): {theirs:.2f} instead of {ours:.2f}.")
        in card.partition("## Usage")[0]
    )
    row = tables(card)["STS, Spearman x 100"]["this model (seed 1)"]
    assert np.isclose(float(row[0]), ours, atol=0.005)


def test_no_model_index_without_scores(folder):
    """`model_name` belongs to the model-index. Alone, it would be an unknown key."""
    metadata = ModelCard(render_card(folder)).data.to_dict()
    assert "model_name" not in metadata and "model-index" not in metadata
