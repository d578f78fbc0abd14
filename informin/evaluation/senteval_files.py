"""Find SentEval's data in a folder, in $SENTEVAL_DATA or on the Hub, and unpack its archive."""

import os
import tarfile
from pathlib import Path

from huggingface_hub import constants, hf_hub_download

from informin.errors import UsageError, error_line
from informin.evaluation.senteval import STSB_DEV
from informin.outputs import new_folder

HUB_DATA = "princeton-nlp/datasets-for-simcse"
HUB_SENTEVAL = "senteval.tar"
SENTEVAL_INSTEAD = "`senteval_dir` FOLDER (SentEval's data/downstream), or set SENTEVAL_DATA to it"


def senteval_folder(folder: str | Path | None, instead: str = SENTEVAL_INSTEAD) -> Path:
    """Return SentEval's `data/downstream`: the folder, $SENTEVAL_DATA, or a download from the Hub.

    Args:
        instead: What to do without the Hub. Completes the error message "Without the Hub, give ...".

    Raises:
        UsageError: The data cannot be downloaded.
    """
    named = folder or os.environ.get("SENTEVAL_DATA")
    if named:
        return Path(named)
    archive = hub_file(HUB_SENTEVAL, instead)
    unpacked = Path(constants.HF_HOME) / "informin-cl" / archive.resolve().name
    if not unpacked.is_dir():
        unpack(archive, unpacked)
    dev = next((p for p in unpacked.rglob("sts-dev.csv") if p.as_posix().endswith(STSB_DEV)), None)
    if dev is None:
        raise UsageError(f"{archive} does not contain {STSB_DEV}", fix="Delete it to download a new copy.")
    return dev.parents[2]


def hub_file(name: str, instead: str) -> Path:
    """Download a file of the Hub data set with SentEval and the papers' sentences, and return its path in the cache.

    Args:
        instead: As in `senteval_folder`.

    Raises:
        UsageError: The file cannot be downloaded.
    """
    try:
        return Path(hf_hub_download(HUB_DATA, name, repo_type="dataset"))
    except OSError as error:
        raise UsageError(
            f"{name} cannot be downloaded from the Hub data set {HUB_DATA}: {error_line(error)}",
            fix=f"Without the Hub, give {instead}.",
        ) from None


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar file into a new folder, which appears once it is complete. No member is written outside of it.

    Raises:
        tarfile.TarError: The archive is damaged, or a member points outside.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(folder) as new, tarfile.open(archive) as tar:
        tar.extractall(new, filter="data")
