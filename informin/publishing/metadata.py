"""Values that the Hub accepts in the metadata of a model card. Others are left out, since they may come from anyone."""

import re
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

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
