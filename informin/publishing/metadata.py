"""Values that the Hub accepts in the metadata of a model card. Others are left out, since they may come from anyone."""

import logging
import re
import reprlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from huggingface_hub import metadata_load
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from informin.errors import UsageError

if TYPE_CHECKING:  # it imports transformers; cards are written without it
    from informin.models.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

LICENSES_PAGE = "https://huggingface.co/docs/hub/repositories-licenses"
LICENSES = """
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
    afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
    cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0
    lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl
    openmdw-1.0 openmdw-1.1 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license
    fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma unknown
    other
""".split()
NO_LANGUAGE = ("multilingual", "code")  # accepted by the Hub in addition to ISO 639 codes


def known_license(value: Any) -> str | list[str] | None:
    """Return a license id of the Hub, or a list of them, unchanged. Return None for any other value."""
    values = value if isinstance(value, list) else [value]
    return value if values and all(one in LICENSES for one in values) else None


def known_license_name(value: Any) -> str | None:
    """Return the name of a license that the Hub does not list, in its characters. Return None for any other value."""
    return value if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}", value) else None


def known_license_link(value: Any, hub_id: str | None = None) -> str | None:
    """Return the address of a license, or of a license file of a repository. Return None for any other value.

    Args:
        hub_id: Repository of the card, which a file name such as LICENSE refers to.
    """
    if not isinstance(value, str):
        return None
    if re.fullmatch(r"https?://[\w.-]+(:\d+)?(/[\w./%#?=&+~@:,-]*)?", value, re.ASCII) and len(value) <= 500:
        return value
    inside = re.fullmatch(r"[\w.-]+(/[\w.-]+)*", value, re.ASCII) and ".." not in PurePosixPath(value).parts
    return f"https://huggingface.co/{hub_id}/blob/main/{value}" if inside and hub_id else None


def license_of(checkpoint: "Checkpoint", hub_id: str | None = None) -> dict[str, Any]:
    """Return `license`, `license_name` and `license_link` in the card of a model, without those that it does not have.

    A license that the Hub does not know, and a card that cannot be read, give none.

    Args:
        checkpoint: Files of the model.
        hub_id: Hub id of a model in a folder.
    """
    try:
        path = checkpoint.path("README.md")
        values = (path and metadata_load(path)) or {}
        named = values.get("license")
    except UsageError:
        raise
    except Exception:  # OSError, YAMLError, and other errors of YAML constructors
        return {}
    if named and not known_license(named):
        logger.info(
            f"The model card of {checkpoint} has the license {reprlib.repr(named)}, which the Hub does not know. It is "
            "ignored; set `license`."
        )
    if not named or not known_license(named):
        return {}
    source = known_id(hub_id or (None if Path(checkpoint.name).exists() else checkpoint.name))
    found = {
        "license": named,
        "license_name": known_license_name(values.get("license_name")),
        "license_link": known_license_link(values.get("license_link"), source),
    }
    return {name: value for name, value in found.items() if value}


def known_language(value: object) -> str | None:
    """Return an ISO 639 code of two or three letters or one of `NO_LANGUAGE`. Return None for any other value."""
    return value if isinstance(value, str) and (value in NO_LANGUAGE or re.fullmatch("[a-z]{2,3}", value)) else None


def known_id(value: Any) -> str | None:
    """Return a valid name of a repository. Return None for any other value."""
    try:
        validate_repo_id(value)
    except HFValidationError:
        return None
    return value
