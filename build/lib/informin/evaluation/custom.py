"""Evaluation with a custom function, with an evaluator of sentence-transformers, or of a set with a name."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from numbers import Real
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.util import cos_sim, pairwise_cos_sim
from torch.nn.functional import normalize

from informin.errors import UndefinedScoreError, UsageError
from informin.evaluation.encode import Encode
from informin.evaluation.measures import Measure


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


def custom_evaluation(given: Any, name: str | None = None) -> CustomEvaluation | None:
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
        *args: Any,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the embeddings (N, d) of N texts, or (d,) of one, in the form that sentence-transformers returns."""
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
            found = "has an evaluator with truncate_dim, which training does not support"
            raise UsageError(found, option="eval_dataset")
        return nullcontext()
