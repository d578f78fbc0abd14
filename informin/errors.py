"""Errors that a user can mend. `run_*.py` prints them as one line, an option, named in backticks, as its flag."""


class InforMinError(Exception):
    """What all errors of this project are.

    Attributes:
        exit_code: of a program that the error ends.
    """

    exit_code = 1


class UsageError(InforMinError, ValueError):
    """Something in the options, files or model given: what was found, what is needed, what to do."""

    exit_code = 2


def error_line(error: Exception) -> str:
    """A library's message in one line, without the line breaks and hints that suit a traceback."""
    return " ".join(str(error).split())


def counted(number: int, noun: str) -> str:
    """1 sentence, 1,024 sentences: for nouns whose plural takes an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class NonFiniteLossError(InforMinError, RuntimeError):
    """The loss became NaN or infinite; the last checkpoint is good."""


class SaveError(InforMinError, RuntimeError):
    """A checkpoint or a model could not be written; what was whole before still is."""


class LostProcessError(InforMinError, RuntimeError):
    """Another process of the run is gone."""


class UndefinedScoreError(InforMinError, ValueError):
    """A task has no score: its embeddings are not finite, or all cosines are alike."""


class PushError(InforMinError, RuntimeError):
    """An upload failed; the model is safe on disk.

    Attributes:
        finish: the options of run_push.py that finish it: folder, repo and, where they were given, branch, overwrite
            and update_card.
    """

    def __init__(self, message: str, finish: dict[str, str | bool]):
        super().__init__(message)
        self.finish = finish


class OnnxMismatchError(InforMinError, RuntimeError):
    """An ONNX file gives other embeddings than the model it was made from; it was not kept."""
