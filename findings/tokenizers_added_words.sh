#!/usr/bin/env bash
# An added word is cut out of other words, also of words that the vocabulary has: "cats" becomes "cat" and "s".
#
# Versions: tokenizers 0.23.3, Python 3.11.
# Behavior: add_tokens(["cat"]) looks for "cat" before the text is split into words, so it is found inside them. The
#   rest of the word is then tokenized as a word of its own, without the prefix "##" of a continuation, so a trained
#   model sees other tokens for words that the addition was not about. AddedToken("cat", single_word=True) is found
#   only as a whole word.
# Output seen (WordPiece with "cats", "scat", "##s", "s" and "con", "##cat"):
#   before: {'cats': ['cats'], 'scat': ['scat'], 'concat': ['con', '##cat']}
#   "cat" added: {'cats': ['cat', 's'], 'scat': ['s', 'cat'], 'concat': ['con', 'cat']}
#   "cat" added, single_word=True: {'cats': ['cats'], 'scat': ['scat'], 'concat': ['con', '##cat']}
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile tokenizers==0.23.3 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer

pieces = ["[UNK]", "cats", "scat", "con", "##cat", "##s", "s"]


def tokenize(*added):
    tokenizer = Tokenizer(WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.add_tokens(list(added))
    return {word: tokenizer.encode(word).tokens for word in ("cats", "scat", "concat")}


before = tokenize()
anywhere = tokenize("cat")
whole = tokenize(AddedToken("cat", single_word=True))
print(f"before: {before}")
print(f'"cat" added: {anywhere}')
print(f'"cat" added, single_word=True: {whole}')
cut = {"cats": ["cat", "s"], "scat": ["s", "cat"], "concat": ["con", "cat"]}
sys.exit(not (anywhere == cut and whole == before and before["cats"] == ["cats"]))
EOF
