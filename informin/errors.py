"""Errors that a user can mend. `run_*.py` prints them as one line; see each class for the exit code."""


class UsageError(ValueError):
    """Something in the options, files or model given: what was found, what is needed, what to do. Exit code 2."""


def error_line(error: Exception) -> str:
    """A library's message in one line, without the line breaks and hints that suit a traceback."""
    return " ".join(str(error).split())


def counted(number: int, noun: str) -> str:
    """1 sentence, 1,024 sentences: for nouns whose plural takes an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class NonFiniteLossError(RuntimeError):
    """The loss became NaN or infinite. Exit code 1; the last checkpoint is good."""


class SaveError(RuntimeError):
    """A checkpoint or a model could not be written; what was whole before still is. Exit code 1."""


class UndefinedScoreError(ValueError):
    """A task has no score: its embeddings are not finite, or all cosines are alike."""


class PushError(RuntimeError):
    """An upload failed; the model is safe on disk, and the message has the command that finishes it. Exit code 1."""


class OnnxMismatchError(RuntimeError):
    """An ONNX file gives other embeddings than the model it was made from; it was not kept. Exit code 1."""
