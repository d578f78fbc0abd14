"""Judge the decision of `informin upgrade` on every ordered pair of models, against the measured best.

    python benchmarks/upgrade.py --model_name MODEL[:POOLER] ... --data_dir SHARED/data --cache FOLDER \
        --output results/upgrade.json

For each pair, the table has nDCG@10 of the old model (stay), of its adapter (fit), of queries of the new model in the
adapted old index (bridge), and of the new model with its adapter (again). The decision is right if it is the measured
best. The margin was selected on CISI; NPL reports. A model folder without config.json is read as the unpacked wordllama
package, and a folder whose parent is named e5 gets the prompts of E5.
"""

import sys
from dataclasses import asdict
from itertools import permutations
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.prediction import arguments, cached, encoder_of, label_of, load_data, sides
from benchmarks.report import machine
from informin.adapters import bridge as bridge_module
from informin.adapters.bridge import AGAIN, BRIDGE, DECISIONS, FIT, STAY, Bridge, Expected, expect
from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import make_tests
from informin.evaluation.geometry import unit
from informin.files import write_json


class Remembered(LinearAdapter):
    """A LinearAdapter that fits equal embeddings once: each model is in many pairs."""

    fits: ClassVar[dict] = {}

    def fit(self, X, y=None):
        """Fit the map, or take that of an earlier fit."""
        key = X.shape, X[:2].tobytes(), X[-2:].tobytes()
        if key not in self.fits:
            self.fits[key] = super().fit(X)
        return self.fits[key]


bridge_module.LinearAdapter = Remembered  # type: ignore[misc]
KEPT = (STAY, FIT, BRIDGE)  # decisions that keep the index
CLOSE = 1.0  # points from the measured best


def pairs_of(names: list[str], folder: Path, cache: Path) -> list[dict]:
    """Measure all ordered pairs of models on the collections."""
    found = []
    for data in load_data(folder):
        if data.classes is not None:
            continue
        vectors, own, adapted, tests = {}, {}, {}, {}
        for name in names:
            query, document = sides(cached(encoder_of(name), name, cache), name, data)
            vectors[name] = unit(document(data.texts)), unit(query(data.scored))
            tests[name] = make_tests(data.texts, vectors[name][0], document, query, most=1)[0]
            own[name] = float(data.score(*vectors[name]).mean())
        for old, new in permutations(names, 2):
            bridge = Bridge.fit(vectors[new][0], vectors[old][0])
            for name, adapter in ((old, bridge.old), (new, bridge.new)):
                if name not in adapted:
                    adapted[name] = float(data.score(*map(adapter.transform, vectors[name])).mean())
            index, queries = bridge.index(vectors[old][0]), bridge.transform(vectors[new][1])
            real = {STAY: own[old], FIT: adapted[old], BRIDGE: float(data.score(index, queries).mean()),
                    AGAIN: adapted[new]}  # fmt: skip
            expected = expect(tests[new], tests[old])
            found.append({"data": data.name, "old": label_of(old), "new": label_of(new), "real": real,
                          **asdict(expected)})  # fmt: skip
            print(found[-1], flush=True)
    return found


def decided(pair: dict, kept: bool) -> tuple[str, float, float]:
    """Return the decision, its distance to the measured best, and its gain against staying."""
    expected = Expected(*(pair[name] for name in ("log_ranks", "texts", "query_log_ranks")))
    decision = expected.best_with_old_index if kept else expected.best
    real = pair["real"]
    best = max(real[name] for name in (KEPT if kept else DECISIONS))
    return decision, real[decision] - best, real[decision] - real[STAY]


def pair_table(pairs: list[dict]) -> str:
    """Return the measured scores of each pair, and both decisions."""
    lines = ["| data | old -> new | stay | fit | bridge | again | decision | without embedding again |",
             "| --- | --- | ---: | ---: | ---: | ---: | --- | --- |"]  # fmt: skip
    for pair in pairs:
        scores = " | ".join(f"{pair['real'][name]:.2f}" for name in DECISIONS)
        told = []
        for kept in (False, True):
            decision, lost, _ = decided(pair, kept)
            told.append(decision + (f" ({lost:+.2f})" if lost < 0 else ""))
        lines.append(f"| {pair['data']} | {pair['old']} -> {pair['new']} | {scores} | {' | '.join(told)} |")
    return "\n".join(lines)


def summary_table(pairs: list[dict]) -> str:
    """Return how often the decisions are right, and how much of an embedding with the new model a bridge keeps."""
    lines = ["| data | decision | pairs | best | within 1 point of it | largest loss against staying |",
             "| --- | --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for name in dict.fromkeys(pair["data"] for pair in pairs):
        part = [pair for pair in pairs if pair["data"] == name]
        for kept in (False, True):
            told = [decided(pair, kept) for pair in part]
            best, close = (sum(lost >= -most for _, lost, _ in told) for most in (0, CLOSE))
            ways, worst = "without embedding again" if kept else "all four", min(0.0, *(gain for _, _, gain in told))
            lines.append(f"| {name} | {ways} | {len(part)} | {best} | {close} | {worst:+.2f} |")
    return "\n".join(lines)


def main() -> int:
    """Measure all pairs and print the tables."""
    args = arguments(__doc__)
    pairs = pairs_of(args.model_name, args.data_dir, args.cache)
    write_json(args.output, {"machine": machine(), "pairs": pairs})
    print(pair_table(pairs), summary_table(pairs), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
