"""Add evaluation results to an exported folder, for its model card."""

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from informin.errors import UsageError
from informin.evaluation.results import load_results, results_files, save_results
from informin.files import read_json
from informin.models.embedding_config import EmbeddingConfig
from informin.models.model import Model
from informin.models.open_model import load_model
from informin.publishing.fitted_card import is_adapter_card
from informin.publishing.published import (
    BASE_RESULTS,
    EXPORTED,
    OWN_RESULTS,
    SEED_RESULTS,
    check_export,
    refuse_linked_files,
)
from informin.publishing.record import load_record, prompt_of_training, saved_as_st


def add_results(
    folder: str | Path, files: Sequence[str], seeds: Sequence[str] = (), *, trust_remote_code: bool = False
) -> None:
    """Copy results of `informin eval` into the results/ of an exported folder.

    The checksum of the weights tells whether a file belongs to this model, to its source model or to another seed.
    Nothing is copied if one of the files does not belong here.

    Args:
        folder: An exported folder.
        files: Results files, or folders of them.
        seeds: Exported folders of runs with the same options and another seed.
        trust_remote_code: Run the models' own code, if they need it to be loaded.

    Raises:
        UsageError: The model has a linear adapter, results belong to another model or were computed with other
            settings, a folder is not another seed of this run, or the folder contains links.
    """
    folder = Path(folder)
    refuse_linked_files(folder)
    if is_adapter_card(folder / "README.md"):
        found = "is set, but the card of a model with a linear adapter has no table of scores"
        raise UsageError(found, option="results", fix="Leave it out.")
    load = partial(load_model, device="cpu", trust_remote_code=trust_remote_code)
    places = _places(folder, seeds, load)
    used = _settings(folder, load)
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
        expected: dict[str, Any] = {"whitening": None, "split": "test", "precision": "fp32"}
        expected |= {} if place.startswith("base") else used
        for name, value in expected.items():
            if results.get(name) != value:  # older files have no prompt
                raise UsageError(f"{path} was scored with {name} {results.get(name)!r}", needed=repr(value))
        # Replace the model's name, which may be a local path.
        placed[place.format(pooler=results["pooler"])] = results | {"model": model}
    for place, results in placed.items():
        save_results(folder / "results" / place, results)


def _places(folder: Path, seeds: Sequence[str], load: Callable[[str], Model]) -> dict[str, tuple[str, str]]:
    """Return the file name in results/ and the model's name in it, by the checksum of the weights."""
    places = {load(str(folder)).weights_sha256(): ("model.json", OWN_RESULTS)}
    record = load_record(folder) or {}
    if record.get("base_model"):
        places[record["base_model"]["weights_sha256"]] = ("base-{pooler}.json", BASE_RESULTS)
    for other in seeds:
        seed = _seed_of(Path(other), folder, record)
        checksum = load(str(other)).weights_sha256()
        places[checksum] = (f"other_seeds/seed{seed}.json", SEED_RESULTS.format(seed))
    return places


def _settings(folder: Path, load: Callable[[str], Model]) -> dict[str, Any]:
    """Return how the model computes embeddings, in the entries of a results file."""
    if saved_as_st(folder):
        model = load(str(folder))
        prompt = prompt_of_training(load_record(folder), {"prompt": model.prompt})
        read = {"max_length": model.length, "pooler": model.poolers[0], "normalized": model.normalized}
        return read | {"prompt": prompt or None}
    embedding = EmbeddingConfig.from_settings(read_json(folder / "config.json").get("informin"))
    if embedding is None:
        raise UsageError(f"{folder / 'config.json'} has no pooling", needed=EXPORTED)
    prompt = prompt_of_training(load_record(folder), embedding.settings)
    longest = read_json(folder / "sentence_bert_config.json")["max_seq_length"]
    normalized = embedding.normalize
    return {"max_length": longest, "pooler": embedding.pooling, "normalized": normalized, "prompt": prompt or None}


def _seed_of(other: Path, folder: Path, record: dict) -> int:
    """Return the seed of a run that differs from this one only in the seed. Raise UsageError if it does not."""
    check_export(other)
    theirs = load_record(other) or {}
    shared = ("base_model", "data", "options")
    differing = [name for name in shared if theirs.get(name) != record.get(name) or record.get(name) is None]
    if differing or theirs["seed"] == record["seed"]:
        what = f"{', '.join(differing)} differ" if differing else f"both have seed {record['seed']}"
        raise UsageError(f"{other} is not another seed of the run in {folder}: {what} (training.json)", option="seeds")
    return theirs["seed"]
