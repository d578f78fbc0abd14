"""Attention mutual information: what a view attends to tells what the other view of the sentence attends to."""

from dataclasses import dataclass

import torch
from torch import Tensor

from informin.errors import UsageError
from informin.objectives.terms import PaperRow, Term, Views, option

FORMS = ("paper", "reference")
# The logarithm's gradient is 1/x and overflows at the smallest floats: a probability below this counts as 0.
SMALLEST_PROBABILITY = 1e-30
# 1 - rho^2 is held at this or above: a tile of two equal views has 6.9078 nats, and no gradient.
SMALLEST_RESIDUAL = 1e-6


def attention_layers(number_of_layers: int, chosen: list[int] | None = None) -> list[int]:
    """The encoder layers whose attention maps are compared, counted from 0 and ascending.

    Args:
        number_of_layers: of the encoder.
        chosen: the layers wanted; None for the upper third, in BERT-base [8, 9, 10, 11], and at least 2 where there
            are 2. The published code's commands use [7, 8, 9, 10].

    Raises:
        UsageError: a layer that is not there, one named twice, or layers out of order.

    Source:
        Klein & Nabi (2023), implementation details.
    """
    if chosen is None:
        return list(range(number_of_layers))[-max(2, number_of_layers // 3) :]
    if not chosen or list(chosen) != sorted(set(chosen) & set(range(number_of_layers))):
        raise UsageError(
            f"The attention layers {list(chosen)} cannot be used: the encoder has {number_of_layers} layers. "
            f"Name one or more of 0 to {number_of_layers - 1}, each once and in ascending order."
        )
    return list(chosen)


def attention_mi(
    maps1: Tensor,
    maps2: Tensor,
    mask: Tensor,
    form: str = "paper",
    samples: int = 150,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Minus the mean mutual information of the two views' attention, MI = -1/2 log(1 - rho^2), to be minimized.

    rho is the correlation of the logarithms of the two maps over positions drawn without replacement, the same in both
    views, for each sentence and tile. A position is valid where both views are above 0: zeros (attention dropout, the
    keys of padding) have no logarithm. A tile with fewer than 3 positions, or without variance, has MI 0.

    - `paper`: a tile is 2 adjacent heads of a layer. The queries of padding, whose rows are not zero, are invalid too.
      A tile with fewer than `samples` valid positions gives them all.
    - `reference`: what the authors' code computes. A tile is one head of every second layer (of 4: the 1st and 3rd, or
      the 2nd and 4th). Padding's queries are drawn. Tiles with fewer than `samples` valid positions are left out, or,
      where all have fewer, each gives as many as the poorest has. The mean is multiplied by s^2 + 1e-6, s the valid
      share of the tiles used, which is a constant to the gradient and falls with the padding and the dropout.

    Over several processes each takes its own sentences: the mean over processes is exact in the form `paper`.

    Args:
        maps1, maps2: (B, T, H, L, L), attention after its dropout, T layers of H heads; a row is a query. Any floating
            type; computed in float32.
        mask: (B, L), 1 at tokens and 0 at padding.
        form: one of `FORMS`.
        samples: positions drawn per tile.
        generator: of the random numbers, on the maps' device; None for the global one.

    Returns:
        The loss, a scalar, and the mean number of positions drawn from a tile that is used, without gradient.

    Raises:
        UsageError: the form is unknown, the heads (`paper`) or layers (`reference`) are odd in number.

    Source:
        Klein & Nabi (2023), attention mutual information.
    """
    tiles1, tiles2 = _tiles(maps1, form), _tiles(maps2, form)  # (B, K, P)
    valid = (tiles1 > SMALLEST_PROBABILITY) & (tiles2 > SMALLEST_PROBABILITY)  # (B, K, P)
    if form == "paper":
        tokens = mask.bool()
        pairs = tokens[:, :, None] & tokens[:, None, :]  # (B, L, L)
        valid &= pairs.flatten(1).repeat(1, 2)[:, None]  # 2 heads a tile
    available = valid.sum(-1)  # (B, K)
    used, wanted = _used(available, samples, form)
    drawn, places = _draw(valid, samples, wanted, generator)  # (B, K, samples)
    mi = _mutual_information(tiles1.gather(-1, places), tiles2.gather(-1, places), drawn)  # (B, K)
    mean = (mi * used).sum() / used.sum()
    if form == "reference":
        share = (available * used).sum() / (used.sum() * valid.shape[-1])
        mean = mean * (share.square() + 1e-6)
    return -mean, (drawn.sum(-1) * used).sum() / used.sum()


def check_tiles(layers: int, heads: int, form: str) -> None:
    """Raises UsageError where the form is unknown, or cannot pair this number of heads (`paper`) or layers."""
    if form not in FORMS:
        raise UsageError(f"Unknown form of the attention mutual information {form!r}. Use one of: {', '.join(FORMS)}.")
    if form == "paper" and heads % 2:
        raise UsageError(
            f"The attention mutual information pairs adjacent heads, and this encoder has {heads} a layer. "
            "Use an encoder with an even number of heads, or `attention_mi_form` reference."
        )
    if form == "reference" and layers % 2:
        raise UsageError(
            f"The attention mutual information pairs layers in the form 'reference', and {layers} are chosen. "
            "Choose an even number of layers with `attention_mi_layers`, or use `attention_mi_form` paper."
        )


def _tiles(maps: Tensor, form: str) -> Tensor:
    """Pools maps (B, T, H, L, L) into tiles (B, K, P) of P = 2 L L (`paper`) or T/2 L L (`reference`) positions."""
    batch, layers, heads, length, _ = maps.shape
    check_tiles(layers, heads, form)
    if form == "paper":
        return maps.reshape(batch, layers * heads // 2, 2 * length * length)
    alternating = maps.reshape(batch, layers // 2, 2, heads, length * length).permute(0, 2, 3, 1, 4)
    return alternating.reshape(batch, 2 * heads, layers // 2 * length * length)


def _used(available: Tensor, samples: int, form: str) -> tuple[Tensor, Tensor | int]:
    """Which tiles enter the mean, (B, K), and how many positions each gives at most."""
    enough = available >= samples  # (B, K)
    if form == "paper":
        return torch.ones_like(enough), samples
    return enough | ~enough.any(), torch.where(enough.any(), samples, available.min())


def _draw(
    valid: Tensor, samples: int, wanted: Tensor | int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Draws valid positions (B, K, P) without replacement: which of the places (B, K, samples) are drawn, the places.

    The places of the largest random keys, in their order: the first n of them are n positions drawn uniformly.
    """
    keys = torch.rand(valid.shape, device=valid.device, generator=generator)
    found, places = torch.where(valid, keys, -1.0).topk(min(samples, valid.shape[-1]))
    return (found >= 0) & (torch.arange(found.shape[-1], device=valid.device) < wanted), places


def _mutual_information(x: Tensor, y: Tensor, drawn: Tensor) -> Tensor:
    """-1/2 log(1 - rho^2) of the logarithms at the drawn positions: (B, K, samples) to (B, K)."""
    n = drawn.sum(-1).clamp(min=1)  # (B, K)
    a, b = _centered_logarithm(x, drawn), _centered_logarithm(y, drawn)  # (B, K, samples)
    variance1, variance2 = a.square().sum(-1) / n, b.square().sum(-1) / n  # (B, K)
    covariance = (a * b).sum(-1) / n
    defined = (n >= 3) & (variance1 > 1e-10) & (variance2 > 1e-10)  # below is the rounding of equal logarithms
    squared_rho = torch.where(defined, covariance.square() / torch.where(defined, variance1 * variance2, 1.0), 0.0)
    return -0.5 * (1 - squared_rho).clamp(min=SMALLEST_RESIDUAL).log()


def _centered_logarithm(x: Tensor, drawn: Tensor) -> Tensor:
    """log x less its mean over the drawn positions, and 0 at the others, where x may be 0."""
    log = torch.where(drawn, x.float(), 1.0).log()
    mean = log.sum(-1, keepdim=True) / drawn.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(drawn, log - mean, 0.0)


@dataclass
class AttentionMI(Term):
    """The mutual information of the two views' attention maps."""

    name = "attention_mi"
    title = "mutual information of attention maps"
    weight = "attention_mi_weight"
    paper = "micse"
    reads_maps = True

    attention_mi_weight: float = option(0, "Of the mutual information of the views' attention maps, miCSE's lambda.")
    attention_mi_form: str = option(
        "paper",
        "paper: tiles of two adjacent heads. reference: as the authors' code, one head of two layers.",
        choices=FORMS,
    )
    attention_mi_layers: list[int] | None = option(
        None, "Layers, from 0, whose attention maps are compared. Default: the upper third."
    )

    def map_layers(self, config) -> list[int]:
        """See `attention_layers`. Raises UsageError where the encoder's heads or layers cannot be paired."""
        layers = attention_layers(config.num_hidden_layers, self.attention_mi_layers)
        check_tiles(len(layers), config.num_attention_heads, self.attention_mi_form)
        return layers

    def loss(self, views: Views) -> dict[str, Tensor]:
        ami, positions = attention_mi(views.maps1, views.maps2, views.mask, self.attention_mi_form)
        return {"attention_mi": ami, "attention_mi_positions": positions}


MICSE_ROWS = {  # Klein and Nabi (2023), section 4
    ("bert", 768): PaperRow(
        "miCSE, section 4, bert-base", 50, 3e-5, {"warmup_steps": 250, "attention_mi_weight": 2.5e-3, "queue_size": 384}
    ),
}
