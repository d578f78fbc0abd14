"""The objective of a run: its terms, its views, what they need from the model, and their options in the record."""

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cached_property
from pathlib import PureWindowsPath
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
from torch import nn

from informin.errors import UsageError, error_line
from informin.files import last_name
from informin.objectives import TERMS
from informin.objectives.presets import Encoder, Preset, active_terms
from informin.objectives.term import Masking, Term
from informin.options import check_value
from informin.training.arguments import InforMinTrainingArguments, check_view_dropout, with_values
from informin.views import VIEWS, View

# Names in a record and in `config.informin` that options of custom terms must not have: options of the run, those of
# the terms of this package, and settings.
TAKEN = {declared.name for declared in fields(InforMinTrainingArguments)}
TAKEN |= {kind.option_name(declared.name) for kind in TERMS for declared in fields(kind)}
TAKEN |= set(
    """
    cpu_parts dispatch_batches dropouts lm_head lora normalize pooler pooling precision processes
    sentence_transformers sentences_per_step split_batches streaming training_prompt use_seedable_sampler
    """.split()
)


@dataclass(frozen=True)
class ActiveObjective:
    """The objective of a run, with its values for the encoder.

    Attributes:
        preset: The objective that the caller gave.
        encoder: The encoder to train.
        terms: The terms whose weight is not 0, in the order of summation.
        view: How the second view of a sentence is made.
        view_dropout: Dropout rates: one for both views, or one for each; None for the encoder's own.
    """

    preset: Preset
    encoder: Encoder
    terms: list[Term]
    view: View
    view_dropout: list[float] | None

    @property
    def view_rates(self) -> tuple[float, float] | None:
        """The dropout rates of the two views if they differ."""
        rates = self.view_dropout
        return (rates[0], rates[1]) if rates and len(rates) == 2 else None

    @property
    def masking(self) -> Masking | None:
        """How tokens are masked; None if no term masks them."""
        return next((term.masking for term in self.terms if term.masking), None)

    @property
    def compares_views(self) -> bool:
        """Whether a term compares the two views, and so learns nothing from identical ones."""
        return any(term.compares_views for term in self.terms)

    @property
    def needs_dropout(self) -> bool:
        """Whether a term compares two views of the same tokens, so that some dropout must be above 0."""
        return self.compares_views and self.view.same_tokens

    @property
    def encodes_once(self) -> bool:
        """Whether each sentence is encoded once: no term compares two equal views, or none reads the first one."""
        needs_both = self.compares_views if self.view.same_tokens else any(term.reads_first_view for term in self.terms)
        return not needs_both and self.view_rates is None

    def map_layers(self, config: Any) -> tuple[int, ...]:
        """Return the layers whose attention maps the terms need from an encoder with this configuration.

        Raises:
            UsageError: Two terms need different layers: both read the same maps, `Views.maps1` and `Views.maps2`.
        """
        found = {term.name: sorted({*term.map_layers(config)}) for term in self.terms if term.reads_maps}
        layers = {name: own for name, own in found.items() if own}
        if len({tuple(own) for own in layers.values()}) > 1:
            each = " and ".join(f"{name} of layers {own}" for name, own in layers.items())
            raise UsageError(f"reads attention maps: {each}", option="objective", needed="the same layers in all terms")
        return tuple(next(iter(layers.values()), []))

    @property
    def dropout(self) -> float | None:
        """The dropout rate of both views; None for the encoder's own."""
        return self.view_dropout[0] if self.view_dropout and self.view_rates is None else None

    @property
    def rates_by_copy(self) -> list[float | None] | None:
        """The dropout rates of the copies of a sentence if the views differ; None for the encoder's own, of a mask."""
        if self.view_rates is None:
            return None
        rates: list[float | None] = list(self.view_rates)
        if self.masking is not None and not self.masking.of_views:
            rates.append(None)
        return rates

    def needs(self, args: InforMinTrainingArguments) -> dict[str, str]:
        """Return what only some models have and this run needs, each with the option that asks for it.

        `head`, the projection head; `lm_head`, a pretrained language-model head; `maps`, attention maps; `maps of
        padding`, those of queries at padding, too; `states`, hidden states of all tokens; `embedding layer`, one whose
        output a view scales; `second encoder`, an encoder to copy; `whole weights`, those of the encoder in each
        process; `dropout`, a dropout rate to set; `rates`, one for each view.
        """
        needs = {}
        for term in self.terms:
            if term.reads_maps:
                needs["maps"] = term.option_name("weight")
                if term.reads_padding:
                    needs["maps of padding"] = term.option_name("weight")
            if term.reads_states:
                needs["states"] = term.option_name("weight")
            if term.lm_head:
                needs["lm_head"] = term.option_name("weight")
            if term.second_encoder:
                needs["second encoder"] = term.second_encoder
            if term.second_encoder or term.whole_weights:
                needs["whole weights"] = term.second_encoder or term.option_name("weight")
        if self.view.scales_embeddings:
            needs["embedding layer"] = "view"
        if args.projection_head == "mlp":
            needs["head"] = "projection_head"
        if self.view_dropout is not None:
            needs["dropout" if self.view_rates is None else "rates"] = "view_dropout"
        return needs

    def with_unused_parameters(self, args: InforMinTrainingArguments) -> InforMinTrainingArguments:
        """Return the arguments, for several processes a copy that says whether a step may leave weights unused.

        If no term reads the projections of both views, the projection head gets no gradient, nor, with attention maps
        alone, part of the last layer.
        """
        if args.world_size == 1 or args.ddp_find_unused_parameters is not None:
            return args
        leaves_unused = not any(term.reads_projections for term in self.terms)
        return with_values(args, {"ddp_find_unused_parameters": leaves_unused})

    @cached_property
    def options(self) -> dict[str, Any]:
        """The options of the objective that have an effect and a value, as JSON values, for the record.

        They are those of the first call, before training: a callback or a term may change a field later. The name of a
        term precedes its field if an option of the run or of another term has the same name.

        Raises:
            UsageError: The value of an option cannot be recorded.
        """
        options: dict[str, Any] = {"objective": self.preset.name, "view_dropout": self.view_dropout}
        if self.view.name != "dropout":
            options["view"] = self.view.name
            options |= self.view.options()
        for term in self.terms:
            taken = options if type(term) in TERMS else TAKEN | options.keys()
            for name, value in term.options().items():
                options[f"{term.name}_{name}" if name in taken else name] = value
        return {name: recorded_value(value, name) for name, value in options.items() if value is not None}

    def describe(self) -> dict[str, Any]:
        """Return the entry `objective` of the record."""
        added = self.preset.added
        terms = [
            {"name": term.name, "title": term.title, "paper": term.paper, "own": term.name not in added}
            for term in self.terms
        ]
        return {"name": self.preset.name, "title": self.preset.title, "terms": terms}


