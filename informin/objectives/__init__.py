"""Training objectives. Each file defines one term; an objective is a weighted sum of terms."""

from informin.objectives.attention_mi import AttentionMI
from informin.objectives.contrast import Contrast
from informin.objectives.contrastive_tension import ContrastiveTension
from informin.objectives.decorrelation import Decorrelation, SelfContrast
from informin.objectives.denoising import Denoising
from informin.objectives.distillation import Distillation, Replay
from informin.objectives.guided_similarity import GuidedSimilarity
from informin.objectives.local_information import LocalInformation
from informin.objectives.masked_lm import MaskedLM
from informin.objectives.presets import PRESETS
from informin.objectives.reconstruction import Reconstruction
from informin.objectives.replaced_tokens import ReplacedTokens
from informin.objectives.term import Head, Term, Views
from informin.objectives.virtual_augmentation import VirtualAugmentation

# In the order in which the command line adds terms to an objective.
TERMS: list[type[Term]] = [
    Contrast,
    Reconstruction,
    AttentionMI,
    SelfContrast,
    Decorrelation,
    GuidedSimilarity,
    Distillation,
    Replay,
    MaskedLM,
    ContrastiveTension,
    Denoising,
    LocalInformation,
    ReplacedTokens,
    VirtualAugmentation,
]

__all__ = [
    "PRESETS",
    "TERMS",
    "AttentionMI",
    "Contrast",
    "ContrastiveTension",
    "Decorrelation",
    "Denoising",
    "Distillation",
    "GuidedSimilarity",
    "Head",
    "LocalInformation",
    "MaskedLM",
    "Reconstruction",
    "ReplacedTokens",
    "Replay",
    "SelfContrast",
    "Term",
    "Views",
    "VirtualAugmentation",
]
