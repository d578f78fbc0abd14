#!/usr/bin/env bash
# English stems differ between two releases of PyStemmer, so an index and a query must use the same one.
#
# Versions: PyStemmer 2.2.0.3 and 3.1.0, Python 3.11.
# Behavior: both have an algorithm called "english" and raise nothing, but they stem some common words differently. A
#   stored index of stems from the old release does not contain the new stem of "university", and finds nothing.
# Output seen:
#   PyStemmer 2.2.0.3: {'university': 'univers', 'organization': 'organ', 'evening': 'even', 'added': 'ad', 'railway': 'railway'}
#   PyStemmer 3.1.0: {'university': 'universiti', 'organization': 'organiz', 'evening': 'evening', 'added': 'add', 'railway': 'railway'}
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 2.2.0.3 3.1.0; do
    "${PYTHON:-python3}" -m pip install --quiet --no-compile --target "$folder/$version" "PyStemmer==$version" || exit 2
    PYTHONPATH="$folder/$version" "${PYTHON:-python3}" - "$version" > "$folder/$version.txt" <<'EOF' || exit 1
import sys

import Stemmer

words = ["university", "organization", "evening", "added", "railway"]
stems = Stemmer.Stemmer("english").stemWords(words)
print(f"PyStemmer {sys.argv[1]}: {dict(zip(words, stems))}")
EOF
    cat "$folder/$version.txt"
done
grep -q "'university': 'univers', 'organization': 'organ', 'evening': 'even', 'added': 'ad'" "$folder/2.2.0.3.txt" &&
    grep -q "'university': 'universiti', 'organization': 'organiz', 'evening': 'evening', 'added': 'add'" "$folder/3.1.0.txt"
