"""Attention mutual information: align the attention maps of the two views (miCSE)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from informin.errors import UsageError
from informin.objectives.term import Term, Views, needed
from informin.options import check_value, option

ATTENTION_MI_FORMS = ("paper", "code")
# Smaller probabilities count as 0, because the gradient of their logarithm, 1/x, can overflow.
SMALLEST_PROBABILITY = 1e-30
# Lower bound of 1 - rho^2. Two identical views have a mutual information of 6.9078 nats and no gradient.
SMALLEST_RESIDUAL = 1e-6


def attention_layers(number_of_layers: int, chosen: list[int] | None = None) -> list[int]:
    """Return the encoder layers whose attention maps are compared, counted from 0 in ascending order.

    Args:
        number_of_layers: Number of layers of the encoder.
        chosen: Layers to use. None selects the upper third, at least 2 if the encoder has 2: [8, 9, 10, 11] for
            BERT-base. The commands of the authors' code use [7, 8, 9, 10].

    Raises:
        UsageError: A layer does not exist, is repeated or is out of order.

    Source:
        Klein and Nabi (2023), miCSE, implementation details.
    """
    if chosen is None:
        return list(range(number_of_layers))[-max(2, number_of_layers // 3) :]
    if not chosen or list(chosen) != sorted(set(chosen) & set(range(number_of_layers))):
        raise UsageError(
            f"is {list(chosen)}, but the encoder has {number_of_layers} layers",
            option="attention_mi_layers",
            needed=f"one or more of 0 to {number_of_layers - 1}, each once and in ascending order",
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
    r"""Attention mutual information loss: make the attention maps of one view predictable from those of the other.

    Use it with `contrast`, as in miCSE, above all with few training sentences. It needs two views of the same tokens,
    and an encoder that supports attention functions of transformers, such as BERT. In training, views that crop or
    repeat tokens are compared at the tokens they share, which the paper leaves to future work.

    Also known as attention mutual information (AMI) regularization.

        loss = -mean MI,   MI = -1/2 log(1 - rho^2)

    where rho is the correlation of the log-probabilities of both maps at `samples` positions, for each sentence and
    tile. Positions are sampled without replacement and are the same in both views. Positions whose probability is 0 in
    a view (because of attention dropout, or because the key is padding) are invalid. A tile with fewer than 3 positions
    or no variance has MI 0.

    - `paper`: A tile is 2 adjacent heads of a layer. Queries at padding are invalid. A tile with fewer than `samples`
      valid positions uses all of them.
    - `code`: What the authors' code computes. A tile is one head of every second layer (of 4 layers, the 1st and
      3rd, or the 2nd and 4th). Queries at padding are valid. Tiles with fewer than `samples` valid positions are
      ignored; if no tile has enough, all use as many as the smallest has. The mean is multiplied by s^2 + 1e-6, where s
      is the fraction of valid positions in the tiles used. This factor has no gradient, and decreases with more padding
      and dropout.

    With several processes, each uses its own sentences. In the form `paper`, the mean over processes is exact.

    Args:
        maps1: Attention maps of the first view after attention dropout, (B, T, H, L, L), for T layers with H heads;
            each row is a query. Any floating-point type; computed in float32.
        maps2: Attention maps of the second view, (B, T, H, L, L).
        mask: Attention mask, (B, L): 1 for tokens that both views share, 0 for padding and all other tokens.
        form: `paper` or `code`.
        samples: Number of positions to sample per tile.
        generator: Random number generator on the maps' device. None uses the global one.

    Returns:
        The loss, a scalar, and the mean number of positions sampled per tile, without gradient.

    Raises:
        UsageError: The form is unknown, or the number of heads (`paper`) or layers (`code`) is odd.

    Source:
        Klein and Nabi (2023), miCSE, attention mutual information.

    Example:
        >>> import torch
        >>> generator = torch.manual_seed(0)
        >>> maps1 = torch.randn(1, 2, 2, 4, 4).softmax(-1)
        >>> maps2 = (maps1.log() + torch.randn(1, 2, 2, 4, 4)).softmax(-1)
        >>> loss, positions = attention_mi(maps1, maps2, torch.ones(1, 4))
        >>> loss, positions
        (tensor(-0.2968), tensor(32.))
    """
    tiles1 = _tiles(maps1, form)  # (B, K, P)
    tiles2 = _tiles(maps2, form)
    valid = (tiles1 > SMALLEST_PROBABILITY) & (tiles2 > SMALLEST_PROBABILITY)  # (B, K, P)
    if form == "paper":
        tokens = mask.bool()
        pairs = tokens[:, :, None] & tokens[:, None, :]  # (B, L, L)
        valid &= pairs.flatten(1).repeat(1, 2)[:, None]  # 2 heads per tile
    available = valid.sum(-1)  # (B, K)
    used, wanted = _used(available, samples, form)
    drawn, indices = _draw(valid, samples, wanted, generator)  # (B, K, samples)
    mi = _mutual_information(tiles1.gather(-1, indices), tiles2.gather(-1, indices), drawn)  # (B, K)
    mean = (mi * used).sum() / used.sum()
    if form == "code":
        valid_fraction = (available * used).sum() / (used.sum() * valid.shape[-1])
        mean = mean * (valid_fraction.square() + 1e-6)
    return -mean, (drawn.sum(-1) * used).sum() / used.sum()


def check_tiles(layers: int, heads: int, form: str) -> None:
    """Raise UsageError if the form is unknown or cannot pair this number of heads (`paper`) or layers (`code`)."""
    check_value(form in ATTENTION_MI_FORMS, "attention_mi_form", form, f"one of: {', '.join(ATTENTION_MI_FORMS)}")
    if form == "paper" and heads % 2:
        raise UsageError(
            f"paper pairs adjacent heads, but this encoder has {heads} heads per layer",
            option="attention_mi_form",
            fix="Use an encoder with an even number of heads, or `attention_mi_form` code.",
        )
    if form == "code" and layers % 2:
        raise UsageError(
            f"code pairs layers, but {layers} are selected",
            option="attention_mi_form",
            fix="Select an even number of layers with `attention_mi_layers`, or use `attention_mi_form` paper.",
        )


def _tiles(maps: Tensor, form: str) -> Tensor:
    """Reshape maps (B, T, H, L, L) to tiles (B, K, P) with P = 2 L L (`paper`) or T/2 L L (`code`) positions."""
    batch, layers, heads, length, _ = maps.shape
    check_tiles(layers, heads, form)
    if form == "paper":
        return maps.reshape(batch, layers * heads // 2, 2 * length * length)
    alternating = maps.reshape(batch, layers // 2, 2, heads, length * length).permute(0, 2, 3, 1, 4)
    return alternating.reshape(batch, 2 * heads, layers // 2 * length * length)


def _used(available: Tensor, samples: int, form: str) -> tuple[Tensor, Tensor | int]:
    """Return which tiles enter the mean, (B, K) bool, and the maximum number of positions per tile."""
    enough = available >= samples  # (B, K)
    if form == "paper":
        return torch.ones_like(enough), samples
    return enough | ~enough.any(), torch.where(enough.any(), samples, available.min())


def _draw(
    valid: Tensor, samples: int, wanted: Tensor | int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Sample valid positions (B, K, P) without replacement.

    Each position gets a random key, and the positions with the largest keys are taken in the order of their keys, so
    that any first n of them are a uniform sample.

    Returns:
        Which of the returned indices are part of the sample, (B, K, samples) bool, and the indices, (B, K, samples).
    """
    keys = torch.rand(valid.shape, device=valid.device, generator=generator)
    largest, indices = torch.where(valid, keys, -1.0).topk(min(samples, valid.shape[-1]))
    return (largest >= 0) & (torch.arange(largest.shape[-1], device=valid.device) < wanted), indices


