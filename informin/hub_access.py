"""What is read from the Hub by default, and whether it can be reached.

The question is asked once. Without the Hub, only cached files are used, without retries.
"""

import logging
import threading
from contextlib import suppress
from functools import cache

import httpx2
from huggingface_hub import constants
from huggingface_hub.utils import get_session

logger = logging.getLogger(__name__)

HUB_DATA = "princeton-nlp/datasets-for-simcse"  # the data set with the two files below
HUB_SENTENCES = "wiki1m_for_simcse.txt"
HUB_SENTEVAL = "senteval.tar"
SECONDS = 4  # for an answer


@cache
def hub_is_reachable() -> bool:
    """Return whether the Hub answers. If it does not, libraries use only cached files from now on.

    Without this question, each missing file of a model costs a minute of retries.
    """
    if constants.HF_HUB_OFFLINE:
        return False
    if not answers(constants.ENDPOINT):
        logger.warning(f"Could not reach the Hub at {constants.ENDPOINT}: only cached models and data can be used.")
        constants.HF_HUB_OFFLINE = True
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would say the same again
        return False
    return True


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
