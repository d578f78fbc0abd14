"""The table of a comparison: models, best first, and notes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import torch

from informin.adapters.halves import RECORD, Difference, HalvesScore, chance_rank, difference
from informin.adapters.prediction import FEWEST, MOST_ALIKE
from informin.adapters.scores import UnrelatedScores, scores_line
from informin.errors import counted
from informin.evaluation.similarity import COSINE
from informin.evaluation.table import Row, Table

COLUMNS = ["rank", "of the best", "with adapter", "adapter is", "words, %", "dimensions", "texts/s"]


@dataclass(frozen=True)
class Sizes:
    """Numbers of texts: in the files, in the sample, and held out of the sample."""

    texts: int
    sampled: int
    held_out: int


@dataclass
class Entry:
    """A model in the comparison. What could not be measured is None."""

    label: str
    error: str | None = None
    dimensions: int | None = None
    length: int | None = None
    pooler: str | None = None
    prompt: str | None = None
    similarity: str = COSINE  # what the model declares
    device: torch.device | None = None
    truncated: int = 0
    mean_cosine: float | None = None
    unrelated: UnrelatedScores | None = None  # cosines between unrelated texts
    words: float | None = None  # agreement with word search, from 0 to 1
    score: HalvesScore | None = None
    speeds: list[float] = field(default_factory=list)  # texts per second in each round

    @property
    def speed(self) -> float | None:
        return median(self.speeds) if self.speeds else None

    @property
    def alike(self) -> bool:
        """Whether all texts have similar embeddings."""
        return self.mean_cosine is not None and self.mean_cosine > MOST_ALIKE

    def line(self) -> str:
        """Return the progress line."""
        if self.error:
            return f"{self.label}: {self.error}"
        return f"{self.label}: rank {self.score.rank:.2f}" if self.score else f"{self.label}: no rank"


def ranked(entries: list[Entry]) -> list[tuple[Entry, HalvesScore | None, Difference | None]]:
    """Return the entries, best first, with their scores and differences to the best. Those without a score are last."""
    scored = sorted(((entry, score) for entry in entries if (score := entry.score)), key=lambda pair: pair[1].rank)
    others = [(entry, None, None) for entry in entries if not entry.score]
    return [*((entry, score, difference(score, scored[0][1])) for entry, score in scored), *others]


def table(entries: list[Entry], sizes: Sizes) -> Table:
    """Return the table."""
    rows = []
    for place, (entry, score, gap) in enumerate(ranked(entries)):
        values: dict[str, float | str | None] = {"rank": "error" if entry.error else None}
        if score and gap:
            sure = "" if place == 0 else ", clear" if gap.clear else ", not clear"
            values |= {"rank": f"{score.rank:.2f}", "of the best": f"{np.exp(gap.mean):.2f}x{sure}"}
            values |= {"with adapter": f"{score.adapted_rank:.2f}", "adapter is": score.adapter.verdict}
        if entry.dimensions and not entry.error:
            values["dimensions"] = str(entry.dimensions)
        if entry.words is not None and not entry.error:
            values["words, %"] = f"{100 * entry.words:.0f}"
        if entry.speed:
            values["texts/s"] = f"{entry.speed:,.0f}" if entry.speed >= 10 else f"{entry.speed:.1f}"
        rows.append(Row(entry.label, values))
    title = f"Rank of the second half of {counted(sizes.held_out, 'text')}, searched with the first half"
    return Table(title, COLUMNS, rows)


def notes(entries: list[Entry], sizes: Sizes) -> Iterator[str]:
    """Yield what a reader of the table needs to know."""
    found = {name: f"{right} of {pairs}" for name, (right, pairs) in RECORD.items()}
    for entry in entries:
        if entry.error:
            yield f"{entry.label}: {entry.error}"
        elif entry.score is None and sizes.held_out:
            yield f"{entry.label}: no rank, because it has no embeddings of halves. See `write_texts`."
        if entry.alike:
            yield (
                f"{entry.label}: the mean cosine of the texts is {entry.mean_cosine:.2f}. Above {MOST_ALIKE}, the rank "
                "is hardly better than a guess if the encoder was never trained for embeddings."
            )
        if entry.similarity != COSINE:
            yield f"{entry.label}: compared by cosine, although the model declares the similarity {entry.similarity}."
        if entry.unrelated:
            yield f"{entry.label}: {scores_line(entry.unrelated)}"
        if entry.truncated:
            yield f"{entry.label}: {counted(entry.truncated, 'text')} truncated to {entry.length} tokens."
    if sizes.held_out < FEWEST:
        yield f"{sizes.held_out} texts of four words or more are held out, {FEWEST} are needed for a clear difference."
    if sizes.held_out:
        chance = f"{chance_rank(sizes.held_out):.0f}"
        yield f"rank: geometric mean; 1 is best, {chance} is chance. clear: over two standard errors from the best."
        yield (
            f"In our tests, the model with the lower rank had the better score in {found['all']} pairs of models "
            f"(clear differences: {found['clear']}; mean cosine of one model above {MOST_ALIKE}: {found['alike']})."
        )
    if any(entry.words is not None for entry in entries):
        yield (
            "words: how many of the 10 nearest texts TF-IDF also finds. In our tests, the model with more of them had "
            f"the better score in {found['words']} pairs, but it favors models that match words."
        )
