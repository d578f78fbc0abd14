"""Options and batches for tests of all objectives."""

SCD = dict(objective="scd", projector_size=16)
MICSE = dict(objective="micse", queue_size=24)
NONCONTRASTIVE = dict(
    objective="noncontrastive",
    reconstruction_weight=1,
    reconstruction_form="unit",
    attention_mi_weight=0.5,
)
EVERYTHING = dict(
    **dict(
        objective="informin",
        reconstruction_weight=0.7,
        reconstruction_form="paper",
        attention_mi_weight=0.3,
        attention_mi_layers=[0, 1],
        queue_size=24,
    ),
    **dict(decorrelation_weight=0.2, projector_size=8, off_diagonal_weight=0.1, mlm_weight=0.2),
    **dict(view_dropout=[0.1, 0.3], temperature=0.1, attention_mi_form="code"),
)
SCD_ROWS = {  # Klein and Nabi (2022), section 3.1
    "bert": dict(view_dropout=[0.05, 0.15], decorrelation_weight=0.005, off_diagonal_weight=0.013),
    "roberta": dict(view_dropout=[0.065, 0.24], decorrelation_weight=0.0033, off_diagonal_weight=0.028),
}
