"""Development sets that training is scored on: pairs, labeled sentences, retrieval, and evaluations of your own."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from informin.errors import UndefinedScoreError, UsageError
from informin.evaluation.collections import Collection
from informin.evaluation.embedding_cache import EmbeddingCache, Encode
from informin.evaluation.labels import LabeledSentences
from informin.evaluation.measures import KINDS, Measure
from informin.evaluation.own import OwnEvaluation, own_evaluation
from informin.evaluation.pairs import GradedPairs, load_pairs

NEEDED = (
    "GradedPairs, LabeledSentences, Collection, the path of a file of pairs, a function from `encode` to scores, "
    "an evaluator of sentence-transformers, or a list or a dictionary of these"
)
DevelopmentSet = GradedPairs | LabeledSentences | Collection  # all with kind, name, sha256, measures, texts, score


@dataclass(frozen=True)
class Development:
    """One or more development sets, at most one of each kind, in the order of `measures.KINDS`.

    Attributes:
        sets: The sets with measures of this project.
        own: Further evaluations; see `informin.evaluation.own`. Their scores are logged and can select the checkpoint.
    """

    sets: tuple[DevelopmentSet, ...]
    own: tuple[OwnEvaluation, ...] = ()

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
        return ", ".join(one.name for one in (*self.sets, *self.own))

    @property
    def sha256(self) -> str:
        """SHA-256 of the set, or of the checksums of several sets and the names of your own evaluations."""
        sums = [*(one.sha256 for one in self.sets), *(f"own {one.name} {one.sha256}" for one in self.own)]
        return sums[0] if len(sums) == len(self.sets) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()

    @property
    def measures(self) -> dict[str, Measure]:
        """Scores by key. The first one selects the best checkpoint by default."""
        return {key: measure for one in self.sets for key, measure in one.measures.items()}

    @property
    def own_measures(self) -> dict[str, Measure | None]:
        """Scores of your own evaluations by name, as far as they are known; None for a function, under its name."""
        found: dict[str, Measure | None] = {}
        for one in self.own:
            found |= one.measures
            if not one.measures:
                found[one.name] = None
        return found

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

    def own_scores(self, encode: Encode) -> dict[str, float]:
        """Return the scores of your own evaluations by name.

        Raises:
            UsageError: Two scores have the same name, or an evaluation returned no scores.
        """
        scores: dict[str, float] = {}
        for one in self.own:
            found = one.score(encode)
            if same := [name for name in found if name in scores or name in self.measures]:
                raise UsageError(
                    f"has two scores with the name {same[0]}",
                    option="eval_dataset",
                    fix="Give the evaluations in a dictionary, whose keys then begin the names.",
                )
            scores |= found
        return scores


def as_development(given: object) -> Development | None:
    """Convert the `eval_dataset` of a trainer; None for None.

    Args:
        given: A set; the path of a file of pairs; a function from `encode` to scores; an evaluator of
            sentence-transformers; a list of these; or a dictionary of these by name, whose scores are logged as
            eval_NAME_MEASURE.

    Raises:
        UsageError: It is something else, an empty list, or has two sets of one kind.
    """
    if given is None or isinstance(given, Development):
        return given
    if isinstance(given, Mapping) and given:
        return Development((), tuple(_named(str(name), one) for name, one in given.items()))
    several = list(given) if isinstance(given, list | tuple) else [given]
    sets: list[Any] = [load_pairs(Path(one)) if isinstance(one, str | PathLike) else one for one in several]
    others = [one for one in sets if not isinstance(one, DevelopmentSet)]
    own = [own_evaluation(one) for one in others]
    if not sets or None in own:
        wrong = type(others[own.index(None)]).__name__ if sets else ""
        raise UsageError(f"is a {wrong}" if sets else "is empty", option="eval_dataset", needed=NEEDED)
    known = tuple(one for one in sets if isinstance(one, DevelopmentSet))
    return Development(known, tuple(one for one in own if one is not None))


def _named(name: str, given: Any) -> OwnEvaluation:
    """Return the evaluation of a set or a function with a name."""
    one = load_pairs(Path(given)) if isinstance(given, str | PathLike) else given
    found = own_evaluation(one, name)
    if found is None:
        raise UsageError(f"has a {type(one).__name__} with the name {name}", option="eval_dataset", needed=NEEDED)
    return found
