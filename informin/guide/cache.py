"""A guide whose embeddings are computed once and cached in a file.

guide = load_guide("outputs/guides", load_model("all-MiniLM-L6-v2"), sentences)
guide.embeddings                      # (N, d), unit vectors
guide.nearest(10)                     # (N, 10) indices and cosines of the nearest neighbors
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import normalize

from informin.errors import UsageError, counted
from informin.files import read_json, sha256, write_json
from informin.guide import neighbors
from informin.guide.neighbors import nearest_neighbors
from informin.models.checksums import model_sha256
from informin.models.embedding import bar_of_texts, encode, width_of
from informin.models.opening import name_of
from informin.outputs import named_in_errors, new_file

logger = logging.getLogger(__name__)

EMBEDDED_AT_ONCE = 8_192  # sentences embedded and written at once
RANDOM_PAIRS = 1_000_000  # random pairs that `quantile` is estimated from


class CachedGuide:
    """A frozen encoder's embeddings of N sentences, memory-mapped from a file.

    Attributes:
        path: Path of the file.
        device: Device that computes cosines.
        first: Indices (N,) int64 of the first sentence with the same text.
        embeddings: (N, d) float16 unit vectors, in the order of the sentences.
    """

    def __init__(self, path: Path, device: torch.device, first: Tensor):
        self.path = path
        self.device = device
        self.first = first
        self.embeddings = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.embeddings)

    def lookup(self, indices: np.ndarray, device: torch.device) -> Tensor:
        """Return the embeddings (B, d) float32 of the sentences with these indices (B,), on a device."""
        embeddings = torch.from_numpy(self.embeddings[indices])
        if device.type == "cuda":  # a copy from pinned memory does not wait for the GPU
            embeddings = embeddings.pin_memory()
        return embeddings.to(device, non_blocking=True).float()

    def nearest(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the indices (N, k) and cosines (N, k) of the k nearest other sentences: see `nearest_neighbors`.

        Copies of a text are not its neighbors: they have the same neighbors, and their `first` stands for them.
        Products are float32 on every device: float16 would leave the order of close neighbors to chance.
        """
        distinct, place = self.first.unique(return_inverse=True)
        embeddings = torch.from_numpy(self.embeddings[distinct.numpy()]).to(self.device, torch.float32)
        indices, cosines = nearest_neighbors(embeddings, k)
        return distinct[indices][place], cosines[place]

    def quantile(self, fraction: float) -> float:
        """Return the cosine that this fraction of pairs of different sentences exceeds, estimated on random pairs."""
        draw = np.random.default_rng(0)
        first = draw.integers(0, len(self), RANDOM_PAIRS)
        second = (first + draw.integers(1, len(self), RANDOM_PAIRS)) % len(self)
        different = (self.first[first] != self.first[second]).numpy()
        first = first[different]
        second = second[different]
        cpu = torch.device("cpu")
        cosines = []
        for start in range(0, len(first), EMBEDDED_AT_ONCE):
            chunk = slice(start, start + EMBEDDED_AT_ONCE)
            products = self.lookup(first[chunk], cpu) * self.lookup(second[chunk], cpu)
            cosines.append(products.sum(-1))
        return float(np.quantile(torch.cat(cosines).numpy(), 1 - fraction))

    def neighborhood_means(self, k: int) -> "CachedGuide":
        """Return the guide smoothed over k nearest neighbors, cached next to this one: see `neighbors.smooth`."""
        weight = neighbors.SELF_WEIGHT  # another weight gets another file
        path = self.path.with_name(f"{self.path.stem}-means{k}-self{weight}.npy")
        cache_array(path, self.embeddings.shape, lambda: neighbors.smooth(self.embeddings, *self.nearest(k)))
        return CachedGuide(path, self.device, self.first)


def load_guide(folder: str | Path, model: SentenceTransformer, sentences: Sequence[str]) -> CachedGuide:
    """Load a model's embeddings of N sentences from the cache, or compute and cache them, in this process.

    A checksum of the sentences and of everything that determines their embeddings names the file. A damaged file is
    computed again, with a warning.

    Raises:
        UsageError: An embedding is not finite.
    """
    rows: dict[str, int] = {}
    first = torch.tensor([rows.setdefault(text, row) for row, text in enumerate(sentences)])
    digest = hashlib.sha256(model_sha256(model).encode())
    for sentence in sentences:
        text = sentence.encode()
        digest.update(len(text).to_bytes(8, "little") + text)  # any separator could occur in a sentence
    path = Path(folder, f"{digest.hexdigest()[:16]}.npy")

    def blocks() -> Iterator[np.ndarray]:
        logger.info(f"Embedding {counted(len(sentences), 'sentence')} with the guide {name_of(model)} into {path}")
        with bar_of_texts(model, len(sentences), "guide") as watched:
            for start in range(0, len(sentences), EMBEDDED_AT_ONCE):
                vectors = encode(watched, list(sentences[start : start + EMBEDDED_AT_ONCE]))
                yield normalize(torch.from_numpy(vectors), dim=-1).numpy()

    cache_array(path, (len(sentences), width_of(model)), blocks)
    return CachedGuide(path, model.device, first)


def cache_array(path: Path, shape: tuple[int, ...], blocks: Callable[[], Iterator[np.ndarray]]) -> None:
    """Ensure that a file holds an array in float16, next to a header `NAME.json` with its checksum.

    The header is written first, so that the array never appears without it. An existing file is used only if it
    matches its header.

    Args:
        path: The file.
        shape: Shape of the array.
        blocks: Yields the rows of the array in order, in blocks.

    Raises:
        SaveError: The file cannot be written.
    """
    header = path.with_suffix(".json")
    if path.exists():
        with suppress(OSError, UsageError):  # either file may be unreadable
            if read_json(header) == _description(path, shape):
                return
        logger.warning(f"{path} is damaged: it does not match {header.name}. It is computed again.")
    with named_in_errors(path), new_file(path) as partial:
        with partial.open("wb") as file:
            kind = np.lib.format.dtype_to_descr(np.dtype(np.float16))
            np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
            for block in blocks():  # not to a memory map: if the disk is full, that would kill the process
                file.write(np.ascontiguousarray(block, np.float16).data)
        write_json(header, _description(partial, shape))


def _description(path: Path, shape: tuple[int, ...]) -> dict:
    return {"shape": list(shape), "dtype": "float16", "sha256": sha256(path)}
