"""Tools for developers. None of them uses the network."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported; a name that is no folder fails at once
