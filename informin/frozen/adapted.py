"""Save what was fitted on a model, with a model card: the encoder with a linear adapter, or a static model."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from torch import nn

from informin import __version__
from informin.files import last_name, new_folder
from informin.frozen.adapter import LinearAdapter
from informin.hub import is_hub_id
from informin.model.open import source_of
from informin.model.records import FITTED, FitRecord
from informin.publishing.card import license_of, write_card
from informin.publishing.export import save_model


def save_adapted(
    model: SentenceTransformer,
    adapter: LinearAdapter,
    folder: str | Path,
    *,
    texts: int,
    task: str,
    drift: dict | None = None,
) -> None:
    """Save a model with an adapter on its embedding, for sentence-transformers, and for AutoModel if it is native.

    Args:
        model: The model that the adapter was fitted on. It is not changed.
        adapter: A fitted adapter.
        folder: A new folder. It appears once it is complete.
        texts: Number of texts that the adapter was fitted on, for the card.
        task: clustering or search.
        drift: A record of `informin.evaluation.drift`, for the card.

    Raises:
        UsageError: The folder is in use or cannot be written.
    """
    record = fit_record(
        model,
        task=task,
        texts=texts,
        dimensions=len(adapter.coef_),
        options=adapter.get_params(),
        drift=drift,
        remote_code=any(type(module).__module__.startswith("transformers_modules") for module in model.modules()),
    )
    save_fitted(with_adapter(model, adapter), record, folder)


def fit_record(model: SentenceTransformer, **entries: Any) -> FitRecord:
    """Return the record of what was fitted on a model.

    Args:
        model: The model.
        entries: Entries of the record besides the model's name and license.
    """
    source = source_of(model)
    hub_id = source.name if source.folder is None and is_hub_id(source.name) else None
    name = hub_id or last_name(source.folder or source.name)
    return FitRecord(
        informin=__version__,
        base_model={"name": name, "hub_id": hub_id, "revision": source.revision},
        **license_of(source),
        **entries,
    )


def save_fitted(model: SentenceTransformer, record: FitRecord, folder: str | Path, overwrite: bool = False) -> None:
    """Write a model with its record and card to a new folder, which appears once it is complete.

    Args:
        model: The model.
        record: Its record.
        folder: Missing or empty folder.
        overwrite: Whether to replace an older output of fit or distill in the folder.

    Raises:
        UsageError: The folder is in use or cannot be written.
    """
    with new_folder(folder, "output_dir", FITTED if overwrite else None) as new:
        save_model(model, new)
        record.save(new)
        write_card(new)


def with_adapter(model: SentenceTransformer, adapter: LinearAdapter) -> SentenceTransformer:
    """Return a model with an affine map of its unit-length embedding, which shares the modules of `model`.

    Appends a Dense module, after a Normalize module if the model has none. A model that normalized its embeddings
    still does. A `truncate_dim` becomes a Dense module before the map.
    """
    normalized = type(list(model)[-1]).__name__ == "Normalize" and model.truncate_dim is None
    more: list[nn.Module] = [] if normalized else [Normalize()]
    if model.truncate_dim is not None:
        with model.truncate_embeddings(None):
            whole = model.get_embedding_dimension()
        more = [_linear(np.eye(model.truncate_dim, whole)), *more]
    more += [_linear(adapter.coef_, adapter.intercept_), *([Normalize()] if normalized else [])]
    named: Any = OrderedDict(model.named_children())
    named |= {str(i): module for i, module in enumerate(more, start=len(named))}
    settings: dict[str, Any] = {name: getattr(model, name) for name in ("prompts", "default_prompt_name")}
    adapted = SentenceTransformer(modules=named, device=str(model.device), similarity_fn_name="cosine", **settings)
    adapted.module_kwargs = model.module_kwargs
    return adapted


def _linear(weight: np.ndarray, bias: np.ndarray | None = None) -> Dense:
    narrow, wide = weight.shape
    module = Dense(wide, narrow, bias=bias is not None, activation_function=nn.Identity())
    module.linear.weight.data = torch.from_numpy(weight.astype(np.float32))
    if bias is not None:
        module.linear.bias.data = torch.from_numpy(bias.astype(np.float32))
    return module
