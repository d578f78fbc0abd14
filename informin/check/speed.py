"""Measure `encode` and training steps beside sentence-transformers, with the same texts, in alternating rounds.

Each side runs in a separate process, so that its memory can be measured. In a round, all sides run one after the other:
other jobs on the machine then slow all of them, and ratios are computed within a round. sentence-transformers runs as
people start it, and at its best: batches of similar length in training, which `encode` always has, and weights in
bfloat16 and FlashAttention where the machine has them.
"""

import io
import random
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import BertConfig, BertModel, BertTokenizer, TrainerCallback
from transformers.utils import is_flash_attn_2_available

from informin.check.equality import quiet
from informin.errors import UsageError, counted
from informin.fast.speed import speed_up
from informin.model.open import MODULES, file_of, load_model
from informin.training.arguments import InforMinTrainingArguments
from trainer_informin import InforMinTrainer

PEER, HERE = "sentence-transformers", "InforMin-CL"
LENGTH = 32  # tokens of a training sentence
ROUNDS = 3
VOCABULARY = 30_522
MINILM_WEIGHTS = 10_646_784  # of the layers
MINILM: dict[str, Any] = {"vocab_size": VOCABULARY}
MINILM |= {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1_536}


@dataclass(frozen=True)
class Side:
    """What is measured in one process.

    Attributes:
        library: sentence-transformers, or this package.
        precision: fp32 or bf16.
        sorts: Whether batches of training have sentences of similar length.
    """

    library: str
    precision: str = "fp32"
    sorts: bool = False

    def name(self, work: str) -> str:
        """Return how the side does some work, in words."""
        half = "bf16" if self.library == HERE and work == "train" else "bf16 weights"
        sorts = self.sorts and work == "train"
        return ("fp32" if self.precision == "fp32" else half) + (", sorted" if sorts else "")


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        texts: Number of texts to embed.
        batch: Sentences per training step.
        steps: Training steps.
        skipped: First steps that are not measured, in which memory is allocated and graphs are captured.
    """

    texts: int
    batch: int
    steps: int
    skipped: int


SIZES = {
    "cpu": Size(texts=256, batch=64, steps=4, skipped=1),
    "cuda": Size(texts=20_000, batch=128, steps=80, skipped=20),
}


@dataclass
class Measured:
    """What rounds of one side found.

    Attributes:
        work: encode or train.
        library, how: The side.
        per_second: Texts per second of each round.
        cpu_seconds: Processor time of each round, which other jobs change little.
        peak_gib: Largest memory of a round: of the process, or allocated by PyTorch on a GPU.
    """

    work: str
    library: str
    how: str
    per_second: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_gib: float = 0.0


def texts_to_measure(texts: list[str] | None, device: str) -> list[str]:
    """Return the first texts, as many as are embedded and trained on; random words for None.

    Raises:
        UsageError: There are too few texts.
    """
    most = SIZES[device]
    number = max(most.texts, most.batch * most.steps)
    if texts is None:
        return made_texts(number)
    if len(texts) < number:
        raise UsageError(f"has {counted(len(texts), 'text')}", option="train_file", needed=f"{number:,} or more")
    return texts[:number]


def compare_speed(model_name: str | None, texts: list[str], device: str, bf16: bool, until: float) -> list[Measured]:
    """Return the measurements of all sides.

    Args:
        model_name: Hub id or folder; None for an encoder of the size of all-MiniLM-L6-v2 with random weights.
        texts: `texts_to_measure`.
        device: cpu or cuda.
        bf16: Whether bfloat16 is measured, too.
        until: Time of `time.monotonic` after which no round starts, except the first.
    """
    most = SIZES[device]
    with TemporaryDirectory() as work, ExitStack() as stack:
        name = model_name or save_minilm(Path(work, "minilm"))
        size = most if device == "cuda" or model_name is None else smaller(most, name)
        own_process = partial(ProcessPoolExecutor, 1, mp_context=get_context("spawn"))
        pools = {side: stack.enter_context(own_process()) for side in sides_of(bf16)}
        for ready in [pool.submit(torch.get_num_threads) for pool in pools.values()]:
            ready.result()
        found: dict[tuple[str, str, str], Measured] = {}
        for _ in range(ROUNDS):
            start = time.monotonic()
            for kind, measure in (("encode", encode_once), ("train", train_once)):
                for side, pool in pools.items():
                    key = (kind, side.library, side.name(kind))
                    if kind == "encode" and side.sorts and side.precision == "fp32":
                        continue  # `encode` always sorts
                    one = pool.submit(measure, side, name, texts, device, size).result()
                    add_round(found.setdefault(key, Measured(*key)), *one)
            if 2 * time.monotonic() - start > until:
                break
    return list(found.values())


def smaller(size: Size, name: str) -> Size:
    """Return the size of a measurement that takes a larger encoder about as long on a CPU as all-MiniLM-L6-v2."""
    encoder: Any = load_model(name, pooler="mean", device="cpu")[0]
    weights = sum(weight.numel() for part, weight in encoder.named_parameters() if "embeddings" not in part)
    share = min(1.0, MINILM_WEIGHTS / max(1, weights))
    return replace(
        size,
        texts=max(32, round(size.texts * share)),
        batch=max(16, round(size.batch * share**0.5)),
        steps=max(size.skipped + 1, round(size.steps * share**0.5)),
    )


def sides_of(bf16: bool) -> list[Side]:
    """Return what is measured: sentence-transformers as people start it, at its best, and this package."""
    sides = [Side(PEER), Side(PEER, sorts=True), Side(HERE)]
    return [*sides, Side(PEER, "bf16", sorts=True), Side(HERE, "bf16")] if bf16 else sides


def add_round(measured: Measured, per_second: float, cpu_seconds: float, peak_gib: float) -> None:
    """Add what a round found."""
    measured.per_second.append(per_second)
    measured.cpu_seconds.append(cpu_seconds)
    measured.peak_gib = max(measured.peak_gib, peak_gib)


def as_record(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return measurements as JSON, with the median of the ratios of their rounds.

    `ratio` is the speed as a multiple of that of sentence-transformers in fp32, as people start it, and `cpu_ratio` the
    processor time there as a multiple of that here.
    """
    found = []
    for one in measured:
        base = next(other for other in measured if (other.work, other.library, other.how) == (one.work, PEER, "fp32"))
        speeds = [own / other for own, other in zip(one.per_second, base.per_second)]
        times = [other / own for own, other in zip(one.cpu_seconds, base.cpu_seconds)]
        found.append(asdict(one) | {"ratio": statistics.median(speeds), "cpu_ratio": statistics.median(times)})
    return found


