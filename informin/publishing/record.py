"""What a training run was, kept as training.json beside its weights: the model card is written from it.

schema                1
informin              version of this package
base_model            name; hub_id (null for a folder); revision, the commit; weights_sha256 as run_eval.py has it;
                      settings_sha256, of configuration and tokenizer
data                  sources, file names or the Hub id; hub_id (null for files); description; sentences and their
                      sha256, in their order (null: stream)
language, license     for the card; null where nothing says
seed, options         every option that shapes the weights
development           the pairs that were scored in training, and development_sha256; null where none were
history               step, spearman (x 100), alignment, uniformity of each evaluation; null: undefined
earlier               the parts of the run before its options, seed, sentences or pairs were changed, each with its
                      until_step; the rest of this file tells the last part
steps, kept_step      taken; of the weights that were kept; chosen: they were the best of those scored
sentences_per_second  of training, all processes together; null in a checkpoint
environment           versions, device, number of threads

No path, user or machine name is in it: of files and folders the last part of the name alone.
"""

import hashlib
import json
import math
import reprlib
from dataclasses import fields
from pathlib import Path

from datasets import IterableDataset
from huggingface_hub import metadata_load
from transformers import TrainerState
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.utils import logging
from transformers.utils.hub import extract_commit_hash
from yaml import YAMLError

from informin import __version__
from informin.encoders.encoder import Encoder, load_encoder
from informin.encoders.loading import optional_file
from informin.errors import UsageError
from informin.evaluation import GradedPairs
from informin.files import write_json
from informin.publishing.metadata import known_license
from informin.training.options import CardArguments, DataArguments, InforMinTrainingArguments, ModelArguments
from informin.training.report import environment, precision
from informin.training.sentences import HUB_DATA, HUB_SENTENCES

logger = logging.get_logger(__name__)

TRAINING = "training.json"
SCHEMA = 1
OPTIMISER_OPTIONS = (
    *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "weight_decay", "max_grad_norm"),
    *("optim", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("num_train_epochs", "max_steps", "gradient_accumulation_steps"),
)
# Told where they are not the default.
RARE_OPTIONS = (
    *("data_seed", "dataloader_drop_last", "train_sampling_strategy", "ignore_data_skip", "neftune_noise_alpha"),
    *("optim_target_modules", "full_determinism", "tf32", "torch_compile", "use_liger_kernel"),
    "metric_for_best_model",
)
SILENT_SETTINGS = ("_name_or_path", "transformers_version", "dtype", "architectures", "auto_map", "informin")
DEFAULTS = {field.name: field.default for field in fields(InforMinTrainingArguments)}


def provenance(model_args: ModelArguments, data_args: DataArguments, card_args: CardArguments, sentences) -> dict:
    """What the trainer cannot see of a run: the encoder it starts from, and the sentences.

    Args:
        sentences: the data set that is trained on.
    """
    name = model_args.model_name
    folder = Path(name)
    hub_data, sources = _data_names(data_args)
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # transformers would list the heads that are not needed here
    encoder = load_encoder(name, ("cls",), device="cpu", revision=model_args.model_revision)
    logging.set_verbosity(verbosity)
    return {
        "base_model": {
            "name": _last_name(folder) if folder.is_dir() else name,
            "hub_id": card_args.base_model or (None if folder.is_dir() else name),
            "revision": extract_commit_hash(optional_file(name, "config.json", model_args.model_revision), None),
            "weights_sha256": encoder.weights_sha256(),
            "settings_sha256": _settings_sha256(encoder),
        },
        "data": {
            "sources": sources,
            "hub_id": hub_data,
            "description": card_args.data_description,
            **_sentences(sentences),
        },
        "language": card_args.language or ("en" if hub_data == HUB_DATA else None),
        "license": card_args.license or _license(name, model_args.model_revision),
    }


def _settings_sha256(encoder: Encoder) -> str:
    """Of what the encoder's configuration and its tokenizer say, without what says nothing of embeddings."""
    settings = {name: value for name, value in encoder.model.config.to_dict().items() if name not in SILENT_SETTINGS}
    text = json.dumps(settings, sort_keys=True, default=str) + encoder.tokenizer.backend_tokenizer.to_str()
    return hashlib.sha256(text.encode()).hexdigest()


def _sentences(sentences) -> dict:
    """How many there are, and their SHA-256; None for a stream, which is read in training alone."""
    if isinstance(sentences, IterableDataset):
        return {"sentences": None, "sha256": None}
    digest = hashlib.sha256()
    for batch in sentences.with_format("arrow").iter(10_000):
        for sentence in batch["text"].to_pylist():
            digest.update(sentence.encode() + b"\0")
    return {"sentences": len(sentences), "sha256": digest.hexdigest()}


