#!/usr/bin/env bash
# Making a graph of distances symmetric disconnects identical texts: their distance of 0 is taken for no edge.
#
# Versions: SciPy 1.17.1, scikit-learn 1.9.1, NumPy 2.4.6, Python 3.11.
# Behavior: radius_neighbors_graph of scikit-learn stores the distance 0 of identical rows as an edge, and
#   connected_components of SciPy reads it as one. The usual ways to make a graph symmetric, graph.maximum(graph.T)
#   and (graph + graph.T) / 2, drop entries that are 0. A search for near copies then puts near copies into one group,
#   and exact copies into groups of their own. toarray() loses these edges, too. mode="connectivity" has ones instead
#   of distances and keeps all edges.
# Output seen (rows 0 and 1 are identical, row 2 is far away, row 3 is close to row 2; groups of the rows):
#   distances: [0, 0, 1, 1]
#   maximum with the transpose: [0, 1, 2, 2]
#   mean with the transpose: [0, 1, 2, 2]
#   toarray: [0, 1, 2, 2]
#   mode="connectivity", maximum with the transpose: [0, 0, 1, 1]
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile scipy==1.17.1 scikit-learn==1.9.1 numpy==2.4.6 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import numpy as np
from scipy.sparse.csgraph import connected_components
from sklearn.neighbors import radius_neighbors_graph

rows = np.array([[0.0, 1.0], [0.0, 1.0], [5.0, 5.0], [5.0, 5.1]])
graph = radius_neighbors_graph(rows, 0.5, mode="distance")
ones = radius_neighbors_graph(rows, 0.5, mode="connectivity")
graphs = {
    "distances": graph,
    "maximum with the transpose": graph.maximum(graph.T),
    "mean with the transpose": (graph + graph.T) / 2,
    "toarray": graph.toarray(),
    'mode="connectivity", maximum with the transpose': ones.maximum(ones.T),
}
groups = {name: connected_components(x, directed=False)[1].tolist() for name, x in graphs.items()}
for name, found in groups.items():
    print(f"{name}: {found}")
together = [0, 0, 1, 1]
apart = [0, 1, 2, 2]
sys.exit(list(groups.values()) != [together, apart, apart, apart, together])
EOF
