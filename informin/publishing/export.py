"""The folder that people load, and that goes to the Hub: weights, settings, tokenizer, model card.

config.json, model.safetensors          the encoder by its plain class, which every reader knows
projection_head/model.safetensors       to train on; heads that only training needs are left out
modeling_informin.py                    of BERT and RoBERTa: imported by AutoModel with trust_remote_code=True
tokenizer.json, tokenizer_config.json   without a trace of how training called the tokenizer
modules.json, 1_Pooling/config.json,
sentence_bert_config.json,
config_sentence_transformers.json       sentence-transformers' files in the older, verbose form, which all read; they
                                        say what those of the starting encoder said
training.json                           what the run was: see `informin.publishing.record`
results/                                of run_eval.py: see `informin.publishing.card`
onnx/                                   see `informin.publishing.onnx`
README.md                               the model card, written from the above
"""

import copy
import itertools
import os
import shlex
import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePath

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_NAME

import modeling_informin
from informin.encoders.architectures import InforMinModel, architecture_of
from informin.encoders.dense import Dense, load_dense
from informin.encoders.embedding_config import EmbeddingConfig, embedding_of
from informin.encoders.encode import max_length
from informin.encoders.encoder import load_encoder
from informin.encoders.loading import load_config, load_saved, load_tokenizer
from informin.encoders.sentence_transformers_files import load_embedding_config
from informin.encoders.tokenizer import forget_truncation
from informin.errors import UsageError, counted, error_line
from informin.evaluation.results import load_results, results_files, save_results
from informin.files import AGAIN, read_json, set_usual_modes, sha256, write_json
from informin.interrupts import during
from informin.publishing.card import write_card
from informin.publishing.record import TRAINING, load_record, prompt_of_training, save_record
from informin.temporary import TemporaryFolder
from modeling_informin import ADAPTER_FILE, HEAD_FILE, TRAINING_HEADS, has_pooler

# What other weights make wrong. Of results what add_results puts there: run_eval.py's own files hold the model's path.
MADE_FROM_WEIGHTS = ("results/model.json", "results/other_seeds/seed*.json", "onnx/*.onnx", "onnx/scores.json")
# What may be published. Checkpoints, logs (their names hold the machine's) and whatever else lies in a folder may not.
PUBLISHED = (
    *("config.json", SAFE_WEIGHTS_NAME, HEAD_FILE, "modeling_informin.py", TRAINING, "README.md"),
    *("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt", "special_tokens_map.json"),
    *("modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    *("3_Dense/config.json", ADAPTER_FILE),
    *("results/base-*.json", *MADE_FROM_WEIGHTS),
)
# Their folders too: a file in a folder that is a link lies elsewhere.
NO_LINKS = (*PUBLISHED, *sorted({folder.as_posix() for name in PUBLISHED for folder in PurePath(name).parents} - {"."}))
TRAINING_SETTINGS = ("dropouts", "sentence_transformers", "training_prompt")  # which other files of the folder say
EXPORTED = "a folder that training or `informin export` wrote"
WRITABLE = "Check the folder's permissions and the free disk space."
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Those of sentence-transformers 2.2: it refuses others. All are written: mean_tokens was on where it was not named.
POOLING_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
THEIR_MODES = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}
# Traces of the machine that loaded a tokenizer, and of how another project once called it.
TOKENIZER_TRACES = (
    *("is_local", "local_files_only", "name_or_path", "backend"),
    *("max_length", "stride", "pad_to_multiple_of", "truncation_strategy"),
)


@during("export")
def export_folder(
    model: InforMinModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    record: dict | None = None,
    dtype: torch.dtype = torch.float32,
    weights: bool = True,
) -> None:
    """Writes a model that may be loaded and published as it stands; `model` is not changed.

    Args:
        record: what the run was; see `informin.publishing.record`.
        dtype: of the weights in the file.
        weights: False writes everything else, to try it.

    Raises:
        UsageError: a weight is no finite number in this dtype; something in the folder would be written through a link.
    """
    folder = Path(folder)
    refuse_links(folder)
    clean = without_training_heads(model)
    if weights:
        clean = clean.to(dtype)
        _refuse_not_finite(clean.state_dict(), within=f" in {dtype}")
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder(folder) as partial:  # the disk may become full
        new = Path(partial)
        _save_model(clean, new, weights)
        _save_tokenizer(tokenizer, new)
        embedding, longest = embedding_of(model), max_length(clean.config, tokenizer)
        _save_sentence_transformers_files(clean, embedding, embedding.max_length(longest), new)
        before = folder / SAFE_WEIGHTS_NAME
        if before.is_file() and sha256(before) != sha256(new / SAFE_WEIGHTS_NAME):
            for path in (path for pattern in MADE_FROM_WEIGHTS for path in folder.glob(pattern)):
                path.unlink()
        for path in (path for path in new.rglob("*") if path.is_file()):
            target = folder / path.relative_to(new)
            target.parent.mkdir(exist_ok=True)
            os.replace(path, target)
    if record:
        save_record(folder, record)
    write_card(folder)


