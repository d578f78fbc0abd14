"""The frozen guide of a run: its embeddings, their neighbors, and the general sentences of the replay."""

import copy
import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import normalize
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from informin.distributed import first_of_machine_first, to_device
from informin.errors import UsageError, counted
from informin.evaluation.neighbors import ROWS_AT_ONCE, nearest_rows, neighbor_means
from informin.fast.speed import set_inference
from informin.files import named_in_errors, new_file, read_json, sha256, write_json
from informin.model.checksums import model_sha256
from informin.model.embedding import bar_of_texts, encode, hidden, width_of
from informin.model.open import Source, length_limit, limit_length, load_finished, name_of
from informin.objectives import Replay
from informin.objectives.term import Term, needed
from informin.texts import GENERAL_SENTENCES, read_texts
from informin.training.arguments import InforMinTrainingArguments
from informin.training.batch import IGNORED, join_rows, widened_places
from informin.training.data import TRUNCATED, Sentences, tokenize
from informin.training.model import TrainedModel
from modeling_informin import with_default_prompt

logger = logging.getLogger(__name__)

FOLDER = "guide"  # in the output folder, unless `guide_cache` names another one


def add_guide(
    model: TrainedModel,
    args: InforMinTrainingArguments,
    terms: Sequence[Term],
    rows: Any,
    sentences: Sentences | None,
    length: int,
) -> tuple[Any, "GeneralSentences | None", dict[str, str]]:
    """Prepare the terms with what they need from a guide, and return what a step needs.

    Args:
        model: The model in training, which is its own guide unless `args.guide_model` names another one.
        args: Arguments of the run.
        terms: Terms of the objective.
        rows: `input_ids` and `attention_mask` of the training sentences.
        sentences: Columns of texts; None if the trainer was given tokens.
        length: Maximum number of tokens in a row.

    Returns:
        The rows, with their index as the column `row` if the guide embedded them; what appends general sentences to
        the rows of a step, or None; and checksums of the sentences of guides with their model, by their names.

    Raises:
        UsageError: An option has no effect, the dimension of the guide does not fit, or there are no sentences to
            embed, or too few for the number of neighbors. Also as `load_model`.
    """
    replay = next((term for term in terms if isinstance(term, Replay)), None)
    if args.replay_file and not replay:
        raise UsageError("has no effect without `replay_weight`", option="replay_file")
    guided = [term for term in terms if term.guide_needs]
    if args.guide_model and not guided:
        raise UsageError("has no effect: no term uses a guide", option="guide_model", fix="Set `guided_weight`.")
    file = args.replay_file or GENERAL_SENTENCES
    texts = datasets.Dataset.from_dict({"text": _read_general(file)}) if replay else None
    if texts is not None and len(texts) == 0:
        raise UsageError(f"{args.replay_file} has no sentence", option="replay_file")
    guides = _load_guides(model, args, guided, sentences, texts, length) if guided else {}
    if guided:
        with first_of_machine_first(args):  # neighborhood means are cached, too
            for term in guided:
                term.prepare(guides[needed(term.guide_needs).sentences])
    if "training" in guides:
        number = len(rows)
        rows = rows.add_column("row", range(number))
        if len(needed(sentences).column_names) > 1:  # the guide's embeddings of the second texts follow
            rows = rows.add_column("second_row", range(number, 2 * number))
    general = None
    if replay:
        tokens = tokenize(texts, model.tokenizer, length, model.prompt).remove_columns(TRUNCATED)
        general = GeneralSentences(tokens, replay.size, model.tokenizer)
    checksums = {f"guide (`guide_model`) or its {kind} sentences": guide.path.stem for kind, guide in guides.items()}
    return rows, general, checksums


def _read_general(file: str | Path) -> list[str]:
    """Return the texts of a file of general sentences. Raises UsageError about `replay_file` if it cannot be read."""
    try:
        return list(read_texts(file))
    except UsageError as error:
        option = "replay_file" if error.option == "train_file" else error.option
        raise UsageError(error.found, option=option, needed=error.needed, fix=error.fix) from None


