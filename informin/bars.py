"""Where progress bars are shown: on a terminal, and in a notebook."""

import sys


def hidden() -> bool | None:
    """What tqdm takes as `disable`: False in a notebook; else None, which shows a bar on a terminal alone."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return False if shell is not None and "IPKernelApp" in shell.config else None
