"""Changes to model folders, and the error of a command."""

import json
from pathlib import Path

SHARE = 0.02


def refusal(capsys, call, model) -> str:
    """Return the single line that a command prints before exit code 2."""
    capsys.readouterr()
    assert call(model) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("error: ") == 1 and "Traceback" not in err
    line = err[err.index("error: ") :]
    assert line.count("\n") == 1
    return line.removeprefix("error: ").rstrip("\n")


def printed(command: str, message: str) -> str:
    """Return a message as a command prints it, with options as flags."""
    return message if command in ("export", "push", "onnx") else message.replace("`model_name`", "--model_name")


def change(name: str, **values):
    """Change values in a JSON file."""

    def damage(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return damage


def config(**values):
    return change("config.json", **values)
