"""Options without effect are rejected."""

import json

import pytest

from informin.training.options import InforMinTrainingArguments
from tests.conftest import raises_usage, resolve_for

GUIDE_OPTIONS = "guided_weight, neighbor_weight, distillation_weight, replay_weight"
NEEDS_GUIDE = (
    "with `guided_weight` above 0 also student_temperature, guide_temperature, guided_neighbors; "
    "with `neighbor_weight` above 0 also neighbor_count; with `replay_weight` above 0 also replay_size; "
)
NEEDS_FRACTION = "with `false_negative_fraction` above 0 also false_negative_weight, false_negative_similarity; "
USED = {  # options listed in the message: those in use, then those that a weight above 0 would add
    "scd": (
        "view_dropout, self_contrast_weight, self_contrast_form, decorrelation_weight, off_diagonal_weight, "
        f"projector_size, {GUIDE_OPTIONS}, mlm_weight; {NEEDS_GUIDE}"
        "with `mlm_weight` above 0 also mlm_probability, masked_views"
    ),
    "micse": (
        "view_dropout, temperature, false_negative_fraction, queue_size, momentum_decay, momentum_dropout, "
        f"attention_mi_weight, attention_mi_form, attention_mi_layers, reconstruction_weight, "
        f"{GUIDE_OPTIONS}, mlm_weight; {NEEDS_FRACTION}"
        f"with `reconstruction_weight` above 0 also reconstruction_form; {NEEDS_GUIDE}"
        "with `mlm_weight` above 0 also mlm_probability, masked_views"
    ),
    "simcse": (
        f"view_dropout, temperature, false_negative_fraction, queue_size, attention_mi_weight, "
        "self_contrast_weight, decorrelation_weight, "
        f"{GUIDE_OPTIONS}, mlm_weight; {NEEDS_FRACTION}"
        "with `queue_size` above 0 also momentum_decay, momentum_dropout; "
        "with `attention_mi_weight` above 0 also attention_mi_form, attention_mi_layers; "
        "with `self_contrast_weight` above 0 also self_contrast_form; "
        f"with `decorrelation_weight` above 0 also off_diagonal_weight, projector_size; {NEEDS_GUIDE}"
        "with `mlm_weight` above 0 also mlm_probability, masked_views"
    ),
}
UNUSED = [
    ("scd", "temperature", 0.1, USED["scd"]),
    ("scd", "queue_size", 8, USED["scd"]),
    ("simcse", "false_negative_weight", 0.5, USED["simcse"]),
    ("micse", "false_negative_similarity", "model", USED["micse"]),
    ("scd", "attention_mi_layers", [0, 1], USED["scd"]),
    ("scd", "reconstruction_weight", 0.4, USED["scd"]),
    ("scd", "mlm_probability", 0.3, USED["scd"]),
    ("micse", "self_contrast_form", "reference", USED["micse"]),
    ("micse", "decorrelation_weight", 0.1, USED["micse"]),
    ("micse", "reconstruction_form", "squared_l2", USED["micse"]),
    ("simcse", "momentum_dropout", 0.1, USED["simcse"]),
    ("simcse", "attention_mi_form", "reference", USED["simcse"]),
    ("simcse", "projector_size", 64, USED["simcse"]),
    ("simcse", "reconstruction_form", "unit_squared_l2", USED["simcse"]),
    ("simcse", "masked_views", True, USED["simcse"]),
]


@pytest.mark.parametrize("objective, name, value, read", UNUSED)
def test_options_without_effect_are_rejected(options, tmp_path, objective, name, value, read):
    """On the command line, in YAML and from Python."""
    words = [str(item) for item in value] if isinstance(value, list) else [str(value)]
    calls = [
        lambda: options(f"--objective={objective}", f"--{name}", *words),
        lambda: options(f"--objective={objective}", yaml=f"{name}: {json.dumps(value)}"),
        lambda: InforMinTrainingArguments(str(tmp_path), use_cpu=True, objective=objective, **{name: value}),
    ]
    for call in calls:
        with raises_usage(option=name, found=f"{value} has no effect with `objective` {objective}") as error:
            call()
        assert error.value.fix == f"Options in use: {read}."


@pytest.mark.parametrize(
    "argv, expected",
    [
        (["--objective=scd", "--queue_size=0", "--reconstruction_weight=0", "--masked_views=false"], {"queue_size": 0}),
        (["--objective=micse", "--decorrelation_weight=0"], {"attention_mi_weight": 2.5e-3}),
        (
            ["--objective=micse", "--queue_size=0", "--attention_mi_weight=0"],
            {"queue_size": 0, "attention_mi_weight": 0},
        ),
        (
            ["--objective=simcse", "--queue_size=8", "--momentum_decay=0.9"],
            {"momentum_decay": 0.9, "attention_mi_weight": 0},
        ),
        (
            ["--objective=simcse", "--attention_mi_weight=1", "--attention_mi_layers", "7", "9"],
            {"attention_mi_layers": [7, 9]},
        ),
        (["--decorrelation_weight=0.1", "--projector_size=64"], {"projector_size": 64, "reconstruction_weight": 0.4}),
        (["--objective=scd", "--decorrelation_weight=0"], {"decorrelation_weight": 0, "self_contrast_weight": 1.0}),
    ],
)
def test_options_in_use_and_zeros_are_accepted(options, argv, expected):
    found = options(*argv)
    assert {name: found[name] for name in expected} == expected


