"""Options of the tests that push from the command line."""

from informin.cli import push as push_command
from tests.publishing.push.push_helpers import (
    PUBLISHED,
)

OPTIONS = dict(max_steps=4, eval_steps=2, logging_steps=2, learning_rate=1e-3, per_device_train_batch_size=16)
FLAGS = dict(bf16="false", use_cpu="true", disable_tqdm="true")
UPLOADED = PUBLISHED | {"training.json"}


def fails(capsys, code: int, *arguments: object) -> str:
    """Run `informin push`, which must fail, and return its message."""
    assert push_command.main([str(argument) for argument in arguments]) == code
    error = capsys.readouterr().err
    error = error[error.index("error: ") :].strip()
    assert "\n" not in error and "Traceback" not in error
    return error
