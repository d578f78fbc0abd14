"""Token embeddings: how many a model has, and whether its tokenizer has more tokens."""

from typing import Any

from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel

from informin.errors import UsageError


def embeddings_of_tokens(module: Any) -> int | None:
    """Return how many tokens a module of a SentenceTransformer has embeddings for; None if it looks up no tokens."""
    if type(module).__name__ == "StaticEmbedding":
        return module.embedding.num_embeddings
    encoder = getattr(module, "auto_model", None)
    if not isinstance(encoder, PreTrainedModel):  # such as one that ONNX Runtime runs
        return None
    try:
        table = encoder.get_input_embeddings()
    except NotImplementedError:  # of images, or several encoders
        return None
    return table.num_embeddings if isinstance(table, nn.Embedding) else None


def highest_token(tokenizer: Any) -> int:
    """Return the highest token id that an ordinary text can have.

    Added special tokens are left out: a tokenizer that several models share may have some that a model never reads,
    such as that of images in EmbeddingGemma.
    """
    if isinstance(tokenizer, Tokenizer):  # of StaticEmbedding
        size = tokenizer.get_vocab_size(with_added_tokens=False)
        added = tokenizer.get_added_tokens_decoder()
    else:
        size = tokenizer.vocab_size
        added = tokenizer.added_tokens_decoder
    return max([size - 1, *(number for number, token in added.items() if not token.special)])


def raise_if_tokens_lack_embeddings(module: Any, tokenizer: Any, name: str) -> None:
    """Raise UsageError if a text can have a token without an embedding, which would be an error of torch."""
    number = embeddings_of_tokens(module)
    if number is None or tokenizer is None:
        return
    highest = highest_token(tokenizer)
    if highest >= number:
        raise UsageError(
            f"{name} has embeddings for {number:,} tokens, and its tokenizer has token ids up to {highest:,}",
            option="model_name",
            needed="a tokenizer that fits the model",
            fix="Copy the model again from its source. After adding tokens, call "
            "`resize_token_embeddings(len(tokenizer))` and save the model.",
        )


def check_tokenizers(model: SentenceTransformer, name: str) -> None:
    """Raise UsageError if a tokenizer of a model has more tokens than the model has embeddings."""
    for module in model.modules():
        raise_if_tokens_lack_embeddings(module, getattr(module, "tokenizer", None), name)