def view_of(preset: Preset, name: str | None, **values: Any) -> View:
    """Return a view by its name, by default that of an objective with the values of its paper.

    Args:
        preset: The objective.
        name: Name of the view; None for that of the objective.
        values: Values of fields that differ.
    """
    name = name or preset.view
    check_value(name in VIEWS, "view", name, f"a view such as Crop(), or one of: {', '.join(VIEWS)}")
    published = preset.view_options if name == preset.view else {}
    return VIEWS[name](**(dict(published) | values))


def activate(
    preset: Preset, encoder: Encoder, view: str | View | None, view_dropout: list[float] | None
) -> ActiveObjective:
    """Return an objective with its values for an encoder.

    Args:
        preset: The objective.
        encoder: The encoder to train.
        view: A view, or its name; None for that of the objective.
        view_dropout: Dropout rates of the views; None for the paper's.

    Raises:
        UsageError: No term has a weight above 0, or replayed sentences would have to be a view.
    """
    published = preset.paper(encoder).view_dropout
    rates = list(published) if view_dropout is None and published else view_dropout
    if rates is not None:
        check_view_dropout(rates)
    active = ActiveObjective(
        preset=preset,
        encoder=encoder,
        terms=active_terms(preset, encoder),
        view=view if isinstance(view, View) else view_of(preset, view),
        view_dropout=rates,
    )
    replays = any(term.guide_needs is not None and term.guide_needs.sentences == "general" for term in active.terms)
    if active.view_rates and replays:
        raise UsageError("sets rates for two views, and replayed sentences are not a view", option="view_dropout")
    return active


