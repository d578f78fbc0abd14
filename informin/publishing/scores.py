"""Add the scores of `informin eval` to an exported folder, for the tables of its card."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME

from informin.errors import UsageError
from informin.evaluation.evaluate import unscored
from informin.evaluation.results import IDENTITY, Results, load_all_results, load_results
from informin.evaluation.table import check_one_table
from informin.fast.precision import weights_sha256
from informin.model.open import load_model
from informin.model.records import RunRecord
from informin.publishing.export import RESULTS, raise_if_linked

# Settings of results in a card.
AS_TESTED = {"whitening": None, "split": "test", "precision": "fp32", "truncate_dim": None}
# Entries of the records of two seeds that must be equal. The evaluation data select the best checkpoint.
SAME_RECIPE = ("base_model", "data", "inputs", "options", "development_sha256")


def add_results(
    folder: str | Path,
    files: Sequence[str | Path],
    *,
    trust_remote_code: bool = False,
    to: str | Path | None = None,
) -> None:
    """Copy results of `informin eval` into the results/ of an exported folder.

    The checksum of the weights tells whether a file belongs to this model or to its source model. Results of a model
    in another folder count as another seed, if its training.json differs only in the seed. Nothing is copied if one of
    the files does not belong here.

    Args:
        folder: An exported folder.
        files: Results files, or folders of them.
        trust_remote_code: Run the own code of the model and of the other seeds, if they need it to be loaded.
        to: Folder that gets them, such as a preview; None for the exported folder.

    Raises:
        UsageError: The folder is not an output of training, results belong to another model, other settings or another
            file of the same name, or two of them to one model.
    """
    folder = Path(folder)
    raise_if_linked(folder)
    record = RunRecord.load(folder)
    if record is None:
        raise UsageError("is set, but only the card of a trained model has a table of scores", option="results")
    model = load_model(folder, device="cpu", trust_remote_code=trust_remote_code)
    base = (record.base_model or {}).get("weights_sha256")
    default = model.prompts.get(model.default_prompt_name or "", "")
    ours = unscored(model, record.options.get("prompt", default) or None)
    compared = [name for name in IDENTITY if name not in ("weights_sha256", "precision")]
    usual = {name: getattr(ours, name) for name in compared}  # other seeds have other weights
    placed = {}
    for results in load_all_results(files):
        if results.weights_sha256 == ours.weights_sha256:
            place, name = "model.json", "this model"
        elif results.weights_sha256 == base:
            place, name = f"base-{results.pooler}.json", "before training"
        elif (seed := _other_seed(results, record, trust_remote_code)) is not None:
            place, name = f"other_seeds/seed{seed}.json", f"seed {seed}"
        else:
            needed = f"the weights of {folder}, of its source model or of another seed of the run"
            raise UsageError(f"has results of another model ({results.model})", option="results", needed=needed)
        own = usual | {"settings_sha256": results.settings_sha256 and ours.settings_sha256}  # older results have none
        for setting, value in (AS_TESTED if name == "before training" else AS_TESTED | own).items():
            if getattr(results, setting) != value:
                found = f"has results of {results.model} with {setting} {getattr(results, setting)!r}"
                raise UsageError(found, option="results", needed=repr(value))
        named = replace(results, model=name)  # the name may be a local path
        if placed.setdefault(place, named) != named:
            fix = "Score all tasks into one file: `informin eval` adds them to its `output`."
            raise UsageError(f"has two results of {results.model} ({name})", option="results", fix=fix)
    earlier = {path.relative_to(folder / "results").as_posix(): path for each in RESULTS for path in folder.glob(each)}
    kept = [load_results(path) for place, path in earlier.items() if place not in placed]
    check_one_table([*placed.values(), *kept], "results")
    for place, results in placed.items():
        results.save(Path(to or folder, "results", place))


def _other_seed(results: Results, record: RunRecord, trust_remote_code: bool) -> int | None:
    """Return the seed of a run that differs from this one only in the seed, if its weights gave these results.

    The weights of a checkpoint are not those that the run kept.
    """
    other = RunRecord.load(results.model)
    if other is None or other.seed == record.seed or Path(results.model, TRAINER_STATE_NAME).is_file():
        return None
    if any(getattr(other, name) != getattr(record, name) for name in SAME_RECIPE):
        return None
    model = load_model(results.model, device="cpu", trust_remote_code=trust_remote_code)
    return other.seed if weights_sha256(model) == results.weights_sha256 else None
