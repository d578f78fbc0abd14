"""Check the texts that an encoder is given from Python."""

from collections.abc import Iterable

from informin.errors import UsageError
from informin.textfiles import as_text


def as_texts(sentences: Iterable[str], option: str = "sentences") -> list[str]:
    """Return the texts of a list, an array, a column of a data set or another iterable as a list.

    Raises:
        UsageError: It is one string, or it contains something other than text.
    """
    needed = "a list of sentences"
    if isinstance(sentences, str | bytes) or not isinstance(sentences, Iterable):
        found = f"is one text, {sentences!r:.40}" if isinstance(sentences, str) else f"is a {type(sentences).__name__}"
        raise UsageError(found, option=option, needed=needed, fix="Put it in a list.")
    try:
        texts = list(sentences)
    except TypeError as error:  # an array without dimensions
        raise UsageError(f"cannot be listed: {error}", option=option, needed=needed) from None
    for text in texts:
        if not isinstance(text, str):
            raise UsageError(f"contains {text!r:.60}", option=option, needed=needed)
        as_text(text, f"`{option}`", None)
    return texts
