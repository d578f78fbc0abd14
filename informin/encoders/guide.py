"""A guide: a frozen encoder's embeddings of the training sentences, computed once and kept in a file.

    guide = load_guide("outputs/guides", load_encoder("all-MiniLM-L6-v2"), sentences)
    guide.embeddings                      # (N, d), unit vectors
    guide.nearest(10)                     # (N, 10) places and cosines of their nearest neighbors

Nothing here needs memory for N x N cosines: they are looked at in blocks.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm

from informin.bars import hidden
from informin.encoders.encoder import Encoder
from informin.errors import UsageError, counted, error_line
from informin.files import read_json, sha256, write_json
from informin.interrupts import during
from informin.temporary import allocate, new_file, remove_leftovers

logger = logging.getLogger(__name__)

CHUNK = 8_192  # sentences that are encoded, and written, together
BLOCK = 2**25  # cosines that are in memory together: 128 MiB
OWN = 1 / 2  # share of a sentence in the mean of its neighborhood
PAIRS = 1_000_000  # drawn to estimate how near pairs of sentences are


class Guide:
    """What a frozen encoder holds of N sentences, mapped from a file.

    Attributes:
        name: of the encoder.
        path: of the file.
        embeddings: (N, d) float16 unit vectors, in the order of the sentences.
        device: where cosines are computed.
        files: this one, and those of its `neighbourhoods`.
    """

    def __init__(self, name: str, path: Path, device: torch.device):
        self.name, self.path, self.device = name, path, device
        self.files = [path]
        self.embeddings = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def dimensions(self) -> int:
        return self.embeddings.shape[1]

    def of(self, rows: Tensor) -> Tensor:
        """(B, d) float32, the embeddings of the sentences at these places (B,), on the device of `rows`."""
        return torch.from_numpy(self.embeddings[rows.cpu().numpy()]).to(rows.device, torch.float32)

    def nearest(self, k: int) -> tuple[Tensor, Tensor]:
        """The k nearest other sentences of each by cosine: their places (N, k) int64, and the cosines (N, k) float32.

        Every pair is compared, in float32 on every device: exact up to its rounding of the stored float16 vectors'
        cosines. O(N^2 d) time and O(N d + BLOCK) memory.

        Raises:
            UsageError: there are not k others.
        """
        refuse_few(k, len(self))
        everything = torch.from_numpy(np.array(self.embeddings)).to(self.device, torch.float32)
        places, cosines, rows = [], [], max(1, BLOCK // len(self))
        for start in tqdm(range(0, len(self), rows), desc="neighbors", leave=False, disable=hidden()):
            block = everything[start : start + rows] @ everything.T  # (rows, N)
            block[torch.arange(len(block)), torch.arange(start, start + len(block))] = -torch.inf  # itself
            values, found = block.topk(k, dim=-1)
            places.append(found.cpu())
            cosines.append(values.cpu())
        return torch.cat(places), torch.cat(cosines)

    def quantile(self, share: float) -> float:
        """The cosine that this share of the pairs of different sentences is above, estimated from random pairs."""
        draw = np.random.default_rng(0)
        first = draw.integers(0, len(self), PAIRS)
        second = (first + draw.integers(1, len(self), PAIRS)) % len(self)
        cosines = [
            (self.of(torch.from_numpy(first[i : i + CHUNK])) * self.of(torch.from_numpy(second[i : i + CHUNK]))).sum(-1)
            for i in range(0, PAIRS, CHUNK)
        ]
        return float(np.quantile(torch.cat(cosines).numpy(), 1 - share))

    def neighborhoods(self, k: int) -> "Guide":
        """A guide of the means of each sentence's neighborhood: half its own, half its k nearest, taken twice.

        The nearest are weighted by their cosines cubed. Their share is fixed: in a narrow domain, where all cosines are
        high, they would else be nearly all of it. The second mean is over the first means of the same neighbors. They
        are kept beside the embeddings' own file.

        Source:
            Zhou et al. (2003), "Learning with local and global consistency", two of its steps; the weights are those of
            alpha query expansion (Radenović, Tolias & Chum, 2019), alpha = 3.
        """
        path = self.path.with_name(f"{self.path.stem}-means{k}-own{OWN}.npy")  # another share is another file

        def fill(means: np.ndarray) -> None:
            places, cosines = self.nearest(k)
            weights = cosines.clamp(min=1e-6) ** 3  # (N, k)
            weights = weights / weights.sum(-1, keepdim=True)
            once = np.empty_like(means)
            _mean(self.embeddings, places, weights, into=once)
            _mean(once, places, weights, into=means)

        _store(path, self.embeddings.shape, fill)
        self.files.append(path)
        return Guide(self.name, path, self.device)


def _mean(x: np.ndarray, places: Tensor, weights: Tensor, into: np.ndarray) -> None:
    """Writes the unit vectors of OWN x_i + (1 - OWN) sum_j weights_ij x_places_ij; x (N, d), the others (N, k)."""
    for start in range(0, len(x), CHUNK):
        rows = slice(start, start + CHUNK)
        own, others = (torch.from_numpy(part).float() for part in (np.array(x[rows]), x[places[rows].numpy()]))
        nearest = (weights[rows][..., None] * others).sum(1)  # (CHUNK, d)
        into[rows] = normalize(OWN * own + (1 - OWN) * nearest, dim=-1).numpy()


def refuse_few(k: int, sentences: int) -> None:
    """Raises UsageError where there are not k others of each sentence."""
    if k >= sentences:
        raise UsageError(
            f"{counted(k, 'neighbor')} of each of {counted(sentences, 'sentence')}: needed more sentences, or a lower "
            "`neighbor_count`, `guided_neighbors` or `neighbor_views`."
        )


@during("guide embedding")
def load_guide(folder: str | Path, encoder: Encoder, sentences: Sequence[str]) -> Guide:
    """The guide's embeddings of N sentences, from a file of the folder, or computed and written there.

    The file is named by a checksum of the sentences and of everything that determines their embeddings. A file that is
    not as it was written is computed again, and a line of the log says so.

    Raises:
        UsageError: the file cannot be written, or an embedding is not finite.
    """
    path = Path(folder, f"{_key(encoder, sentences)}.npy")
    remove_leftovers(folder)
    shape = (len(sentences), encoder.dimensions)
    _store(path, shape, lambda embeddings: _embed(encoder, sentences, embeddings, path))
    return Guide(encoder.name, path, encoder.device)


def _key(encoder: Encoder, sentences: Iterable[str]) -> str:
    digest = hashlib.sha256(encoder.sha256().encode())
    for sentence in sentences:
        text = sentence.encode()
        digest.update(len(text).to_bytes(8, "little") + text)  # with its length: a sentence may hold any character
    return digest.hexdigest()[:16]


def _store(path: Path, shape: tuple[int, int], fill: Callable[[np.ndarray], None]) -> None:
    """Makes sure that a file holds what `fill` puts into an array, and beside it a header that says what it holds.

    The header, `NAME.json`, is written last. Nothing of a file is read before it was found to be what its header says.

    Raises:
        UsageError: the file cannot be written.
    """
    header = path.with_suffix(".json")
    if path.exists():
        with suppress(OSError, UsageError):  # neither file may be readable
            if read_json(header) == _description(path, shape):
                return
        logger.warning(f"{path} is damaged: it does not match {header.name}. It is computed again.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _new_file(path, shape) as array:
            fill(array)
        write_json(header, _description(path, shape))
    except OSError as error:
        raise UsageError(
            f"The guide's embeddings cannot be written to {path.parent}: {error_line(error)}. Give another "
            "`guide_cache`."
        ) from None


def _description(path: Path, shape: tuple[int, int]) -> dict:
    return {"shape": list(shape), "dtype": "float16", "sha256": sha256(path)}


def _embed(encoder: Encoder, sentences: Sequence[str], into: np.ndarray, path: Path) -> None:
    """Writes the unit vectors into an array (N, d), a chunk at a time."""
    (pooler,) = encoder.poolers
    logger.info(f"{encoder.name} as guide: {counted(len(sentences), 'sentence')} to embed, once, into {path}")
    with tqdm(total=len(sentences), desc="guide", unit=" sentences", leave=False, disable=hidden()) as bar:
        for start in range(0, len(sentences), CHUNK):
            chunk = torch.from_numpy(encoder(sentences[start : start + CHUNK], bar.update)[pooler])
            if not torch.isfinite(chunk).all():
                raise UsageError(f"`guide_model` {encoder.name}: its embeddings are not finite. Take another.")
            into[start : start + CHUNK] = normalize(chunk, dim=-1).numpy()


@contextmanager
def _new_file(path: Path, shape: tuple[int, int]) -> Iterator[np.ndarray]:
    """An array to be filled, whose file takes its place when it is whole."""
    with new_file(path) as partial:
        array = np.lib.format.open_memmap(partial, "w+", np.float16, shape)
        allocate(partial)
        yield array
        array.flush()
