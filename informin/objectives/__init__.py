"""Training objectives. Each file defines one term; an objective is a weighted sum of terms."""

from informin.objectives.attention_mi import MICSE_ROWS, AttentionMI
from informin.objectives.contrast import SIMCSE_ROWS, Contrast
from informin.objectives.decorrelation import SCD_ROWS, Decorrelation, SelfContrast
from informin.objectives.distillation import Distillation, Replay
from informin.objectives.false_negatives import FalseNegatives
from informin.objectives.guided_similarity import GuidedSimilarity
from informin.objectives.masked_lm import MaskedLM
from informin.objectives.queue import Queue
from informin.objectives.reconstruction import INFORMIN_ROWS, Reconstruction
from informin.objectives.terms import Objective, Term, Views

GUIDED = (GuidedSimilarity, Distillation, Replay)  # terms that use a guide; available in every objective

# Values of the option `objective`.
OBJECTIVES = {
    "informin": Objective(
        "InforMin-CL",
        (Contrast, FalseNegatives, Queue, Reconstruction, AttentionMI, SelfContrast, Decorrelation, *GUIDED, MaskedLM),
        INFORMIN_ROWS,
    ),
    "simcse": Objective(
        "unsupervised SimCSE",
        (Contrast, FalseNegatives, Queue, AttentionMI, SelfContrast, Decorrelation, *GUIDED, MaskedLM),
        SIMCSE_ROWS,
    ),
    "scd": Objective("SCD", (SelfContrast, Decorrelation, *GUIDED, MaskedLM), SCD_ROWS, projection_head="none"),
    "micse": Objective(
        "miCSE", (Contrast, FalseNegatives, Queue, AttentionMI, Reconstruction, *GUIDED, MaskedLM), MICSE_ROWS
    ),
    "noncontrastive": Objective(
        "training without negatives", (Reconstruction, AttentionMI, Decorrelation, *GUIDED, MaskedLM)
    ),
    "guided": Objective(
        "guided training", (*GUIDED, Decorrelation, MaskedLM), projection_head="none", max_seq_length=None
    ),
}

__all__ = ["GUIDED", "OBJECTIVES", "Objective", "Term", "Views"]
