"""Tools for developers. None of them uses the network."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported; a name without a folder fails at once
