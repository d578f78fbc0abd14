"""InforMin-CL: unsupervised sentence embeddings as an extension of the Hugging Face Trainer.

The names in `__all__` are imported on first use, so `import informin` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from informin.cli.train_options import recipe as recipe
    from informin.evaluation.evaluate import evaluate as evaluate
    from informin.fast.speed import speed_up as speed_up
    from informin.frozen.adapter import LinearAdapter as LinearAdapter
    from informin.frozen.distill import distill as distill
    from informin.frozen.fit import fit as fit
    from informin.frozen.index import Index as Index
    from informin.frozen.near_duplicates import duplicates as duplicates
    from informin.model.embedding import embed as embed
    from informin.model.open import load_model as load_model
    from informin.objectives import AttentionMI as AttentionMI
    from informin.objectives import Contrast as Contrast
    from informin.objectives import ContrastiveTension as ContrastiveTension
    from informin.objectives import Decorrelation as Decorrelation
    from informin.objectives import Denoising as Denoising
    from informin.objectives import Distillation as Distillation
    from informin.objectives import GuidedSimilarity as GuidedSimilarity
    from informin.objectives import LocalInformation as LocalInformation
    from informin.objectives import MaskedLM as MaskedLM
    from informin.objectives import Reconstruction as Reconstruction
    from informin.objectives import ReplacedTokens as ReplacedTokens
    from informin.objectives import Replay as Replay
    from informin.objectives import SelfContrast as SelfContrast
    from informin.objectives import Term as Term
    from informin.objectives import VirtualAugmentation as VirtualAugmentation
    from informin.views import View as View
    from modeling_informin import BertForInforMinCL as BertForInforMinCL
    from modeling_informin import RobertaForInforMinCL as RobertaForInforMinCL
    from trainer_informin import InforMinTrainer as InforMinTrainer
    from trainer_informin import InforMinTrainingArguments as InforMinTrainingArguments


__version__ = "0.4.0.dev0"
_MODULES = {
    "AttentionMI": "informin.objectives",
    "BertForInforMinCL": "modeling_informin",
    "Contrast": "informin.objectives",
    "ContrastiveTension": "informin.objectives",
    "Decorrelation": "informin.objectives",
    "Denoising": "informin.objectives",
    "Distillation": "informin.objectives",
    "GuidedSimilarity": "informin.objectives",
    "Index": "informin.frozen.index",
    "InforMinTrainer": "trainer_informin",
    "InforMinTrainingArguments": "trainer_informin",
    "LinearAdapter": "informin.frozen.adapter",
    "LocalInformation": "informin.objectives",
    "MaskedLM": "informin.objectives",
    "Reconstruction": "informin.objectives",
    "ReplacedTokens": "informin.objectives",
    "Replay": "informin.objectives",
    "RobertaForInforMinCL": "modeling_informin",
    "SelfContrast": "informin.objectives",
    "Term": "informin.objectives",
    "View": "informin.views",
    "VirtualAugmentation": "informin.objectives",
    "distill": "informin.frozen.distill",
    "duplicates": "informin.frozen.near_duplicates",
    "embed": "informin.model.embedding",
    "evaluate": "informin.evaluation.evaluate",
    "fit": "informin.frozen.fit",
    "load_model": "informin.model.open",
    "recipe": "informin.cli.train_options",
    "speed_up": "informin.fast.speed",
}
__all__ = list(_MODULES)


def __getattr__(name: str):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    special = {name for name in globals() if name.startswith("__")}
    return sorted(special | set(__all__))
