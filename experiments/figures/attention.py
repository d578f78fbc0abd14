"""What miCSE assumes about attention maps: how alike those of two dropout views are, and how they are distributed."""

from collections.abc import Sequence

import torch
from scipy.stats import kstest
from sentence_transformers import SentenceTransformer
from torch import Tensor

from informin.objectives.attention_mi import SMALLEST_PROBABILITY, attention_mi


def distance_to_normal(values: Tensor) -> float:
    """Return the Kolmogorov-Smirnov distance of values (N,) to the normal distribution of their mean and variance."""
    z = (values.double() - values.double().mean()) / values.double().std()
    return float(kstest(z.numpy(), "norm").statistic)


@torch.no_grad()
def attention_by_layer(model: SentenceTransformer, texts: Sequence[str], batch_size: int = 32) -> list[dict]:
    """Return for each layer, counted from 1, the mutual information of the maps of two dropout views, in nats, and the
    distances to normal of the probabilities and of their logarithms, without dropout.

    Source:
        Klein and Nabi (2023), miCSE, attention mutual information.
    """
    torch.manual_seed(0)
    encoder = model[0].auto_model
    encoder.set_attn_implementation("eager")  # the only one that returns maps
    batches: list[list[float]] = []
    probabilities: list[list[Tensor]] = []
    for start in range(0, len(texts), batch_size):
        features = model.preprocess(list(texts[start : start + batch_size]))
        inputs = {name: x.to(model.device) for name, x in features.items() if isinstance(x, Tensor)}
        views = [_maps(encoder, inputs, dropout) for dropout in (True, True, False)]
        tokens = inputs["attention_mask"].bool()
        valid = (tokens[:, None, :, None] & tokens[:, None, None, :]).expand_as(views[2][0])
        mi = [-attention_mi(a[:, None], b[:, None], inputs["attention_mask"])[0].item() for a, b, _ in zip(*views)]
        batches.append(mi)
        probabilities.append([maps[valid & (maps > SMALLEST_PROBABILITY)].cpu() for maps in views[2]])
    rows = []
    for layer, (mi, parts) in enumerate(zip(zip(*batches), zip(*probabilities)), 1):
        p = torch.cat(parts)
        rows.append(
            {
                "layer": layer,
                "mutual_information": sum(mi) / len(mi),
                "probabilities": distance_to_normal(p),
                "logarithms": distance_to_normal(p.log()),
            }
        )
    return rows


def _maps(encoder: torch.nn.Module, inputs: dict[str, Tensor], dropout: bool) -> tuple[Tensor, ...]:
    encoder.train(dropout)
    maps = encoder(**inputs, output_attentions=True).attentions
    encoder.eval()
    return maps