# In the process of a side


def encode_once(side: Side, name: str, texts: list[str], device: str, size: Size) -> tuple[float, float, float]:
    """Return texts per second, processor time and peak memory of `encode`."""
    model = model_of(side, name, device)
    model.encode(texts[:16])
    forget_peak()
    start, cpu = time.perf_counter(), time.process_time()
    model.encode(texts[: size.texts])  # copies the embeddings to the CPU, so it waits for a GPU
    return size.texts / (time.perf_counter() - start), time.process_time() - cpu, peak_gib()


def train_once(side: Side, name: str, texts: list[str], device: str, size: Size) -> tuple[float, float, float]:
    """Return sentences per second, processor time and peak memory of training steps."""
    clock = Clock(size)
    forget_peak()
    with TemporaryDirectory() as folder, quiet(), redirect_stdout(io.StringIO()):  # Trainer prints its log
        trainer = own_trainer if side.library == HERE else peer_trainer
        trainer(side, name, texts[: size.batch * size.steps], device, size, folder, clock).train()
    return size.batch * (size.steps - size.skipped) / clock.seconds, clock.cpu_seconds, peak_gib()


class Clock(TrainerCallback):
    """Measures the steps after the skipped ones.

    Attributes:
        seconds, cpu_seconds: Of these steps, on the clock and of the processor.
    """

    def __init__(self, size: Size):
        self.size = size
        self.seconds = self.cpu_seconds = 0.0

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step not in (self.size.skipped, self.size.steps):
            return
        if torch.cuda.is_available() and args.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds, self.cpu_seconds = time.perf_counter() - self.seconds, time.process_time() - self.cpu_seconds


class SortedTrainer(SentenceTransformerTrainer):
    """Trains on batches of neighbors of the data, in random order."""

    def get_batch_sampler(self, dataset, batch_size, *args, **kwargs):
        batches = [list(range(start, start + batch_size)) for start in range(0, len(dataset), batch_size)]
        return random.Random(1).sample(batches, len(batches))