def add_dense(folder: Path, dense: Dense, normalize: bool) -> None:
    """Add the Dense module of a linear adapter to an exported folder; `normalize` ends with unit length."""
    dense.save(folder / Path(ADAPTER_FILE).parent)
    modules = read_json(folder / "modules.json", list)[:2]
    kinds = [("2_Normalize", "Normalize"), ("3_Dense", "Dense"), *([("4_Normalize", "Normalize")] if normalize else [])]
    modules += [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds, start=2)
    ]
    write_json(folder / "modules.json", modules, indent=2)
    config = read_json(folder / "config.json")
    config["informin"]["adapter"] = True
    write_json(folder / "config.json", config, indent=2)


def without_training_heads(model: InforMinModel) -> InforMinModel:
    """The encoder with its own dropout rates, and its projection head, sharing the weights of `model`."""
    config = copy.deepcopy(model.config)
    config.update(config.informin.get("dropouts", {}))
    settings = {name: value for name, value in config.informin.items() if name not in TRAINING_SETTINGS}
    config.informin = settings | TRAINING_HEADS
    with torch.device("meta"):
        clean = type(model)(config)
    clean.load_state_dict(model.state_dict(), strict=False, assign=True)
    return clean.eval()


@during("export")
def export_checkpoint(checkpoint: str | Path, folder: str | Path, dtype: str = "float32") -> None:
    """Makes the folder to publish, which must be new or empty, from a checkpoint of a run, or from such a folder.

    Raises:
        UsageError: `checkpoint` is not of this project, or `folder` is in use.
    """
    checkpoint, folder = Path(checkpoint), Path(folder)
    config = _our_config(checkpoint)
    refuse_used(folder)
    embedding = load_embedding_config(str(checkpoint), config)
    model = load_saved(config, str(checkpoint))
    model.config.informin |= embedding.settings
    tokenizer = load_tokenizer(str(checkpoint), config)
    parent = next(path for path in folder.absolute().parents if path.exists())
    if not parent.is_dir():
        raise UsageError(f"{folder} cannot be created: {parent} is a file", fix="Choose another folder.")
    try:
        with TemporaryFolder(parent) as partial:  # the folder appears when it is whole
            whole = Path(partial, "export")
            export_folder(model, tokenizer, whole, load_record(checkpoint), DTYPES[dtype])
            if embedding.adapter:
                add_dense(
                    whole, load_dense(str(checkpoint), embedding.adapter, config.hidden_size), embedding.normalize
                )
                shutil.copyfile(checkpoint / "README.md", whole / "README.md")
            if folder.exists():
                folder.rmdir()
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(whole, folder)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error_line(error)}", fix=WRITABLE) from None


