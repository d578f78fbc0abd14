"""InforMin-CL: unsupervised sentence embeddings as an extension of the Hugging Face Trainer.

The names in `__all__` are imported on first use, so `import informin` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from informin.adapters.linear import LinearAdapter
    from informin.jobs.compare import compare
    from informin.jobs.embed import embed
    from informin.jobs.evaluate import evaluate
    from informin.jobs.fit import fit
    from informin.jobs.models import load_model
    from informin.jobs.upgrade import upgrade
    from modeling_informin import BertForInforMinCL, RobertaForInforMinCL
    from trainer_informin import InforMinTrainer, InforMinTrainingArguments

__version__ = "0.3.0"
__all__ = [
    "BertForInforMinCL",
    "InforMinTrainer",
    "InforMinTrainingArguments",
    "LinearAdapter",
    "RobertaForInforMinCL",
    "compare",
    "embed",
    "evaluate",
    "fit",
    "load_model",
    "upgrade",
]

_HOMES = {
    "BertForInforMinCL": "modeling_informin",
    "InforMinTrainer": "trainer_informin",
    "InforMinTrainingArguments": "trainer_informin",
    "LinearAdapter": "informin.adapters.linear",
    "RobertaForInforMinCL": "modeling_informin",
    "compare": "informin.jobs.compare",
    "embed": "informin.jobs.embed",
    "evaluate": "informin.jobs.evaluate",
    "fit": "informin.jobs.fit",
    "load_model": "informin.jobs.models",
    "upgrade": "informin.jobs.upgrade",
}


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
