"""`informin export`."""

import pytest

from informin.cli import export

pytestmark = pytest.mark.usefixtures("logging_as_before")


def words(model, folder, *others: str) -> list[str]:
    return ["--model_name", str(model), "--output_dir", str(folder), *others]


def test_int8_needs_onnx(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        export.main(words("m", tmp_path / "new", "--int8"))
    assert caught.value.code == 2 and "--int8" in capsys.readouterr().err
