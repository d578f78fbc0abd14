"""What a run needs from the Hub: checked together, before anything is loaded."""

import os
from dataclasses import dataclass
from pathlib import Path

from informin.errors import UsageError, counted
from informin.hub_access import (
    HUB_DATA,
    HUB_SENTENCES,
    HUB_SENTEVAL,
    MODEL_FILES,
    hub_is_reachable,
    is_cached,
    names_of_model,
)
from informin.training.inputs import DataArguments


@dataclass(frozen=True)
class Needed:
    """What a run needs from the Hub.

    Attributes:
        what: Its name in the message.
        instead: Options that replace it.
        names, kind: Names that the repository may have, and its kind: `model` or `dataset`.
        files: Names of files, one of which is in the cache if it was downloaded.
        revision: Branch, tag or commit; None for main.
    """

    what: str
    instead: str
    names: list[str]
    kind: str
    files: tuple[str, ...]
    revision: str | None = None

    @property
    def is_here(self) -> bool:
        """Whether an earlier run downloaded it."""
        return any(is_cached(name, self.files, self.kind, self.revision) for name in self.names)


def raise_if_missing(data: DataArguments, models: dict[str, str | None], revision: str | None, scores: bool) -> None:
    """Raise UsageError for everything that the run needs from the Hub, if it cannot be reached.

    Args:
        data: The training and evaluation data.
        models: The models to load by option; None for none.
        revision: Branch, tag or commit of `model_name`.
        scores: Whether the run is evaluated.
    """
    needed = [
        Needed(
            f"the model {name}",
            f"`{option}` FOLDER",
            names_of_model(name),
            "model",
            MODEL_FILES,
            revision if option == "model_name" else None,
        )
        for option, name in models.items()
        if name and not Path(name).is_dir()
    ]
    if not data.train_file and not data.dataset_name:
        needed.append(Needed("the training sentences", "`train_file` FILE", [HUB_DATA], "dataset", (HUB_SENTENCES,)))
    given = [data.eval_pairs, data.eval_labels, data.eval_retrieval, data.senteval_dir, os.environ.get("SENTEVAL_DATA")]
    if scores and not any(given):
        instead = "`eval_pairs` FILE, `senteval_dir` FOLDER, or `eval_strategy` no"
        needed.append(
            Needed("STS-B dev, which selects the checkpoint", instead, [HUB_DATA], "dataset", (HUB_SENTEVAL,))
        )
    missing = [one for one in needed if not one.is_here]
    if missing and not hub_is_reachable():
        listed = "; ".join(f"{one.what}: {one.instead}" for one in missing)
        found = f"{counted(len(missing), 'input')} must be downloaded from the Hub"  # a warning says why it cannot be
        raise UsageError(found, fix=f"Without it, give local ones. {listed[0].upper()}{listed[1:]}.")
