"""Damage small text files at random, and read them: the texts are whole, or the reader raises an error that says why.

    python -m tools.fuzz_files [--number 2000] [--seed 0]

Each case is a .txt, .csv, .tsv or .jsonl file, plain or compressed, in which bytes are cut, changed, repeated or
inserted. The reader must return texts without NUL, without line breaks in a .txt file, and without a byte order mark at
the beginning, or raise UsageError or OSError. Anything else is printed, and the exit code is then 1.
"""

import argparse
import gzip
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from informin.errors import UsageError
from informin.texts import read_rows, read_texts

TEXTS = ["the dog runs", 'she said "no", then left', "NA", "007", "Zürich 京都", "a\tb", "x" * 50, "", "null"]
INSERTED = [
    b"\x00",
    b"\xef\xbb\xbf",
    b'"',
    b",",
    b"\t",
    b"\n",
    b"\r\n",
    b"\r",
    b"\xff",
    b"{",
    b"NaN",
    b"1e999",
    b" " * 9,
]
FORBIDDEN = ("\n", "\x00")


def originals() -> dict[str, bytes]:
    """Return the content of each kind of file by its suffix."""
    quoted = ['"{}"'.format(text.replace('"', '""')) for text in TEXTS]
    files = {
        ".txt": "\n".join(TEXTS),
        ".csv": "text,label\n" + "".join(f"{text},{i}\n" for i, text in enumerate(quoted)),
        ".tsv": "text\tlabel\n" + "".join(f"{text.replace(chr(9), ' ')}\t{i}\n" for i, text in enumerate(TEXTS)),
        ".jsonl": "".join(
            f'{{"text": {text}, "label": {i}}}\n' for i, text in enumerate(['"a"', '"NA"', "null", '"ü"'])
        ),
    }
    plain = {suffix: content.encode() for suffix, content in files.items()}
    return plain | {f"{suffix}.gz": gzip.compress(content) for suffix, content in plain.items()}


def damaged(content: bytes, source: random.Random) -> bytes:
    """Return the content after one to three changes at random places."""
    for _ in range(source.randint(1, 3)):
        start = source.randrange(len(content) + 1)
        end = min(len(content), start + source.randint(1, 20))
        part = {
            "cut": b"",
            "end": None,
            "changed": bytes(source.randrange(256) for _ in content[start:end]),
            "repeated": content[start:end] * 2,
            "inserted": source.choice(INSERTED) + content[start:end],
        }[source.choice(["cut", "end", "changed", "repeated", "inserted"])]
        content = content[:start] if part is None else content[:start] + part + content[end:]
    return content


def problem_of(path: Path) -> str | None:
    """Return what is wrong with how a file is read, or None."""
    for read in (lambda: list(read_texts(path)), lambda: [row["text"] for row in read_rows(path, ["text"], "file")]):
        try:
            texts = read()
        except (UsageError, OSError):
            continue
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        forbidden = FORBIDDEN if ".txt" in path.suffixes else FORBIDDEN[1:]
        wrong = [text for text in texts if any(part in str(text) for part in forbidden)]
        wrong += [text for text in texts[:1] if str(text).startswith("\ufeff")]
        if wrong:
            return f"the text {wrong[0]!r}"
    return None


def fuzz(number: int, seed: int = 0) -> Iterator[tuple[str, bytes, str]]:
    """Yield suffix, content and problem of each case that fails."""
    source, kinds = random.Random(seed), originals()
    with tempfile.TemporaryDirectory() as folder:
        for case in range(number):
            suffix = source.choice(sorted(kinds))
            path = Path(folder, f"{case}{suffix}")
            path.write_bytes(damaged(kinds[suffix], source))
            if problem := problem_of(path):
                yield suffix, path.read_bytes(), problem
            path.unlink()


def main() -> int:
    """Print the cases that fail. Return 1 if there are such."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    failed = list(fuzz(args.number, args.seed))
    for suffix, content, problem in failed:
        print(f"{suffix}: {problem}\n    {content!r:.300}")
    print(f"{len(failed)} of {args.number} cases failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
