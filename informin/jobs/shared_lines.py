"""Find and remove lines at the beginning or end of many texts, such as greetings and signatures.

Texts that share such lines have similar embeddings, so they become each other's neighbors whatever they are about.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from informin.errors import counted
from informin.textfiles import shown

FEWEST, COPIES, FRACTION = 20, 5, 0.05  # texts of several lines; and how many of them share a line: more than both


@dataclass(frozen=True)
class SharedLine:
    """A line that many texts share.

    Attributes:
        line: The line, without white space around it.
        last: Whether it is the last line of the texts, after other shared lines were removed; else it is the first.
        texts: Number of different texts.
    """

    line: str
    last: bool
    texts: int


def find_shared_lines(texts: Iterable[str]) -> list[SharedLine]:
    """Return lines that are the first or the last of more than 5 % of the different texts of several lines.

    What follows after a shared line is removed counts, too, so all lines of a signature are found.
    """
    rest = [lines for text in dict.fromkeys(texts) if len(lines := _lines(text)) > 1]
    found: list[SharedLine] = []
    if len(rest) < FEWEST:
        return found
    needed = max(COPIES, FRACTION * len(rest))
    while True:
        new = []
        for last in (False, True):
            counts = Counter(lines[-last] for lines in rest if len(lines) > 1)
            new += [SharedLine(line, last, number) for line, number in counts.items() if number > needed]
        if not new:
            return sorted(found, key=lambda one: -one.texts)
        found += new
        for lines in rest:
            _strip(lines, found)


def without_shared_lines(texts: Sequence[str], shared: Sequence[SharedLine]) -> list[str]:
    """Return the texts without these lines. The last line that would remain of a text stays."""
    stripped = []
    for text in texts:
        lines = text.splitlines()
        before = len(_lines(text))
        _strip(lines, shared)
        stripped.append(text if len(_lines("\n".join(lines))) == before else "\n".join(lines).strip())
    return stripped


def checked_lines(texts: list[str], strip: bool) -> tuple[list[str], str | None]:
    """Return the texts, with `strip` without the lines that many share, and a sentence about these lines, if any."""
    shared = find_shared_lines(texts)
    if not shared:
        return texts, None
    first, number = shared[0], len(shared) - 1
    what = f"{counted(first.texts, 'text')} {'end' if first.last else 'begin'} with the line '{shown([first.line])}'"
    if number:
        what += f", and many share {counted(number, 'other line')} at the beginning or end"
    if strip:
        return without_shared_lines(texts, shared), f"{what}. `strip_shared_lines` removed them."
    return texts, f"{what}. Such texts become each other's neighbors. `strip_shared_lines` removes these lines."


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _strip(lines: list[str], shared: Sequence[SharedLine]) -> None:
    """Remove shared lines at both ends of a text's lines, and blank ones next to them, but not its only line."""
    for last in (False, True):
        known = {"", *(one.line for one in shared if one.last == last)}
        while sum(bool(line.strip()) for line in lines) > 1 and lines[-last].strip() in known:
            lines.pop(-last)
