"""Compare every fast path of this machine with the plain path, informin/training/plain.py.

A tiny BERT and a tiny RoBERTa with random weights train one step with each preset: the value and the gradient of each
term on each path must be those of the plain path. Dropout would draw other masks on each path, so its rate is
`NO_DROPOUT`: on a CPU, the code that draws masks runs, and keeps everything. One masked word makes views differ that
only dropout would distinguish. `encode` is compared with that of sentence-transformers.
"""

import logging
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from informin.errors import InforMinError, error_line
from informin.fast.forward import FastForward
from informin.fast.packing import LONGEST, computes_at_once
from informin.fast.plan import Plan, packed_difference, plan_of
from informin.fast.speed import speed_up
from informin.fast.threads import retained_graphs
from informin.objectives import PRESETS
from informin.objectives.contrast import Contrast
from informin.objectives.decorrelation import Decorrelation
from informin.objectives.presets import Encoder, Preset
from informin.objectives.replaced_tokens import ReplacedTokens
from informin.objectives.term import Term
from informin.objectives.virtual_augmentation import VirtualAugmentation
from informin.training.arguments import InforMinTrainingArguments
from informin.training.plain import forward, two_views, weighted_losses
from informin.views.crop import Crop
from informin.views.view import MASK, View
from trainer_informin import InforMinTrainer

ENCODERS = ("BERT", "RoBERTa")
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
WORDS = [f"{first}{second}" for first in "bdfgklmnprst" for second in "aeiou"]
SIZES: dict[str, Any] = {
    "vocab_size": len(SPECIAL) + len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 130,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,  # weights of 0.02 give nearly equal embeddings, and gradients near 0
}
SMALL: dict[type[Term], dict[str, Any]] = {  # options of terms that fit the encoders, and make them draw nothing
    Decorrelation: {"projector_size": 32},
    ReplacedTokens: {"replaced_fraction": 1.0},
    VirtualAugmentation: {"neighbors": 4, "perturbation_radius": 0.01},
}
OBJECTIVES = tuple(name for name, preset in PRESETS.items() if preset.terms(Encoder()))
BATCH, CHUNK = 16, 10
NO_DROPOUT = 1e-9
TOLERANCE = 1e-4  # relative difference in float32
ROUNDINGS = 3  # a path in bfloat16 may differ from the plain one by this multiple of what rounding changes there


@dataclass(frozen=True)
class Comparison:
    """How far a fast path is from the plain one.

    Attributes:
        encoder: Name of the encoder.
        objective: Name of the preset, or `encode`.
        path: How the rows are computed.
        precision: fp32 or bf16.
        term: Name of the term that differs most; `embeddings` of `encode`.
        difference: Relative difference of its value or its gradient, the larger one.
        tolerance: What rounding explains.
        error: The error that the path raised, or None.
    """

    encoder: str
    objective: str
    path: str
    precision: str
    term: str
    difference: float
    tolerance: float
    error: str | None = None

    @property
    def equal(self) -> bool:
        """Whether the difference is explained by rounding; NaN is not."""
        return self.error is None and self.difference <= self.tolerance


