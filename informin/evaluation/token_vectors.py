"""Embeddings and token vectors of texts, from one forward pass."""

from itertools import pairwise

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import StaticEmbedding, Transformer

from informin.errors import UsageError
from informin.models.embedding import call_encode, check_finite, side_prompt
from informin.models.opening import name_of

TokenStates = tuple[np.ndarray, np.ndarray]  # ids (n,) and vectors (n, d) of the tokens of a text


def has_token_vectors(model: SentenceTransformer) -> bool:
    """Return whether a model starts with a Transformer or a StaticEmbedding."""
    return isinstance(model[0], Transformer | StaticEmbedding)


def check_token_vectors(model: SentenceTransformer) -> None:
    """Raise UsageError if a model has no token vectors."""
    if not has_token_vectors(model):
        found = f"{name_of(model)} has no token vectors, because it starts with a {type(model[0]).__name__}"
        raise UsageError(found, option="second_look", needed="a Transformer or a StaticEmbedding")


def encode_with_tokens(
    model: SentenceTransformer,
    texts: list[str],
    side: str | None = None,
    prompt: str | None = None,
    batch_size: int = 64,
) -> tuple[np.ndarray, list[TokenStates]]:
    """Return the embeddings (N, d) float32 of N texts, and the tokens of each text with their vectors.

    Token vectors are last hidden states, or the rows of a static model. Special tokens and the prompt are left out.

    Args:
        model: The model.
        texts: N texts. The token vectors of all of them are in memory at once.
        side: `query` or `document`, as in `embed`; None for `encode` of the model.
        prompt: Prompt prepended to each text, instead of the stored prompt; an empty string for none.
        batch_size: Texts per forward pass.

    Raises:
        UsageError: The model has no token vectors, or an embedding is not finite.
    """
    check_token_vectors(model)
    prompt = side_prompt(model, side) if prompt is None else prompt
    if isinstance(model[0], StaticEmbedding):
        vectors = call_encode(model, texts, side, prompt=prompt, batch_size=batch_size)
        tokens = _static_tokens(model, texts, prompt)
    else:
        outputs = call_encode(model, texts, side, prompt=prompt, batch_size=batch_size, output_value=None)
        vectors = [output["sentence_embedding"].float().cpu().numpy() for output in outputs]
        tokens = [_hidden_states(output) for output in outputs]
    vectors = np.asarray(vectors, np.float32)
    check_finite(model, vectors)
    first = _prompt_ids(model, prompt)
    special = _special_ids(model)
    return vectors, [_of_the_text(ids, rows, first, special) for ids, rows in tokens]


def _hidden_states(output: dict[str, torch.Tensor]) -> TokenStates:
    """Return the tokens of one text and their last hidden states, without padding."""
    there = output["attention_mask"].bool()
    states = output["token_embeddings"][there].float()
    return output["input_ids"][there].cpu().numpy(), states.cpu().numpy()


def _static_tokens(model: SentenceTransformer, texts: list[str], prompt: str | None) -> list[TokenStates]:
    """Return the tokens of each text and their rows in the table of a static model."""
    features = model.preprocess(texts, prompt=prompt)
    ids = features["input_ids"].numpy()
    rows = model[0].embedding.weight.detach().float().cpu().numpy()
    ends = features["offsets"].tolist() + [len(ids)]
    return [(ids[start:end], rows[ids[start:end]]) for start, end in pairwise(ends)]


def _special_ids(model: SentenceTransformer) -> list[int]:
    """Return the ids of special tokens."""
    if isinstance(model[0], Transformer):
        return model.tokenizer.all_special_ids
    added = model[0].tokenizer.get_added_tokens_decoder()
    return [number for number, token in added.items() if token.special]


def _prompt_ids(model: SentenceTransformer, prompt: str | None) -> np.ndarray:
    """Return the token ids (n,) of a prompt, as a text of its own."""
    return model.preprocess([prompt])["input_ids"].flatten().cpu().numpy() if prompt else np.empty(0, int)


def _of_the_text(ids: np.ndarray, rows: np.ndarray, prompt: np.ndarray, special: list[int]) -> TokenStates:
    """Leave out special tokens and the prompt.

    The prompt ends at the first token where the text differs from the prompt alone: in "query: how", the last token of
    "query: " (a space) is part of the word.
    """
    shared = min(len(ids), len(prompt))
    differs = np.append(ids[:shared] != prompt[:shared], True)
    own = np.flatnonzero(~np.isin(ids, special))
    own = own[own >= np.argmax(differs)]
    return ids[own], rows[own]
