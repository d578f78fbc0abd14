"""Evaluation with a function of your own, with an evaluator of sentence-transformers, or of a set with a name."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from numbers import Real
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from informin.errors import UndefinedScoreError, UsageError
from informin.evaluation.embedding_cache import Encode
from informin.evaluation.measures import Measure

NEEDED = "a number, or a dictionary of numbers"


@dataclass(frozen=True)
class OwnEvaluation:
    """Scores that a function computes from embeddings.

    Attributes:
        name: Name of the evaluation: that of its only score, or what the names of its scores begin with.
        function: From `encode`, which takes N texts and returns (N, d) float32, to a number or a dictionary of numbers.
        prefix: What the names in a dictionary begin with in the log, after `eval_`.
        measures: Measures of a set by the names of their scores; empty for a function, whose scores are not known yet.
        sha256: Checksum of a set; empty for a function.
    """

    name: str
    function: Callable[[Encode], Any]
    prefix: str = ""
    measures: Mapping[str, Measure] = field(default_factory=dict)
    sha256: str = ""

    def score(self, encode: Encode) -> dict[str, float]:
        """Return the scores by name; NaN under their names, or a function's own name, if they are undefined.

        Raises:
            UsageError: The function returned something else.
        """
        try:
            found = self.function(encode)
        except UndefinedScoreError:
            return dict.fromkeys(self.measures or [self.name], math.nan)
        if isinstance(found, Real):
            return {self.name: float(found)}
        if not isinstance(found, Mapping) or not all(isinstance(value, Real) for value in found.values()):
            raise UsageError(
                f"has an evaluation {self.name} that returned a {type(found).__name__}",
                option="eval_dataset",
                needed=NEEDED,
            )
        scores = {f"{self.prefix}{name}": float(value) for name, value in found.items()}
        return {name: scores[name] for name in self.measures or scores}


def own_evaluation(given: Any, name: str | None = None) -> OwnEvaluation | None:
    """Return the evaluation by a function, an evaluator of sentence-transformers, or a set that is given with a name.

    Args:
        given: A function, an evaluator, or an object with `score`, such as `GradedPairs`.
        name: Name from a dictionary; None for the function's own name.

    Returns:
        None for anything else.
    """
    prefix = f"{name}_" if name else ""
    if is_evaluator(given):
        own_name = name or str(given.name or type(given).__name__)
        return OwnEvaluation(own_name, lambda encode: given(EncodingModel(encode)), prefix)
    if hasattr(given, "score") and name:
        measures = {f"{prefix}{key}": measure for key, measure in given.measures.items()}
        return OwnEvaluation(name, given.score, prefix, measures, given.sha256)
    if callable(given) and not isinstance(given, type):
        return OwnEvaluation(name or str(getattr(given, "__name__", type(given).__name__)), given, prefix)
    return None


def is_evaluator(given: object) -> bool:
    """Return whether an object is an evaluator of sentence-transformers, without importing that package."""
    library = sys.modules.get("sentence_transformers.base.evaluation")  # loaded if there is an evaluator
    return library is not None and isinstance(given, library.BaseEvaluator)


class EncodingModel:
    """What evaluators of sentence-transformers use of a model, computed by an encode function.

    Prompts are those of the encode function. Embeddings are compared by the cosine.
    """

    similarity_fn_name = "cosine"
    device = torch.device("cpu")

    def __init__(self, encode: Encode):
        self._encode = encode
        self.model_card_data = SimpleNamespace(set_evaluation_metrics=lambda *args, **kwargs: None)

    def encode(
        self,
        sentences: str | Sequence[str],
        *args: Any,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the embeddings (N, d) of N texts, or (d,) of one."""
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        found: Any = torch.from_numpy(np.asarray(self._encode(texts), dtype=np.float32))
        found = normalize(found, dim=-1) if normalize_embeddings else found
        found = found[0] if isinstance(sentences, str) else found
        return found if convert_to_tensor else found.numpy()

    encode_query = encode_document = encode

    def similarity(self, x: Any, y: Any) -> torch.Tensor:
        """Return the cosines (N, M) of rows (N, d) and (M, d)."""
        return _units(x) @ _units(y).T

    def similarity_pairwise(self, x: Any, y: Any) -> torch.Tensor:
        """Return the cosines (N,) of two times N rows."""
        return (_units(x) * _units(y)).sum(-1)

    def truncate_embeddings(self, dimension: int | None) -> Any:
        """Raise UsageError for fewer dimensions: the encode function has one number of them."""
        if dimension is not None:
            raise UsageError(
                "has an evaluator with truncate_dim, which training does not support", option="eval_dataset"
            )
        return nullcontext()


def _units(x: Any) -> torch.Tensor:
    return normalize(torch.as_tensor(np.asarray(x), dtype=torch.float32), dim=-1)
