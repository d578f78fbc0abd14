#!/usr/bin/env bash
# set_attn_implementation returns normally for models that go on without the function.
#
# Versions: transformers 5.23.0, torch 2.13.0 on a CPU, Python 3.11.
# Behavior: MPNet and DeBERTa-v2 do not use AttentionInterface. set_attn_implementation with a registered custom
#   function logs a warning and keeps "eager"; the function is never called. For BERT it is called once per layer. The
#   only sign in code is config._attn_implementation, which does not change.
# Output seen:
#   BertModel: counted, 2 calls
#   MPNetModel: eager, 0 calls
#   DebertaV2Model: eager, 0 calls
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
from transformers import AttentionInterface, BertModel, DebertaV2Model, MPNetModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

transformers.logging.set_verbosity_error()
calls = []


def counted(module, *args, **kwargs):
    calls.append(module)
    return sdpa_attention_forward(module, *args, **kwargs)


AttentionInterface.register("counted", counted)
found = []
for kind in (BertModel, MPNetModel, DebertaV2Model):
    sizes = dict(vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    model = kind(kind.config_class(**sizes)).eval()
    model.set_attn_implementation("counted")
    calls.clear()
    model(torch.tensor([[3, 4, 5]]))
    found.append((kind.__name__, model.config._attn_implementation, len(calls)))
    print(f"{kind.__name__}: {model.config._attn_implementation}, {len(calls)} calls")
sys.exit(found != [("BertModel", "counted", 2), ("MPNetModel", "eager", 0), ("DebertaV2Model", "eager", 0)])
EOF
