#!/usr/bin/env bash
# The cached loss of sentence-transformers is the plain loss only without dropout, or with one mini batch.
#
# Versions: sentence-transformers 6.2.0, transformers 5.23.0, torch 2.13.0 on a CPU, Python 3.11.
# Behavior: CachedMultipleNegativesRankingLoss encodes mini batches one after another. With dropout, each draws its own
#   masks, in another order than one forward pass of the whole batch. From the same seed and batch, the value differs
#   from MultipleNegativesRankingLoss unless mini_batch_size holds the batch. In evaluation mode both are equal. Both are
#   correct draws, but a comparison of the two implementations needs dropout off.
# Output seen:
#   dropout on: plain 0.1138, cached by 4 0.1138, cached by 2 0.1717
#   dropout off: plain 0.1051, cached by 4 0.1051, cached by 2 0.1051
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile torch==2.13.0 sentence-transformers==6.2.0 transformers==5.23.0 || exit 2
"$folder/bin/python" -W ignore - "$folder/model" 2> /dev/null <<'EOF'
import sys

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

words = ["[PAD]", "[UNK]", *"abcdefgh"]
backend = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
backend.pre_tokenizer = Whitespace()
PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(sys.argv[1])
torch.manual_seed(0)
sizes = dict(vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
BertModel(BertConfig(**sizes)).save_pretrained(sys.argv[1])
model = SentenceTransformer(modules=[Transformer(sys.argv[1]), Pooling(32)], device="cpu")
losses = {
    "plain": MultipleNegativesRankingLoss(model),
    "cached by 4": CachedMultipleNegativesRankingLoss(model, mini_batch_size=4),
    "cached by 2": CachedMultipleNegativesRankingLoss(model, mini_batch_size=2),
}


def values():
    found = []
    for loss in losses.values():
        torch.manual_seed(1)
        views = [model.preprocess(["a b c", "d e f", "g h", "a h c e"]) for _ in range(2)]
        found.append(loss(views, torch.zeros(4)).item())
    return found


model.train()
on = values()
model.eval()
off = values()
for name, found in (("on", on), ("off", off)):
    print(f"dropout {name}: " + ", ".join(f"{loss} {value:.4f}" for loss, value in zip(losses, found)))
different = abs(on[0] - on[2]) > 1e-3
sys.exit(not (abs(on[0] - on[1]) < 1e-5 and different and max(off) - min(off) < 1e-5))
EOF
