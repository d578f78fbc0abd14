#!/usr/bin/env bash
# PCA of float32 data depends on their mean: the default solver finds other components if 300 is added to each number.
#
# Versions: scikit-learn 1.9.1, NumPy 2.4.6, Python 3.11.
# Behavior: for up to 1,000 columns and at least ten times as many rows, svd_solver="auto" chooses "covariance_eigh".
#   It subtracts the mean from the product of the data with themselves, not from the data, so large means cancel in
#   the precision of the data. In float32, means a few hundred times the standard deviation leave components that have
#   little to do with the right ones, without a warning. svd_solver="full" subtracts the mean first, and is right for
#   the same data, as is float64. The documentation says that "covariance_eigh" uses centered data, and that it is less
#   stable if the singular values have a large range. Here, their range is 10.
# Output seen (1,000 rows, 16 columns with standard deviations from 0.1 to 1, and 300 added in float32; cosine of each
#   component with the one of the same numbers in float64):
#   auto is covariance_eigh: [0.75, 0.42, 0.36]
#   full: [1.0, 1.0, 1.0]
#   auto, mean subtracted first: [1.0, 1.0, 1.0]
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile scikit-learn==1.9.1 numpy==2.4.6 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import numpy as np
from sklearn.decomposition import PCA

noise = np.random.default_rng(0).normal(size=(1000, 16)) * np.linspace(1, 0.1, 16)
data = noise.astype(np.float32) + np.float32(300)
exact = PCA(3, svd_solver="full").fit(data.astype(np.float64)).components_


def agreement(rows, solver):
    """Return the cosines of the components with the exact ones, and the solver that was used."""
    fitted = PCA(3, svd_solver=solver).fit(rows)
    cosines = np.abs((fitted.components_ * exact).sum(axis=1))
    return [round(float(cosine), 2) for cosine in cosines], fitted._fit_svd_solver


automatic, solver = agreement(data, "auto")
full, _ = agreement(data, "full")
centered, _ = agreement(data - data.mean(axis=0), "auto")
print(f"auto is {solver}: {automatic}")
print(f"full: {full}")
print(f"auto, mean subtracted first: {centered}")
sys.exit(not (solver == "covariance_eigh" and max(automatic) < 0.95 and min(full) > 0.98 and min(centered) > 0.98))
EOF