# The values of options in the record: JSON, without folders

LONGEST = 500  # characters of a value as JSON; a longer one is recorded as a checksum
# A path from the root, the home folder, a drive, or here; or one with folders and a suffix, which no Hub id has.
PATH = re.compile(r"(file:|~|/|\\\\|[A-Za-z]:[\\/]|\.{1,2}[\\/])|(?!\w+://)\S*[\\/]\S*\.[A-Za-z]\w{0,7}$")
# The folders of a path within a text.
FOLDERS = re.compile(r"(?<![\w./\\~-])(~\w*/|/(?!/)|[A-Za-z]:[\\/])([^\s/\\:,;]+[/\\])+")


def recorded_value(value: Any, name: str) -> Any:
    """Return the value of an option as JSON. Of a path, only the last part is kept.

    Args:
        value: The value.
        name: Name of the option.

    Raises:
        UsageError: The value has no checksum, such as an open file.
    """
    try:
        found = _as_json(value)
    except Exception as error:  # of pickle, or of the user's class
        raise UsageError(
            f"is a {type(value).__name__}, which cannot be recorded ({error_line(error)})",
            option=name,
            needed="a value that can be pickled, such as an array, so that a resumed run can be compared",
        ) from error
    text = json.dumps(found, sort_keys=True)
    return found if isinstance(found, str) or len(text) <= LONGEST else _with_checksum(value, text)


def _as_json(value: Any) -> Any:
    """Return a value as JSON, of any length."""
    if isinstance(value, Enum):
        return _as_json(value.value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        kept = last_part(value) if is_path(value) else FOLDERS.sub("", value)
        return kept.encode(errors="backslashreplace").decode()  # the name of a file may not be UTF-8
    if isinstance(value, os.PathLike):
        return last_part(os.fsdecode(value))
    if isinstance(value, Mapping):  # an object if all keys are text, else pairs
        pairs = [[_as_json(key), _as_json(item)] for key, item in value.items()]
        names = {key for key, _ in pairs if isinstance(key, str)}
        return dict(pairs) if len(names) == len(pairs) else sorted(pairs, key=json.dumps)
    if isinstance(value, Set):
        return sorted((_as_json(item) for item in value), key=json.dumps)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_as_json(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type | nn.Module):
        return {declared.name: _as_json(getattr(value, declared.name)) for declared in fields(value)}
    if isinstance(value, type | BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    return _with_checksum(value, _hash(value))


def _hash(value: Any) -> str:
    """Return a checksum of an object. Weights to train do not count: a checkpoint has those of a head."""
    from datasets.fingerprint import Hasher  # this import takes a second

    if isinstance(value, nn.Module):
        trained = {name for name, weight in value.named_parameters() if weight.requires_grad}
        value = {name: weight for name, weight in value.state_dict().items() if name not in trained}
    return Hasher.hash(value)


def _with_checksum(value: Any, content: str) -> str:
    """Return the name of a value's class or function with a checksum of its content."""
    name = value.__qualname__ if isinstance(value, FunctionType) else type(value).__name__
    return f"{name} (checksum {hashlib.sha256(content.encode()).hexdigest()[:16]})"


def is_path(text: str) -> bool:
    """Return whether a text is the path of a file or folder, which need not exist, and not only its name."""
    has_folder = "/" in text or os.sep in text
    return bool(PATH.match(text)) or (has_folder and len(text) < 1024 and "\0" not in text and os.path.lexists(text))


def last_part(path: str) -> str:
    """Return the name of a file or folder from its path, also from one of Windows."""
    is_windows = "\\" in path or re.match("[A-Za-z]:", path)
    return PureWindowsPath(path).name if is_windows else last_name(path)
