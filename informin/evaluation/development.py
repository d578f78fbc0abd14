"""Development sets that training is scored on: graded pairs, labeled sentences or retrieval pairs."""

import hashlib
import math
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from informin.errors import UndefinedScoreError, UsageError
from informin.evaluation.embedding_cache import EmbeddingCache, Encode
from informin.evaluation.labels import LabeledSentences
from informin.evaluation.measures import KINDS, Measure
from informin.evaluation.pairs import GradedPairs, load_pairs
from informin.evaluation.retrieval import RetrievalPairs

DevelopmentSet = GradedPairs | LabeledSentences | RetrievalPairs  # all with kind, name, sha256, measures, texts, score


@dataclass(frozen=True)
class Development:
    """One or more development sets, at most one of each kind, in the order of `measures.KINDS`."""

    sets: tuple[DevelopmentSet, ...]

    def __post_init__(self):
        for kind in KINDS:
            same = [one.name for one in self.sets if one.kind == kind]
            if len(same) > 1:
                raise UsageError(
                    f"has two sets of the kind {kind}: {' and '.join(same)}",
                    option="eval_dataset",
                    needed="at most one of each kind, because their scores have the same names",
                    fix="Leave one out, and score it with `informin eval`.",
                )
        order = list(KINDS)
        object.__setattr__(self, "sets", tuple(sorted(self.sets, key=lambda one: order.index(one.kind))))

    @property
    def name(self) -> str:
        """Names of all sets."""
        return ", ".join(one.name for one in self.sets)

    @property
    def sha256(self) -> str:
        """SHA-256 of the set, or of the checksums of several sets."""
        sums = [one.sha256 for one in self.sets]
        return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()

    @property
    def measures(self) -> dict[str, Measure]:
        """Scores by key. The first one selects the best checkpoint by default."""
        return {key: measure for one in self.sets for key, measure in one.measures.items()}

    def score(self, encode: Encode) -> tuple[dict[str, float], dict[str, str]]:
        """Return all scores, NaN if undefined, and the reasons for undefined scores by name of the set.

        Args:
            encode: Function from N sentences to embeddings (N, d); called once, with all distinct sentences.
        """
        once = EmbeddingCache(lambda texts: {"": encode(texts)})
        once.add([text for one in self.sets for text in one.texts()])
        scores, problems = dict.fromkeys(self.measures, math.nan), {}
        for one in self.sets:
            try:
                found = one.score(once.by(""))
            except UndefinedScoreError as error:
                problems[one.name] = str(error)
            else:
                scores |= {key: found[key] for key in one.measures}
        return scores, problems


def as_development(given: object) -> Development | None:
    """Convert the `eval_dataset` of a trainer: a set, the path of a file of pairs, or a list of these; None for None.

    Raises:
        UsageError: It is something else, an empty list, or has two sets of one kind.
    """
    if given is None or isinstance(given, Development):
        return given
    several = list(given) if isinstance(given, list | tuple) else [given]
    sets: list[Any] = [load_pairs(Path(one)) if isinstance(one, str | PathLike) else one for one in several]
    wrong = [one for one in sets if not isinstance(one, DevelopmentSet)] if sets else [given]
    if wrong:
        raise UsageError(
            f"is a {type(wrong[0]).__name__}" if sets else "is empty",
            option="eval_dataset",
            needed="GradedPairs, LabeledSentences, RetrievalPairs, the path of a file of pairs, or a list of these",
        )
    return Development(tuple(sets))
