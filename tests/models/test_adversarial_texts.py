"""2,000 adversarial strings: packed, padded and unpadded reading give the same embeddings.

Special tokens as text, nothing, one token, more than the longest input, emoji, right-to-left scripts, and mixtures.
"""

import random

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from informin.models.encode import encode
from informin.models.open_model import load_model
from informin.models.packing import can_pack
from modeling_informin import pool
from tests.conftest import OTHERS, SIZES

LENGTH = 40
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
PIECES = [
    *(*SPECIAL, *SPECIAL, "<pad><pad>", "</s></s>", "[PAD]", "[CLS]", "<PAD>", "< pad >"),
    *("", " ", "  ", "\t", "\n", "a", "dog", "the cat sleeps", "0", ".", "\0", "\u200b", "\ufeff", "\u00ad"),
    *("\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1ea\U0001f1fa", "\u2764\ufe0f"),
    *("שלום", "مرحبا بالعالم", "\u202eabc\u202c", "\u200fא\u200e", "e\u0301", "ﷺ", "中文", "z" * 60),
]
ARCHITECTURES = ["bert", "roberta", "mpnet", "modernbert", "distilbert", "xlm-roberta", "camembert", "electra"]


def adversarial_strings(count: int = 2_000) -> list[str]:
    """Every piece alone, then sequences of up to 12."""
    source = random.Random(0)
    mixed = ["".join(source.choices(PIECES, k=source.randint(2, 12))) for _ in range(count - len(PIECES))]
    return [*PIECES, *mixed]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, so that no character is unknown."""
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = dict(bos_token="<s>", cls_token="<s>", eos_token="</s>", sep_token="</s>", pad_token="<pad>")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", mask_token="<mask>", model_max_length=LENGTH, **names
    )


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request, tmp_path_factory):
    """A tiny encoder of bytes whose padding token has a nonzero embedding."""
    name, tokenizer = request.param, byte_tokenizer()
    ids = dict(
        vocab_size=len(tokenizer), pad_token_id=1, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2
    )
    rates = {key: rate for key, rate in SIZES.items() if "dropout" not in key}
    torch.manual_seed(1)
    model = AutoModel.from_config(AutoConfig.for_model(name, **(rates | OTHERS.get(name, {}) | ids)))
    with torch.no_grad():
        for x in model.parameters():
            x.add_(0.05 * torch.randn_like(x))
    folder = tmp_path_factory.mktemp(name)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_packed_padded_and_unpadded_reading_agree(folder):
    texts = adversarial_strings()
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), byte_tokenizer()
    tokens = tokenizer(texts, truncation=True, max_length=LENGTH)["input_ids"]
    lengths = np.array([len(ids) for ids in tokens])
    assert lengths.min() == 2 and lengths.max() == LENGTH and (lengths == 3).any() and len(texts) == 2_000
    assert sum(tokenizer.pad_token_id in ids for ids in tokens) > 500
    assert can_pack(model) == (model.config.model_type not in ("mpnet", "modernbert", "distilbert"))
    read = {"library": load_model(str(folder), ("mean",), length=LENGTH, batch_size=100)(texts)["mean"]}
    read["padded"], read["unpadded"] = np.empty_like(read["library"]), np.empty_like(read["library"])
    with torch.inference_mode():
        for start in range(0, len(texts), 100):
            batch = tokenizer.pad({"input_ids": tokens[start : start + 100]}, return_tensors="pt")
            hidden = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
            read["padded"][start : start + 100] = pool("mean", hidden, batch["attention_mask"]).numpy()
        for length in set(lengths):
            (rows,) = np.nonzero(lengths == length)
            hidden = model(input_ids=torch.tensor([tokens[row] for row in rows])).last_hidden_state
            read["unpadded"][rows] = hidden.mean(1).numpy()
    for way, embeddings in read.items():
        np.testing.assert_allclose(embeddings, read["padded"], atol=1e-5, rtol=0, err_msg=way)


def test_embedding_does_not_depend_on_position_in_batch(folder):
    """A text that ends in padding tokens is not truncated, and has the same embedding in a batch of longer texts."""
    model, tokenizer = AutoModel.from_pretrained(folder), byte_tokenizer()
    texts = ["dog<pad><pad>", "dog", "dog" * 9, "<pad>", ""]
    together = encode(model, tokenizer, texts, poolers=("mean",), length=LENGTH)["mean"]
    alone = [encode(model, tokenizer, [text], poolers=("mean",), length=LENGTH)["mean"][0] for text in texts]
    np.testing.assert_allclose(together, alone, atol=1e-5, rtol=0)
    assert np.abs(together[0] - together[1]).max() > 1e-3 and np.abs(together[3] - together[4]).max() > 1e-3
