#!/usr/bin/env bash
# Use an installed package as a new user would, outside the repository and without network: train, load, index, search,
# evaluate, push with --dry_run. The model is a small BERT with random weights.
#
#     bash tools/try_wheel.sh FOLDER      # a folder that is empty or does not exist; PYTHON names the interpreter
set -euo pipefail
mkdir -p "$1" && cd "$1"
export HF_HUB_OFFLINE=1
python=${PYTHON:-python}

"$python" - <<'MODEL'
from random import Random

import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

words = [f"{kind}{number}" for kind in ("stone", "lake", "bread", "train") for number in range(10)]
with open("vocab.txt", "w") as file:
    file.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
torch.manual_seed(0)
config = BertConfig(
    vocab_size=45, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=64,
)
BertForMaskedLM(config).save_pretrained("bert")
BertTokenizerFast("vocab.txt").save_pretrained("bert")
draw = Random(0)
texts = [" ".join(draw.choices(words, k=draw.randint(4, 10))) for _ in range(200)]
with open("texts.txt", "w") as file:
    file.write("\n".join(texts))
with open("labels.tsv", "w") as file:
    file.write("text\tlabel\n" + "".join(f"{text}\t{text.rstrip('0123456789')[:5].split()[0]}\n" for text in texts))
with open("pairs.tsv", "w") as file:
    file.write("sentence1\tsentence2\tscore\n")
    file.writelines(f"{one}\t{other}\t{number % 6}\n" for number, (one, other) in enumerate(zip(texts, texts[1:])))
MODEL

informin train --model_name bert --train_file texts.txt --eval_pairs pairs.tsv --max_steps 4 --eval_steps 2 \
    --save_steps 2 --output_dir model
"$python" -c '
from sentence_transformers import SentenceTransformer
assert SentenceTransformer("model", device="cpu").encode(["stone1 lake2"]).shape == (1, 32)'
informin index --model_name model --train_file texts.txt --output_dir index
informin search --index index --k 3 "stone1 lake2"
informin eval --model_name model --labels labels.tsv --output scores
informin push --model_name model --hub_model_id me/model --dry_run