def model_of(side: Side, name: str, device: str) -> SentenceTransformer:
    """Return the model of a side. One without a pooling gets mean pooling."""
    opened = load_model(name, pooler=pooler_of(name), device=device, precision="fp32")
    model = SentenceTransformer(modules=list(opened), device=device)
    model.max_seq_length = min(model.max_seq_length or 128, 128)
    if side.library == HERE:
        return speed_up(model, precision="bf16" if side.precision == "bf16" else "fp32")
    if side.precision == "bf16":
        model = model.bfloat16()
    if side.precision == "bf16" and device == "cuda" and is_flash_attn_2_available():
        model[0].auto_model.set_attn_implementation("flash_attention_2")
    return model


def pooler_of(name: str) -> str:
    """Return the pooling that a model stores, or mean pooling for an encoder without one."""
    return "auto" if file_of(name, MODULES) else "mean"


def peer_trainer(
    side: Side, name: str, texts: list[str], device: str, size: Size, folder: str, clock: Clock
) -> SentenceTransformerTrainer:
    """Return the trainer of sentence-transformers: MultipleNegativesRankingLoss on pairs (s, s)."""
    model = model_of(side, name, device)
    model.max_seq_length = LENGTH
    model.model_card_data.widget = [{"text": texts[0]}]  # an example, which it would search with a progress bar
    trainer = SortedTrainer if side.sorts else SentenceTransformerTrainer
    texts = sorted(texts, key=lambda text: min(LENGTH, len(text.split()))) if side.sorts else texts
    return trainer(
        model=model,
        args=SentenceTransformerTrainingArguments(folder, **training(device, size)),
        train_dataset=Dataset.from_dict({"anchor": texts, "positive": texts}),
        loss=MultipleNegativesRankingLoss(model),
        callbacks=[clock],
    )


def own_trainer(
    side: Side, name: str, texts: list[str], device: str, size: Size, folder: str, clock: Clock
) -> InforMinTrainer:
    """Return the trainer of this package, with the same loss."""
    args = InforMinTrainingArguments(
        folder,
        **training(device, size),
        objective="simcse",
        projection_head="none",
        pooler=pooler_of(name),
        max_seq_length=LENGTH,
        bf16=side.precision == "bf16",
    )
    return InforMinTrainer(name, args, train_dataset=texts, callbacks=[clock])


def training(device: str, size: Size) -> dict[str, Any]:
    """Return the training arguments that all sides share."""
    return {
        "per_device_train_batch_size": size.batch,
        "max_steps": size.steps,
        "learning_rate": 3e-5,
        "use_cpu": device == "cpu",
        "eval_strategy": "no",
        "save_strategy": "no",
        "report_to": [],
        "logging_steps": 10**6,
        "disable_tqdm": True,
        "seed": 1,
    }


def forget_peak() -> None:
    """Measure memory from now on, on a GPU and on Linux. Elsewhere, the peak is that of the whole process."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    status = Path("/proc/self/clear_refs")
    if status.exists():
        status.write_text("5")


def peak_gib() -> float:
    """Return the peak memory of this process, or of what PyTorch allocated on a GPU."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**30
    status = Path("/proc/self/status")
    if status.exists():  # the peak of getrusage starts with that of the parent process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)


# An encoder and texts for measurements


def save_minilm(folder: Path) -> str:
    """Save an encoder of the size of all-MiniLM-L6-v2 with random weights, and return its folder."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *(f"w{number}" for number in range(VOCABULARY - len(special)))]
    torch.manual_seed(1)
    BertModel(BertConfig(**MINILM)).save_pretrained(folder)
    tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(words)}, model_max_length=512)
    tokenizer.save_pretrained(folder)
    return str(folder)


def made_texts(number: int) -> list[str]:
    """Return texts of random words, with lengths like those of sentences: 3 to 60 words, a median of 20."""
    source = random.Random(1)
    lengths = [min(60, max(3, round(source.lognormvariate(3, 0.5)))) for _ in range(number)]
    return [" ".join(f"w{min(20_000, int(source.paretovariate(0.7)))}" for _ in range(length)) for length in lengths]
