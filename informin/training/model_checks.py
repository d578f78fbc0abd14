"""Checks that a model can be trained as a run asks for it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sentence_transformers.models import Normalize
from torch import Tensor, nn
from torch.nn.functional import normalize

from informin.errors import UsageError
from informin.models.embedding import encode
from informin.models.forward import Forward
from informin.objectives.terms import Term
from informin.training.computing import sharded_by
from informin.views import View

if TYPE_CHECKING:
    from informin.training.model import TrainedModel

TEXTS = ["A dog sleeps.", "The price of the old house by the river fell again last year."]
TOLERANCE, HALF_TOLERANCE = 1e-3, 0.05  # of the length of an embedding, the second with weights in bfloat16


def check_needs(needs: dict[str, str], args: Any, is_static: bool) -> None:
    """Raise UsageError if an option, or a model without an encoder, excludes what a run needs.

    Args:
        needs: See `ActiveObjective.needs`.
        args: `InforMinTrainingArguments`.
        is_static: Whether the model is a table of token vectors.
    """
    if is_static and needs:
        option = next(iter(needs.values()))
        raise UsageError(
            "needs an encoder, and this model is a table of token vectors",
            option=option,
            fix=f"Leave `{option}` out, or use another model.",
        )
    if is_static and args.neftune_noise_alpha is not None:
        raise UsageError(
            "adds noise to the inputs of an encoder, and this model is a table of token vectors",
            option="neftune_noise_alpha",
            fix="Leave it out, or use another model.",
        )
    if args.gradient_cache_chunk_size and "maps" in needs:
        raise UsageError(
            f"discards activations, and `{needs['maps']}` needs the attention maps of the whole batch at once",
            option="gradient_cache_chunk_size",
            fix="Leave one out.",
        )
    sharding = sharded_by(args)
    if sharding and "momentum" in needs:
        option = needs["momentum"]
        raise UsageError(
            f"needs whole weights for its momentum encoder, and {sharding[0]} shards them across processes",
            option=option,
            fix=f"Set `{option}` to 0, or use another file from configs/accelerate.",
        )


def check_recomputing(model: "TrainedModel", args: Any) -> None:
    """Raise UsageError if activations shall be recomputed, and the encoder cannot do that."""
    if not args.gradient_checkpointing:
        return
    encoder = None if model.is_static else model.st[0].auto_model
    if encoder is None or not encoder.supports_gradient_checkpointing:
        name = model.name if encoder is None else type(encoder).__name__
        raise UsageError(
            f"is not supported by {name}",
            option="gradient_checkpointing",
            fix="Leave it out. `gradient_cache_chunk_size` also needs less memory.",
        )


@contextmanager
def naming(option: str | None) -> Iterator[None]:
    """Let a UsageError about the model name this option of the run."""
    try:
        yield
    except UsageError as error:
        if error.option == "model_name" and option:
            error.option = option
        raise


def check_embeddings(model: "TrainedModel") -> None:
    """Raise UsageError if the rows of tokens in training would not give the model's own embeddings."""
    if model.st.truncate_dim is not None:
        raise UsageError(
            f"{model.name} keeps only {model.st.truncate_dim} dimensions of its embeddings (truncate_dim)",
            option="model_name",
            fix="Train it with `truncate_dim` None, and set `truncate_dim` when you load the result.",
        )
    half = any(weight.dtype != torch.float32 for weight in model.module.parameters())
    with torch.no_grad(), precision(model.module):
        ours = embeddings_in_training(model, [model.prompt + text for text in TEXTS]).float().cpu()
        theirs = torch.as_tensor(encode(model.st, TEXTS, prompt=model.prompt))
    ours = normalize(ours) if isinstance(list(model.st)[-1], Normalize) else ours
    difference = float((ours - theirs).abs().max() / theirs.norm(dim=1).max())
    if not difference < (HALF_TOLERANCE if half else TOLERANCE):
        raise UsageError(
            f"{model.name} cannot be trained: embeddings of tokens differ from those of `encode` by {difference:.2g}",
            option="model_name",
            needed="a model whose modules read input_ids and attention_mask",
        )


