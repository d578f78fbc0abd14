"""Save a model with a linear adapter: the unchanged encoder and a Dense module, with a model card."""

import re
from pathlib import Path

import numpy as np
from huggingface_hub import ModelCardData
from jinja2 import Environment, StrictUndefined

from informin.adapters.linear import LinearAdapter
from informin.evaluation.drift import MAIN, drift_table
from informin.evaluation.table import render
from informin.files import set_usual_modes
from informin.interrupts import during
from informin.models.checkpoint import Checkpoint
from informin.models.dense import Dense
from informin.models.model import Model
from informin.models.native_loading import without_bars
from informin.outputs import new_folder
from informin.publishing.card import CARD, UNPUBLISHED, stamped
from informin.publishing.card.front_matter import license_metadata
from informin.publishing.card.markdown import Markdown, code, escape, markdown_table
from informin.publishing.card.worse import worse_by_drift
from informin.publishing.fitted_card import TAG
from informin.publishing.metadata import known_id, license_of
from informin.publishing.origin import remove_origins

TEMPLATE = Path(__file__).parent / "templates" / "adapter_card.md"


@during("saving the adapted model")
def save_adapted(
    model: Model,
    adapter: LinearAdapter,
    folder: str | Path,
    *,
    texts: int,
    drift: dict | None = None,
    base: str | None = None,
) -> None:
    """Save a model with an adapter on its embedding, for sentence-transformers and, if it is native, for AutoModel.

    A native model has the modules Transformer, Pooling, Normalize, Dense and, if the model normalizes its embeddings,
    Normalize. For others, see `StModel.save_with`.

    Args:
        model: The model that the adapter was fitted on.
        adapter: A fitted adapter.
        folder: A new folder. It appears once it is complete.
        texts: Number of texts that the adapter was fitted on, for the card.
        drift: The record of `informin.evaluation.drift.Drift`, for the card.
        base: What the card calls the model. Default: its Hub id, or the name of its folder.

    Raises:
        UsageError: The folder is in use or cannot be written, or the model cannot be loaded.
    """
    dense = Dense(adapter.coef_.astype(np.float32), adapter.intercept_.astype(np.float32))
    source = model.checkpoint or (Checkpoint(model.name) if "/" in model.name else None)
    with new_folder(folder, "output_dir") as new:
        with without_bars():
            classes = model.save_with(dense, new)
        remove_origins(new, None)
        set_usual_modes(new)
        prompt, asymmetric = model.embedding.prompt, model.for_queries() is not model
        name = Path(folder).name
        card = adapter_card(name, source, texts, adapter, drift, prompt, classes, base, asymmetric=asymmetric)
        (new / CARD).write_text(stamped(card.strip()), encoding="utf-8")


def adapter_card(
    name: str,
    source: Checkpoint | None,
    texts: int,
    adapter: LinearAdapter,
    drift: dict | None,
    prompt: str,
    classes: str,
    base: str | None = None,
    *,
    asymmetric: bool = False,
) -> str:
    """Return the model card.

    Args:
        name: Name of the model, the last part of its folder.
        source: Files of the encoder; None for a SentenceTransformer whose origin is unknown.
        classes: What AutoModel loads: `ours` or `plain` (a native encoder), `remote` (code in the folder), or `none`.
        base: What the card calls the encoder, if it has no Hub id. Can be one.
        asymmetric: Whether queries are embedded in another way than documents.
    """
    named = base if base and "/" in base else None  # the name of a folder has no slash
    hub_id = known_id(source.name if source and not Path(source.name).exists() else named)
    base = hub_id or base or (source.title if source else "SentenceTransformer")
    metadata = ModelCardData(
        **license_metadata(license_of(source) if source else {}),
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "sentence-similarity", "feature-extraction", "informin-cl", TAG],
        base_model=hub_id,
        base_model_relation="finetune" if hub_id else None,
    )
    rows = [[code(option), value] for option, value in adapter.get_params().items()]
    pages = Environment(finalize=escape, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return pages.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        card_data=Markdown(metadata.to_yaml()),
        name=name,
        base=code(" ".join(base.split())),
        texts=f"{texts:,}",
        folder=Markdown(_in_code(name, UNPUBLISHED)),
        model=Markdown(_in_code(base, "MODEL")),
        trust=Markdown(", trust_remote_code=True" if classes == "remote" else ""),
        prompt=code(" ".join(prompt.split())) if prompt else "",
        asymmetric=asymmetric,
        rotation=adapter.rotation,
        dimensions=adapter.n_components,
        classes=classes,
        worse=worse_by_drift(drift, "The adapter"),
        warnings=drift["warnings"] if drift else [],
        options=Markdown(markdown_table(["Option", "Value"], rows)),
        drift=Markdown(render(drift_table({"adapted": drift}, "before", MAIN), "markdown") if drift else ""),
    )


def _in_code(name: str, other: str) -> str:
    """Return a name for a block of code, which nothing in it can end or run; another one for names with markup."""
    return name if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) else other
