"""Add evaluation results to an exported folder, for its model card."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from informin.errors import UsageError
from informin.evaluation.results import Results, load_all_results
from informin.evaluation.scoring import pooler_of
from informin.models.checksums import weights_sha256
from informin.models.opening import load_model
from informin.publishing.published import raise_if_linked
from informin.training.record import RunRecord

TESTED = {"whitening": None, "split": "test", "precision": "fp32"}


def add_results(folder: str | Path, files: Sequence[str | Path], *, trust_remote_code: bool = False) -> None:
    """Copy results of `informin eval` into the results/ of an exported folder.

    The checksum of the weights tells whether a file belongs to this model or to its source model. Results of a model
    in another folder count as another seed, if its training.json differs only in the seed. Nothing is copied if one of
    the files does not belong here.

    Args:
        folder: An exported folder.
        files: Results files, or folders of them.
        trust_remote_code: Run the model's own code, if it needs it to be loaded.

    Raises:
        UsageError: The folder is no output of training, or results belong to another model or were computed with other
            settings.
    """
    folder = Path(folder)
    raise_if_linked(folder)
    record = RunRecord.load(folder)
    if record is None:
        raise UsageError("is set, but only the card of a trained model has a table of scores", option="results")
    model = load_model(folder, device="cpu", trust_remote_code=trust_remote_code)
    ours, base = weights_sha256(model), (record.base_model or {}).get("weights_sha256")
    default = model.prompts.get(model.default_prompt_name or "", "")
    usual = {"max_length": model.max_seq_length, "prompt": record.options.get("prompt", default) or None}
    usual["pooler"] = pooler_of(model)
    placed = {}
    for results in load_all_results(files):
        seed = _other_seed(results, record)
        if results.weights_sha256 == ours:
            place, name = "model.json", "this model"
        elif results.weights_sha256 == base:
            place, name = f"base-{results.pooler}.json", "before training"
        elif seed is not None:
            place, name = f"other_seeds/seed{seed}.json", f"seed {seed}"
        else:
            needed = f"the weights of {folder}, of its source model or of another seed of the run"
            raise UsageError(f"has results of another model ({results.model})", option="results", needed=needed)
        for setting, value in (TESTED if name == "before training" else TESTED | usual).items():
            if getattr(results, setting) != value:
                found = f"has results of {results.model} with {setting} {getattr(results, setting)!r}"
                raise UsageError(found, option="results", needed=repr(value))
        placed[place] = replace(results, model=name)  # the name may be a local path
    for place, results in placed.items():
        results.save(folder / "results" / place)


def _other_seed(results: Results, record: RunRecord) -> int | None:
    """Return the seed of a run that differs from this one only in the seed, if its weights gave these results."""
    other = RunRecord.load(results.model)
    if other is None or other.seed == record.seed:
        return None
    same = (other.base_model, other.data, other.options) == (record.base_model, record.data, record.options)
    return other.seed if same and weights_sha256(load_model(results.model)) == results.weights_sha256 else None
