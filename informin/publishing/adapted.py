"""Save a model with a linear adapter: the unchanged encoder and a Dense module, with a model card."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from huggingface_hub import ModelCardData
from jinja2 import Environment, StrictUndefined

from informin.adapters.linear import LinearAdapter
from informin.evaluation.drift import drift_table
from informin.evaluation.table import render
from informin.files import last_name, set_usual_modes
from informin.interrupts import during
from informin.models.architectures import architecture_of
from informin.models.checkpoint import Checkpoint
from informin.models.dense import Dense
from informin.models.loading import load_config, load_model, load_tokenizer
from informin.models.remote_code import remote_code
from informin.models.sentence_transformers_files import load_embedding_config
from informin.models.st_encoder import StEncoder
from informin.outputs import new_folder
from informin.publishing.card import UNPUBLISHED
from informin.publishing.card.front_matter import license_metadata
from informin.publishing.card.markdown import Markdown, code, escape, markdown_table
from informin.publishing.export import add_dense, export_folder
from informin.publishing.metadata import known_id, license_of

TEMPLATE = Path(__file__).parent / "templates" / "adapter_card.md"
SETTINGS = {"pooling": "auto", "prompt": None, "projection_head": "none", "lm_head": False}


@during("saving the adapted model")
def save_adapted(
    checkpoint: Checkpoint,
    adapter: LinearAdapter,
    folder: str | Path,
    *,
    texts: int,
    drift: dict | None = None,
) -> None:
    """Save a model with an adapter on its embedding, as a folder for sentence-transformers and AutoModel.

    Its modules are Transformer, Pooling, Normalize, Dense and, if the model normalizes its embeddings, Normalize.

    Args:
        checkpoint: Files of the encoder that the adapter was fitted on.
        adapter: A fitted adapter.
        folder: A new folder. It appears once it is complete.
        texts: Number of texts that the adapter was fitted on, for the card.
        drift: The record of `informin.evaluation.drift.Drift`, for the card.

    Raises:
        UsageError: The folder is in use or cannot be written, or the model cannot be loaded.
    """
    config = load_config(checkpoint)
    embedding = load_embedding_config(checkpoint, config)
    model = load_model(checkpoint, dict(SETTINGS))
    tokenizer = load_tokenizer(checkpoint)

    def write(new: Path) -> str:
        export_folder(model, tokenizer, new)
        add_dense(new, _dense(adapter), embedding.normalize)
        classes = "ours" if architecture_of(config).model._auto_class else "plain"
        return adapter_card(Path(folder).name, checkpoint, texts, adapter, drift, embedding.prompt, classes)

    _save(Path(folder), write)


@during("saving the adapted model")
def save_adapted_st(
    encoder: StEncoder, adapter: LinearAdapter, folder: str | Path, *, texts: int, drift: dict | None = None
) -> None:
    """Save a SentenceTransformer with an adapter on its embedding; see `StEncoder.save_with` and `save_adapted`."""

    def write(new: Path) -> str:
        encoder.save_with(_dense(adapter), new)
        set_usual_modes(new)
        default = encoder.model.prompts.get(encoder.model.default_prompt_name) or ""
        classes = "remote" if remote_code(Checkpoint(new)) else "none"
        return adapter_card(Path(folder).name, Checkpoint(encoder.name), texts, adapter, drift, default, classes)

    _save(Path(folder), write)


def _dense(adapter: LinearAdapter) -> Dense:
    return Dense(adapter.coef_.astype(np.float32), adapter.intercept_.astype(np.float32))


def _save(folder: Path, write: Callable[[Path], str]) -> None:
    """Create a folder with a model card.

    Args:
        folder: A new folder. It appears once it is complete.
        write: Writes the model into a new folder, and returns the card.
    """
    with new_folder(folder, "output_dir") as new:
        (new / "README.md").write_text(write(new), encoding="utf-8")


def adapter_card(
    name: str,
    source: Checkpoint,
    texts: int,
    adapter: LinearAdapter,
    drift: dict | None,
    prompt: str,
    classes: str,
) -> str:
    """Return the model card.

    Args:
        name: Name of the model, the last part of its folder.
        source: Files of the encoder.
        classes: What AutoModel loads: `ours` or `plain` (a native encoder), `remote` (code in the folder), or `none`.
    """
    hub_id = None if Path(source.name).exists() else known_id(source.name)
    base = hub_id or last_name(source.name)
    metadata = ModelCardData(
        **license_metadata(license_of(source)),
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "sentence-similarity", "feature-extraction", "informin-cl", "linear-adapter"],
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
        classes=classes,
        options=Markdown(markdown_table(["Option", "Value"], rows)),
        drift=Markdown(render(drift_table({"adapted": drift}, "before"), "markdown") if drift else ""),
    )


def _in_code(name: str, other: str) -> str:
    """Return a name for a block of code, which nothing in it can end or run; another one for names with markup."""
    return name if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) else other
