"""Embeddings and token vectors of texts, from one forward pass."""

from itertools import pairwise

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import StaticEmbedding, Transformer

from informin.errors import UsageError
from informin.frozen.late_interaction import Projection, Tokens, TokenVectors
from informin.model.embedding import bar_of_texts, call_encode, check_finite, note_truncated, side_prompt
from informin.model.open import name_of

TEXTS_IN_MEMORY = 512  # texts whose token vectors are in memory at once; the first ones are the sample
TokenStates = tuple[np.ndarray, np.ndarray]  # ids (n,) and vectors (n, d) of the tokens of a text


def embed_documents(
    model: SentenceTransformer,
    texts: list[str],
    prompt: str | None = None,
    batch_size: int = 64,
    projection: Projection | None = None,
) -> tuple[np.ndarray, TokenVectors]:
    """Return the embeddings (N, d) float32 of N texts and their token vectors, from one forward pass.

    Args:
        model: A model that starts with a Transformer or a StaticEmbedding.
        texts: N texts. They are embedded in random order, because the first ones are the sample for the projection.
        prompt: Prompt prepended to each text, instead of the stored prompt.
        batch_size: Texts per forward pass.
        projection: Projection of the index, if texts are added to one.

    Raises:
        UsageError: The model has no token vectors.
    """
    note_truncated(model, texts, prompt, "document")
    order = np.random.default_rng(0).permutation(len(texts))
    blocks, parts = [], []
    with bar_of_texts(model, len(texts)) as model:
        for start in range(0, len(texts), TEXTS_IN_MEMORY):
            chunk = [texts[row] for row in order[start : start + TEXTS_IN_MEMORY]]
            vectors, tokens = encode_with_tokens(model, chunk, "document", prompt, batch_size)
            if projection is None:
                projection = Projection.fit(np.concatenate([states for _, states in tokens]))
            blocks.append(vectors)
            parts.append(TokenVectors.of(tokens, projection))
    return np.concatenate(blocks)[np.argsort(order)], TokenVectors.join(parts, order)


def embed_queries(
    model: SentenceTransformer,
    queries: list[str],
    projection: Projection,
    prompt: str | None = None,
    batch_size: int = 64,
) -> tuple[np.ndarray, list[Tokens]]:
    """Return the embeddings (Q, d) float32 of queries, and the ids and projected vectors of their tokens."""
    vectors, tokens = encode_with_tokens(model, queries, "query", prompt, batch_size)
    return vectors, [(ids, projection.apply(states)) for ids, states in tokens]


def has_token_vectors(model: SentenceTransformer) -> bool:
    """Return whether a model starts with a Transformer or a StaticEmbedding."""
    return isinstance(model[0], Transformer | StaticEmbedding)


def check_token_vectors(model: SentenceTransformer) -> None:
    """Raise UsageError if a model has no token vectors."""
    if not has_token_vectors(model):
        found = f"{name_of(model)} has no token vectors, because it starts with a {type(model[0]).__name__}"
        raise UsageError(found, option="rerank", needed="a Transformer or a StaticEmbedding")


def encode_with_tokens(
    model: SentenceTransformer,
    texts: list[str],
    side: str,
    prompt: str | None = None,
    batch_size: int = 64,
) -> tuple[np.ndarray, list[TokenStates]]:
    """Return the embeddings (N, d) float32 of N texts, and the tokens of each text with their vectors.

    Token vectors are last hidden states, or the rows of a static model. Special tokens and the prompt are left out.

    Args:
        model: The model.
        texts: N texts. The token vectors of all of them are in memory at once.
        side: `query` or `document`, as in `embed`.
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
    first = model.preprocess([prompt])["input_ids"].flatten().cpu().numpy() if prompt else np.empty(0, int)
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
