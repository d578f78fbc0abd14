#!/usr/bin/env bash
# A Japanese sentence of 14 characters cannot be found in a tantivy index, and neither can a SHA-1 sum.
#
# Versions: tantivy 0.27.0 (Python), Python 3.11.
# Behavior: the default tokenizer drops words of 40 bytes or more in UTF-8, from the index and from queries, without
#   an error. Japanese, Chinese and Thai have no spaces, so a word is all that stands between two punctuation marks,
#   and with three bytes per character the limit is 13 characters. The stored text is complete, and other words of the
#   same text are found. LanceDB has the same limit as an option of its full-text index, max_token_length. The
#   tokenizer "raw" keeps the whole text as one word.
# Output seen (each text is searched with itself):
#   39 letters, 39 bytes: 1 hit
#   40 letters, 40 bytes: 0 hits
#   11 Japanese characters, 33 bytes: 1 hit
#   14 Japanese characters, 42 bytes: 0 hits
#   14 Japanese characters, tokenizer "raw": 1 hit
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile tantivy==0.27.0 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import tantivy

short = "部屋の写真が明るいです"
long = "部屋の写真がとても明るいです"


def count_hits(text, tokenizer="default"):
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("body", stored=True, tokenizer_name=tokenizer)
    index = tantivy.Index(builder.build())
    writer = index.writer()
    writer.add_document(tantivy.Document(body=[text]))
    writer.commit()
    index.reload()
    return len(index.searcher().search(index.parse_query(f'"{text}"', ["body"])).hits)


searches = {
    "39 letters, 39 bytes": count_hits("a" * 39),
    "40 letters, 40 bytes": count_hits("a" * 40),
    f"{len(short)} Japanese characters, {len(short.encode())} bytes": count_hits(short),
    f"{len(long)} Japanese characters, {len(long.encode())} bytes": count_hits(long),
    f'{len(long)} Japanese characters, tokenizer "raw"': count_hits(long, "raw"),
}
for name, hits in searches.items():
    print(f"{name}: {hits} {'hit' if hits == 1 else 'hits'}")
sys.exit(list(searches.values()) != [1, 0, 1, 0, 1])
EOF
