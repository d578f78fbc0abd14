"""The records from which model cards are generated: of a run (training.json), and of a fit (fit.json).

They contain no path, user name or host name: of files and folders, only the last part of the path.
"""

import hashlib
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from datasets import IterableDataset
from huggingface_hub import ModelCard
from huggingface_hub.errors import HfHubHTTPError
from transformers.trainer_pt_utils import AcceleratorConfig

from informin import __version__
from informin.evaluation.results import environment
from informin.evaluation.senteval import HUB_DATA
from informin.files import last_name, read_json, write_json
from informin.models.opening import Source
from informin.models.trained import TrainedModel
from informin.training.log_entries import evaluations, logged_scores
from informin.training.options import CardArguments, DataArguments, InforMinTrainingArguments
from informin.training.sentences import HUB_SENTENCES, Sentences

logger = logging.getLogger(__name__)

TRAINING = "training.json"
# Options of every objective that affect the weights.
SHAPING = """
    learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps weight_decay
    max_grad_norm optim optim_args adam_beta1 adam_beta2 adam_epsilon num_train_epochs max_steps
    gradient_accumulation_steps
""".split()
RARE = """
    data_seed dataloader_drop_last train_sampling_strategy ignore_data_skip neftune_noise_alpha optim_target_modules
    full_determinism tf32 torch_compile metric_for_best_model pooler prompt gradient_cache_chunk_size lora_r
    lora_dropout
""".split()  # recorded only if they differ from the default
DEFAULTS = {field.name: field.default for field in fields(InforMinTrainingArguments)}
# The resolved values.
DEFAULTS |= {"pooler": "cls", "prompt": "", "metric_for_best_model": "eval_spearman"}
FITTED = "fit.json"


@dataclass
class RunRecord:
    """What a run did.

    Attributes:
        informin: Version of this package.
        base_model: The source model: name; hub_id (None for a folder); revision, a commit; weights_sha256, as in
            results of `informin eval`; settings_sha256, of its configuration and tokenizer. None for one in memory.
        data: sources, file names or a Hub id; hub_id (None for files); description; sentences, their number; sha256 of
            the sentences in order (both None for a stream).
        language, license, license_name, license_link: For the card; None if unknown.
        objective: name; title; active terms in order, each with name, title, paper (a file in
            publishing/templates/citations, or None) and own (False if an option added it to the objective).
        seed, options: Every option that affects the weights.
        development: Name of the development sets; None without evaluation. development_sha256, their checksum;
            development_sets, with kind (pairs, labels, retrieval) and name of each.
        history: step and measures of each evaluation, named as in `informin.evaluation.measures`, and scores of the
            user's own evaluations; None: undefined.
        dimensions: Of the embeddings of a SentenceTransformer; None for native encoders.
        remote_code: Whether the model needs code from its repository; None for native encoders.
        steps, kept_step: Number of steps taken, and the step whose weights were kept. chosen: they had the best score.
        drift: Changes to the embeddings: sentences, their number; old and new, the measures of
            `informin.evaluation.drift`; warnings. None if not measured, and in checkpoints.
        sentences_per_second: Training speed of all processes together; None in checkpoints.
        environment: Versions, device and number of threads.
    """

    seed: int
    options: dict[str, Any]
    objective: dict[str, Any]
    steps: int
    kept_step: int
    chosen: bool
    environment: dict[str, Any]
    base_model: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    language: str | None = None
    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    development: str | None = None
    development_sha256: str | None = None
    development_sets: list[dict[str, str]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    dimensions: int | None = None
    remote_code: bool | None = None
    drift: dict[str, Any] | None = None
    sentences_per_second: float | None = None
    informin: str = __version__

    @classmethod
    def load(cls, folder: str | Path) -> "RunRecord | None":
        """Return the record in a folder, or None. Entries of other versions that this one lacks are ignored."""
        path = Path(folder, TRAINING)
        if not path.is_file():
            return None
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in read_json(path).items() if name in names})

    def save(self, folder: str | Path) -> None:
        """Write training.json."""
        write_json(Path(folder, TRAINING), asdict(self))


