r"""Fit in another language: messages of programs in German, and the same messages in English.

    python -m benchmarks.languages --model E5 --prompt "query: " --output benchmarks/results/languages

Texts are the translated messages in /usr/share/locale (gettext catalogs). The score of a held-out message is the
fraction of its 10 nearest fitted messages that come from the same program, before and after `informin fit`.
"""

import argparse
import gettext
from pathlib import Path

import numpy as np

import informin
from benchmarks.significance import permutation_p
from informin.evaluation.geometry import unit
from informin.files import write_json

FITTED, SCORED = 1_500, 750
WORDS, FEWEST = (4, 40), 100  # words of a message, and messages of a program
NEAREST = 10


def messages(folder: Path) -> list[tuple[str, str, str]]:
    """Return (English, translation, program) of distinct messages, in a random order."""
    found: dict[str, tuple[str, str, str]] = {}
    for path in sorted(folder.glob("*.mo")):
        try:
            with path.open("rb") as file:
                catalog = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        except UnicodeDecodeError:  # an old catalog in another encoding
            continue
        own = {
            (english, other)
            for english, other in catalog.items()
            if isinstance(english, str) and all(WORDS[0] <= len(x.split()) <= WORDS[1] for x in (english, other))
        }
        if len(own) >= FEWEST:
            found |= {other: (english, other, path.stem) for english, other in sorted(own) if english != other}
    rows = list(found.values())
    return [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]


def shares(documents: np.ndarray, queries: np.ndarray, same: np.ndarray) -> np.ndarray:
    """Return the share (m,) in percent of the right program among the 10 nearest documents."""
    nearest = np.argpartition(-(unit(queries) @ unit(documents).T), NEAREST, axis=1)[:, :NEAREST]
    return 100 * np.take_along_axis(same, nearest, 1).mean(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", default="")
    parser.add_argument("--catalogs", type=Path, default=Path("/usr/share/locale/de/LC_MESSAGES"))
    parser.add_argument("--output", type=Path, required=True, help="Name of the .json file.")
    args = parser.parse_args()
    rows = messages(args.catalogs)[: FITTED + SCORED]
    programs = np.array([row[2] for row in rows])
    same = programs[FITTED:, None] == programs[None, :FITTED]
    model = informin.load_model(args.model, prompt=args.prompt)
    found = {"texts": len(rows), "programs": len(set(programs))}
    for column, language in enumerate(("English", "translated")):
        texts = [row[column] for row in rows]
        queries = informin.embed(model, texts[FITTED:])
        result = informin.fit(model, texts[:FITTED])
        before = shares(result.vectors, queries, same)
        adapted = [result.adapter.transform(x) for x in (result.vectors, queries)]
        after = shares(*adapted, same)
        false = ((adapted[1] @ adapted[0].T > result.adapter.threshold()) & ~same).sum() / len(queries)
        assert result.prediction
        found[language] = {
            "before": before.mean(),
            "after": after.mean(),
            "p": permutation_p(after - before),
            "preset": result.preset,
            "verdict": result.prediction.verdict,
            "threshold": result.adapter.threshold(),
            "false_hits": float(false),
            "drift": {name: result.drift[name] for name in ("old", "new")} if result.drift else None,
        }
        print(language, found[language], flush=True)
        write_json(args.output.with_suffix(".json"), found)


if __name__ == "__main__":
    main()
