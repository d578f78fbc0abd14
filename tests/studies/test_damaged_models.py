"""A trained model whose record cannot be read is kept, not trained again."""

from types import SimpleNamespace

import pytest

from informin.errors import UsageError
from informin.studies.runs import untrained


@pytest.mark.parametrize("record", ["{", "[]", '{"schema": 1}'])
def test_a_damaged_record_stops_the_study(tmp_path, record):
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "training.json").write_text(record)
    run = SimpleNamespace(setting=SimpleNamespace(trained=True), model=tmp_path)
    with pytest.raises(UsageError) as error:
        untrained(run)
    assert str(tmp_path / "training.json") in str(error.value)


def test_a_missing_record_means_untrained(tmp_path):
    assert untrained(SimpleNamespace(setting=SimpleNamespace(trained=True), model=tmp_path))