def describe_sentences(sentences: Sentences) -> dict[str, Any]:
    """Return the entry `data` of the record; `sentences` has the column `text`."""
    number: dict[str, Any] = {"sentences": None, "sha256": None}  # a stream is only read in training
    if not isinstance(sentences, IterableDataset):
        digest = hashlib.sha256()
        for batch in sentences.with_format("arrow").iter(10_000):
            for sentence in batch["text"].to_pylist():
                digest.update(sentence.encode().replace(b"\0", b"\xff") + b"\0")  # 0xff never occurs in UTF-8
        number = {"sentences": len(sentences), "sha256": digest.hexdigest()}
    return {"sources": ["sentences"], "hub_id": None, **number}


def provenance(data: DataArguments, card: CardArguments) -> dict[str, Any]:
    """Return the facts about a run that the trainer cannot derive.

    Returns:
        The sources of the `data`, its `language`, the `license` if it was given, and the `hub_id` of an encoder that is
        a local folder.
    """
    is_local = data.dataset_name and os.path.exists(data.dataset_name)  # load_dataset also accepts folders
    files = [data.dataset_name] if data.dataset_name and is_local else data.train_file
    if files:
        hub_id, sources = None, [last_name(file) for file in files]
    else:
        named = [data.dataset_name, data.dataset_config, data.dataset_split]
        parts = named if data.dataset_name else [HUB_DATA, HUB_SENTENCES]
        hub_id, sources = parts[0], ["/".join(part for part in parts if part)]
    entry = {"sources": sources, "hub_id": hub_id}
    language = card.language or ("en" if hub_id == HUB_DATA else None)
    facts = {"hub_id": card.base_model, "data": entry, "language": language}
    return facts | ({"license": card.license} if card.license else {})