GENERAL = {  # of transformers
    **dict(label_smoothing_factor=0.1, label_names=["row"], average_tokens_across_devices=False, use_cache=True),
    **dict(use_liger_kernel=True, do_predict=True, prediction_loss_only=True),
    **dict(eval_do_concat_batches=False, eval_use_gather_object=True, eval_accumulation_steps=2),
    **dict(include_for_metrics=["loss"], batch_eval_metrics=True, bf16_full_eval=True, fp16_full_eval=True),
    **dict(activation_checkpointing_kwargs={"use_reentrant": False}, length_column_name="n"),
    **dict(gradient_checkpointing_kwargs={"use_reentrant": False}),
    **dict(dataloader_persistent_workers=True, dataloader_prefetch_factor=2),
}
KNOWN = InforMinTrainingArguments.__dataclass_fields__  # transformers 5.20 lacks one of these options
GENERAL = {name: value for name, value in GENERAL.items() if name in KNOWN}


@pytest.mark.parametrize("name", GENERAL)
@pytest.mark.parametrize("how", ["class", "yaml"])
def test_options_of_transformers_without_effect_are_rejected(options, name, how):
    with raises_usage(option=name, found="which has no effect", fix="Leave it out."):
        if how == "class":
            InforMinTrainingArguments(use_cpu=True, **{name: GENERAL[name]})
        else:
            options(yaml=f"{name}: {json.dumps(GENERAL[name])}")


def test_options_of_liger_are_rejected():  # which the command line cannot parse
    with raises_usage(option="liger_kernel_config", found="which has no effect"):
        InforMinTrainingArguments(use_cpu=True, liger_kernel_config={"rope": True})


@pytest.mark.parametrize(
    "given, name",
    [
        (dict(eval_strategy="epoch", eval_steps=5), "eval_steps"),
        (dict(logging_strategy="epoch", logging_steps=5), "logging_steps"),
        (dict(eval_strategy="no", metric_for_best_model="spearman"), "metric_for_best_model"),
        (dict(save_strategy="epoch", save_steps=5, load_best_model_at_end=False), "save_steps"),
        (dict(save_strategy="no", save_steps=5, load_best_model_at_end=False), "save_steps"),
        (dict(save_strategy="best", save_steps=5), "save_steps"),
    ],
)
def test_options_without_effect_with_another_option_are_rejected(given, name):
    with raises_usage(option=name, found="no effect with"):
        InforMinTrainingArguments(use_cpu=True, **given)


def test_a_batch_size_that_changes_during_the_run_is_rejected():
    with raises_usage(option="auto_find_batch_size", found="the number of negatives", fix="gradient_cache_chunk_size"):
        InforMinTrainingArguments(use_cpu=True, auto_find_batch_size=True)


@pytest.mark.parametrize(
    "given, name",
    [
        (dict(eval_strategy="epoch", save_strategy="steps"), "save_strategy"),
        (dict(eval_strategy="epoch", save_strategy="steps", save_steps=1), "save_strategy"),
        (dict(eval_strategy="epoch", save_steps=1), "save_steps"),
        (dict(eval_strategy="epoch", save_strategy="no"), "save_strategy"),
        (dict(save_strategy="epoch"), "save_strategy"),
        (dict(save_strategy="no"), "save_strategy"),
    ],
)
def test_evaluations_without_a_checkpoint_to_load_are_rejected(given, name):
    with raises_usage(
        option=name, found="the best model may have no checkpoint", fix="`load_best_model_at_end` to false"
    ):
        InforMinTrainingArguments(use_cpu=True, **given)
    allowed = InforMinTrainingArguments(use_cpu=True, load_best_model_at_end=False, **given)
    assert allowed.save_steps == given.get("save_steps")


@pytest.mark.parametrize(
    "given, saved, steps",
    [
        ({}, "steps", 125),
        (dict(eval_steps=5), "steps", 5),
        (dict(eval_strategy="epoch"), "epoch", None),
        (dict(eval_strategy="epoch", save_strategy="best"), "best", None),
        (dict(eval_strategy="epoch", save_steps=3, load_best_model_at_end=False), "steps", 3),
        (dict(eval_strategy="no", save_strategy="epoch"), "epoch", None),
        (dict(save_strategy="best"), "best", None),
    ],
)
def test_checkpoints_are_saved_as_asked(model, given, saved, steps):
    args = resolve_for(InforMinTrainingArguments(use_cpu=True, **given), model())
    assert (args.save_strategy, args.save_steps) == (saved, steps)
    assert resolve_for(args, model()) == args
