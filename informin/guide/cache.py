"""A guide whose embeddings are computed once and cached in a file.

guide = load_guide("outputs/guides", load_model("all-MiniLM-L6-v2"), sentences)
guide.embeddings                      # (N, d), unit vectors
guide.nearest(10)                     # (N, 10) indices and cosines of the nearest neighbors
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm

from informin.bars import hidden
from informin.errors import UsageError, counted
from informin.files import read_json, sha256, write_json
from informin.guide import smoothing
from informin.guide.neighbors import nearest_neighbors
from informin.interrupts import during
from informin.outputs import writing
from informin.temporary import allocate, new_file, remove_leftovers

if TYPE_CHECKING:  # models import guides
    from informin.models.model import Model

logger = logging.getLogger(__name__)

CHUNK = 8_192  # sentences embedded and written at once
PAIRS = 1_000_000  # random pairs that `quantile` is estimated from


class CachedGuide:
    """A frozen encoder's embeddings of N sentences, memory-mapped from a file.

    Attributes:
        name: Name of the encoder.
        path: Path of the file.
        embeddings: (N, d) float16 unit vectors, in the order of the sentences.
        device: Device that computes cosines.
        files: Paths of this file and of the `neighborhood_means` computed from it.
        first: Indices (N,) int64 of the first sentence with the same text.
    """

    def __init__(self, name: str, path: Path, device: torch.device, first: Tensor | None = None):
        self.name, self.path, self.device = name, path, device
        self.files = [path]
        self.embeddings = np.load(path, mmap_mode="r")
        self.first = torch.arange(len(self.embeddings)) if first is None else first

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def dimensions(self) -> int:
        return self.embeddings.shape[1]

    def lookup(self, indices: Tensor) -> Tensor:
        """Return the embeddings (B, d) float32 of the sentences with these indices (B,), on the same device."""
        return torch.from_numpy(self.embeddings[indices.cpu().numpy()]).to(indices.device, torch.float32)

    def nearest(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the indices (N, k) and cosines (N, k) of the k nearest other sentences: see `nearest_neighbors`.

        Copies count once: they have the same neighbors, and their `first` stands for them. Products are float32 on
        every device: float16 would leave the order of close neighbors to chance.
        """
        distinct, place = self.first.unique(return_inverse=True)
        embeddings = torch.from_numpy(self.embeddings[distinct.numpy()]).to(self.device, torch.float32)
        indices, cosines = nearest_neighbors(embeddings, k)
        return distinct[indices][place], cosines[place]

    def quantile(self, fraction: float) -> float:
        """Return the cosine that this fraction of pairs of different sentences exceeds, estimated on random pairs."""
        draw = np.random.default_rng(0)
        first = draw.integers(0, len(self), PAIRS)
        second = (first + draw.integers(1, len(self), PAIRS)) % len(self)
        different = (self.first[first] != self.first[second]).numpy()
        first, second = first[different], second[different]
        pairs = ((torch.from_numpy(x[i : i + CHUNK]) for x in (first, second)) for i in range(0, len(first), CHUNK))
        cosines = [(self.lookup(one) * self.lookup(other)).sum(-1) for one, other in pairs]
        return float(np.quantile(torch.cat(cosines).numpy(), 1 - fraction))

    def neighborhood_means(self, k: int) -> "CachedGuide":
        """Return the guide smoothed over k nearest neighbors, cached next to this one: see `smoothing.smooth`."""
        weight = smoothing.SELF_WEIGHT  # another weight gets another file
        copies = "" if len(self.first.unique()) == len(self) else "-distinct"  # earlier versions averaged over copies
        path = self.path.with_name(f"{self.path.stem}-means{k}-self{weight}{copies}.npy")
        cache_array(path, self.embeddings.shape, lambda into: smoothing.smooth(self.embeddings, *self.nearest(k), into))
        self.files.append(path)
        return CachedGuide(self.name, path, self.device, self.first)


@during("guide embedding")
def load_guide(folder: str | Path, encoder: "Model", sentences: Sequence[str]) -> CachedGuide:
    """Load the encoder's embeddings of N sentences from the cache, or compute and cache them.

    A checksum of the sentences and of everything that determines their embeddings names the file. A damaged file is
    computed again, with a warning.

    Raises:
        UsageError: The file cannot be written, or an embedding is not finite.
    """
    key, first = _key(encoder, sentences)
    path = Path(folder, f"{key}.npy")
    remove_leftovers(folder)
    shape = (len(sentences), encoder.dimensions)
    cache_array(path, shape, lambda into: _embed(encoder, sentences, into, path))
    return CachedGuide(encoder.name, path, encoder.device, first)


def _key(encoder: "Model", sentences: Sequence[str]) -> tuple[str, Tensor]:
    """Return the name of the file, and the index of the first sentence with the text of each one."""
    digest, texts = hashlib.sha256(encoder.sha256().encode()), np.empty(len(sentences), np.int64)
    for row, sentence in enumerate(sentences):
        text = sentence.encode()
        digest.update(len(text).to_bytes(8, "little") + text)  # any separator could occur in a sentence
        texts[row] = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)
    _, first, same = np.unique(texts, return_index=True, return_inverse=True)
    return digest.hexdigest()[:16], torch.from_numpy(first[same])


def cache_array(path: Path, shape: tuple[int, int], fill: Callable[[np.ndarray], None]) -> None:
    """Ensure that a file holds the float16 array that `fill` computes, next to a header `NAME.json` with its checksum.

    The header is written last. An existing file is used only if it matches its header.

    Raises:
        UsageError: The file cannot be written.
    """
    header = path.with_suffix(".json")
    if path.exists():
        with suppress(OSError, UsageError):  # either file may be unreadable
            if read_json(header) == _description(path, shape):
                return
        logger.warning(f"{path} is damaged: it does not match {header.name}. It is computed again.")
    with writing(f"folder {path.parent}", "guide_cache", "Name a folder with write access and free space."):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _new_array(path, shape) as array:
            fill(array)
        write_json(header, _description(path, shape))


def _description(path: Path, shape: tuple[int, int]) -> dict:
    return {"shape": list(shape), "dtype": "float16", "sha256": sha256(path)}


def _embed(encoder: "Model", sentences: Sequence[str], into: np.ndarray, path: Path) -> None:
    (pooler,) = encoder.poolers
    logger.info(f"Embedding {counted(len(sentences), 'sentence')} with the guide {encoder.name}, once, into {path}")
    with tqdm(total=len(sentences), desc="guide", unit=" sentences", leave=False, disable=hidden()) as bar:
        for start in range(0, len(sentences), CHUNK):
            chunk = torch.from_numpy(encoder(sentences[start : start + CHUNK], bar.update)[pooler])
            if not torch.isfinite(chunk).all():
                raise UsageError(
                    f"{encoder.name} gives embeddings that are not finite", option="guide_model", fix="Use another one."
                )
            into[start : start + CHUNK] = normalize(chunk, dim=-1).numpy()


@contextmanager
def _new_array(path: Path, shape: tuple[int, int]) -> Iterator[np.ndarray]:
    """Yield an array to fill; its file gets its final name when the block ends."""
    with new_file(path) as partial:
        array = np.lib.format.open_memmap(partial, "w+", np.float16, shape)
        allocate(partial)
        yield array
        array.flush()
