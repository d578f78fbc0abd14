"""Compare the bridge of `informin upgrade` with those of rebasis and isotrieve, on the pairs of benchmarks/upgrade.py.

    python3.12 -m venv peers && peers/bin/pip install rebasis==0.1.0 isotrieve==0.4.0
    python benchmarks/upgrade_peers.py --peers peers/bin/python --model_name MODEL[:POOLER] ... \
        --data_dir SHARED/data --cache FOLDER --output results/upgrade-peers.json

Both map queries of the new model into the old index as it is; `informin` maps them into the adapted index. All are
fitted on all documents. rebasis: its default, centered Procrustes, and its linear map. isotrieve: its default, ridge
regression.
"""

import argparse
import subprocess
import sys
import tempfile
from itertools import permutations
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.prediction import cached, encoder_of, label_of, load_data, sides
from benchmarks.report import machine
from informin.evaluation.geometry import unit
from informin.files import read_json, write_json

MAPS = ("rebasis procrustes_centered", "rebasis linear", "isotrieve ridge")
PEERS = """
import sys
import numpy as np
from isotrieve import RidgeMapping
from rebasis.core.selection import fit_candidates
new, queries, old = (np.load(f"{sys.argv[1]}/{name}.npy") for name in ("new", "queries", "old"))
for one in fit_candidates(new, old, methods=("procrustes_centered", "linear")):
    np.save(f"{sys.argv[1]}/rebasis {one.method}.npy", one.adapter.apply(queries))
np.save(f"{sys.argv[1]}/isotrieve ridge.npy", RidgeMapping().fit(new, old).transform(queries))
"""


def mapped(python: str, **arrays: np.ndarray) -> dict[str, np.ndarray]:
    """Return the queries in the old index by each map of the peers, which run in another Python."""
    with tempfile.TemporaryDirectory() as folder:
        for name, array in arrays.items():
            np.save(Path(folder, f"{name}.npy"), array.astype(np.float32))
        subprocess.run([python, "-c", PEERS, folder], check=True, capture_output=True)
        return {name: np.load(Path(folder, f"{name}.npy")) for name in MAPS}


def main() -> int:
    """Measure all pairs and print the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True, help="Python with rebasis and isotrieve.")
    parser.add_argument("--model_name", nargs="+", required=True)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    pairs = []
    for data in load_data(args.data_dir):
        if data.classes is not None:
            continue
        vectors = {}
        for name in args.model_name:
            query, document = sides(cached(encoder_of(name), name, args.cache), name, data)
            vectors[name] = unit(document(data.texts)), unit(query(data.scored))
        for old, new in permutations(args.model_name, 2):
            found = mapped(args.peers, new=vectors[new][0], queries=vectors[new][1], old=vectors[old][0])
            scores = {name: float(data.score(vectors[old][0], one).mean()) for name, one in found.items()}
            pairs.append({"data": data.name, "old": label_of(old), "new": label_of(new), "real": scores})
            print(pairs[-1], flush=True)
    write_json(args.output, {"machine": machine(), "pairs": pairs})

    def key(pair):
        return pair["data"], pair["old"], pair["new"]

    ours = {key(pair): pair["real"]["bridge"] for pair in read_json(ROOT / "results" / "upgrade.json")["pairs"]}
    if all(key(pair) in ours for pair in pairs):
        for name in MAPS:
            better = sum(pair["real"][name] > ours[key(pair)] for pair in pairs)
            mean = np.mean([pair["real"][name] for pair in pairs])
            print(f"{name}: mean {mean:.2f}, better than the bridge of informin in {better} of {len(pairs)} pairs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
