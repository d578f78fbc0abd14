"""The folder that people load: weights, configuration, tokenizer, modeling file; no leftovers of training."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from informin.loading import InforMinModel, forget_truncation


def export_folder(model: InforMinModel, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
    """Writes the trained encoder and its projection head; the language-model head is dropped from `model`."""
    model.remove_lm_head()
    model.save_pretrained(folder)
    forget_truncation(tokenizer)
    tokenizer.save_pretrained(folder)
