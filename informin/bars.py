"""Show progress bars in terminals and notebooks only."""

import sys


def hidden() -> bool | None:
    """Return the value of tqdm's `disable`: False in a notebook, otherwise None: show bars in a terminal only."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return False if shell is not None and "IPKernelApp" in shell.config else None