def check_dropout(model: "TrainedModel") -> None:
    """Raise UsageError if two forward passes in training give the same embeddings."""
    model.module.train()
    with torch.no_grad(), torch.random.fork_rng(), precision(model.module):
        one, other = (embeddings_in_training(model, TEXTS) for _ in range(2))
    model.module.eval()
    if not torch.equal(one, other):
        return
    if any(isinstance(part, nn.Dropout) for part in model.st.modules()):
        raise UsageError(
            "Every dropout rate of this model is 0, so the two views of a sentence would be identical",
            fix="Set `view_dropout`, for example to 0.1, or `view` to crop.",
        )
    raise UsageError(
        f"{model.name} has no dropout, so the two views of a sentence would be identical",
        option="view",
        needed="views that differ in their tokens: crop or repetition",
        fix="Set `view` to crop, or use a term with a guide alone (objective guided).",
    )


def freeze_unused(model: "TrainedModel") -> None:
    """Freeze weights that no embedding depends on, such as BERT's pooler: processes would wait for their gradients.

    Frozen copies replace them, because an object that was passed in shares the weights.
    """
    if not any(weight.requires_grad for weight in model.st.parameters()):
        raise UsageError(f"{model.name} has no weights to train: all are frozen", option="model_name")
    with precision(model.module):
        embeddings_in_training(model, TEXTS).float().sum().backward()
    for part in list(model.st.modules()):
        for name, weight in list(part.named_parameters(recurse=False)):
            if weight.requires_grad and weight.grad is None:
                setattr(part, name, nn.Parameter(weight.data, requires_grad=False))
    model.module.zero_grad()


def check_weights(terms: Sequence[Term], view: View, module: nn.Module) -> None:
    """Raise UsageError if a term or the view holds weights to train that are not part of the module in training."""
    trained = {id(weight) for weight in module.parameters()}
    owners: list[tuple[str, Term | View]] = [*(("objective", term) for term in terms), ("view", view)]
    for option, owner in owners:
        if any(id(weight) not in trained for weight in weights_to_train(owner, set())):
            raise UsageError(
                f"{owner.name} holds weights that would never be trained",
                option=option,
                fix="Return a module with them from `head` of a term, or freeze them with `requires_grad_(False)`.",
            )


def weights_to_train(owner: Any, seen: set[int]) -> Iterator[Tensor]:
    """Yield the tensors with gradient in an object: in modules, containers and attributes, each object once.

    Args:
        owner: The object.
        seen: Ids of the objects that were searched.
    """
    if id(owner) in seen or isinstance(owner, str | bytes | np.ndarray | type):
        return
    seen.add(id(owner))
    if isinstance(owner, Tensor):
        yield from [owner] if owner.requires_grad else []
        return
    is_module = isinstance(owner, nn.Module) and callable(owner.__hash__)  # of a term, its attributes have them
    parts: list[Any] = list(owner.parameters()) if is_module else []
    parts += owner.values() if isinstance(owner, Mapping) else []
    parts += owner if isinstance(owner, list | tuple | set) else []
    parts += getattr(owner, "__dict__", {}).values() if not isinstance(owner, FunctionType | ModuleType) else []
    for part in parts:
        yield from weights_to_train(part, seen)


def embeddings_in_training(model: "TrainedModel", texts: list[str]) -> Tensor:
    """Return the embeddings (N, d) of texts as a step computes them."""
    reading = {"padding": True, "truncation": True, "max_length": model.length, "return_token_type_ids": False}
    batch = model.tokenizer(texts, return_tensors="pt", **reading)
    device = next(model.st.parameters()).device
    how = replace(model.module.forward_pass.how, device=device, momentum=False, reads_maps=False, graph_length=None)
    forward = Forward(model.st, how)
    return forward.run(forward.collate(dict(batch) | {"sentence_ids": torch.arange(len(texts))}))[0]


def precision(module: nn.Module) -> Any:
    """Return the context in which a model with some weights in half precision computes on a CPU."""
    half = any(weight.dtype != torch.float32 for weight in module.parameters())
    return torch.autocast("cpu", torch.bfloat16) if half else nullcontext()