def refuse_used(folder: str | Path, option: str | None = None) -> None:
    """Raise UsageError, for this option, if a folder exists and is not empty."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is in use", option=option, needed="a new folder")


def _our_config(folder: Path) -> PreTrainedConfig:
    """Of a model of this project: only these have the files and the card that are made here."""
    if not folder.is_dir():
        raise UsageError(f"{folder} does not exist", needed=EXPORTED)
    config = load_config(str(folder))
    if not getattr(config, "informin", None):
        raise UsageError(
            f"{folder} is not an InforMin-CL model: its config.json has no `informin` settings", needed=EXPORTED
        )
    return config


def check_export(folder: str | Path) -> None:
    """UsageError where a folder must not be published: no export, with links, or weights that are no finite numbers."""
    folder = Path(folder)
    refuse_links(folder)
    code = ["modeling_informin.py"] if architecture_of(_our_config(folder)).model._auto_class else []
    missing = [name for name in (SAFE_WEIGHTS_NAME, *code, "modules.json") if not (folder / name).is_file()]
    if missing:
        raise UsageError(
            f"{folder} is a checkpoint, which cannot be published: it has no {', no '.join(missing)}",
            fix=f"Export it first: python -m informin export {shlex.quote(str(folder))} NEW_FOLDER",
        )
    try:
        for path in (path for path in (folder / SAFE_WEIGHTS_NAME, folder / HEAD_FILE) if path.is_file()):
            _refuse_not_finite(load_file(path), f"{folder}: ")
    except (SafetensorError, OSError) as error:
        raise UsageError(f"The weights in {folder} cannot be read: {error_line(error)}", fix=AGAIN) from None


def refuse_links(folder: str | Path, names: Sequence[str] = NO_LINKS) -> None:
    """UsageError where files by these patterns are links: what lies elsewhere is neither published nor written over.

    UsageError too where anything in the folder is a pipe, a socket or a device: reading it may never end.

    The folder itself may be a link.
    """
    folder = Path(folder)
    inside = sorted(folder.rglob("*"))
    special = [path for path in inside if not (path.is_symlink() or path.is_file() or path.is_dir())]
    if special:
        raise UsageError(
            f"{special[0]} is a pipe, a socket or a device", needed="only files and folders", fix="Remove it."
        )
    links = [path for path in inside if path.is_symlink()]
    links = [path for path in links if any(fnmatch(path.relative_to(folder).as_posix(), name) for name in names)]
    if not links:
        return
    fix = "Replace each link with a copy of its target, or remove it."
    if folder.resolve().parent.name == "snapshots":  # in the Hub's cache, where every file is a link
        fix = f"Copy the snapshot with the targets of its links: cp -rL {shlex.quote(str(folder))} NEW_FOLDER"
    others = f" (so are {len(links) - 1} others)" if links[1:] else ""
    raise UsageError(
        f"{links[0]} is a link{others}", needed="regular files, because a link may lead to private data", fix=fix
    )


def published_files(folder: str | Path) -> list[Path]:
    """The files of a folder that are published, relative to it; UsageError where links are among them."""
    folder = Path(folder)
    refuse_links(folder)
    files = (path for pattern in PUBLISHED for path in folder.glob(pattern) if path.is_file())
    return sorted({path.relative_to(folder) for path in files})


def add_results(folder: str | Path, files: Sequence[str], seeds: Sequence[str] = ()) -> None:
    """Copies results of run_eval.py into an exported folder, for its card.

    Each file has to be of the folder's own weights, of the encoder before training, or of one of the other seeds: the
    checksum of the weights tells which.

    Args:
        files: results, or folders of them.
        seeds: exports of runs of the same settings with other seeds.

    Raises:
        UsageError: results of another model, read or scored in another way; a folder that is no other seed of this run;
            links in the folder.
    """
    folder = Path(folder)
    refuse_links(folder)
    places = {load_encoder(str(folder), device="cpu").weights_sha256(): ("model.json", "this model")}
    record = load_record(folder) or {}
    if record.get("base_model"):
        places[record["base_model"]["weights_sha256"]] = ("base-{pooler}.json", "before training")
    for other in seeds:
        seed = _other_seed(Path(other), folder, record)
        checksum = load_encoder(str(other), device="cpu").weights_sha256()
        places[checksum] = (f"other_seeds/seed{seed}.json", f"seed {seed}")
    longest = read_json(folder / "sentence_bert_config.json")["max_seq_length"]
    embedding = EmbeddingConfig.from_settings(read_json(folder / "config.json")["informin"])
    prompt = prompt_of_training(record, embedding.settings)
    read_as_used = {"pooler": embedding.pooling, "normalized": embedding.normalize, "prompt": prompt or None}
    placed = {}
    for path in (path for given in files for path in results_files(given)):
        results = load_results(path)
        if results["weights_sha256"] not in places:
            raise UsageError(
                f"{path} has results of another model ({Path(results['model']).name})",
                needed=f"the weights of {folder}, of its source model or of a folder in `seeds`",
                fix=f"Evaluate this folder: `informin eval` with `model_name` {shlex.quote(str(folder))}.",
            )
        place, model = places[results["weights_sha256"]]
        expected = {"whitening": None, "split": "test", "precision": "fp32"}
        expected |= {} if place.startswith("base") else {"max_length": longest, **read_as_used}
        for name, value in expected.items():
            if results.get(name) != value:  # files from before there were prompts have none
                raise UsageError(f"{path} was scored with {name} {results.get(name)!r}", needed=repr(value))
        # The name that was given to run_eval.py may be a path of this machine.
        placed[place.format(pooler=results["pooler"])] = results | {"model": model}
    for place, results in placed.items():
        save_results(folder / "results" / place, results)


def _refuse_not_finite(weights: dict[str, torch.Tensor], before: str = "", within: str = "") -> None:
    if bad := [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]:
        raise UsageError(
            f"{before}NaN or infinity in {counted(len(bad), 'weight')}{within}, such as {bad[0]}",
            fix="Export an earlier checkpoint, or choose another `dtype`.",
        )


def _other_seed(other: Path, folder: Path, record: dict) -> int:
    """The seed of a run that differs from this one by nothing else."""
    check_export(other)
    theirs = load_record(other) or {}
    shared = ("base_model", "data", "options")
    differing = [name for name in shared if theirs.get(name) != record.get(name) or record.get(name) is None]
    if differing or theirs["seed"] == record["seed"]:
        what = f"{', '.join(differing)} differ" if differing else f"both have seed {record['seed']}"
        raise UsageError(f"{other} is not another seed of the run in {folder}: {what} (training.json)", option="seeds")
    return theirs["seed"]


def _save_model(model: InforMinModel, folder: Path, weights: bool = True) -> None:
    """The encoder by its plain class, so that its weights have the names that servers look for; our class beside it.

    What the starting encoder's own `auto_map` named is not in the folder.
    """
    encoder = model.base_model
    encoder.config.auto_map = {"AutoModel": f"modeling_informin.{type(model).__name__}"}
    if model._auto_class:
        shutil.copyfile(modeling_informin.__file__, folder / "modeling_informin.py")
    else:
        del encoder.config.auto_map
    encoder.save_pretrained(folder, state_dict=None if weights else {})
    if weights and model.config.informin["projection_head"] == "mlp":
        (folder / HEAD_FILE).parent.mkdir()
        save_file(model.mlp.state_dict(), folder / HEAD_FILE, {"format": "pt"})
    set_usual_modes(folder)  # safetensors writes files that a server of another user cannot read


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """The tokenizer's files, as transformers 4 reads them too."""
    forget_truncation(tokenizer)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = {name: value for name, value in read_json(path).items() if name not in TOKENIZER_TRACES}
    if settings.get("tokenizer_class") == "TokenizersBackend":  # transformers 5's name of it
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_json(path, settings, indent=2, allow_nan=True)
    path = folder / "tokenizer.json"
    settings = read_json(path)
    merges = settings["model"].get("merges") or []
    if not any(isinstance(pair, str) or " " in "".join(pair) for pair in merges):
        settings["model"]["merges"] = [" ".join(pair) for pair in merges]  # pairs need tokenizers 0.20
    write_json(path, settings, indent=2, allow_nan=True)