def _mutual_information(x: Tensor, y: Tensor, drawn: Tensor) -> Tensor:
    """Return -1/2 log(1 - rho^2), (B, K), for the logarithms of x and y, (B, K, samples), at the sampled positions."""
    n = drawn.sum(-1).clamp(min=1)  # (B, K)
    a = _centered_logarithm(x, drawn)  # (B, K, samples)
    b = _centered_logarithm(y, drawn)
    variance1 = a.square().sum(-1) / n  # (B, K)
    variance2 = b.square().sum(-1) / n
    covariance = (a * b).sum(-1) / n
    defined = (n >= 3) & (variance1 > 1e-10) & (variance2 > 1e-10)  # smaller variances are rounding errors
    squared_rho = torch.where(defined, covariance.square() / torch.where(defined, variance1 * variance2, 1.0), 0.0)
    return -0.5 * (1 - squared_rho).clamp(min=SMALLEST_RESIDUAL).log()


def _centered_logarithm(x: Tensor, drawn: Tensor) -> Tensor:
    """Return log x minus its mean over the sampled positions, and 0 at other positions, where x may be 0."""
    log = torch.where(drawn, x.float(), 1.0).log()
    mean = log.sum(-1, keepdim=True) / drawn.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(drawn, log - mean, 0.0)


@dataclass
class AttentionMI(Term):
    """Mutual information of the two views' attention maps. See `attention_mi`."""

    title = "attention mutual information"
    paper = "micse"
    reads_maps = True
    reads_projections = False

    weight: float = option(2.5e-3, "Weight of the attention mutual information loss, miCSE's lambda.")
    form: str = option(
        "paper",
        "Form of the attention mutual information: `paper`, or `code` as in the authors' code.",
        choices=ATTENTION_MI_FORMS,
    )
    layers: list[int] | None = option(
        None, "Layers, counted from 0, whose attention maps are compared. Default: the upper third, at least two."
    )

    @property
    def reads_padding(self) -> bool:
        return self.form == "code"

    def map_layers(self, config) -> list[int]:
        """See `attention_layers`. Raise UsageError if the encoder's heads or layers cannot be paired."""
        layers = attention_layers(config.num_hidden_layers, self.layers)
        check_tiles(len(layers), config.num_attention_heads, self.form)
        return layers

    def loss(self, views: Views) -> dict[str, Tensor]:
        value, positions = attention_mi(needed(views.maps1), needed(views.maps2), views.mask, self.form)
        return {"attention_mi": value, "positions": positions}
