"""InforMin-CL: unsupervised sentence embeddings as an extension of the Hugging Face Trainer.

The names in `__all__` are imported on first use, so `import informin` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from informin.models.open_model import load_model
    from trainer_informin import InforMinTrainer, InforMinTrainingArguments

__version__ = "0.3.0"
__all__ = ["InforMinTrainer", "InforMinTrainingArguments", "load_model"]

_HOMES = {
    "InforMinTrainer": "trainer_informin",
    "InforMinTrainingArguments": "trainer_informin",
    "load_model": "informin.models.open_model",
}


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
