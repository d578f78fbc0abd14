"""The forward pass in training: rows in parts, packed or padded, through the modules of a SentenceTransformer.

The parts of a batch are made on a CPU before the step, so that a step on a GPU waits for nothing. They are
computed in threads on a CPU; with gradient caching (Gao et al., 2021), one after the other, and once more in the
backward pass; otherwise there is one part.
"""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, StaticEmbedding
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from informin.distributed import to_device
from informin.fast.graphs import TOKENS, GraphedEncoder
from informin.fast.masks import NumpyDropout, mask_recomputed_layers
from informin.fast.packing import BF16_ROWS, Packed, pack, packed_copy, padding_index_of
from informin.fast.plan import Plan
from informin.fast.speed import nearly_equal
from informin.fast.threads import run_in_threads
from informin.views.encoder import dense_factors, keep_maps, kept_maps, scaled_embeddings


@dataclass
class MicroBatch:
    """Rows that are computed at once.

    Attributes:
        features: What the modules of a SentenceTransformer read.
        order: Indices (N,) of its rows in the input of `_part`, on a CPU. Filler may follow the rows.
        targets: Places in the flattened tokens of those whose hidden states are returned; None without any.
        fixed: Inputs of the encoder in the fixed shapes of a CUDA graph; None without one.
        factors: What multiplies the output of the embedding layer, (N, L, d), or (1, T, d) if packed; None for 1.
        view: Index of the view of all its rows, whose dropout rates they have; None unless the plan splits views.
    """

    features: dict[str, Any]
    order: Tensor
    targets: Tensor | None = None
    fixed: dict[str, Tensor] | None = None
    factors: Tensor | None = None
    view: int | None = None


class SplitBatch:
    """The N rows of a forward pass.

    Attributes:
        parts: The rows in parts.
        back: (N,), place of each row in the concatenated parts.
        shape: (N, L) of the padded rows.
        places: Places (T,) in the flattened rows of the tokens whose hidden states the parts return; None without any.
        predicted: Places (M,) of the tokens to predict; None without a prediction.
        labels: Their ids, (M,).
        first_view: The rows of the first view, which the encoder of a head also reads. None without such an encoder.
        forward: The forward pass that made it.
    """

    def __init__(self, forward: "FastForward", parts: list[MicroBatch], back: Tensor, shape: Sequence[int]):
        self.forward, self.parts, self.back, self.shape = forward, parts, back, shape
        self.places: Tensor | None = None
        self.predicted: Tensor | None = None
        self.labels: Tensor | None = None
        self.first_view: SplitBatch | None = None


def with_encoder(transformer: Any, encoder: nn.Module) -> Any:
    """Return a Transformer module with the settings of another one and its own encoder."""
    view = copy.copy(transformer)
    view._modules = transformer._modules | {"model": encoder}
    return view


