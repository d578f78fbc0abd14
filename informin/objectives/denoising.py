"""Denoising: a decoder reconstructs the sentence from the embedding of a view with deleted tokens (TSDAE)."""

import copy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

from informin.distributed import part_of_mean
from informin.errors import UsageError
from informin.objectives.term import Head, Term, Views
from informin.options import option
from modeling_informin import HeadInputs

IGNORED = -100  # label of padding


def denoising(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Denoising loss: predict each token of a sentence from the tokens before it and an embedding.

    Use it to adapt an encoder to a domain without sentence pairs, above all before other training. Its embeddings
    represent words rather than meaning, so it scores below contrastive losses on semantic similarity.

    Also known as a sequential denoising auto-encoder.

        loss = -mean_t log p(w_t | w_1, ..., w_{t-1}, embedding)

    The mean is over the tokens of all processes.

    Args:
        logits: Logits of the tokens, (B, L, V). Any floating-point type; computed in float32.
        labels: Token ids, (B, L), -100 for padding.

    Returns:
        The mean, a scalar.

    Source:
        Wang et al. (2021), TSDAE, section 3.1.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[[2.0, 0.0], [0.0, 0.0]]])
        >>> denoising(logits, torch.tensor([[0, -100]]))
        tensor(0.1269)
    """
    total = cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return part_of_mean(total, (labels != IGNORED).float().sum())


class TiedDecoder(Head):
    """A decoder with the weights of the encoder, and with its own cross-attention to the embedding.

    Only the cross-attention is part of this module. Other weights are trained and saved with the encoder. The logits
    come from the model's language-model head.

    Source:
        Wang et al. (2021), TSDAE, section 3.1 and figure 1.
    """

    def __init__(self, model: Any):
        super().__init__()
        encoder = model.base_model
        raise_unless_decoder(type(encoder.config) in MODEL_FOR_CAUSAL_LM_MAPPING, encoder)
        config = copy.deepcopy(encoder.config)
        config.is_decoder = config.add_cross_attention = True
        config._attn_implementation = "sdpa"
        decoder: Any = AutoModelForCausalLM.from_config(config).base_model.to(model.device)
        shared, every = dict(encoder.named_parameters()), {name for name, _ in decoder.named_parameters()}
        raise_unless_decoder(shared.keys() < every, encoder)
        own = {name for name, part in decoder.named_modules() if name and [*part.parameters()]}
        own = {name for name in own if not any(weight.startswith(f"{name}.") for weight in shared)}
        self.cross_attention = nn.ModuleList(
            decoder.get_submodule(name) for name in sorted(own) if name.rpartition(".")[0] not in own
        )
        for name, part in encoder.named_modules():
            if type(part) is nn.Dropout:
                decoder.set_submodule(name, part)
            for weight, value in part.named_parameters(recurse=False):
                setattr(decoder.get_submodule(name), weight, value)
        self._decoder = [decoder]  # in a list, so that its weights are not those of this module, too

    def forward(self, model, inputs: HeadInputs) -> tuple[Tensor, Tensor]:
        """Return logits (B, L - 1, V) and labels (B, L - 1) of the tokens after the first."""
        size = len(inputs.sentence_ids)
        ids, mask = inputs.original_ids, inputs.original_mask
        order = mask.argsort(dim=1, descending=True, stable=True)  # tokens before padding
        ids, mask = ids.gather(1, order), mask.gather(1, order)
        decoder = self._decoder[0].to(ids.device).train(self.training)
        states = decoder(
            input_ids=ids[:, :-1], encoder_hidden_states=inputs.embedding[-size:, None], use_cache=False
        ).last_hidden_state
        return model.lm_logits(states), ids[:, 1:].masked_fill(mask[:, 1:] == 0, IGNORED)


def raise_unless_decoder(can_be: Any, encoder: Any) -> None:
    """Raise UsageError unless an encoder can be a decoder."""
    if not can_be:
        raise UsageError(
            f"needs a decoder with the weights of the encoder, which {type(encoder).__name__} cannot be",
            option="denoising_weight",
            needed="BERT, RoBERTa, or another encoder that transformers gives cross-attention, without LoRA",
        )


@dataclass
class Denoising(Term):
    """Cross-entropy of the sentence, decoded from the embedding of its second view. See `denoising`.

    TSDAE's second view lacks 60% of the tokens: use the view `deletion`. The first view is encoded only if another term
    needs it.
    """

    paper = "tsdae"
    lm_head = True
    whole_weights = True
    reads_projections = False
    reads_first_view = False
    compares_views = False

    weight: float = option(1.0, "Weight of denoising, TSDAE's loss. Use it with `view` deletion.")

    def head(self, model: Any) -> TiedDecoder:
        return TiedDecoder(model)

    def loss(self, views: Views) -> Tensor:
        return denoising(*views.heads[self.head_name])
