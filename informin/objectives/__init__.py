"""The terms of the losses, one idea a file, and the objectives that they add up to."""

from informin.objectives.attention_mi import MICSE_ROWS, AttentionMI
from informin.objectives.contrast import SIMCSE_ROWS, Contrast
from informin.objectives.decorrelation import SCD_ROWS, Decorrelation, SelfContrast
from informin.objectives.masked_lm import MaskedLM
from informin.objectives.queue import Queue
from informin.objectives.reconstruction import INFORMIN_ROWS, Reconstruction
from informin.objectives.terms import Objective, Term, Views

# What the option `objective` names.
OBJECTIVES = {
    "informin": Objective(
        "InforMin-CL", (Contrast, Queue, Reconstruction, AttentionMI, Decorrelation, MaskedLM), INFORMIN_ROWS
    ),
    "simcse": Objective("unsupervised SimCSE", (Contrast, Queue, AttentionMI, Decorrelation, MaskedLM), SIMCSE_ROWS),
    "scd": Objective("SCD", (SelfContrast, Decorrelation, MaskedLM), SCD_ROWS, projection_head="none"),
    "micse": Objective("miCSE", (Contrast, Queue, AttentionMI, Reconstruction, MaskedLM), MICSE_ROWS),
}

__all__ = ["OBJECTIVES", "Objective", "Term", "Views"]
