"""The models of a job: names, folders or loaded models, and how they embed texts."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from tqdm import tqdm
from typing_extensions import Unpack

from informin.bars import hidden
from informin.errors import UsageError
from informin.evaluation.together import encode_together
from informin.models import open_model
from informin.models.model import Model
from informin.models.prompts import named_prompt, side_of, side_prompts

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from informin.models.windows import Windows


@dataclass(frozen=True)
class ModelOptions:
    """How a model is loaded and embeds texts.

    Attributes:
        pooler: Pooling, from `informin.models.encode.POOLERS`; `auto` is the one that the model stores. `evaluate` also
            takes several.
        prompt: Text before every text; None for the model's default prompt.
        prompt_name: Instead of `prompt`: a prompt that the model stores, such as query or document.
        max_length: Maximum number of tokens of a text; None for the model's maximum.
        batch_size: Texts per forward pass.
        device: cpu, cuda, cuda:1 or mps; None for a GPU if there is one.
        bf16: Embed under bfloat16 autocast.
        backend: `native` for BERT-like encoders, `st` for the model's own modules in sentence-transformers, `auto` for
            native if possible.
        trust_remote_code: Run code from the model's repository, if it needs any.
        code_revision: Branch, tag or commit of that code on the Hub.
    """

    pooler: str | Sequence[str] = "auto"
    prompt: str | None = None
    prompt_name: str | None = None
    max_length: int | None = None
    batch_size: int = 64
    device: str | None = None
    bf16: bool = False
    backend: str = "auto"
    trust_remote_code: bool = False
    code_revision: str | None = None

    @property
    def changed(self) -> list[str]:
        """The names of the options that are not at their defaults."""
        default = asdict(ModelOptions())
        return [name for name, value in asdict(self).items() if value != default[name]]


class ModelKeywords(TypedDict, total=False):
    """The fields of `ModelOptions` as keywords."""

    pooler: str | Sequence[str]
    prompt: str | None
    prompt_name: str | None
    max_length: int | None
    batch_size: int
    device: str | None
    bf16: bool
    backend: str
    trust_remote_code: bool
    code_revision: str | None


def load_model(name: "str | Path | SentenceTransformer", **options: Unpack[ModelKeywords]) -> Model:
    """Load an embedding model from a folder or the Hub, for `fit`, `compare`, `embed` and `evaluate`.

    Args:
        name: Hub id or folder, or a SentenceTransformer, which is used as it is.
        options: How it embeds texts; see `informin.jobs.models.ModelOptions`.

    Returns:
        An encoder. Called with N texts, it returns a dictionary from the name of its pooling to (N, d) float32.

    Raises:
        UsageError: The model cannot be loaded, or it does not support an option.
    """
    how = ModelOptions(**options)
    if how.prompt_name and how.prompt is not None:
        raise UsageError("cannot be combined with `prompt`", option="prompt_name", fix="Leave one of them out.")
    poolers = (how.pooler,) if isinstance(how.pooler, str) else tuple(how.pooler)
    encoder = open_model.load_model(
        name if open_model.is_sentence_transformer(name) else str(name),
        poolers,
        how.max_length,
        how.batch_size,
        how.device,
        how.bf16,
        prompt=how.prompt,
        backend=how.backend,
        trust_remote_code=how.trust_remote_code,
        code_revision=how.code_revision,
    )
    if not how.prompt_name:
        return encoder
    side = side_of(how.prompt_name)
    if encoder.routed and side == how.prompt_name:  # it has both sides, with or without prompts
        return encoder.for_side(side, side_prompts(encoder.prompts, "")[side == "document"])
    return encoder.for_side(side, named_prompt(encoder.prompts, how.prompt_name))


def loaded(model: Any, options: ModelOptions) -> Model:
    """Return a loaded model, or load it by its name.

    Raises:
        UsageError: As `load_model`; or an option is set for a model that is loaded already.
    """
    if isinstance(model, str | Path) or open_model.is_sentence_transformer(model):
        return load_model(model, **asdict(options))
    if not isinstance(model, Model):
        raise UsageError(
            f"is a {type(model).__name__}",
            option="model",
            needed="a name, a folder, a SentenceTransformer, or a model from `load_model`",
        )
    for name in options.changed:
        raise UsageError("has no effect on a model that is loaded already", option=name, fix="Give it to `load_model`.")
    return model


def text_encoder(model: str | Path | Model, options: ModelOptions) -> Model:
    """Return a model with one pooling that embeds texts. In a model with a Router, texts are documents by default.

    Raises:
        UsageError: As `loaded`; or the model has several poolings.
    """
    encoder = loaded(model, options)
    if len(encoder.poolers) > 1:
        raise UsageError(f"is {' '.join(encoder.poolers)}", option="pooler", needed="one")
    return encoder.for_side("document", encoder.prompt) if encoder.routed and not encoder.task else encoder


def models_of(models: Any, option: str) -> list[str | Path | Model]:
    """Return one model or several as a list. Raise UsageError, for this option, if there is none."""
    alone = isinstance(models, str | Path | Model) or open_model.is_sentence_transformer(models)
    found: list = [models] if alone else list(models)
    found = [load_model(one) if open_model.is_sentence_transformer(one) else one for one in found]
    if not found:
        raise UsageError("is empty", option=option, needed="one model or more")
    return found


def name_of(model: str | Path | Model) -> str:
    """Return the name or folder of a model."""
    return model.name if isinstance(model, Model) else str(model)


def options_of(model: str | Path | Model | None, options: ModelOptions) -> dict:
    """Return the options of a model for a record, without the device. A loaded model has its own."""
    found = {name: value for name, value in asdict(options).items() if name != "device"}
    if not isinstance(model, Model):
        return found
    return found | dict(prompt=model.prompt, max_length=model.length, batch_size=model.batch_size, bf16=model.bf16)


def refuse_other_pooling(encoder: Model) -> None:
    """Raise UsageError if a loaded model uses another pooling than its files, which the adapted model keeps."""
    if not encoder.embeds_as_stored:
        raise UsageError(
            f"is {encoder.poolers[0]}, set for {encoder.name}",
            option="pooler",
            needed="auto",
            fix="The output keeps the pooling of the model.",
        )


def sides_of(
    encoder: Model, prompt: str | None, query_prompt: str | None, document_prompt: str | None
) -> tuple[Model, Model] | None:
    """Return the encoder for queries and for documents; None if it embeds both in the same way.

    A prompt for one side comes first, then `prompt`, then those that the checkpoint stores. A model with a Router also
    has a route for each side.
    """
    own = encoder.side_prompts if prompt is None else (prompt, prompt)
    given = (query_prompt, document_prompt)
    prompts = [stored if prompt is None else prompt for prompt, stored in zip(given, own)]
    if prompts == [encoder.prompt] * 2 and not encoder.routed:
        return None
    return encoder.for_side("query", prompts[0]), encoder.for_side("document", prompts[1])


def embed_in_memory(encoder: "Model | Windows", texts: list[str]) -> np.ndarray:
    """Return the embeddings (N, d) of texts, with a progress bar. With several processes, each embeds a share."""
    (pooler,) = encoder.poolers
    with tqdm(total=len(texts), desc="embed", unit=" texts", leave=False, disable=hidden()) as bar:
        return encode_together(encoder, texts, bar.update)[pooler]
