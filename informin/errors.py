"""Errors that a user can fix. The scripts print them in one line, with options in backticks as flags."""

import errno
import re

LONGEST = 2_000  # characters of an error
WRITABLE = "Check the folder's permissions and the free disk space."
WRITE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
NO_SPACE = "No space left"
# Messages of safetensors, torch and tokenizers, which raise other types than OSError.
WRITE_MESSAGES = re.compile(rf"{NO_SPACE}|unexpected pos|file write failed|\(os error \d+\)")


class InforMinError(Exception):
    """Base class of this project's errors. A message is always one line, whatever values it contains.

    Attributes:
        exit_code: Exit code of the script that the error ends.
    """

    exit_code = 1

    def __init__(self, message: str):
        super().__init__(one_line(message))


class UsageError(InforMinError, ValueError):
    """An option, a file or a model cannot be used. The message is one line, built from the fields.

    Args:
        found: What is wrong, with the value that was found. Follows the option's name, as in "is -1".
        option: Name of the option concerned. The command line prints it as a flag.
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
    r"""Return a text with control characters escaped, such as `\n`, and shortened in the middle if it is too long."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def refuse_undecoded(text: str, what: str) -> None:
    """Raise UsageError for a text with half of a surrogate pair: Python reads names that are not UTF-8 as such texts.

    Args:
        what: What the text is, with the text itself.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} is not UTF-8", fix="Rename it, or write it in UTF-8.") from None


def error_line(error: BaseException) -> str:
    """Return the message of another library's error in one line."""
    return " ".join(str(error).split())


def is_write_error(error: BaseException) -> bool:
    """Return whether an exception, raised while writing files, is about the disk or the folder."""
    return isinstance(error, OSError) or WRITE_MESSAGES.search(str(error)) is not None


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 sentence" or "1,024 sentences". The plural must end in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class NonFiniteLossError(InforMinError, RuntimeError):
    """The loss became NaN or infinite. The last checkpoint is not affected."""


class SaveError(InforMinError, RuntimeError):
    """A checkpoint or a model could not be written. Files that were complete before are unchanged."""


class LostProcessError(InforMinError, RuntimeError):
    """Another process of the run has died."""


class UndefinedScoreError(InforMinError, ValueError):
    """A task has no score: its embeddings are not finite, or all cosines are equal."""


class PushError(InforMinError, RuntimeError):
    """An upload failed. The model is saved on disk.

    Attributes:
        finish: Options of `informin push` that finish the upload: folder, repo and, if given, branch, overwrite and
            update_card.
    """

    def __init__(self, message: str, finish: dict[str, str | bool]):
        super().__init__(message)
        self.finish = finish


class OnnxMismatchError(InforMinError, RuntimeError):
    """An ONNX file gives different embeddings than its source model. The file was deleted."""
