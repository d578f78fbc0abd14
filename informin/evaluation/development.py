"""Development sets that training is scored on: pairs, labeled sentences, retrieval, and custom evaluations."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from numbers import Real
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import datasets
import numpy as np
import torch
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.util import cos_sim, pairwise_cos_sim
from torch.nn.functional import normalize

from informin.errors import UndefinedScoreError, UsageError
from informin.evaluation.encode import EmbeddingCache, Encode
from informin.evaluation.labels import LABEL_COLUMNS, LabeledSentences, labels_of_rows
from informin.evaluation.measures import KINDS, Measure
from informin.evaluation.pairs import COLUMNS, GradedPairs, load_pairs, pairs_of_rows
from informin.evaluation.retrieval import PAIR_COLUMNS, Collection, collection_of_rows
from informin.texts import Cells

DevelopmentSet = GradedPairs | LabeledSentences | Collection  # all with kind, name, sha256, measures, texts, score


@dataclass(frozen=True)
class CustomEvaluation:
    """Scores that a function computes from embeddings.

    Attributes:
        name: Name of the evaluation: that of its only score, or what the names of its scores begin with.
        function: From `encode`, which takes N texts and returns (N, d) float32, to a number or a dictionary of numbers.
        prefix: What the names in a dictionary begin with in the log, after `eval_`.
        measures: Measures of a set by the names of their scores; empty for a function, whose scores are not known yet.
        sha256: Checksum of a set; empty for a function.
        evaluator: The evaluator of sentence-transformers that the function calls.
    """

    name: str
    function: Callable[[Encode], Any]
    prefix: str = ""
    measures: Mapping[str, Measure] = field(default_factory=dict)
    sha256: str = ""
    evaluator: BaseEvaluator | None = None

    def score(self, encode: Encode) -> dict[str, float]:
        """Return the scores by name, the one that selects the best checkpoint first.

        They are NaN under their names, or a function's own name, if they are undefined.

        Raises:
            UsageError: The function returned something else.
        """
        try:
            result = self.function(encode)
        except UndefinedScoreError:
            return dict.fromkeys(self.measures or [self.name], math.nan)
        if isinstance(result, Real):
            return {self.name: float(result)}
        if not isinstance(result, Mapping) or not any(isinstance(value, Real) for value in result.values()):
            found = f"has an evaluation {self.name} that returned a {type(result).__name__}"
            raise UsageError(found, option="eval_dataset", needed="a number, or a dictionary of numbers")
        first = getattr(self.evaluator, "primary_metric", None)
        names = sorted(result, key=lambda name: name != first)  # keeps the order of the others
        scores = {f"{self.prefix}{name}": float(result[name]) for name in names if isinstance(result[name], Real)}
        return {name: scores[name] for name in self.measures or scores}


@dataclass(frozen=True)
class Development:
    """One or more development sets, at most one of each kind, in the order of `measures.KINDS`.

    Attributes:
        sets: The sets with measures of this project.
        own: Custom evaluations; their scores are logged and can select a checkpoint.
    """

    sets: tuple[DevelopmentSet, ...]
    own: tuple[CustomEvaluation, ...] = ()

    def __post_init__(self):
        for kind in KINDS:
            same = [one.name for one in self.sets if one.kind == kind]
            if len(same) > 1:
                raise UsageError(
                    f"has two sets of the kind {kind}: {' and '.join(same)}",
                    option="eval_dataset",
                    needed="at most one of each kind, or a dictionary that gives each a name",
                )
        order = list(KINDS)
        object.__setattr__(self, "sets", tuple(sorted(self.sets, key=lambda one: order.index(one.kind))))

    @property
    def name(self) -> str:
        """Names of all sets."""
        return ", ".join(one.name for one in (*self.sets, *self.own))

    @property
    def sha256(self) -> str:
        """SHA-256 of the set, or of the checksums of several sets and the names of custom evaluations."""
        sums = [one.sha256 for one in self.sets]
        sums += [f"own {one.name} {one.sha256}" for one in self.own]
        return sums[0] if len(sums) == len(self.sets) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()

    @property
    def measures(self) -> dict[str, Measure]:
        """Scores by key, as far as they are known before they are computed. The first selects the best checkpoint."""
        return {key: measure for one in (*self.sets, *self.own) for key, measure in one.measures.items()}

    def score(self, encode: Encode) -> tuple[dict[str, float], dict[str, str]]:
        """Return all scores, NaN if undefined, and the reasons for undefined scores by name of the set.

        Args:
            encode: Function from N sentences to embeddings (N, d); called once for the sets, with all their sentences.

        Raises:
            UsageError: Two scores have the same name, or an evaluation returned no scores.
        """
        once = EmbeddingCache(encode)
        if texts := [text for one in self.sets for text in one.texts()]:
            once(texts)
        scores: dict[str, float] = {}
        problems: dict[str, str] = {}
        for one in self.sets:
            scores |= dict.fromkeys(one.measures, math.nan)
            try:
                results = one.score(once)
                scores |= {key: results[key] for key in one.measures}
            except UndefinedScoreError as error:
                problems[one.name] = str(error)
        for evaluation in self.own:
            results = evaluation.score(encode)
            if same := [name for name in results if name in scores]:
                raise UsageError(
                    f"has two scores with the name {same[0]}",
                    option="eval_dataset",
                    fix="Give the evaluations in a dictionary, whose keys then begin the names.",
                )
            scores |= results
        return scores, problems


NEEDED = (
    "GradedPairs, LabeledSentences, Collection, a dataset with sentence1, sentence2 and score, with text and label or "
    "with query and document, the path of a file of pairs, a function from `encode` to scores, an evaluator of "
    "sentence-transformers, or a list or a dictionary of these"
)


def as_development(given: object) -> Development | None:
    """Convert the `eval_dataset` of a trainer; None for None.

    Args:
        given: A set; a dataset with the columns of one; the path of a file of pairs; a function from `encode` to
            scores; an evaluator of sentence-transformers; a list of these; or a dictionary of these by name, whose
            scores are logged as eval_NAME_MEASURE.

    Raises:
        UsageError: It is something else, an empty list, or has two sets of one kind.
    """
    if given is None or isinstance(given, Development):
        return given
    named = list(given.items()) if isinstance(given, Mapping) else []
    several = list(given) if isinstance(given, list | tuple) else [given]
    sets: list[DevelopmentSet] = []
    evaluations: list[CustomEvaluation] = []
    for name, one in named or [(None, one) for one in several]:
        one = _as_set(one, str(name or "eval_dataset"))
        if isinstance(one, DevelopmentSet) and name is None:
            sets.append(one)
        elif evaluation := _custom_evaluation(one, name and str(name)):
            evaluations.append(evaluation)
        else:
            raise UsageError(f"has a {type(one).__name__}", option="eval_dataset", needed=NEEDED)
    if not sets and not evaluations:
        raise UsageError("is empty", option="eval_dataset", needed=NEEDED)
    return Development(tuple(sets), tuple(evaluations))


def _as_set(one: Any, name: str) -> Any:
    """Return the set of a path or of a dataset with its columns; anything else as it is."""
    if isinstance(one, str | PathLike):
        return load_pairs(Path(one))
    if not isinstance(one, datasets.Dataset):
        return one
    columns = set(one.column_names)
    rows, where = cells_of(one), {"name": name, "source": name, "option": "eval_dataset"}
    if {*COLUMNS} <= columns:
        return pairs_of_rows(rows, **where)
    if {*LABEL_COLUMNS} <= columns:
        return labels_of_rows(rows, LABEL_COLUMNS[:1], LABEL_COLUMNS[1], **where)
    if {*PAIR_COLUMNS} <= columns:
        return collection_of_rows(rows, **where)
    raise UsageError(f"has the columns {', '.join(one.column_names)}", option="eval_dataset", needed=NEEDED)


def cells_of(data: datasets.Dataset) -> Iterator[Cells]:
    """Yield the rows of a dataset as those of a file."""
    plain = data if data.format["type"] == "custom" else data.with_format(None)  # a transform is applied
    for number, row in enumerate(plain):
        yield Cells(row.items(), f"row {number}")


def _custom_evaluation(given: Any, name: str | None) -> CustomEvaluation | None:
    """Return the evaluation by a function, an evaluator of sentence-transformers, or a set that is given with a name.

    Args:
        given: A function, an evaluator, or an object with `score`, such as `GradedPairs`.
        name: Name from a dictionary; None for the function's own name.

    Returns:
        None for anything else.
    """
    prefix = f"{name}_" if name else ""
    if isinstance(given, BaseEvaluator):
        named = name or str(getattr(given, "name", "") or type(given).__name__)
        return CustomEvaluation(named, lambda encode: given(EncodingModel(encode)), prefix, evaluator=given)
    if hasattr(given, "score") and name:
        measures = {f"{prefix}{key}": measure for key, measure in given.measures.items()}
        return CustomEvaluation(name, given.score, prefix, measures, given.sha256)
    if callable(given) and not isinstance(given, type):
        return CustomEvaluation(name or str(getattr(given, "__name__", type(given).__name__)), given, prefix)
    return None


class EncodingModel:
    """What evaluators of sentence-transformers use of a model, computed by an encode function.

    Prompts are those of the encode function. Embeddings are compared by the cosine.
    """

    similarity_fn_name = "cosine"
    device = torch.device("cpu")
    similarity = staticmethod(cos_sim)
    similarity_pairwise = staticmethod(pairwise_cos_sim)

    def __init__(self, encode: Encode):
        self._encode = encode
        self.model_card_data = SimpleNamespace(set_evaluation_metrics=lambda *args, **kwargs: None)

    def encode(
        self,
        sentences: str | Sequence[str],
        *args: object,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        **kwargs: object,
    ) -> Any:
        """Return the embeddings (N, d) of N texts, or (d,) of one, in the form that sentence-transformers returns.

        Other arguments, such as the batch size, are those of the encode function.

        Raises:
            UsageError: An argument changes the embeddings, such as a prompt for queries.
        """
        for name in ("prompt", "prompt_name", "truncate_dim", "precision"):
            if kwargs.get(name) not in (None, "float32"):
                raise_unsupported(name)
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        x: Any = torch.from_numpy(np.asarray(self._encode(texts), dtype=np.float32))
        x = normalize(x, dim=-1) if normalize_embeddings else x
        x = x[0] if isinstance(sentences, str) else x
        if convert_to_tensor:
            return x
        return x.numpy() if convert_to_numpy else list(x)

    encode_query = encode_document = encode

    def truncate_embeddings(self, dimension: int | None) -> Any:
        """Raise UsageError for fewer dimensions: the encode function has one number of them."""
        if dimension is not None:
            raise_unsupported("truncate_dim")
        return nullcontext()


def raise_unsupported(setting: str) -> NoReturn:
    """Raise UsageError for a setting of an evaluator that needs embeddings that the encode function does not return."""
    raise UsageError(f"has an evaluator with {setting}, which training does not support", option="eval_dataset")
