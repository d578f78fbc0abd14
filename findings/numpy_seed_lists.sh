#!/usr/bin/env bash
# A list of seeds that ends in zeros is the same seed as the list without them: [5, 0] draws what 5 draws.
#
# Version: NumPy 2.4.6, Python 3.11.
# Behavior: SeedSequence, and so default_rng, mixes a list of up to four 32-bit numbers as if zeros filled it up to
#   four. So [seed, epoch] and [seed, worker, epoch] with zeros at the end repeat the numbers of the seed alone, and a
#   number of 2**32 or more is the same as its two halves: 5 + 2**32 is [5, 1]. With zeros at the start, lists differ.
#   The spawn_key of SeedSequence, and spawn, which sets it, keep a zero apart (NumPy issue 16539). So do
#   lists that always have the same number of parts, each below 2**32.
# Output seen (the first of 1,000 numbers that is drawn):
#   5: 670
#   [5]: 670
#   [5, 0]: 670
#   [5, 0, 0, 0]: 670
#   [5, 1]: 132
#   5 + 2**32: 132
#   [0, 5]: 696
#   5 with spawn_key (0,): 220
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile numpy==2.4.6 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import numpy as np

seeds = {
    "5": 5,
    "[5]": [5],
    "[5, 0]": [5, 0],
    "[5, 0, 0, 0]": [5, 0, 0, 0],
    "[5, 1]": [5, 1],
    "5 + 2**32": 5 + 2**32,
    "[0, 5]": [0, 5],
    "5 with spawn_key (0,)": np.random.SeedSequence(5, spawn_key=(0,)),
}
numbers = {name: np.random.default_rng(seed).integers(1000, size=20).tolist() for name, seed in seeds.items()}
for name, drawn in numbers.items():
    print(f"{name}: {drawn[0]}")
with_zeros = [numbers[name] for name in ("5", "[5]", "[5, 0]", "[5, 0, 0, 0]")]
large = [numbers["[5, 1]"], numbers["5 + 2**32"]]
others = [numbers["[0, 5]"], numbers["5 with spawn_key (0,)"]]
same = with_zeros == [with_zeros[0]] * 4 and large[0] == large[1]
sys.exit(not (same and len({tuple(drawn) for drawn in numbers.values()}) == 2 + len(others)))
EOF