def run_facts(trained: TrainedModel, sentences: Sentences | None, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a run with those of its source model and its sentences.

    Args:
        trained: The model in training.
        sentences: The training sentences; None for tokenized rows.
        provenance: See `provenance`.
    """
    facts = dict(provenance)
    hub_id = facts.pop("hub_id", None)
    base = trained.record_entry()
    facts["base_model"] = base | {"hub_id": hub_id or base["hub_id"]} if base else None
    if sentences is not None:
        facts["data"] = describe_sentences(sentences) | (facts.get("data") or {})
    if "license" not in facts:
        facts |= license_of(trained.source)
    return facts


def license_of(source: Source) -> dict[str, Any]:
    """Return `license`, `license_name` and `license_link` in the card of a model, without those that it lacks."""
    try:
        path = source.folder / "README.md" if source.folder else source.name
        card = ModelCard.load(path, ignore_metadata_errors=True).data.to_dict()
    except (OSError, ValueError, HfHubHTTPError, yaml.YAMLError):
        return {}
    values = {name: card.get(name) for name in ("license", "license_name", "license_link")}
    return {name: value for name, value in values.items() if isinstance(value, str)}


def training_record(trainer: Any) -> RunRecord:
    """Return the record of a trainer's run so far."""
    args = trainer.args
    state = trainer.state
    development = trainer.eval_dataset
    # Trainer loads the best checkpoint at the end of training; until then the weights are those of the last step.
    best = state.best_model_checkpoint  # also None if a run is resumed without that folder
    chosen = args.load_best_model_at_end and not trainer.is_in_train and best is not None
    sets = development.sets if development else ()
    return RunRecord(
        seed=args.seed,
        options=options_of(trainer) | trainer.trained.packing,
        objective=trainer.objective.describe(),
        steps=state.global_step,
        kept_step=state.best_global_step if chosen else state.global_step,
        chosen=chosen,
        environment=environment(args.device),
        development=development.name if development else None,
        development_sha256=development.sha256 if development else None,
        development_sets=[{"kind": one.kind, "name": one.name} for one in sets],
        history=[_scores(entry) for entry in evaluations(state.log_history)],
        sentences_per_second=trainer.throughput.sentences_per_second,
        **trainer.trained.record_entries,
        **trainer.facts,
    )


def _scores(entry: dict) -> dict[str, Any]:
    scores = {name: value if math.isfinite(value) else None for name, value in logged_scores(entry).items()}
    return scores | {"step": entry["step"]}


def precision(args: InforMinTrainingArguments) -> str:
    """Return the precision of the run: fp32, bf16 or fp16. The launcher can set it, too."""
    return args.mixed_precision if args.mixed_precision != "no" else "fp32"


def options_of(trainer: Any) -> dict[str, Any]:
    """Return the options that affect the weights."""
    args = trainer.args
    options = trainer.objective.options()
    options["sentences_per_step"] = args.per_device_train_batch_size * args.world_size
    options |= {name: plain(getattr(args, name)) for name in SHAPING}
    options |= {"projection_head": trainer.projection_head, "max_seq_length": trainer.max_seq_length}
    files = {name: getattr(args, name) for name in ("guide_model", "replay_file")}
    options |= {name: last_name(value) for name, value in files.items() if value}
    del options["max_steps" if args.max_steps < 0 else "num_train_epochs"]
    rare = {name: getattr(args, name) for name in RARE}
    rare |= {"pooler": trainer.trained.pooling, "prompt": trainer.trained.prompt}
    if args.eval_strategy != "no":
        rare["load_best_model_at_end"] = args.load_best_model_at_end
    options |= {name: value for name, value in rare.items() if value != DEFAULTS[name]}
    usual = AcceleratorConfig(dispatch_batches=False)
    for name in ("use_seedable_sampler", "split_batches", "dispatch_batches"):
        value = getattr(args.accelerator_config, name)
        if value != getattr(usual, name):
            options[name] = value
    if isinstance(trainer.train_dataset, IterableDataset):  # its order depends on the number of workers
        options |= {"streaming": True, "dataloader_num_workers": args.dataloader_num_workers}
        options["max_train_samples"] = args.max_train_samples
    options = {name: value for name, value in options.items() if value not in (None, {})}
    return options | {"precision": precision(args), "processes": args.world_size}


def plain(value: Any) -> Any:
    """Return the value of an enumeration's member, and any other value as it is."""
    return value.value if isinstance(value, Enum) else value


@dataclass
class FitRecord:
    """What `informin fit` or `distill` did. It contains no path, user name or host name.

    Attributes:
        informin: Version of this package.
        base_model: name; hub_id (null for a folder); revision, a commit.
        task: clustering or search.
        texts: Number of texts that it was fitted on.
        dimensions: Of the new embeddings.
        options: Options of the adapter; none for a static model.
        drift: Changes to the embeddings, as in training.json; null if not measured.
        kind: adapter, or static for a table of token vectors.
        remote_code: Whether the model needs code from its repository.
        license: License of the source model, with its name and link if the Hub does not list it.
    """

    informin: str
    base_model: dict[str, Any]
    task: str
    texts: int
    dimensions: int
    options: dict[str, Any] = field(default_factory=dict)
    drift: dict[str, Any] | None = None
    remote_code: bool = False
    kind: str = "adapter"
    license: Any = None
    license_name: str | None = None
    license_link: str | None = None

    @classmethod
    def load(cls, folder: str | Path) -> "FitRecord | None":
        """Load the record of a folder; None if there is none."""
        path = Path(folder, FITTED)
        return cls(**read_json(path)) if path.is_file() else None

    def save(self, folder: str | Path) -> None:
        """Write fit.json."""
        write_json(Path(folder, FITTED), asdict(self))
