"""InforMin-CL: unsupervised sentence embeddings as an extension of the Hugging Face Trainer.

The names in `__all__` are imported on first use, so `import informin` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from informin.adapters.linear import LinearAdapter
    from informin.jobs.distill import distill
    from informin.jobs.embed import embed
    from informin.jobs.evaluate import evaluate
    from informin.jobs.fit import fit
    from informin.models.opening import load_model
    from informin.models.speed import speed_up
    from informin.search.index import Index
    from modeling_informin import BertForInforMinCL, RobertaForInforMinCL
    from trainer_informin import InforMinTrainer, InforMinTrainingArguments

__version__ = "0.3.0"
_MODULES = {
    "BertForInforMinCL": "modeling_informin",
    "Index": "informin.search.index",
    "InforMinTrainer": "trainer_informin",
    "InforMinTrainingArguments": "trainer_informin",
    "LinearAdapter": "informin.adapters.linear",
    "RobertaForInforMinCL": "modeling_informin",
    "distill": "informin.jobs.distill",
    "embed": "informin.jobs.embed",
    "evaluate": "informin.jobs.evaluate",
    "fit": "informin.jobs.fit",
    "load_model": "informin.models.opening",
    "speed_up": "informin.models.speed",
}
__all__ = [
    "BertForInforMinCL",
    "Index",
    "InforMinTrainer",
    "InforMinTrainingArguments",
    "LinearAdapter",
    "RobertaForInforMinCL",
    "distill",
    "embed",
    "evaluate",
    "fit",
    "load_model",
    "speed_up",
]


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
