#!/usr/bin/env bash
# encode of a text-only model asks of each text, up to six times, whether it is the address of an image, video or sound.
#
# Versions: sentence-transformers 6.2.0, transformers 5.23.0, torch 2.13.0 on a CPU, Python 3.11.
# Behavior: preprocess infers the modality of a batch twice, in the model and in its Transformer. Each time, every text is
#   compared with the file endings of three kinds of media, which makes a lowercase copy of the whole text each time. With
#   long texts and a fast encoder this is a visible part of encode; which modalities the model has does not matter.
# Output seen:
#   6 lowercase copies of a text of 100,000 letters in one call of encode
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile torch==2.13.0 sentence-transformers==6.2.0 transformers==5.23.0 || exit 2
"$folder/bin/python" -W ignore - "$folder/model" 2> /dev/null <<'EOF'
import sys

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

backend = Tokenizer(WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2}, unk_token="[UNK]"))
backend.pre_tokenizer = Whitespace()
PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(sys.argv[1])
sizes = dict(vocab_size=3, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
BertModel(BertConfig(**sizes)).save_pretrained(sys.argv[1])
model = SentenceTransformer(modules=[Transformer(sys.argv[1]), Pooling(32)], device="cpu")


class Watched(str):
    """A text that counts its lowercase copies."""

    copies = 0

    def lower(self):
        Watched.copies += 1
        return super().lower()


text = Watched("b" * 100_000)
model.encode([text])
print(f"{Watched.copies} lowercase copies of a text of {len(text):,} letters in one call of encode")
sys.exit(not (Watched.copies >= 6 and model.modalities == ["text"]))
EOF
