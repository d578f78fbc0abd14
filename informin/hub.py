"""What is read from the Hub by default, whether it can be reached, and whether a model is found.

The question is asked once. Without the Hub, only cached files are used, without retries. Imports neither torch nor
transformers.
"""

import logging
import os
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

import httpx2
from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import get_session, validate_repo_id

from informin.errors import UsageError

logger = logging.getLogger(__name__)


HUB_DATA = "princeton-nlp/datasets-for-simcse"  # the dataset with the two files below
HUB_SENTENCES = "wiki1m_for_simcse.txt"
HUB_SENTEVAL = "senteval.tar"
MODEL_FILES = ("config.json", "modules.json", "adapter_config.json")  # every model has one of them
MODEL_OWNER = "sentence-transformers"  # of models whose name has no owner, as in sentence-transformers
SECONDS = 4  # for an answer


@cache
def hub_is_reachable() -> bool:
    """Return whether the Hub answers. If it does not, libraries use only cached files from now on.

    Without this question, each missing file of a model costs a minute of retries.
    """
    if not constants.HF_HUB_OFFLINE:
        if answers(constants.ENDPOINT):
            return True
        logger.warning(f"Could not reach the Hub at {constants.ENDPOINT}: only cached models and data can be used.")
        constants.HF_HUB_OFFLINE = True
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would say the same for each model
    return False


def answers(address: str) -> bool:
    """Return whether an address answers within `SECONDS`.

    A thread asks. The timeout of a request holds for each address of a name, and not for looking the name up, so that
    a firewall that drops packets costs minutes.
    """
    answered = threading.Event()

    def ask() -> None:
        with suppress(httpx2.HTTPError, OSError):
            get_session().head(address, timeout=SECONDS)
            answered.set()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SECONDS)
    return answered.is_set()


def names_of_model(name: str) -> list[str]:
    """Return the names that a model may have on the Hub. Models of sentence-transformers need no owner, as there."""
    return [name] if "/" in name or Path(name).is_dir() else [name, f"{MODEL_OWNER}/{name}"]


def is_hub_id(value: str | None) -> bool:
    """Return whether a value is a valid name of a repository, and no folder here."""
    try:
        validate_repo_id(value)
    except HFValidationError:
        return False
    return value is not None and not os.path.exists(value)


def is_cached(repo: str, files: tuple[str, ...], kind: str = "model", revision: str | None = None) -> bool:
    """Return whether one of the files of a repository was downloaded."""
    try:
        paths = [try_to_load_from_cache(repo, file, revision=revision, repo_type=kind) for file in files]
    except HFValidationError:  # a path
        return False
    return any(isinstance(path, str) for path in paths)


def raise_if_not_found(name: str, revision: str | None = None) -> None:
    """Raise UsageError for a model that is neither a folder with a model nor a name on the Hub, or is not cached."""
    if Path(name).is_dir():
        if not any(Path(name, file).is_file() for file in MODEL_FILES):
            found = f"is {name}, a folder without {', '.join(MODEL_FILES[:-1])} or {MODEL_FILES[-1]}"
            fix = "Check the path. An interrupted run has models in its checkpoint folders only."
            raise UsageError(found, option="model_name", needed="the folder of a model", fix=fix)
        return
    try:
        validate_repo_id(name)
    except HFValidationError:
        found = f"is {name}, which is neither a folder nor a name on the Hub"
        raise UsageError(found, option="model_name", fix="Check the path.") from None
    if hub_is_reachable():
        return
    if not any(is_cached(one, MODEL_FILES, revision=revision) for one in names_of_model(name)):
        raise UsageError(
            f"is {name}, which was not found: it is not a folder or in the cache, and the Hub cannot be reached",
            option="model_name",
            fix="Check the name, or the connection to the Hub.",
        )
