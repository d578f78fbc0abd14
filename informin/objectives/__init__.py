"""The terms of the losses, as pure functions of tensors, one idea a file."""

from informin.objectives.contrast import contrast
from informin.objectives.masked_lm import masked_lm
from informin.objectives.reconstruction import RECONSTRUCTION_FORMS, reconstruction

__all__ = ["RECONSTRUCTION_FORMS", "contrast", "masked_lm", "reconstruction"]
