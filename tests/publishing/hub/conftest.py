"""The client for the tests of tests/hub_server.py."""

import pytest
from huggingface_hub import HfApi


@pytest.fixture
def api(logged_in) -> HfApi:
    """The client of the user alice."""
    return HfApi(token="hf_alice")
