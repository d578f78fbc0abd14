#!/usr/bin/env bash
# Texts packed into one row see each other in BERT, and in Llama only while it keeps a cache.
#
# Versions: transformers 5.23.0, torch 2.13.0 on a CPU, Python 3.11.
# Behavior: DataCollatorWithFlattening joins texts into one row whose position ids restart at 0. Under sdpa and eager,
#   Llama reads the restarts as borders between texts, but only when use_cache is False; with the cache, the first text
#   leaks into the second. BERT ignores the restarts either way: a text's states depend on the text beside it.
# Output seen (states of a text alone, compared with the same text packed behind another one):
#   BERT, sdpa: different        BERT, eager: different
#   Llama, sdpa, use_cache=True: different        Llama, sdpa, use_cache=False: equal
#   Llama, eager, use_cache=True: different        Llama, eager, use_cache=False: equal
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile torch==2.13.0 transformers==5.23.0 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import torch
from transformers import BertModel, DataCollatorWithFlattening, LlamaModel

first, second = [5, 6, 7, 8], [9, 10, 11]
rows = [{"input_ids": text, "labels": text} for text in (first, second)]
packed = DataCollatorWithFlattening(return_tensors="pt")(rows)
packed.pop("labels")
sizes = dict(vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)


@torch.no_grad()
def compare(kind, attention, **options):
    """Return whether the second text has the same states alone and packed."""
    torch.manual_seed(0)
    model = kind(kind.config_class(**sizes, initializer_range=0.5)).eval()
    model.set_attn_implementation(attention)
    alone = model(torch.tensor([second]), **options).last_hidden_state[0]
    beside = model(**packed, **options).last_hidden_state[0, len(first) :]
    return "equal" if torch.allclose(alone, beside, atol=1e-4) else "different"


bert = [compare(BertModel, attention) for attention in ("sdpa", "eager")]
print(f"BERT, sdpa: {bert[0]}        BERT, eager: {bert[1]}")
llama = {}
for attention in ("sdpa", "eager"):
    llama[attention] = [compare(LlamaModel, attention, use_cache=use_cache) for use_cache in (True, False)]
    cached, uncached = llama[attention]
    name = f"Llama, {attention}, use_cache"
    print(f"{name}=True: {cached}        {name}=False: {uncached}")
expected = ["different", "equal"]
sys.exit(not (bert == ["different"] * 2 and llama == {"sdpa": expected, "eager": expected}))
EOF
