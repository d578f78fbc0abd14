"""An index of 150 sentences that a tiny BERT embeds."""

import pytest

from informin.search.index import Index
from tests.conftest import make_sentences


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return make_sentences(150)


@pytest.fixture(scope="session")
def built(st_mean, texts) -> Index:
    """Tests must not change it."""
    return Index.build(st_mean, texts)
