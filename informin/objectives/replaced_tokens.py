"""Replaced tokens: a discriminator finds the tokens that a masked language model changed (DiffCSE)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForMaskedLM, AutoTokenizer

from informin.distributed import part_of_mean, sum_over_processes
from informin.errors import UsageError, error_line
from informin.objectives.term import Head, Term, Views
from informin.options import check_value, option
from informin.views.encoder import copy_with_dropout
from modeling_informin import HeadInputs


def replaced_tokens(logits: Tensor, replaced: Tensor, mask: Tensor) -> dict[str, Tensor]:
    r"""Replaced token detection: predict for each token whether it was replaced.

    Use it with `contrast`, as in DiffCSE. The discriminator sees the embedding of the original sentence, so the
    embedding has to represent small differences in meaning. It helps where a few words decide the meaning, and needs a
    masked language model.

    Also known as the loss of ELECTRA, or of DiffCSE if it is conditioned on the embedding.

        loss = mean_t cross-entropy(logits_t, replaced_t)

    The mean is over the tokens of all processes, without padding.

    Args:
        logits: Logits of original and replaced, (N, L, 2). Any floating-point type; computed in float32.
        replaced: True for tokens that differ from the original, (N, L) bool.
        mask: 1 for tokens, 0 for padding, (N, L).

    Returns:
        The loss as `replaced_tokens`, and the fraction of the replaced tokens that are `found`.

    Source:
        Chuang et al. (2022), DiffCSE, eq. 3 and 4; Clark et al. (2020), ELECTRA.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]]])
        >>> replaced = torch.tensor([[False, True, False]])
        >>> replaced_tokens(logits, replaced, torch.tensor([[1, 1, 0]]))
        {'replaced_tokens': tensor(0.1269), 'found': tensor(1.)}
    """
    losses = cross_entropy(logits.float().transpose(1, 2), replaced.long(), reduction="none")  # (N, L)
    changed = (replaced & (mask > 0)).float()
    found = sum_over_processes((logits.detach().argmax(-1) * changed).sum())
    found = found / sum_over_processes(changed.sum()).clamp(min=1)
    return {"replaced_tokens": part_of_mean((losses * mask).sum(), mask.float().sum()), "found": found}


class Discriminator(Head):
    """A second encoder, which reads the projection of the sentence in place of its first token, and a frozen generator.

    The generator, a masked language model, is not part of this module and not saved in checkpoints.

    Source:
        Chuang et al. (2022), DiffCSE, section 3.
    """

    special_ids: Tensor

    def __init__(self, model: Any, generator: str, fraction: float):
        super().__init__()
        self.fraction = fraction
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(generator)
            masked_lm = AutoModelForMaskedLM.from_pretrained(generator, use_safetensors=True, dtype=torch.float32)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"is {generator}, which cannot be loaded: {error_line(error)}", option="generator"
            ) from error
        words = model.base_model.get_input_embeddings().num_embeddings
        if masked_lm.config.vocab_size != words or not hasattr(model.base_model, "embeddings"):
            raise UsageError(
                f"is {generator} with {masked_lm.config.vocab_size} tokens, and the encoder has {words}",
                option="generator",
                needed="a masked language model with the tokenizer of the encoder, which has a module `embeddings`",
            )
        self.mask_id = tokenizer.mask_token_id
        self.register_buffer("special_ids", torch.tensor(tokenizer.all_special_ids), persistent=False)
        self._generator = [masked_lm.eval().requires_grad_(False)]
        self.encoder = copy_with_dropout(model.base_model)
        self.classifier = nn.Linear(model.config.hidden_size, 2)
        self.to(model.device)

    def forward(self, model, inputs: HeadInputs) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (N, L, 2), which tokens are replaced (N, L), and the mask (N, L), of the rows of the views."""
        ids, mask = inputs.input_ids, inputs.attention_mask
        filled = self.filled(ids, mask)
        is_first = (mask.cumsum(1) == 1) & (mask > 0)  # (N, L)

        def condition(module: nn.Module, args: object, states: Tensor) -> Tensor:
            found, width = inputs.projection.shape[-1], states.shape[-1]
            if found != width:
                raise UsageError(
                    f"puts a projection of {found} dimensions in place of a token embedding of {width}",
                    option="replaced_tokens_weight",
                    needed="an encoder whose token embeddings are as wide as its sentence embeddings",
                    fix="ELECTRA-small and ALBERT have narrower ones: use another encoder, or leave this term out.",
                )
            return torch.where(is_first[..., None], inputs.projection[:, None].to(states.dtype), states)

        handle = self.encoder.embeddings.register_forward_hook(condition)
        try:
            states = self.encoder(input_ids=filled, attention_mask=mask).last_hidden_state
        finally:
            handle.remove()
        return self.classifier(states), filled != ids, mask

    @torch.no_grad()
    def filled(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return rows (N, L) with a fraction of the tokens masked and filled with the generator's best guess."""
        special = torch.isin(ids, self.special_ids) | (mask == 0)
        masked = (torch.rand(ids.shape, device=ids.device) < self.fraction) & ~special
        generator = self._generator[0].to(ids.device)
        guesses = generator(input_ids=ids.masked_fill(masked, self.mask_id), attention_mask=mask).logits.argmax(-1)
        return torch.where(masked, guesses, ids)


@dataclass
class ReplacedTokens(Term):
    """Detection of tokens that a masked language model replaced, given the projection. See `replaced_tokens`.

    The generator is a frozen masked language model with the tokenizer of the encoder. The discriminator starts as a
    copy of the encoder and is trained.
    """

    paper = "diffcse"
    whole_weights = True
    compares_views = False

    weight: float = option(0.005, "Weight of replaced token detection, DiffCSE's lambda.")
    generator: str = option(
        "distilbert-base-uncased", "Masked language model that fills masked tokens: a Hub id or a folder."
    )
    replaced_fraction: float = option(0.3, "Fraction of the tokens that are masked and filled by the generator.")

    def check(self) -> None:
        fits = 0 < self.replaced_fraction <= 1
        check_value(fits, "replaced_fraction", self.replaced_fraction, "a fraction above 0, at most 1")

    def head(self, model: Any) -> Discriminator:
        return Discriminator(model, self.generator, self.replaced_fraction)

    def loss(self, views: Views) -> dict[str, Tensor]:
        return replaced_tokens(*views.heads[self.head_name])
