"""Sentences, options and sentence-transformers models for tests of training any encoder."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from informin.models.architectures import ARCHITECTURES
from informin.training.options import InforMinTrainingArguments
from tests.conftest import FOUR_STEPS, WORDS, make_sentences
from tests.models.any_encoder.st_models import WITH_DROPOUT
from trainer_informin import InforMinTrainer

ALL = [*ARCHITECTURES, "albert"]  # ALBERT has no row
SENTENCES = ["the dog", *make_sentences(7), " ".join(WORDS * 2), "today"]
LENGTH = 40  # maximum length of the sentence-transformers models, shorter than the second to last sentence
PLAIN = {"projection_head": "none", "lm_head": False}
OBJECTIVES = {
    "informin": dict(objective="informin"),
    "mlm": dict(objective="simcse", mlm_weight=0.1),
    "scd": dict(objective="scd", projector_size=32),
    "micse": dict(objective="micse", queue_size=16, warmup_steps=0),
}


def read(folder: Path, name: str = "config.json"):
    return json.loads((folder / name).read_text())


def general_trainer(model, output_dir: Path, **options) -> InforMinTrainer:
    """Return a trainer of two steps for the folder of a family, or for a SentenceTransformer."""
    name = model.name if isinstance(model, Path) else ""
    how = FOUR_STEPS | dict(max_steps=2, eval_strategy="no", save_strategy="no", report_to=[], measure_drift=False)
    how |= dict(max_seq_length=16, objective="simcse", learning_rate=0.01, trust_remote_code=name == "remote")
    how |= {} if name in WITH_DROPOUT else {"view": "crop"}
    return InforMinTrainer(model, InforMinTrainingArguments(str(output_dir), **how | options), make_sentences(96))


def interrupted(train: Callable[..., InforMinTrainer], model, folder: Path, **options):
    """Train four steps, and again from the checkpoint after two. Returns both trainers.

    Args:
        train: Function from a model, an output folder and options to a trainer.
        folder: The runs are in `whole` and `again`.
    """
    how = dict(max_steps=4, save_strategy="steps", save_steps=2, save_total_limit=None) | options
    whole = train(model, folder / "whole", **how)
    whole.train()
    shutil.copytree(folder / "whole" / "checkpoint-2", folder / "again" / "checkpoint-2")
    again = train(model, folder / "again", **how)
    again.train("last")
    return whole, again


def weights(model) -> dict[str, torch.Tensor]:
    return {name: x.detach().clone() for name, x in model.state_dict().items()}


def changed(before: dict, after: dict) -> set[str]:
    """Return the names of the weights that differ."""
    return {name for name in before if not before[name].equal(after[name])}


def by_sentence_transformers(folder: Path, sentences=SENTENCES) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(list(sentences))


PROMPTS = {"query": "the old ", "document": "a "}


def sentence_transformer(bert: Path, folder: Path, *more, prompt: str | None = "query", **pooling) -> Path:
    """Save a sentence-transformers model with mean pooling, Normalize, prompts, a maximum length and dot product."""
    from sentence_transformers import SentenceTransformer, models

    transformer = models.Transformer(str(bert))
    pool = models.Pooling(transformer.get_embedding_dimension(), **({"pooling_mode": "mean"} | pooling))
    modules = [transformer, pool, *more, models.Normalize()]
    model = SentenceTransformer(
        modules=modules, device="cpu", prompts=PROMPTS, default_prompt_name=prompt, similarity_fn_name="dot"
    )
    model.max_seq_length = LENGTH
    model.save(str(folder))
    return folder


def older(folder: Path) -> Path:
    """Convert a folder to an older format, with the maximum length in sentence_bert_config.json."""
    change(folder, "tokenizer_config.json", model_max_length=66)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LENGTH, "do_lower_case": False}))
    return folder


def change(folder: Path, name: str, **values) -> Path:
    (folder / name).write_text(json.dumps(read(folder, name) | values))
    return folder
