"""Published hyper-parameters by architecture and size."""

from dataclasses import dataclass, field

from transformers import PreTrainedConfig


@dataclass(frozen=True)
class PaperRow:
    """One row: the batch over all processes, the learning rate, and other options where the paper names them."""

    name: str
    batch_size: int
    learning_rate: float
    options: dict = field(default_factory=dict)


ROWS = {
    "informin": {  # Chen et al. (2022), table 3
        ("bert", 768): PaperRow("InforMin-CL, table 3, bert-base", 128, 3e-5, {"reconstruction_weight": 0.4}),
        ("roberta", 768): PaperRow("InforMin-CL, table 3, roberta-base", 128, 1e-5, {"reconstruction_weight": 4.0}),
        ("roberta", 1024): PaperRow("InforMin-CL, table 3, roberta-large", 128, 3e-5, {"reconstruction_weight": 4.0}),
    },
    "simcse": {  # Gao et al. (2021), appendix A
        ("bert", 768): PaperRow("SimCSE, appendix A, bert-base", 64, 3e-5),
        ("bert", 1024): PaperRow("SimCSE, appendix A, bert-large", 64, 1e-5),
        ("roberta", 768): PaperRow("SimCSE, appendix A, roberta-base", 512, 1e-5),
        ("roberta", 1024): PaperRow("SimCSE, appendix A, roberta-large", 512, 3e-5),
    },
    "scd": {  # Klein and Nabi (2022), section 4
        ("bert", 768): PaperRow(
            "SCD, section 4, bert-base",
            *(192, 3e-5),
            {"decorrelation_weight": 0.005, "off_diagonal_weight": 0.013, "view_dropout": [0.05, 0.15]},
        ),
        ("roberta", 768): PaperRow(
            "SCD, section 4, roberta-base",
            *(192, 3e-5),
            {"decorrelation_weight": 0.0033, "off_diagonal_weight": 0.028, "view_dropout": [0.065, 0.24]},
        ),
    },
    "micse": {  # Klein and Nabi (2023), section 4
        ("bert", 768): PaperRow(
            "miCSE, section 4, bert-base", 50, 3e-5, {"warmup_steps": 250, "ami_weight": 2.5e-3, "queue_size": 384}
        ),
    },
}


def paper_row(objective: str, config: PreTrainedConfig) -> PaperRow | None:
    """The row for a model's architecture and width, else the objective's nearest: its base row, then BERT-base's.

    None for an objective without published values.
    """
    rows = ROWS.get(objective, {})
    keys = [(config.model_type, config.hidden_size), (config.model_type, 768), ("bert", 768)]
    return next((rows[key] for key in keys if key in rows), None)
