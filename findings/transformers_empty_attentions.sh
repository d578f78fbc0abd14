#!/usr/bin/env bash
# A model that cannot return attention maps returns an empty tuple, so code that averages "all maps" averages nothing.
#
# Versions: transformers 5.23.0, torch 2.13.0 on a CPU, Python 3.11.
# Behavior: with output_attentions=True under sdpa, `attentions` is () after a warning: no error, no None, no switch to
#   eager. A custom function registered with AttentionInterface that returns (output, None) gives () without a warning.
#   Loops over the maps run zero times.
# Output seen:
#   eager: 2 maps
#   sdpa: attentions is ()
#   custom, no weights: attentions is ()
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile torch==2.13.0 transformers==5.23.0 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import torch
import transformers
from transformers import AttentionInterface, BertConfig, BertModel

transformers.logging.set_verbosity_error()


def without_weights(module, query, key, value, attention_mask, scaling=None, **kwargs):
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register("without_weights", without_weights)
sizes = dict(vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
model = BertModel(BertConfig(**sizes)).eval()
maps = {}
for name in ("eager", "sdpa", "without_weights"):
    model.set_attn_implementation(name)
    maps[name] = model(torch.tensor([[1, 2, 3]]), output_attentions=True).attentions
print(f"eager: {len(maps['eager'])} maps")
print(f"sdpa: attentions is {maps['sdpa']}")
print(f"custom, no weights: attentions is {maps['without_weights']}")
sys.exit(not (len(maps["eager"]) == 2 and maps["sdpa"] == () and maps["without_weights"] == ()))
EOF
