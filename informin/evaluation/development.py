"""What a run is scored on while it trains: graded pairs, a labeled sample, a search, or several of them."""

import hashlib
import math
from dataclasses import dataclass
from os import PathLike

from informin.errors import UndefinedScoreError, UsageError
from informin.evaluation.embedding_cache import EmbeddingCache, Encode
from informin.evaluation.labels import LabeledSentences
from informin.evaluation.measures import KINDS, Measure
from informin.evaluation.pairs import GradedPairs, load_pairs
from informin.evaluation.retrieval import RetrievalPairs

DevelopmentSet = GradedPairs | LabeledSentences | RetrievalPairs  # each with kind, name, sha256, measures, texts, score


@dataclass(frozen=True)
class Development:
    """One set or several, at most one of each kind, in the order of `measures.KINDS`."""

    sets: tuple[DevelopmentSet, ...]

    def __post_init__(self):
        for kind in KINDS:
            same = [one.name for one in self.sets if one.kind == kind]
            if len(same) > 1:
                raise UsageError(
                    f"{' and '.join(same)} are of one kind, and their scores would have the same names: a run is "
                    "scored on one of each kind. Leave one out; run_eval.py scores both."
                )
        order = list(KINDS)
        object.__setattr__(self, "sets", tuple(sorted(self.sets, key=lambda one: order.index(one.kind))))

    @property
    def name(self) -> str:
        """Of all sets."""
        return ", ".join(one.name for one in self.sets)

    @property
    def sha256(self) -> str:
        """Of one set its own; of several, of theirs."""
        sums = [one.sha256 for one in self.sets]
        return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()

    @property
    def measures(self) -> dict[str, Measure]:
        """The scores by key; the first is what checkpoints are chosen by where nothing else is asked for."""
        return {key: measure for one in self.sets for key, measure in one.measures.items()}

    def score(self, encode: Encode) -> tuple[dict[str, float], dict[str, str]]:
        """A score for each of the measures, NaN where it is undefined, and why, by the names of those sets.

        Args:
            encode: from N sentences to (N, d); called once, with the distinct sentences of all sets.
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
    """What a trainer is given to be scored on: a set, the path of a file of pairs, or a list of these; None for None.

    Raises UsageError: it is something else, an empty list, or holds two sets of one kind.
    """
    if given is None or isinstance(given, Development):
        return given
    several = list(given) if isinstance(given, list | tuple) else [given]
    sets = [load_pairs(one) if isinstance(one, str | PathLike) else one for one in several]
    wrong = [one for one in sets if not isinstance(one, DevelopmentSet)] if sets else [given]
    if wrong:
        raise UsageError(
            f"`eval_dataset` is a {type(wrong[0]).__name__}; needed GradedPairs, LabeledSentences or RetrievalPairs, "
            "the path of a file of pairs, or a list of these."
        )
    return Development(tuple(sets))
