"""Check that a loaded encoder can be trained."""

import torch
from torch import nn
from transformers import PreTrainedModel

from informin.errors import UsageError, counted, error_line
from informin.models.architectures import ARCHITECTURES, InforMinModel, architecture_of


def refuse_unsafe(model: InforMinModel) -> None:
    """Raise UsageError for an architecture without a row in `ARCHITECTURES` that fails a test with one sentence.

    The embeddings must not depend on the padding of the batch, and every weight must get a gradient: with several
    processes, each would otherwise wait for the gradients of the others.
    """
    pad = model.config.pad_token_id or 0
    words = [word for word in range(5) if word != pad][-3:]
    try:
        alone, padded = (
            model.base_model(
                input_ids=torch.tensor([words + [pad] * more]), attention_mask=torch.tensor([[1] * 3 + [0] * more])
            ).last_hidden_state[:, :3]
            for more in (0, 2)
        )
        alone.sum().backward()
        fits = alone.shape == (1, 3, model.config.hidden_size) and torch.allclose(alone, padded, rtol=1e-3, atol=1e-4)
        problem = None if fits else "its output depends on the padding of the batch"
    except Exception as error:  # a model that was never tested here can raise anything
        problem = f"{error_line(error)} ({type(error).__name__})"
    unused = [name for name, x in model.base_model.named_parameters() if x.requires_grad and x.grad is None]
    if problem is None and unused:
        problem = f"{counted(len(unused), 'weight')} get no gradient from a sentence, such as {unused[0]}"
    model.zero_grad()
    if problem:
        raise UsageError(
            f"The architecture {model.config.model_type!r} cannot be trained here: {problem}",
            needed=f"an encoder of: {', '.join(ARCHITECTURES)}",
        )


def refuse_without_dropout(encoder: PreTrainedModel) -> None:
    """Raise UsageError if every dropout rate is 0: the two views of a sentence differ only by dropout."""
    if not any(module.p > 0 for module in encoder.modules() if isinstance(module, nn.Dropout)):
        dropouts = " and ".join(architecture_of(encoder.config).dropouts)
        raise UsageError(
            "Every dropout rate of this model is 0, so the two views of a sentence would be identical",
            fix=f"Set `view_dropout_rate`, for example to 0.1, `view_dropout`, or {dropouts} in config.json.",
        )


def refuse_other_heads(model: InforMinModel, heads: dict) -> None:
    """Raise UsageError if the model's heads are not those that the objective needs.

    A missing head cannot be used, and an unused head gets no gradient, which breaks training with several processes.

    Args:
        model: Loaded model.
        heads: Settings of the heads by their names in `config.informin`.
    """
    for name, needed in heads.items():
        if (built := model.config.informin[name]) != needed:
            raise UsageError(
                f"The model was built with {name} = {built}",
                needed=f"{name} = {needed} for this objective",
                fix="Load it with informin.models.loading.load_model and `args.model_settings`.",
            )
