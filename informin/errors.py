"""Errors that a user can fix. The commands print them in one line, with options in backticks as flags."""

import errno
from importlib.util import find_spec

EXTRAS = {
    "search": ("bm25s", "Stemmer", "regex"),  # and FAISS, which an index uses if it is installed
    "demo": ("gradio",),
    "lora": ("peft",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
}


def is_installed(package: str) -> bool:
    """Return whether a package can be imported. A folder of this name beside the command is not the package."""
    try:
        spec = find_spec(package)
    except ImportError:
        return False
    return spec is not None and spec.origin is not None


def missing_packages(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed."""
    return [package for package in EXTRAS[extra] if not is_installed(package)]


def raise_if_missing(extra: str, *, option: str | None = None, what: str = "") -> None:
    """Raise UsageError if a package of an extra is not installed.

    Args:
        extra: One of `EXTRAS`.
        option: Option that needs it.
        what: What needs it, if it is not an option.
    """
    if missing := missing_packages(extra):
        found = f"needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"
        fix = f"Install the extra `{extra}`, in a clone of the repository with: pip install -e '.[{extra}]'"
        raise UsageError(found if option else f"{what} {found}", option=option, fix=fix)


LONGEST = 2_000  # characters of an error


class InforMinError(Exception):
    """Base class of this project's errors. A message is always one line, whatever values it contains.

    Attributes:
        exit_code: Exit code of the command that the error ends.
    """

    exit_code = 1

    def __init__(self, message: str):
        super().__init__(one_line(message))


class UsageError(InforMinError, ValueError):
    """An option, a file or a model cannot be used. The message is one line, built from the fields.

    Args:
        found: What is wrong, with the value. Follows the option's name, as in "is -1".
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
        self.found = found
        self.option = option
        self.needed = needed
        self.fix = fix
        problem = f"`{option}` {found}" if option else found
        if needed:
            problem += f"; expected {needed}"
        if option or needed or fix:
            problem = f"{problem.rstrip('.')}."
        super().__init__(f"{problem} {fix}" if fix else problem)


class NonFiniteLossError(InforMinError, RuntimeError):
    """The loss became NaN or infinite. The last checkpoint is not affected."""


class SaveError(InforMinError, RuntimeError):
    """A checkpoint or a model could not be written. Files that were complete before are unchanged."""


class UndefinedScoreError(InforMinError, ValueError):
    """A task has no score: its embeddings are not finite, or all cosines are equal."""


class PushError(InforMinError, RuntimeError):
    """An upload failed. The model is saved on disk.

    Attributes:
        finish: Options of `informin push` that finish the upload, such as model_name and hub_model_id.
    """

    def __init__(self, message: str, finish: dict[str, str | bool] | None = None):  # pickle sets it later
        super().__init__(message)
        self.finish = finish or {}


def one_line(text: str) -> str:
    r"""Return a text with control characters escaped, such as `\n`, and shortened in the middle if it is too long."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    return escaped(text)


def escaped(text: str, kept: str = "") -> str:
    r"""Return a text with control characters escaped, such as `\n`, except those in `kept`: terminals obey them."""
    return "".join(one if one.isprintable() or one in kept else repr(one)[1:-1] for one in text)


def is_wrong_path(error: OSError) -> bool:
    """Return whether an error is about a path that was given, and not about a full disk or a broken connection."""
    wrong = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
    return isinstance(error, wrong) or error.errno in (errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)


def error_line(error: BaseException) -> str:
    """Return the message of another library's error in one line."""
    return " ".join(str(error).split())


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 sentence" or "1,024 sentences". The plural must end in s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def capitalized(text: str) -> str:
    """Return a text that starts with a capital letter, such as a title at the start of a line."""
    return text[:1].upper() + text[1:]
