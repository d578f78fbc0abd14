"""Distill a model into a table of token vectors for texts of one kind, without training or labels."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from typing_extensions import Unpack

from informin.distributed import first_only, rank
from informin.errors import UsageError, counted
from informin.evaluation.drift import FEWEST, SAMPLED_TEXTS, measure_drift
from informin.evaluation.rows import rows_of
from informin.fast.precision import precision_of
from informin.files import last_name, new_folder, only_writer
from informin.frozen.adapter import TASKS
from informin.frozen.fit import fit_record, write_fitted
from informin.frozen.static import (
    SMOOTHED_AT_ONCE,
    add_words,
    count_tokens,
    distill_vectors,
    embed_tokens,
    tokenizer_of,
)
from informin.frozen.vectors import given_vectors, open_with_prompt, side_of, vectors_of
from informin.model.embedding import encode, encode_in_shares
from informin.model.open import Loading, loading_to_embed, name_of
from informin.model.records import FitRecord
from informin.options import check_value, with_home
from informin.publishing.card import STATIC
from informin.texts import as_texts

logger = logging.getLogger(__name__)


FEW = 1_000  # texts: with fewer, the table is worse than the model
TIMED = 128  # texts that the model embeds again, to measure its speed
FAILS = "not for pairs, thresholds, negation, or texts of another kind"


@dataclass(repr=False)
class DistillResult:
    """A static model, and what it changes.

    Attributes:
        static: The static model.
        model: The model that was distilled.
        task: `clustering` or `search`.
        texts: Number of texts.
        seconds: Time that `distill` took, with embedding the texts and measuring drift and speed.
        drift: How a table that was fitted on nine tenths of the texts differs from the model on the others, as in
            `informin.evaluation.drift`; None for fewer than 30 different ones.
        speeds: Texts per second of the model and of the table.
        precision: Precision of the weights that embedded the texts; None for given embeddings.
        options: The prompt, the pooling and the maximum length that were given.
        folder: Where the result was saved.
    """

    static: SentenceTransformer
    model: SentenceTransformer
    task: str
    texts: int
    seconds: float
    drift: dict | None
    speeds: tuple[float, float]
    precision: str | None
    options: dict[str, Any]
    folder: Path | None = None

    def save(self, output_dir: str | Path, *, overwrite: bool = False) -> None:
        """Write the static model to a folder.

        Args:
            output_dir: Missing or empty folder. It appears once it is complete.
            overwrite: Whether to replace an older output of `save`, with all files that were added to its folder.

        Raises:
            UsageError: The folder is in use, or another process writes it.
        """
        check_value(isinstance(overwrite, bool), "overwrite", overwrite, "True or False")
        output_dir = with_home(output_dir)
        with first_only(only_writer(output_dir, "output_dir")):
            if rank() == 0:
                record = fit_record(
                    self.model,
                    kind=STATIC,
                    task=self.task,
                    texts=self.texts,
                    dimensions=self.static.get_embedding_dimension(),
                    drift=self.drift,
                    precision=self.precision,
                    options=self.options,
                )
                with new_folder(output_dir, "output_dir", FitRecord.is_in if overwrite else None) as folder:
                    write_fitted(self.static, record, folder)
        self.folder = Path(output_dir)

    def __repr__(self) -> str:
        width = self.static.get_embedding_dimension()
        tokens = self.static[0].tokenizer.get_vocab_size()
        before, after = self.speeds
        lines = [
            f"Static model of {last_name(name_of(self.model))}",
            f"  task: {self.task}",
            f"  texts: {self.texts:,}; a table of {tokens:,} tokens, {width} dimensions",
            f"  seconds: {self.seconds:.1f}",
            f"  speed: {after:,.0f} texts per second, and {before:,.0f} by the model",
        ]
        if self.drift:
            kept = self.drift["new"]["neighbors_kept"]
            lines.append(f"  held-out texts: {kept:.0f}% of the 10 nearest texts in common with the model")
        load = f'SentenceTransformer("{self.folder or "FOLDER"}")'
        return "\n".join([*lines, f"  use: {FAILS}", f"  load: {load}"])


def distill(
    model: str | Path | SentenceTransformer,
    texts: Iterable[str],
    *,
    task: str,
    embeddings: str | Path | ArrayLike | None = None,
    prompt: str | None = None,
    batch_size: int = 64,
    pooler: str = "auto",
    **loading: Unpack[Loading],
) -> DistillResult:
    """Distill a model into a static model of your texts in closed form. An embedding is then a mean of token vectors.

    The embeddings of the texts are adapted for the task by a `LinearAdapter`. For clustering, they are averaged with
    their nearest neighbors. For search, words that occur in two or more different texts become tokens, which anyone
    with the model can read. A ridge regression finds the token vectors whose means come closest. See
    `informin.frozen.static`.

    Args:
        model: Hub id, folder, or SentenceTransformer. Options for loading apply only to a name or folder.
        texts: N texts, preferably 3,000 or more.
        task: `clustering`, also for labels and near-duplicates; or `search`.
        embeddings: (N, d) embeddings of the texts by this model, or a file of them (.npy, .parquet or .safetensors).
            They are used instead of embedding the texts. A .npy file is never read into memory as a whole.
        prompt: Prompt prepended to each text, instead of the stored prompt. The static model needs none.
        batch_size: Texts per forward pass.
        pooler, loading: Options of `informin.load_model`. `precision` is auto by default for a name or folder.

    Returns:
        The static model, how it differs from the model on held-out texts, and `save`.

    Raises:
        UsageError: An option, the model, the texts or the embeddings cannot be used.
    """
    check_value(task in TASKS, "task", task, f"one of: {', '.join(TASKS)}")
    start = time.monotonic()
    texts = as_texts(texts)
    if not texts:
        raise UsageError("is missing or empty", option="train_file", fix="A table needs the texts.")
    if len(texts) < FEW:
        logger.warning(f"Found {counted(len(texts), 'text')}. With fewer than {FEW:,}, the model itself is better.")
    st = open_with_prompt(model, prompt, pooler, loading_to_embed(model, loading))
    tokenizer = tokenizer_of(st)
    given = None if embeddings is None else given_vectors(embeddings, texts)
    side = side_of(task)
    vectors = vectors_of(st, texts, given, side, batch_size)
    if task == "search":
        tokenizer = add_words(tokenizer, texts)
    counts = count_tokens(tokenizer, texts)
    alone = embed_tokens(
        partial(encode_in_shares, st, side=side, batch_size=batch_size, title="tokens"), tokenizer, counts
    )

    def static(rows: np.ndarray) -> SentenceTransformer:
        """Return the static model of some of the texts."""
        x = vectors if len(rows) == len(texts) else rows_of(vectors, rows)
        _, table = distill_vectors(x, counts[rows], alone, task)
        modules = [StaticEmbedding(tokenizer, embedding_weights=table), Normalize()]
        return SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="cosine")

    whole = static(np.arange(len(texts)))
    held, others = split_rows(texts)
    vector_of = {texts[row]: vectors[row] for row in held}
    drift = held_out_drift(vector_of, lambda: static(np.sort(others[:SMOOTHED_AT_ONCE])))
    sample = [texts[row] for row in held] or texts
    speeds = speed(st, sample[:TIMED], side, batch_size), speed(whole, sample, None, batch_size)
    options = {"prompt": prompt, "pooler": pooler, "max_seq_length": loading.get("max_seq_length")}
    return DistillResult(
        static=whole,
        model=st,
        task=task,
        texts=len(texts),
        seconds=time.monotonic() - start,
        drift=drift,
        speeds=speeds,
        precision=precision_of(st) if given is None else None,
        options={name: value for name, value in options.items() if value not in (None, "auto")},
    )


def split_rows(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Split the rows of the distinct texts at random: a tenth of them, at most 2,000, to hold out, and the rest.

    Duplicates are left out, so that no held-out text is also among the rest.
    """
    firsts: dict[str, int] = {}
    for row, text in enumerate(texts):
        firsts.setdefault(text, row)
    order = np.array(list(firsts.values()))[np.random.default_rng(0).permutation(len(firsts))]
    count = min(SAMPLED_TEXTS, len(order) // 10)
    return order[:count], order[count:]


def held_out_drift(vector_of: dict[str, np.ndarray], fit: Callable[[], SentenceTransformer]) -> dict | None:
    """Return how a static model that `fit` fits to other texts differs from the vectors of held-out texts."""
    if len(vector_of) < FEWEST:
        return None

    def old(some: Sequence[str]) -> np.ndarray:
        return np.stack([vector_of[text] for text in some])

    return measure_drift(old, fit().encode, list(vector_of)).record()


def speed(model: SentenceTransformer, texts: list[str], side: str | None, batch_size: int) -> float:
    """Return how many texts per second a model embeds."""
    start = time.monotonic()
    encode(model, texts, side, None, batch_size)
    return len(texts) / (time.monotonic() - start)
