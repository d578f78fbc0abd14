"""Published hyper-parameters by architecture and size: InforMin-CL's table 3 and SimCSE's own rows."""

from dataclasses import dataclass

from transformers import PreTrainedConfig


@dataclass(frozen=True)
class PaperRow:
    """One row: the batch over all processes, the learning rate, and lambda (None where the objective has none)."""

    name: str
    batch_size: int
    learning_rate: float
    reconstruction_weight: float | None = None


ROWS = {
    "informin": {  # Chen et al. (2022), table 3
        ("bert", 768): PaperRow("InforMin-CL, table 3, bert-base", 128, 3e-5, 0.4),
        ("roberta", 768): PaperRow("InforMin-CL, table 3, roberta-base", 128, 1e-5, 4.0),
        ("roberta", 1024): PaperRow("InforMin-CL, table 3, roberta-large", 128, 3e-5, 4.0),
    },
    "simcse": {  # Gao et al. (2021), appendix A
        ("bert", 768): PaperRow("SimCSE, appendix A, bert-base", 64, 3e-5),
        ("bert", 1024): PaperRow("SimCSE, appendix A, bert-large", 64, 1e-5),
        ("roberta", 768): PaperRow("SimCSE, appendix A, roberta-base", 512, 1e-5),
        ("roberta", 1024): PaperRow("SimCSE, appendix A, roberta-large", 512, 3e-5),
    },
}


def paper_row(objective: str, config: PreTrainedConfig) -> PaperRow:
    """The row for a model's architecture and width; its architecture's base row where there is none."""
    rows = ROWS[objective]
    return rows.get((config.model_type, config.hidden_size), rows[config.model_type, 768])
