"""Encode sentences with all processes: each encodes a share, and all get all embeddings."""

from collections.abc import Callable, Sequence

import numpy as np

from informin.distributed import gather_objects, gather_shares, rank, world_size


def encode_together(encoder, sentences: Sequence[str], progress: Callable[[int], object]) -> dict[str, np.ndarray]:
    """Return the embeddings (N, d) float32 of N sentences for each pooling. All processes must make the same call.

    Args:
        encoder: See `informin.models.model.Model`. In every process, it then knows all sentences that were
            truncated.
        sentences: N sentences.
        progress: Called after each batch with its number of sentences.
    """
    if world_size() == 1:
        return encoder(sentences, progress)
    share = sentences[rank() :: world_size()]
    own = encoder(share, progress) if share else {}
    nothing = np.empty((0, encoder.dimensions), np.float32)
    found = {name: gather_shares(own.get(name, nothing), len(sentences)) for name in encoder.poolers}
    encoder.truncated.update(*gather_objects(encoder.truncated))
    return found