def _save_sentence_transformers_files(
    model: InforMinModel, embedding: EmbeddingConfig, longest: int, folder: Path
) -> None:
    kinds = [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        *([("2_Normalize", "Normalize")] if embedding.normalize else []),
    ]
    modes = dict.fromkeys(POOLING_MODES, False) | {THEIR_MODES[embedding.pooling]: True}
    width, lowers = model.config.hidden_size, embedding.files.get("do_lower_case", False)
    # Without it the plain class would have a pooler of random weights, and report it as missing.
    no_pooler = {"model_args": {"add_pooling_layer": False}} if has_pooler(type(model.base_model)) else {}
    files = {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(kinds)
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": width,
            **{f"pooling_mode_{mode}": on for mode, on in modes.items()},
        },
        "sentence_bert_config.json": {"max_seq_length": longest, "do_lower_case": lowers, **no_pooler},
        "config_sentence_transformers.json": {
            **_prompts(embedding),
            "similarity_fn_name": embedding.files.get("similarity_fn_name", "cosine"),
        },
    }
    (folder / "1_Pooling").mkdir()
    for name, values in files.items():
        write_json(folder / name, values, indent=2)


def _prompts(embedding: EmbeddingConfig) -> dict:
    """The prompts that the starting encoder came with, and its default one, unless that is to be another.

    A default prompt that is new gets a name of its own.
    """
    prompts, default = embedding.files.get("prompts", {}), embedding.files.get("default_prompt_name")
    if prompts.get(default, "") == embedding.prompt:
        return {"prompts": prompts, "default_prompt_name": default}
    if not embedding.prompt:
        return {"prompts": prompts, "default_prompt_name": None}
    own = [name for name, text in prompts.items() if text == embedding.prompt]
    new = itertools.chain(["default"], (f"default_{i}" for i in itertools.count(2)))
    name = own[0] if own else next(name for name in new if name not in prompts)
    return {"prompts": prompts | {name: embedding.prompt}, "default_prompt_name": name}
