"""The terms of the losses, as pure functions of tensors, one idea a file, and the objectives that they add up to."""

from informin.objectives.attention_mi import AMI_FORMS, ATTENTION_MI, attention_layers, attention_mi, check_tiles
from informin.objectives.contrast import CONTRAST, QUEUE, contrast
from informin.objectives.decorrelation import (
    DECORRELATION,
    SELF_CONTRAST,
    SELF_CONTRAST_FORMS,
    decorrelation,
    self_contrast,
)
from informin.objectives.masked_lm import MASKED_LM, masked_lm
from informin.objectives.reconstruction import RECONSTRUCTION, RECONSTRUCTION_FORMS, reconstruction
from informin.objectives.terms import Objective, Term, Views

# What --objective names.
OBJECTIVES = {
    "informin": Objective(
        "InforMin-CL",
        (CONTRAST, QUEUE, RECONSTRUCTION, ATTENTION_MI, DECORRELATION, MASKED_LM),
        {"reconstruction_weight": 0.4},
    ),
    "simcse": Objective("unsupervised SimCSE", (CONTRAST, QUEUE, ATTENTION_MI, DECORRELATION, MASKED_LM), {}),
    "scd": Objective(
        "SCD",
        (SELF_CONTRAST, DECORRELATION, MASKED_LM),
        {"self_contrast_weight": 1.0, "decorrelation_weight": 0.005, "view_dropout": [0.05, 0.15]},
        projection_head="none",
    ),
    "micse": Objective(
        "miCSE", (CONTRAST, QUEUE, ATTENTION_MI, RECONSTRUCTION, MASKED_LM), {"ami_weight": 2.5e-3, "queue_size": 384}
    ),
}

__all__ = [
    "AMI_FORMS",
    "OBJECTIVES",
    "RECONSTRUCTION_FORMS",
    "SELF_CONTRAST_FORMS",
    "Objective",
    "Term",
    "Views",
    "attention_layers",
    "attention_mi",
    "check_tiles",
    "contrast",
    "decorrelation",
    "masked_lm",
    "reconstruction",
    "self_contrast",
]