def _data_names(args: DataArguments) -> tuple[str | None, list[str]]:
    """The id on the Hub, None for files; and what to call the sources."""
    local = args.dataset_name and Path(args.dataset_name).exists()  # load_dataset takes folders too
    files = [args.dataset_name] if local else args.train_file
    if files:
        return None, [_last_name(Path(file)) for file in files]
    own = [args.dataset_name, args.dataset_config, args.dataset_split]
    parts = own if args.dataset_name else [HUB_DATA, HUB_SENTENCES]
    return parts[0], ["/".join(part for part in parts if part)]


def _last_name(path: Path) -> str:
    """Of `.` too."""
    return (path.resolve() if path.is_dir() else path).name


def training_record(
    args: InforMinTrainingArguments,
    state: TrainerState,
    chosen: bool,
    model_settings: dict,
    given: dict,
    pairs: GradedPairs | None,
) -> dict:
    """The run so far.

    Args:
        chosen: the weights are the best of those scored; else they are the newest.
        model_settings: `config.informin`.
        given: from `provenance`; empty where a trainer was made without it.
        pairs: that were scored in training; None without.
    """
    unknown = {"base_model": None, "data": None, "language": None, "license": None, "earlier": []}
    return {
        "schema": SCHEMA,
        "informin": __version__,
        **(unknown | given),
        **weights_settings(args, model_settings, pairs),
        "history": [_scores(entry) for entry in state.log_history if "eval_spearman" in entry],
        "steps": state.global_step,
        "kept_step": state.best_global_step if chosen else state.global_step,
        "chosen": chosen,
        "sentences_per_second": None,
        "environment": environment(args.device),
    }


def _scores(entry: dict) -> dict:
    values = {name: entry[f"eval_{name}"] for name in ("spearman", "alignment", "uniformity")}
    return {"step": entry["step"], **{name: value if math.isfinite(value) else None for name, value in values.items()}}


def weights_settings(args: InforMinTrainingArguments, model_settings: dict, pairs: GradedPairs | None) -> dict:
    """What shapes the weights, and says which of them are kept, beside encoder and sentences."""
    return {
        "seed": args.seed,
        "options": _options(args, model_settings),
        "development": pairs.name if pairs else None,
        "development_sha256": pairs.sha256 if pairs else None,
    }


def _options(args: InforMinTrainingArguments, model_settings: dict) -> dict:
    """The options that shape the weights, without those that had no effect."""
    options = objective_options(args)
    options |= {name: model_settings[name] for name in ("projection_head", "max_seq_length") if name in model_settings}
    options["sentences_per_step"] = args.per_device_train_batch_size * args.world_size
    options |= {name: getattr(getattr(args, name), "value", getattr(args, name)) for name in OPTIMISER_OPTIONS}
    del options["max_steps" if args.max_steps < 0 else "num_train_epochs"]
    rare = {name: getattr(args, name) for name in RARE_OPTIONS}
    if args.eval_strategy != "no":
        rare["load_best_model_at_end"] = args.load_best_model_at_end
    options |= {name: value for name, value in rare.items() if value != DEFAULTS[name]}
    usual = AcceleratorConfig()
    loader = {name: getattr(args.accelerator_config, name) for name in ("use_seedable_sampler", "split_batches")}
    options |= {name: value for name, value in loader.items() if value != getattr(usual, name)}
    options = {name: value for name, value in options.items() if value not in (None, {})}
    return options | {"precision": precision(args), "processes": args.world_size}


def objective_options(args: InforMinTrainingArguments) -> dict:
    """The options of the objective that had an effect."""
    names = ["objective", "view_dropout"]
    names += [name for part in args.parts for name in (part.weight, *part.options) if name]
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def save_record(folder: str | Path, record: dict) -> None:
    """Writes training.json."""
    write_json(Path(folder, TRAINING), record)


def load_record(folder: str | Path) -> dict | None:
    """Reads training.json; None where there is none.

    Raises:
        UsageError: it is no record of this schema.
    """
    path = Path(folder, TRAINING)
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}.") from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise UsageError(f"{path}: needed a training record of `schema` {SCHEMA}; found something else.")
    return record


def _license(model_name: str, revision: str | None) -> str | list[str] | None:
    """The licence that a model's own card names; None where that cannot be read, or is none that the Hub knows."""
    path = optional_file(model_name, "README.md", revision)
    try:
        found = path and (metadata_load(path) or {}).get("license")
    except (OSError, ValueError, YAMLError, RecursionError):
        return None
    if found and not known_license(found):
        logger.info(
            f"The card of {model_name} names the licence {reprlib.repr(found)}, which the Hub does not know: left out. "
            "Give --license."
        )
    return known_license(found)
