"""What a run needs from the Hub: checked together, before anything is loaded."""

import os
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import get_session

from informin.errors import UsageError, counted, error_line
from informin.evaluation.senteval import HUB_DATA, HUB_SENTEVAL
from informin.training.options import DataArguments
from informin.training.sentences import HUB_SENTENCES

SECONDS = 5  # to wait for an answer of the Hub


@dataclass(frozen=True)
class Needed:
    """A file of the Hub that a run needs.

    Attributes:
        what: Its name in the message.
        instead: Options that replace it.
        repo, file, kind: Where it is on the Hub; the kind of the repository is `model` or `dataset`.
        revision: Branch, tag or commit; None for main.
    """

    what: str
    instead: str
    repo: str
    file: str
    kind: str
    revision: str | None = None

    @property
    def is_cached(self) -> bool:
        """Whether an earlier run downloaded it."""
        try:
            path = try_to_load_from_cache(self.repo, self.file, revision=self.revision, repo_type=self.kind)
        except HFValidationError:  # a path
            return False
        return isinstance(path, str)


def raise_if_missing(data: DataArguments, models: dict[str, str | None], revision: str | None, scores: bool) -> None:
    """Raise UsageError for everything that the run needs from the Hub, if it cannot be reached.

    Args:
        data: The training and evaluation data.
        models: The models to load by option; None for none.
        revision: Branch, tag or commit of `model_name`.
        scores: Whether the run is evaluated.
    """
    needed = [
        Needed(f"the model {name}", f"`{option}` FOLDER", name, "config.json", "model", revision)
        for option, name in models.items()
        if name and not Path(name).is_dir()
    ]
    if not data.train_file and not data.dataset_name:
        needed.append(Needed("the training sentences", "`train_file` FILE", HUB_DATA, HUB_SENTENCES, "dataset"))
    given = [data.eval_pairs, data.eval_labels, data.eval_retrieval, data.senteval_dir, os.environ.get("SENTEVAL_DATA")]
    if scores and not any(given):
        instead = "`eval_pairs` FILE, `senteval_dir` FOLDER, or `eval_strategy` no"
        needed.append(Needed("STS-B dev, which selects the checkpoint", instead, HUB_DATA, HUB_SENTEVAL, "dataset"))
    missing = [one for one in needed if not one.is_cached]
    problem = hub_problem() if missing else None
    if problem:
        listed = "; ".join(f"{one.what}: {one.instead}" for one in missing)
        found = f"{counted(len(missing), 'input')} must be downloaded, and the Hub cannot be reached ({problem})"
        raise UsageError(found, fix=f"Give local ones instead. {listed[0].upper()}{listed[1:]}.")


def hub_problem() -> str | None:
    """Return why the Hub cannot be reached; None if it answers."""
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        status = get_session().head(constants.ENDPOINT, timeout=SECONDS).status_code
    except Exception as error:  # the HTTP library of huggingface_hub depends on its version
        return error_line(error)
    return f"{constants.ENDPOINT} answers with status {status}" if status >= 400 else None
