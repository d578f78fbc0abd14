"""Errors that a user can mend. `run_*.py` prints them as one line, an option, named in backticks, as its flag."""

LONGEST = 2_000  # characters of an error


class InforMinError(Exception):
    """The base class of this project's errors. A message is one line, whatever values it quotes.

    Attributes:
        exit_code: Exit code of a program that the error ends.
    """

    exit_code = 1

    def __init__(self, message: str):
        super().__init__(one_line(message))


class UsageError(InforMinError, ValueError):
    """An option, a file or a model cannot be used. The message is one line, built from the fields.

    Args:
        found: What is wrong, with the value that was found. Follows the option's name, as in "is -1".
        option: Name of the option concerned. `run_*.py` print it as a flag.
        needed: What is expected instead.
        fix: What to do, as a full sentence.

    Example:
        >>> raise UsageError("is -1", option="temperature", needed="a number above 0")
        Traceback (most recent call last):
        ...
        informin.errors.UsageError: `temperature` is -1; expected a number above 0.
    """

    exit_code = 2

    def __init__(self, found: str, *, option: str | None = None, needed: str | None = None, fix: str | None = None):
        self.found, self.option, self.needed, self.fix = found, option, needed, fix
        problem = f"`{option}` {found}" if option else found
        if needed:
            problem += f"; expected {needed}"
        structured = option or needed or fix
        message = f"{problem.rstrip('.')}." if structured else problem
        super().__init__(f"{message} {fix}" if fix else message)


def one_line(text: str) -> str:
    r"""A text with its control characters escaped, such as `\n`, and cut in the middle if it is too long."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


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
