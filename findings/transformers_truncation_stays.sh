#!/usr/bin/env bash
# Truncating once changes a tokenizer: its backend truncates every later text, too.
#
# Versions: transformers 5.23.0, tokenizers 0.23.3, Python 3.11.
# Behavior: calling a fast tokenizer with truncation=True, max_length=2 stores both in its backend_tokenizer. The next
#   call of the tokenizer resets them, but code that uses the backend directly, or saves it, gets truncated texts.
# Output seen:
#   backend before: 6 tokens
#   tokenizer with max_length=2: 2 tokens
#   backend after: 2 tokens
#   tokenizer without truncation: 6 tokens
#   backend after that: 6 tokens
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile transformers==5.23.0 tokenizers==0.23.3 || exit 2
"$folder/bin/python" - 2> /dev/null <<'EOF'
import sys

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

text = "one two three four five six"
backend = Tokenizer(WordLevel({word: i for i, word in enumerate(["[UNK]", *text.split()])}, unk_token="[UNK]"))
backend.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def count_backend():
    return len(tokenizer.backend_tokenizer.encode(text).ids)


counts = {"backend before": count_backend()}
counts["tokenizer with max_length=2"] = len(tokenizer(text, truncation=True, max_length=2)["input_ids"])
counts["backend after"] = count_backend()
counts["tokenizer without truncation"] = len(tokenizer(text)["input_ids"])
counts["backend after that"] = count_backend()
for name, count in counts.items():
    print(f"{name}: {count} tokens")
sys.exit(list(counts.values()) != [6, 2, 2, 6, 6])
EOF