class FastForward:
    """Computes embeddings, hidden states of tokens, and attention maps; a Normalize at the end is left out.

    Attributes:
        st: The SentenceTransformer, whose weights are trained.
        plan: How rows are computed.
        batch: The batch of the step, while it is computed.
    """

    batch: SplitBatch | None = None

    def __init__(self, st: SentenceTransformer, plan: Plan):
        self.st, self.plan = st, plan
        self._graphs: dict[nn.Module, GraphedEncoder] = {}
        self.is_static = isinstance(st[0], StaticEmbedding)
        self._padding_index = None if self.is_static else padding_index_of(st[0].auto_model)

    @property
    def modules(self) -> list[nn.Module]:
        """The modules of the embedding in training."""
        modules = list(self.st)
        return modules[:-1] if len(modules) > 1 and isinstance(modules[-1], Normalize) else modules

    def masks_by_numpy(self, model: nn.Module) -> AbstractContextManager:
        """Return the context of a step in which a CPU draws dropout masks faster.

        Args:
            model: What is computed: the model in training, whose heads may have encoders, or a part of it.
        """
        if not self.plan.numpy_masks:
            return nullcontext()
        mask_recomputed_layers(model)
        return NumpyDropout()

    # Before the step, on the CPU

    def split(self, rows: dict[str, Any]) -> SplitBatch:
        """Split the stacked views of a batch (N, L) into parts, on a CPU, and copy these to the device."""
        ids = rows["input_ids"].cpu()
        mask = rows["attention_mask"].cpu()
        labels = rows["lm_labels"].cpu() if rows.get("lm_labels") is not None else None
        size = len(rows["sentence_ids"])
        factors = rows["factors"] + [None] * (len(ids) - len(rows["factors"])) if "factors" in rows else None
        batch = self._batch_of(ids, mask, labels, size, factors)
        if self.plan.second_encoder:
            batch.first_view = self._batch_of(ids[:size], mask[:size], None, size)
        return batch

    def _batch_of(
        self,
        ids: Tensor,
        mask: Tensor,
        labels: Tensor | None,
        size: int,
        factors: Sequence[Tensor | None] | None = None,
    ) -> SplitBatch:
        parts, order, places = [], [], []
        wanted = None if labels is None else labels >= 0
        wanted = mask.bool() if self.plan.reads_states else wanted
        for rows in self._rows_of_parts(mask, size):
            part = self._part(ids[rows], mask[rows], None if wanted is None else wanted[rows])
            if self.plan.splits_views:
                part.view = int(rows[0]) // size
            if factors is not None:
                part.factors = self._factors(part, [factors[row] for row in rows.tolist()], mask[rows])
            parts.append(part)
            order.append(rows[part.order])
            if wanted is not None:
                places.append(torch.arange(mask.numel()).view_as(mask)[rows][wanted[rows]])
        back = to_device(torch.cat(order).argsort(), self.plan.device)
        batch = SplitBatch(self, parts, back, mask.shape)
        if places:
            batch.places = to_device(torch.cat(places), self.plan.device)
        if labels is not None:
            predicted = (labels >= 0).flatten().nonzero()[:, 0] if self.plan.reads_states else torch.cat(places)
            batch.predicted = to_device(predicted, self.plan.device)
            batch.labels = to_device(labels.flatten()[predicted], self.plan.device)
        return batch

    def _rows_of_parts(self, mask: Tensor, size: int) -> Sequence[Tensor]:
        """Return the rows of each part.

        With gradient caching, a part has all views of some sentences; in a plan that sorts, rows of nearly equal
        length; with threads, about the same number of tokens. A plan that splits views divides the parts further.
        """
        number, chunk = len(mask), self.plan.chunk_size
        order = torch.arange(number)
        views = order.view(-1, size) if number % size == 0 else order[None]
        if chunk is not None and number > chunk:
            blocks = views.split(max(1, chunk // len(views)), dim=1)
            return [rows for block in blocks for rows in (block if self.plan.splits_views else block.flatten()[None])]
        if self.plan.sorts:
            return [torch.tensor(rows) for rows in nearly_equal(mask.sum(1))]
        groups = list(views) if self.plan.splits_views else [order]
        threads = -(-self.plan.threads // len(groups))
        return [rows for group in groups for rows in _split_evenly(group, mask, threads)]

    def _part(self, ids: Tensor, mask: Tensor, wanted: Tensor | None) -> MicroBatch:
        """Return rows (N, L) as a part on the device, whose hidden states are `wanted`, (N, L) bool."""
        if self.is_static:
            lengths = mask.sum(1)
            flat = {"input_ids": ids[mask.bool()], "offsets": lengths.cumsum(0) - lengths}
            part = MicroBatch(self._on_device(flat), torch.arange(len(ids)))
        else:
            part = self._packed_part(ids, mask, wanted) if self.plan.packs else self._padded_part(ids, mask, wanted)
        if self.plan.prompt_tokens:
            part.features["prompt_length"] = self.plan.prompt_tokens
        return part

    def _packed_part(self, ids: Tensor, mask: Tensor, wanted: Tensor | None) -> MicroBatch:
        longest = self._longest(mask)
        multiple = TOKENS if longest is not None else BF16_ROWS if self.plan.bf16 else 1
        on_cpu = pack(ids, mask, self._padding_index, multiple, longest)
        packed = on_cpu.to(self.plan.device)
        fixed = None
        if longest is not None:
            fixed = {name: getattr(packed, name) for name in ("input_ids", "position_ids", "ends", "texts")}
        targets = None if wanted is None else to_device(on_cpu.places[wanted], self.plan.device)
        return MicroBatch(packed.features(), on_cpu.rows, targets, fixed)

    def _padded_part(self, ids: Tensor, mask: Tensor, wanted: Tensor | None) -> MicroBatch:
        if self.plan.sorts:
            there = mask.any(0)  # padding may come first
            ids, mask, wanted = ids[:, there], mask[:, there], None if wanted is None else wanted[:, there]
        longest = self._longest(mask)
        fixed = None
        if longest is not None:
            filler = (0, longest - ids.shape[1])
            filled_ids = pad(ids, filler, value=self._padding_index or 0)
            fixed = self._on_device({"input_ids": filled_ids, "attention_mask": pad(mask, filler)})
        targets = None
        if wanted is not None:
            targets = to_device(wanted.flatten().nonzero()[:, 0], self.plan.device)
        features = self._on_device({"input_ids": ids, "attention_mask": mask})
        return MicroBatch(features, torch.arange(len(ids)), targets, fixed)

    def _factors(self, part: MicroBatch, factors: Sequence[Tensor | None], mask: Tensor) -> Tensor | None:
        """Return the factors of the rows of a part with this mask, in its order."""
        dense = dense_factors(factors, mask)
        if dense is not None and self.plan.sorts:
            dense = dense[:, mask.any(0)]
        if dense is not None and "packed" in part.features:
            packed: Packed = part.features["packed"]
            places = packed.places.cpu()
            row = torch.ones(1, packed.input_ids.shape[1], dense.shape[2])
            row[0, places[places >= 0]] = dense[places >= 0]
            dense = row
        return None if dense is None else to_device(dense, self.plan.device)

    def _on_device(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        return {name: to_device(x, self.plan.device) for name, x in tensors.items()}

    def _longest(self, mask: Tensor) -> int | None:
        """Return the fixed length of rows in a CUDA graph; None if a row is longer, such as with repeated tokens."""
        length = self.plan.graph_length
        return length if length is not None and mask.shape[1] <= length else None

    # In a step

    def run(self, batch: SplitBatch) -> tuple[Tensor, Tensor | None, Tensor | None, tuple[Tensor, ...]]:
        """Return what a step reads of a batch of N rows of L tokens.

        Embeddings (N, d); the hidden states (N, L, d) of all tokens, or None unless the plan reads them;
        those (M, d) of the tokens to predict, or None; and attention maps.
        """
        results = self._results(batch, self.modules)
        embeddings = torch.cat([result[0] for result in results])[batch.back]
        tokens = None if batch.places is None else torch.cat([result[1] for result in results])
        states = None
        if self.plan.reads_states and tokens is not None and batch.places is not None:
            number, length = batch.shape
            flat = tokens.new_zeros(number * length, tokens.shape[1]).index_copy(0, batch.places, tokens)
            states = flat.view(number, length, -1)
            tokens = None if batch.predicted is None else flat.index_select(0, batch.predicted)
        return embeddings, states, tokens, self._maps(batch, results) if self.plan.reads_maps else ()

    def _maps(self, batch: SplitBatch, results: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return the attention maps (N, H, L, L) of the selected layers."""
        if not self.plan.packs:
            return kept_maps(self.st[0].auto_model)
        skipped, length = 1 if batch.places is None else 2, batch.shape[1]
        layers = zip(*(result[skipped:] for result in results))
        return tuple(
            torch.cat([pad(maps, (0, length - maps.shape[-1]) * 2) for maps in parts])[batch.back] for parts in layers
        )

    def embed_with(self, encoder: nn.Module | None, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the embeddings (B, d) of the first view (B, L) by a copy of the encoder.

        In a step, the rows are those that `split` got, and `ids` and `mask` are not read.

        Args:
            encoder: The copy; None for the encoder of the model.
            ids, mask: Token ids and attention mask, (B, L).
        """
        batch = None if self.batch is None else self.batch.first_view
        if batch is None:
            plan = replace(
                self.plan,
                device=ids.device,
                second_encoder=False,
                reads_maps=False,
                reads_states=False,
                graph_length=None,
            )
            other = FastForward(self.st, plan)
            return other._embeddings(other._batch_of(ids.cpu(), mask.cpu(), None, len(ids)), encoder)
        return self._embeddings(batch, encoder)

    def _embeddings(self, batch: SplitBatch, encoder: nn.Module | None) -> Tensor:
        first, *others = self.modules
        own = first if encoder is None else with_encoder(first, encoder)
        results = self._results(batch, [own, *others])
        return torch.cat([result[0] for result in results])[batch.back]

    def _results(self, batch: SplitBatch, modules: list[nn.Module]) -> list[tuple[Tensor, ...]]:
        """Return embeddings, the hidden states that are read, and attention maps of each part, if it is packed."""
        parts, chunked = batch.parts, self.plan.chunk_size is not None and len(batch.parts) > 1
        if chunked and torch.is_grad_enabled():
            return [self._checkpointed(part, modules) for part in parts]
        if chunked or len(parts) == 1 or self.plan.threads == 1:
            return [self._compute(part, modules) for part in parts]
        transformer: Any = modules[0]
        # Outside of the parts: its gradient is as large as the vocabulary.
        table = transformer.auto_model.get_input_embeddings()
        sizes = [part.features["input_ids"].shape[1] for part in parts]
        with scaled_embeddings(joined_factors([part.factors for part in parts], sizes)):
            vectors = table(torch.cat([part.features["input_ids"] for part in parts], dim=1)).split(sizes, dim=1)

        def call(number: int, x: Tensor) -> tuple[Tensor, ...]:
            features = {name: value for name, value in parts[number].features.items() if name != "input_ids"}
            copies = [packed_copy(transformer, view=parts[number].view), *modules[1:]]
            return self._through(features | {"inputs_embeds": x}, parts[number], copies)

        inner = nn.ModuleList(modules)
        inner.training = transformer.auto_model.training  # without dropout, no seed is drawn
        return run_in_threads(call, vectors, inner, without=table)

    def _checkpointed(self, part: MicroBatch, modules: list[nn.Module]) -> tuple[Tensor, ...]:
        """Do the same as `_compute`, without keeping activations; the backward pass computes them again.

        `checkpoint` restores the random state of the devices of its arguments. Without a tensor among them, a GPU would
        draw other dropout masks in the backward pass.
        """

        def compute(_: Tensor) -> tuple[Tensor, ...]:
            with self.masks_by_numpy(self.st):  # also in the backward pass, which leaves that of the step
                return self._compute(part, modules)

        return checkpoint(compute, part.features["input_ids"], use_reentrant=False)

    def _compute(self, part: MicroBatch, modules: list[nn.Module]) -> tuple[Tensor, ...]:
        transformer: Any = modules[0]
        if part.fixed is not None:
            return self._through(self._graphed(part, part.fixed, transformer.auto_model), part, modules[1:])
        if "packed" not in part.features:
            return self._through(dict(part.features), part, modules)
        return self._through(dict(part.features), part, [packed_copy(transformer, view=part.view), *modules[1:]])

    def _graphed(self, part: MicroBatch, fixed: dict[str, Tensor], encoder: nn.Module) -> dict[str, Any]:
        """Return the features of a part after an encoder, whose graphs are captured when they are first needed."""
        packed: Packed | None = part.features.get("packed")

        def encode(inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
            row: Any = inputs
            if packed is None:
                states = encoder(**row).last_hidden_state
                return (states, *kept_maps(encoder))
            return (packed_copy(encoder)(**replace(packed, **row, runs=[]).features()).last_hidden_state,)

        if encoder not in self._graphs:
            self._graphs[encoder] = GraphedEncoder(encoder, self.plan.dtype)
        states, *maps = self._graphs[encoder](encode, fixed)
        if packed is None:
            length = part.features["attention_mask"].shape[1]
            states = states[:, :length]
            if maps:
                keep_maps(encoder, [one[..., :length, :length] for one in maps])
        return part.features | {"token_embeddings": states}

    def _through(self, features: dict[str, Any], part: MicroBatch, modules: list[nn.Module]) -> tuple[Tensor, ...]:
        """Return embeddings, hidden states of predicted tokens, and maps, from features before or after the encoder."""
        after: list[nn.Module] = modules
        maps: tuple[Tensor, ...] = ()
        if "token_embeddings" not in features and not self.is_static:
            with scaled_embeddings(part.factors):
                features, after = modules[0](features), modules[1:]
            if self.plan.reads_maps and self.plan.packs:
                transformer: Any = modules[0]
                maps = kept_maps(transformer.auto_model)
        tokens = None if part.targets is None else features["token_embeddings"].flatten(0, 1)[part.targets]
        if "packed" in features and features["token_embeddings"].is_cuda:
            features = padded_again(features)
        for module in after:
            features = module(features)
        embeddings = features["sentence_embedding"][: len(part.order), : self.st.truncate_dim]
        return (embeddings, *maps) if tokens is None else (embeddings, tokens, *maps)


def _split_evenly(rows: Tensor, mask: Tensor, number: int) -> Sequence[Tensor]:
    """Return rows in up to a number of parts with about the same number of tokens."""
    if number == 1:
        return [rows]
    lengths, order = mask[rows].sum(1).sort(descending=True, stable=True)
    starts = lengths.cumsum(0) - lengths
    ideal = torch.arange(1, number) * lengths.sum() / number
    parts = rows[order].tensor_split(torch.searchsorted(starts, ideal))
    return [part for part in parts if len(part)]


def joined_factors(factors: Sequence[Tensor | None], sizes: Sequence[int]) -> Tensor | None:
    """Concatenate the factors of packed rows to (1, T, d). Return None if no row has any.

    Args:
        factors: Those of each row, (1, t, 1) or (1, t, d), also with both widths; None for 1.
        sizes: Number of tokens of each row.

    Example:
        >>> joined_factors([None, torch.full((1, 1, 1), 0.0)], [2, 1]).flatten()
        tensor([1., 1., 0.])
    """
    given = [one for one in factors if one is not None]
    if not given:
        return None
    width = max(one.shape[2] for one in given)
    ones = [given[0].new_ones(1, size, width) if one is None else one for one, size in zip(factors, sizes)]
    return torch.cat([one.expand(-1, -1, width) for one in ones], dim=1)


def padded_again(features: dict[str, Any]) -> dict[str, Any]:
    """Return the features of packed texts as those of padded ones, in the order of the row.

    On a GPU, the pooling of packed texts adds in any order, so that a resumed run would differ by rounding.
    """
    packed = features["packed"]
    places = packed.places.index_select(0, packed.rows)  # (N, L)
    mask = places >= 0
    # index_select, because the backward pass of an index sorts all places.
    states = features["token_embeddings"].squeeze(0).index_select(0, places.clamp(min=0).flatten())
    states = states.view(*places.shape, -1) * mask[..., None]
    kept = {name: features[name] for name in ("prompt_length",) if name in features}
    return kept | {"token_embeddings": states, "attention_mask": mask.long()}
