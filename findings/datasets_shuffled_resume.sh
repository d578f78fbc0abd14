#!/usr/bin/env bash
# A shuffled stream of datasets that resumes from its own state loses rows, and yields one again.
#
# Version: datasets 5.2.0, Python 3.11.
# Behavior: state_dict() of a shuffled IterableDataset holds positions, not the contents of the shuffle buffer. A stream
#   that loads it refills the buffer from later rows: rows that waited in the buffer are lost, and a row that was already
#   used comes again. Without shuffle, the resumed stream is complete. A warning says that the buffer is refilled.
# Output seen:
#   100 rows, 20 used, 80 remain
#   shuffled: 75 rows after resuming, never seen: [5, 7, 29, 30, 75, 81], used again: [55]
#   in order: 80 rows after resuming, never seen: [], used again: []
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile datasets==5.2.0 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import datasets

datasets.logging.set_verbosity_error()


def stream(shuffled):
    rows = datasets.Dataset.from_dict({"row": list(range(100))}).to_iterable_dataset(num_shards=4)
    return rows.shuffle(seed=1, buffer_size=10) if shuffled else rows


def resume(shuffled):
    """Return how many rows come after resuming, those that never come, and those that come again."""
    first = stream(shuffled)
    reader = iter(first)
    used = [next(reader)["row"] for _ in range(20)]
    state = first.state_dict()
    again = stream(shuffled)
    again.load_state_dict(state)
    rest = [row["row"] for row in again]
    return len(rest), sorted(set(range(100)) - set(used) - set(rest)), sorted(set(used) & set(rest))


print("100 rows, 20 used, 80 remain")
results = {}
for name, shuffled in (("shuffled", True), ("in order", False)):
    results[name] = count, lost, repeated = resume(shuffled)
    print(f"{name}: {count} rows after resuming, never seen: {lost}, used again: {repeated}")
_, lost, repeated = results["shuffled"]
sys.exit(not (len(lost) > 0 and len(repeated) > 0 and results["in order"] == (80, [], [])))
EOF
