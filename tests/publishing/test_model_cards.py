import pytest

from informin.publishing.card import render_card
from tests.conftest import ROOT

RECORDS = sorted((ROOT / "model_cards" / "records").iterdir())


@pytest.mark.parametrize("folder", RECORDS, ids=lambda folder: folder.name)
def test_the_cards_are_those_of_the_records(folder):
    card = (ROOT / "model_cards" / f"{folder.name}.md").read_text(encoding="utf-8")
    assert card == render_card(folder, f"YOUR_NAME/{folder.name}")
