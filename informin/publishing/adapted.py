"""Save a model with a linear adapter: the unchanged encoder and a Dense module, with a model card."""

import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jinja2 import Environment, StrictUndefined

from informin.adapters.linear import LinearAdapter
from informin.encoders.architectures import architecture_of
from informin.encoders.dense import Dense
from informin.encoders.loading import load_config, load_model, load_tokenizer
from informin.encoders.remote_code import remote_code
from informin.encoders.sentence_transformers_files import load_embedding_config
from informin.encoders.st_encoder import StEncoder
from informin.evaluation.drift import drift_table
from informin.evaluation.table import render
from informin.files import set_usual_modes
from informin.interrupts import during
from informin.outputs import new_folder
from informin.publishing.export import add_dense, export_folder

TEMPLATE = Path(__file__).parent / "templates" / "adapter_card.md"
SETTINGS = {"pooling": "auto", "prompt": None, "projection_head": "none", "lm_head": False}


@during("saving the adapted model")
def save_adapted(
    model_name: str,
    adapter: LinearAdapter,
    folder: str | Path,
    *,
    revision: str | None = None,
    texts: int,
    drift: dict | None = None,
) -> None:
    """Save a model with an adapter on its embedding, as a folder for sentence-transformers and AutoModel.

    Its modules are Transformer, Pooling, Normalize, Dense and, if the model normalizes its embeddings, Normalize.

    Args:
        model_name: Hub id or folder of the encoder that the adapter was fitted on.
        adapter: A fitted adapter.
        folder: A new folder. It appears once it is complete.
        revision: Revision of the encoder on the Hub.
        texts: Number of texts that the adapter was fitted on, for the card.
        drift: The record of `informin.evaluation.drift.Drift`, for the card.

    Raises:
        UsageError: The folder is in use or cannot be written, or the model cannot be loaded.
    """
    config = load_config(model_name, revision)
    embedding = load_embedding_config(model_name, config, revision)
    model = load_model(config, model_name, dict(SETTINGS), revision)
    tokenizer = load_tokenizer(model_name, config, revision)

    def write(new: Path) -> str:
        export_folder(model, tokenizer, new)
        add_dense(new, _dense(adapter), embedding.normalize)
        classes = "ours" if architecture_of(config).model._auto_class else "plain"
        return _card(Path(folder).name, model_name, texts, adapter, drift, embedding.prompt, classes)

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
        classes = "remote" if remote_code(str(new)) else "none"
        return _card(Path(folder).name, encoder.name, texts, adapter, drift, default, classes)

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


def _card(
    name: str, model_name: str, texts: int, adapter: LinearAdapter, drift: dict | None, prompt: str, classes: str
) -> str:
    """Return the model card.

    Args:
        classes: What AutoModel loads: `ours` or `plain` (a native encoder), `remote` (code in the folder), or `none`.
    """
    local = Path(model_name).exists()
    page = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        TEMPLATE.read_text(encoding="utf-8")
    )
    return page.render(
        name=name.replace("`", "'"),
        base=Path(model_name).name if local else model_name,
        base_model=None if local else model_name,
        texts=texts,
        options=adapter.get_params(),
        drift=render(drift_table({"adapted": drift}, "before"), "markdown") if drift else None,
        prompt=prompt,
        classes=classes,
        model=shlex.quote(Path(model_name).name if local else model_name),
    )