def _load_guides(
    model: TrainedModel,
    args: InforMinTrainingArguments,
    terms: Sequence[Term],
    sentences: Sentences | None,
    general: datasets.Dataset | None,
    length: int,
) -> dict[str, "CachedGuide"]:
    """Return the guides of the `training` and of the `general` sentences that the terms need."""
    needs = [needed(term.guide_needs) for term in terms]
    kinds = dict.fromkeys(need.sentences for need in needs)
    texts = {"general": list(general["text"]) if general is not None else []}
    if "training" in kinds:
        if not isinstance(sentences, datasets.Dataset):
            raise UsageError(
                "is tokenized or a stream, and the guide embeds every sentence before the first step",
                option="train_dataset",
                needed="a list or a dataset of sentences",
            )
        texts["training"] = [text for name in sentences.column_names for text in sentences[name]]
        for need in needs:
            check_neighbors(need.neighbors, len(set(texts["training"])), need.neighbors_option)
    folder = Path(args.guide_cache or Path(str(args.output_dir), FOLDER))
    with _guide(model, args, length) as guide:
        width = guide.get_embedding_dimension()
        wanted = model.config.hidden_size
        for term, need in zip(terms, needs):
            if need.same_dimension and width != wanted:
                raise UsageError(
                    f"compares embeddings of {wanted} dimensions with the guide's {width}",
                    option=term.option_name("weight"),
                    fix=f"Use a `guide_model` with {wanted} dimensions.",
                )
        with first_of_machine_first(args):
            embeddings = {str(kind): load_guide(folder, guide, texts[kind]) for kind in kinds}
    if isinstance(sentences, datasets.Dataset) and "training" in embeddings:
        embeddings["training"].texts = len(sentences.column_names)
    return embeddings


@contextmanager
def _guide(model: TrainedModel, args: InforMinTrainingArguments, length: int) -> Iterator[SentenceTransformer]:
    """Yield the guide on the device and in the precision of the training.

    The model before training can be its own guide, with at most `length` tokens of a text.
    """
    autocast = torch.autocast(args.device.type, torch.bfloat16, enabled=args.mixed_precision == "bf16")
    if args.guide_model is not None:
        how = {"trust_remote_code": args.trust_remote_code, "device": str(args.device)}
        guide = load_finished(args.guide_model, "guide_model", "a SentenceTransformer", **how)
        with autocast:
            yield guide
        return
    guide = copy.copy(model.finished.to(args.device))
    prompts = with_default_prompt(guide.prompts, guide.default_prompt_name, model.prompt)
    guide.prompts, guide.default_prompt_name = prompts
    guide.informin_source = Source(model.name)
    set_inference(guide)
    before = length_limit(guide)
    limit_length(guide, min(before or length, length))
    try:
        with autocast:
            yield guide
    finally:
        limit_length(guide, before)


@dataclass
class GeneralSentences:
    """Appends a random sample of general sentences to the rows of a step.

    Attributes:
        rows: `input_ids` and `attention_mask` of all general sentences.
        size: Number of sentences per step.
        tokenizer: The tokenizer that pads them.
    """

    rows: datasets.Dataset
    size: int
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, stacked: dict[str, Any], seed: int) -> dict[str, Any]:
        """Append K sentences to the rows (N, L) of `StackedViews`, and their indices as `general_row` (K,), an array.

        The same seed draws the same sentences.
        """
        drawn = np.random.default_rng(seed).choice(len(self.rows), min(self.size, len(self.rows)), replace=False)
        batch = self.tokenizer.pad(self.rows[drawn], return_tensors="pt")
        fill = {"input_ids": self.tokenizer.pad_token_id, "attention_mask": 0, "lm_labels": IGNORED}
        batch["lm_labels"] = torch.full_like(batch["input_ids"], IGNORED)
        joined = dict(stacked)
        for name in fill.keys() & stacked.keys():
            joined[name] = join_rows([stacked[name], batch[name]], fill[name], self.tokenizer.padding_side)
        if "shared" in stacked:
            side = self.tokenizer.padding_side
            joined["shared"] = widened_places(stacked["shared"], joined["input_ids"].shape[1], side)
        joined["general_row"] = drawn
        return joined


# The embeddings of the guide, in a file

EMBEDDED_AT_ONCE = 8_192  # sentences embedded and written at once
RANDOM_PAIRS = 1_000_000  # random pairs that `quantile` is estimated from


def load_guide(folder: str | Path, model: SentenceTransformer, sentences: Sequence[str]) -> "CachedGuide":
    """Load a model's embeddings of N sentences from the cache, or compute and cache them, in this process.

    A checksum of the sentences and of everything that determines their embeddings names the file. A damaged file is
    computed again, with a warning.

    Raises:
        UsageError: An embedding is not finite.
    """
    rows: dict[str, int] = {}
    first = torch.tensor([rows.setdefault(text, row) for row, text in enumerate(sentences)])
    digest = hashlib.sha256(model_sha256(model).encode())
    digest.update(b"bf16" if torch.is_autocast_enabled(model.device.type) else b"")
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


