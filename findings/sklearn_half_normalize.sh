#!/usr/bin/env bash
# normalize of scikit-learn turns long float16 vectors into zeros, and leaves short ones as they are.
#
# Versions: scikit-learn 1.9.1, NumPy 2.4.6, Python 3.11.
# Behavior: normalize accepts float16 and adds up the squares in float16. If the sum exceeds 65504, that is, from a norm
#   of 256 on, the norm is infinite and the row becomes zeros. If every square rounds to 0, the norm is 0, and normalize
#   returns the row unchanged, as it does for a row of zeros. There is no error and no warning. The numbers below are
#   far inside the range of float16, and the same vectors in float32 get length 1.
# Output seen (384 equal numbers, length after normalize):
#   numbers 1.0: 1.000 from float16, 1.000 from float32
#   numbers 20.0: 0.000 from float16, 1.000 from float32
#   numbers 0.0001: 0.002 from float16, 1.000 from float32
#   warnings: 0
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile scikit-learn==1.9.1 numpy==2.4.6 || exit 2
"$folder/bin/python" - <<'EOF'
import sys
import warnings

import numpy as np
from sklearn.preprocessing import normalize


def length(number, dtype):
    """Return the length of a normalized vector of 384 times this number."""
    row = normalize(np.full((1, 384), number, dtype))
    return float(np.linalg.norm(row.astype(np.float64)))


lengths = {}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for number in (1.0, 20.0, 1e-4):
        lengths[number] = [length(number, np.float16), length(number, np.float32)]
        print("numbers {}: {:.3f} from float16, {:.3f} from float32".format(number, *lengths[number]))
print("warnings:", len(caught))
halves = [half for half, _ in lengths.values()]
as_stated = (
    abs(halves[0] - 1) < 0.01
    and halves[1] == 0
    and halves[2] < 0.01
    and all(abs(single - 1) < 0.01 for _, single in lengths.values())
    and len(caught) == 0
)
sys.exit(not as_stated)
EOF