def compare_paths(
    device: torch.device, precisions: Sequence[str], objectives: Sequence[str] = OBJECTIVES
) -> Iterator[Comparison]:
    """Yield the comparison of each path with the plain one, for each encoder, preset and precision.

    Args:
        device: Device to train and to embed on.
        precisions: fp32, which bf16 is measured by, and optionally bf16.
        objectives: Names of the presets.
    """
    with TemporaryDirectory() as work, quiet():
        for encoder in ENCODERS:
            folder = save_encoder(encoder, Path(work, encoder))
            yield compare_states(encoder, folder, device)
            yield from compare_encode(encoder, folder, device, precisions)
            for name in objectives:
                try:
                    run = trainer_of(folder, PRESETS[name], device, Path(work, "run"))
                except InforMinError as error:  # a trainer checks its model
                    yield Comparison(encoder, name, "start", "fp32", "", math.nan, 0.0, error_line(error))
                else:
                    yield from compare_steps(encoder, name, run, precisions)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the messages and progress bars of a run."""
    log = logging.getLogger("informin")
    level, has_bars = log.level, is_progress_bar_enabled()
    log.setLevel(logging.ERROR)
    disable_progress_bar()
    try:
        yield
    finally:
        log.setLevel(level)
        if has_bars:
            enable_progress_bar()


def save_encoder(name: str, folder: Path) -> Path:
    """Save a tiny encoder with its language-model head and a tokenizer of `WORDS`, and return the folder."""
    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    first, padding, last, unknown, mask = SPECIAL
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        cls_token=first,
        bos_token=first,
        pad_token=padding,
        sep_token=last,
        eos_token=last,
        unk_token=unknown,
        mask_token=mask,
        model_max_length=128,
    )
    torch.manual_seed(1)
    encoder: Any = (
        BertForMaskedLM(BertConfig(**SIZES)) if name == "BERT" else RobertaForMaskedLM(RobertaConfig(**SIZES))
    )
    encoder.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_texts(number: int, fewest: int, most: int) -> list[str]:
    """Return distinct texts of random words, from `fewest` to `most` of them."""
    source = random.Random(1)
    found: dict[str, None] = {}
    while len(found) < number:
        found[" ".join(source.choices(WORDS, k=source.randint(fewest, most)))] = None
    return list(found)


# Training


@dataclass
class MaskedWord(View):
    """The second view lacks a word."""

    keeps_tokens = True
    masks_tokens = True

    def change(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        changed = tokens.clone()
        changed[len(tokens) // 2] = MASK
        return changed


def trainer_of(folder: Path, preset: Preset, device: torch.device, output: Path) -> InforMinTrainer:
    """Return a trainer of an encoder with a preset whose terms are small, and without dropout."""
    encoder = Encoder(folder.name.lower())
    terms = [small(term, folder) for term in preset.terms(encoder)]
    view: View | None = None
    if preset.view == "dropout" and any(term.compares_views for term in terms):
        view = MaskedWord()
    elif preset.view == "crop":
        view = Crop(**dict(preset.view_options) | {"min_tokens": 2, "min_fraction": 0.3})
    args = InforMinTrainingArguments(
        str(output),
        per_device_train_batch_size=BATCH,
        max_steps=2,
        max_seq_length=128,
        use_cpu=device.type == "cpu",
        bf16=False,
        eval_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    run = InforMinTrainer(
        str(folder),
        args,
        train_dataset=make_texts(3 * BATCH, 3, 20),
        objective=replace(preset, terms=lambda _: terms),
        view=view,
    )
    rate = NO_DROPOUT if device.type == "cpu" else 0.0
    for module in run.model.modules():
        for name in {"p", "rates", "view_rates"} & vars(module).keys():
            setattr(module, name, rate if name == "p" else (rate, rate))
    return run


def small(term: Term, folder: Path) -> Term:
    """Return a term with options that fit tiny encoders and few sentences."""
    changes = dict(SMALL.get(type(term), {}))
    if isinstance(term, Contrast) and term.queue_size:
        changes["queue_size"] = BATCH
    if isinstance(term, ReplacedTokens):
        changes["generator"] = str(folder)
    return replace(term, **changes)


def compare_steps(
    encoder: str, objective: str, run: InforMinTrainer, precisions: Sequence[str]
) -> Iterator[Comparison]:
    """Yield the comparison of a step on each fast path with that on the plain path, in each precision."""
    fresh = {name: x.clone() for name, x in run.model.state_dict().items()}
    exact: dict[str, tuple[Tensor, Tensor]] = {}
    for precision in precisions:
        plain = step(run, fresh, None, precision)
        exact = exact or plain
        rounding = {name: apart(plain[name], exact[name]) for name in plain}
        for path, plan in plans(run, precision):
            where = {"encoder": encoder, "objective": objective, "path": path, "precision": precision}
            try:
                with threads(plan.threads):
                    found = step(run, fresh, plan, precision)
            except Exception as error:  # of a kernel, a compiler or a driver, which the others need not have
                yield Comparison(**where, term="", difference=math.nan, tolerance=0.0, error=error_line(error))
                continue
            allowed = {name: max(TOLERANCE, ROUNDINGS * rounding[name]) for name in plain}
            differences = {name: apart(found[name], plain[name]) for name in plain}
            worst = max(plain, key=lambda name: excess(differences[name], allowed[name]))
            yield Comparison(**where, term=worst, difference=differences[worst], tolerance=allowed[worst])


def plans(run: InforMinTrainer, precision: str) -> Iterator[tuple[str, Plan]]:
    """Yield the name and the plan of each fast path that a run can take on this machine."""
    finished, device = run.trained.finished, run.args.device
    needs = run.objective.needs(run.args)
    ways: list[dict[str, Any]] = [{}, {"padding_free": False}]
    if "maps" not in needs:
        ways.append({"chunk_size": CHUNK})
    if device.type == "cuda":
        ways += [{"cuda_graphs": False}, {"cuda_graphs": False, "padding_free": False}]
        if not {"maps", "rates"} & needs.keys():
            ways.append({"cuda_graphs": False, "padding_free": True})
    seen: list[Plan] = []
    for way in ways:
        for number in (1, 2) if device.type == "cpu" else (1,):
            with threads(number):
                plan = plan_of(finished, needs, device, {"fp32": "no"}.get(precision, precision), 128, **way)
            if plan not in seen:
                seen.append(plan)
                yield path_name(plan), plan


def path_name(plan: Plan) -> str:
    """Return how a plan computes rows, in words."""
    words = ["packed" if plan.packs else "padded"]
    if plan.packs and computes_at_once(plan.device, plan.dtype):
        words.append("one kernel")
    words += ["graphs"] * (plan.graph_length is not None) + ["NumPy masks"] * plan.numpy_masks
    words += [f"{plan.threads} threads"] * (plan.threads > 1) + ["chunks"] * (plan.chunk_size is not None)
    return ", ".join(words)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let PyTorch use a number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def step(
    run: InforMinTrainer, weights: dict[str, Tensor], plan: Plan | None, precision: str
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the value and the gradient of each weighted term in the second batch; the first one fills a queue.

    Args:
        run: The trainer.
        weights: Weights and buffers of the model before the first batch.
        plan: How rows are computed; None for the plain path.
        precision: fp32 or bf16.
    """
    model, device = run.model, run.args.device
    model.forward_pass = fast = None if plan is None else FastForward(run.trained.finished, plan)
    model.load_state_dict(weights)
    model.train()
    torch.manual_seed(0)
    first, second = run.get_batch_samples(iter(run.get_train_dataloader()), 2, device)[0]
    torch.manual_seed(0)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    half = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
    with half, nullcontext() if fast is None else fast.masks_by_numpy(model), retained_graphs():
        run.compute_loss(model, first)
        outputs = forward(model, second, reads_maps=any(term.reads_maps for term in run.terms))
        torch.manual_seed(0)  # the masks of each path have drawn other numbers, and a term may draw positions
        losses, _ = weighted_losses(run.terms, two_views(outputs, second))
        found = {}
        for name, loss in losses.items():
            how: dict[str, Any] = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
            gradient = torch.cat([x.flatten().float() for x in torch.autograd.grad(loss, trained, **how)])
            found[name] = (loss.detach().float().flatten().cpu(), gradient.cpu())
    return found


