"""Check the settings in `config.informin` before they are used, since a config.json can come from anyone.

Settings that this project uses have a kind. The others record the options of the objective that trained the model. An
objective from outside the package can have any options, so plain values are accepted, and never used.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from informin.errors import UsageError
from informin.objectives import OBJECTIVES
from informin.schema import FLAG, RATE, TEXT, TEXTS, Kind, integer, list_of, number, one_of, or_none
from informin.views import VIEWS
from modeling_informin import POOLINGS

COSINE = "cosine"
SIMILARITIES = (COSINE, "dot", "euclidean", "manhattan")  # sentence-transformers' names
# Settings in sentence-transformers' files; see `informin.models.embedding_config.EmbeddingConfig.files`.
FILES = {
    "max_seq_length": or_none(integer(1)),
    "do_lower_case": FLAG,
    "prompts": TEXTS,
    "default_prompt_name": or_none(TEXT),
    "similarity_fn_name": or_none(one_of(*SIMILARITIES)),
}
NAME: Kind = (lambda value: isinstance(value, str) and re.fullmatch(r"[\w-]+", value) is not None, "a name")
SETTINGS = {
    "pooling": one_of(*POOLINGS),
    "normalize": FLAG,
    "adapter": FLAG,
    "adapter_dimensions": integer(1),
    "prompt": TEXT,
    "training_prompt": TEXT,
    "projection_head": one_of("mlp", "none"),
    "lm_head": FLAG,
    "max_seq_length": integer(1),
    "objective": NAME,
    "view_dropout": list_of(RATE),
    "view_dropout_rate": RATE,
    "view": NAME,
    "sentence_transformers": (lambda value: isinstance(value, dict), "a dict"),
    "dropouts": (lambda value: isinstance(value, dict), "a dict"),
}
PLAIN: Kind = (lambda value: value is None or isinstance(value, bool | str) or number(value), "a plain value")
OPTION: Kind = (lambda value: PLAIN[0](value) or list_of(PLAIN)[0](value), "a number, a text, or a list of them")


def check_settings(model_name: str, settings: Mapping, dropouts: Sequence[str]) -> None:
    """Raise UsageError for a setting of `config.informin` that is unknown or has the wrong kind of value.

    Args:
        model_name: Hub id or folder.
        settings: Value of `config.informin`.
        dropouts: Names of the architecture's dropout rates, the only names allowed in `settings["dropouts"]`.
    """
    known = SETTINGS | dict.fromkeys(_options(settings), OPTION)
    _check(model_name, "informin", settings, known)
    _check(model_name, "informin.dropouts", settings.get("dropouts", {}), dict.fromkeys(dropouts, RATE))
    _check(model_name, "informin.sentence_transformers", settings.get("sentence_transformers", {}), FILES)


def check_files(model_name: str, file: str, values: Mapping) -> None:
    """Raise UsageError if a file of sentence-transformers has the wrong kind of value for one of `FILES`."""
    given = {name: value for name, value in values.items() if name in FILES and value is not None}
    _check(model_name, "", given, FILES, file)


def _options(settings: Mapping) -> list[str]:
    """Return the names of all options of objectives and views, and any valid name if the model's own are unknown."""
    terms = [term for objective in OBJECTIVES.values() for term in objective.terms]
    kinds: list[Any] = [*terms, *VIEWS.values()]
    known = {field.name for kind in kinds for field in fields(kind)}
    objective, view = settings.get("objective", "informin"), settings.get("view", "dropout")
    if any(isinstance(name, str) and name not in choices for name, choices in ((objective, OBJECTIVES), (view, VIEWS))):
        known |= {name for name in settings if re.fullmatch("[a-z][a-z0-9_]*", name)} - SETTINGS.keys()
    return sorted(known)


def _check(model_name: str, where: str, values: Mapping, known: Mapping[str, Kind], file: str = "config.json") -> None:
    for name, value in values.items():
        path = f"{where}.{name}" if where else name
        if name not in known:
            raise UsageError(
                f"{model_name}: {path:.60} in {file} is not a known setting",
                option="model_name",
                fix="Remove it, or use the version of this project that wrote the model.",
            )
        fits, needed = known[name]
        if not fits(value):
            raise UsageError(f"{model_name}: {path} in {file} is {value!r:.60}", option="model_name", needed=needed)


def similarity_of(declared: str, normalized: bool) -> str:
    """Return the similarity function of embeddings: for unit vectors, the dot product is the cosine."""
    return COSINE if normalized and declared == "dot" else declared