class CachedGuide:
    """A frozen encoder's embeddings of N sentences, memory-mapped from a file.

    Attributes:
        path: Path of the file.
        device: Device that computes cosines.
        first: Indices (N,) int64 of the first sentence with the same text.
        embeddings: (N, d) float16 unit vectors, in the order of the sentences.
        texts: Number of texts of each sentence. The embeddings of all first texts come first.
    """

    texts = 1

    def __init__(self, path: Path, device: torch.device, first: Tensor):
        self.path = path
        self.device = device
        self.first = first
        self.embeddings = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.embeddings)

    def lookup(self, indices: np.ndarray, device: torch.device) -> Tensor:
        """Return the embeddings (B, d) float32 of the sentences with these indices (B,), on a device."""
        return to_device(torch.from_numpy(self.embeddings[indices]), device).float()

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
        """Return the cosine that this fraction of pairs of different sentences exceeds, estimated on random pairs.

        It is infinite if all sentences are equal.
        If sentences have several texts, it compares the first text of one with the second text of the other.
        """
        draw = np.random.default_rng(0)
        number = len(self) // self.texts
        left = draw.integers(0, number, RANDOM_PAIRS)
        right = (left + draw.integers(1, number, RANDOM_PAIRS)) % number
        if self.texts > 1:
            right += number
        different = (self.first[left] != self.first[right]).numpy()
        left, right = left[different], right[different]
        if not len(left):
            return math.inf
        cpu = torch.device("cpu")
        cosines = []
        for start in range(0, len(left), EMBEDDED_AT_ONCE):
            chunk = slice(start, start + EMBEDDED_AT_ONCE)
            products = self.lookup(left[chunk], cpu) * self.lookup(right[chunk], cpu)
            cosines.append(products.sum(-1))
        return float(np.quantile(torch.cat(cosines).numpy(), 1 - fraction))

    def neighborhood_means(self, k: int) -> "CachedGuide":
        """Return the guide smoothed over k nearest neighbors, cached next to this one: see `smooth`."""
        weight = SELF_WEIGHT  # another weight gets another file
        path = self.path.with_name(f"{self.path.stem}-means{k}-self{weight}.npy")
        cache_array(path, self.embeddings.shape, lambda: smooth(self.embeddings, *self.nearest(k)))
        return CachedGuide(path, self.device, self.first)


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


# Neighbors, and the means over them

AVERAGED_AT_ONCE = 8_192  # rows averaged at once
SELF_WEIGHT = 1 / 2  # weight of the sentence's own embedding in its mean


def nearest_neighbors(embeddings: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k nearest other sentences of each sentence by cosine, nearest first.

    Args:
        embeddings: (N, d) float32 unit vectors.

    Returns:
        Indices (N, k) int64 and cosines (N, k) float32, both on the CPU.

    Raises:
        UsageError: There are fewer than k other sentences.
    """
    check_neighbors(k, len(embeddings))
    indices: list[Tensor] = []
    cosines: list[Tensor] = []
    for start in tqdm(range(0, len(embeddings), ROWS_AT_ONCE), desc="neighbors", leave=False, disable=hidden()):
        nearest, values = nearest_rows(embeddings[start : start + ROWS_AT_ONCE], embeddings, k, first=start)
        indices.append(nearest)
        cosines.append(values)
    return torch.cat(indices), torch.cat(cosines)


def check_neighbors(k: int, sentences: int, option: str | None = None) -> None:
    """Raise UsageError if no sentence has k others; `option` is the option that sets k."""
    if k >= sentences:
        needed = f"more sentences, or at most {sentences - 1} neighbors"
        raise UsageError(f"needs {k} neighbors for each of {sentences:,} sentences", option=option, needed=needed)


def smooth(embeddings: np.ndarray, indices: Tensor, cosines: Tensor) -> Iterator[np.ndarray]:
    """Average each embedding with those of its neighbors, twice, and yield the unit vectors in blocks of rows.

    The sentence itself keeps half of the weight. Its neighbors share the other half in proportion to their cosines
    cubed. Half is fixed because the cosines of a narrow domain are all high: neighbors would otherwise outweigh the
    sentence. The second pass averages the first means over the same neighbors.

    Args:
        embeddings: (N, d) unit vectors.
        indices, cosines: (N, k), the neighbors of each sentence.

    Source:
        Two steps of Zhou et al. (2003), "Learning with local and global consistency", with the weights of alpha query
        expansion (Radenović, Tolias & Chum, 2019), alpha = 3.
    """
    first = np.empty_like(embeddings)
    done = 0
    for block in _averages(embeddings, indices, cosines):
        first[done : done + len(block)] = block
        done += len(block)
    yield from _averages(first, indices, cosines)


def _averages(x: np.ndarray, indices: Tensor, cosines: Tensor) -> Iterator[np.ndarray]:
    for start in range(0, len(x), AVERAGED_AT_ONCE):
        rows = slice(start, start + AVERAGED_AT_ONCE)
        itself = torch.from_numpy(np.array(x[rows])).float()
        means = neighbor_means(x, indices[rows], cosines[rows])
        yield normalize(SELF_WEIGHT * itself + (1 - SELF_WEIGHT) * means, dim=-1).numpy()
