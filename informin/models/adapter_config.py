"""Check adapter_config.json, the settings of low-rank matrices that are saved without their base model."""

import os

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from informin.errors import UsageError
from informin.files import hub_problem
from informin.models.checkpoint import Checkpoint
from informin.models.modules import joined
from informin.schema import FLAG, NUMBER, RATE, TEXT, Keys, Kind, list_of, one_of, or_none, problem

ADAPTER_CONFIG = "adapter_config.json"
RANK: Kind = (lambda value: type(value) is int and 1 <= value <= 10_000, "an integer from 1 to 10,000")
NAMES: Kind = (
    lambda value: value is None or isinstance(value, str) or list_of(TEXT)[0](value),
    "names of layers",
)
LAYERS: Kind = (
    lambda value: value is None or type(value) is int or list_of(NUMBER)[0](value),
    "numbers of layers",
)
# peft imports the module that `parent_library` names in some of its classes.
LIBRARY: Kind = (
    lambda value: isinstance(value, str) and value.partition(".")[0] in ("transformers", "sentence_transformers"),
    "a module of transformers",
)
# Settings of other methods must be off. Some of them name other models, or modules that peft imports.
OFF: Kind = (
    lambda value: value in (None, [], {}) or isinstance(value, bool) or NUMBER[0](value),
    "a number, or nothing",
)
ADAPTER = Keys(
    needed={"peft_type": one_of("LORA"), "base_model_name_or_path": TEXT},
    optional={
        "task_type": or_none(TEXT),
        "peft_version": or_none(TEXT),
        "revision": or_none(TEXT),
        "auto_mapping": Keys(optional={"base_model_class": TEXT, "parent_library": LIBRARY}, null=True),
        "bias": one_of("none", "all", "lora_only"),
        "r": RANK,
        "lora_dropout": RATE,
        "init_lora_weights": (lambda value: FLAG[0](value) or TEXT[0](value), "true, false or a name"),
        **dict.fromkeys(("target_modules", "exclude_modules", "modules_to_save", "target_parameters"), NAMES),
        "layers_pattern": NAMES,
        "layers_to_transform": LAYERS,
        "rank_pattern": Keys(others=RANK),
        "alpha_pattern": Keys(others=NUMBER),
        "megatron_core": one_of("megatron.core", None),
    },
    others=OFF,
)


def base_model(checkpoint: Checkpoint, path: str = "") -> str | None:
    """Return the base model that an adapter is loaded with, a name on the Hub; None if there is no adapter.

    Args:
        checkpoint: Files of the model.
        path: Folder of the module inside the model's folder.

    Raises:
        UsageError: The base model is a folder or does not exist, or a setting is not one of low-rank adaptation.
    """
    file = joined(path, ADAPTER_CONFIG)
    values = checkpoint.json(file)
    if not values:
        return None
    if found := problem(values, ADAPTER):
        fix = "Use an adapter that peft saved as LORA, or a model with merged weights."
        raise UsageError(f"{checkpoint}: {file}: {found}", option="model_name", fix=fix)
    base = values["base_model_name_or_path"]
    try:
        validate_repo_id(base)
        on_hub = not os.path.exists(base)  # a folder with this name would be loaded instead
    except HFValidationError:
        on_hub = False
    if not on_hub:
        raise UsageError(
            f"{checkpoint}: {file} names the base model {base!r:.300}, which is outside of the folder",
            option="model_name",
            needed="a base model on the Hub",
            fix="Merge the adapter into its base model, which `lora_merge` does after training.",
        )
    try:
        Checkpoint(base).path("config.json")
    except OSError as error:
        found = f"{checkpoint}: {file} names the base model {base}: {hub_problem(error.__cause__ or error)}"
        raise UsageError(found, option="model_name", needed="a base model that can be loaded") from None
    return base
