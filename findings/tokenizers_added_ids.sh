#!/usr/bin/env bash
# An added token gets the number of another token if the numbers of a vocabulary have gaps.
#
# Versions: tokenizers 0.23.3, Python 3.11.
# Behavior: add_tokens numbers new tokens from get_vocab_size(), which counts tokens. A vocabulary with gaps, as one
#   that is read from a vocab.txt with a line twice, has larger numbers than that. The new token then shares its number
#   with an old one: a row of a table of embeddings stands for both, and decoding gives only one of them.
# Output seen (a vocabulary of 3 tokens, the last one with the number 4):
#   tokens before: 3, largest number: 4
#   numbers of the added tokens: {'x': 3, 'y': 4}, number of the old token c: 4
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet tokenizers==0.23.3 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "a": 1, "c": 4}, unk_token="[UNK]"))
print(f"tokens before: {tokenizer.get_vocab_size()}, largest number: {max(tokenizer.get_vocab().values())}")
tokenizer.add_tokens(["x", "y"])
added = {word: tokenizer.token_to_id(word) for word in ("x", "y")}
old = tokenizer.token_to_id("c")
print(f"numbers of the added tokens: {added}, number of the old token c: {old}")
sys.exit(not (added == {"x": 3, "y": 4} and old == 4))
EOF