def apart(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest relative difference of tensors, by their norms; NaN if one has NaN."""
    ratios = [(x - y).norm() / y.norm().clamp(min=1e-6) for x, y in zip(found, expected, strict=True)]
    return float(torch.stack(ratios).max())


def excess(difference: float, allowed: float) -> float:
    """Return a difference as a multiple of what is allowed, infinity for NaN."""
    return math.inf if math.isnan(difference) else difference / allowed


# encode


def compare_states(encoder: str, folder: Path, device: torch.device) -> Comparison:
    """Return the comparison of packed with padded rows. An encoder in which they differ is never packed."""
    difference = packed_difference(mean_of(folder, device)[0].auto_model)
    return Comparison(encoder, "encode", "packed", "fp32", "hidden states", difference, TOLERANCE)


def compare_encode(encoder: str, folder: Path, device: torch.device, precisions: Sequence[str]) -> Iterator[Comparison]:
    """Yield the comparison of `encode` with that of sentence-transformers, of short and of long texts."""
    kinds = {"short": make_texts(48, 1, 20), f"above {LONGEST} tokens": make_texts(12, 40, 100)}
    how: dict[str, Any] = {"convert_to_tensor": True, "batch_size": 8}
    plain = mean_of(folder, device)
    exact = {kind: plain.encode(texts, **how) for kind, texts in kinds.items()}
    allowed = {("fp32", kind): TOLERANCE for kind in kinds}
    if "bf16" in precisions:
        half = plain.bfloat16()
        for kind, texts in kinds.items():
            allowed["bf16", kind] = ROUNDINGS * apart([half.encode(texts, **how).float()], [exact[kind]])
    ways = {"packed": Pooling, "sorted": OwnPooling} if device.type == "cpu" else {"packed": Pooling}
    for precision, (way, pooling) in product(precisions, ways.items()):
        fast = speed_up(mean_of(folder, device, pooling), precision="bf16" if precision == "bf16" else "fp32")
        for (kind, texts), number in product(kinds.items(), (1, 2) if device.type == "cpu" else (1,)):
            with threads(number):
                found = fast.encode(texts, **how).float()
            path = f"{way}, {kind} texts" + f", {number} threads" * (number > 1)
            difference = apart([found], [exact[kind]])
            yield Comparison(encoder, "encode", path, precision, "embeddings", difference, allowed[precision, kind])


class OwnPooling(Pooling):
    """A module that may need padded batches, so that `speed_up` does not pack them."""


def mean_of(folder: Path, device: torch.device, kind: type[Pooling] = Pooling) -> SentenceTransformer:
    """Return an encoder with mean pooling."""
    encoder = Transformer(str(folder))
    pooling = kind(encoder.get_embedding_dimension(), pooling_mode="mean")
    return SentenceTransformer(modules=[encoder, pooling], device=str(device))
