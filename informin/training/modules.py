"""Create the module in training, and save and load it: a class of `modeling_informin`, or a SentenceTransformer.

A BERT or RoBERTa is saved by Trainer. Checkpoints of another SentenceTransformer are in its own format, with up to two
further files.
"""

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoModelForMaskedLM, set_seed

from informin.errors import UsageError, counted
from informin.models.dropouts import DROPOUTS, own_dropouts
from informin.models.opening import SAFE, load_model
from informin.models.pooling import NAMES
from informin.training.active_objective import ActiveObjective
from informin.training.lora import add_lora
from informin.training.wrapper import LanguageModelHead, SentenceTransformerForInforMinCL
from informin.views.attention import set_dropout
from modeling_informin import CLASSES, SOURCE_SETTINGS, ProjectionHead

if TYPE_CHECKING:
    from informin.training.model import TrainedModel

HEADS_FILE = "heads.safetensors"  # in checkpoints: the projection head, the language-model head, and those of the terms
TRAINED_FILE = "trained.safetensors"  # with LoRA: all weights that training changes, in checkpoints


# BERT and RoBERTa


def build_native(model: "TrainedModel", args: Any, objective: ActiveObjective, settings: dict[str, Any]) -> Any:
    """Return a module of a class of `modeling_informin`, which becomes the encoder of the finished model.

    Args:
        model: The model.
        args: `InforMinTrainingArguments`.
        objective: What the run trains with.
        settings: What `config.informin` records.
    """
    config = copy.deepcopy(model.config)
    config.output_hidden_states = config.output_attentions = False
    config.update(own_dropouts(getattr(config, "informin", None)))  # if this is a checkpoint
    config.informin = settings | {"pooling": NAMES[model.st[1].pooling_mode]} | _settings_of_files(model.st)
    rate = objective.dropout
    if rate is not None:
        config.informin["dropouts"] = {name: getattr(config, name) for name in DROPOUTS}
        config.update(dict.fromkeys(DROPOUTS, rate))
    option = objective.needs(args).get("lm_head", "mlm_weight")
    set_seed(args.seed)  # for newly initialized heads
    if model.given is None:
        module = _from_source(model, CLASSES[config.model_type], option, config=config)
    else:
        module = _prepared(model.given, config, rate, option)
    # save_pretrained leaves tied weights out anyway. Listed here, Trainer does not warn about them.
    module._keys_to_ignore_on_save = set(module.all_tied_weights_keys)
    model.st[0].model = module.base_model
    model.st[0].processor = model.tokenizer
    model.tokenizer.padding_side = "right"
    return module


def _prepared(module: Any, config: Any, rate: float | None, option: str) -> Any:
    """Return an object of our classes with the configuration, the heads and the dropout rate that a run needs."""
    module.float()
    has_lm_head = module.config.informin["lm_head"]
    if config.informin["lm_head"] and not has_lm_head:
        raise UsageError(
            "The model was built without its language-model head",
            option=option,
            fix='Load it with `config.informin = {"lm_head": True}`, or pass its name.',
        )
    config.informin["lm_head"] = has_lm_head
    if config.informin["projection_head"] == "none":
        module.mlp = None
    elif not isinstance(getattr(module, "mlp", None), ProjectionHead):
        module.mlp = ProjectionHead(config.hidden_size)
        module.mlp.apply(module._init_weights)
    if rate is not None:
        set_dropout(module.base_model, rate)
    module.config.update({name: getattr(config, name) for name in DROPOUTS})
    module.config.informin = config.informin
    return module


def _settings_of_files(st: Any) -> dict[str, Any]:
    """Return the settings that a checkpoint needs to be a SentenceTransformer; see `modeling_informin`."""
    prompts = {name: text for name, text in st.prompts.items() if text}
    values = {"max_seq_length": st.max_seq_length, "do_lower_case": st[0].do_lower_case, "prompts": prompts}
    values |= {"default_prompt_name": st.default_prompt_name, "similarity_fn_name": st._similarity_fn_name}
    files = {name: values[name] for name in SOURCE_SETTINGS if values[name]}
    return {"sentence_transformers": files} | ({"normalize": True} if len(st) > 2 else {})


# Other models


def build_wrapper(model: "TrainedModel", args: Any, objective: ActiveObjective, settings: dict[str, Any]) -> Any:
    """Return a module around all modules of the finished model, with LoRA if it is asked for; see `build_native`."""
    st, lora = model.st, args.lora_r is not None
    if objective.dropout is not None:
        set_dropout(st[0].auto_model, objective.dropout)
    if lora:
        if args.bf16:
            st.to(torch.bfloat16)
        add_lora(st, args)
    for weight in st.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(torch.float32, copy=lora)  # with LoRA, those of an object in memory stay
    model.config.informin = settings | {"pooling": "st", "lora": lora}
    set_seed(args.seed)  # for newly initialized heads
    lm_head = _lm_head(model, objective.needs(args)["lm_head"]) if settings["lm_head"] else None
    return SentenceTransformerForInforMinCL(st, model.config, lm_head)


def _lm_head(model: "TrainedModel", option: str) -> LanguageModelHead:
    """Return the pretrained language-model head of a model.

    Raises:
        UsageError: transformers has no such class for the model, or the source lacks the weights.
    """
    encoder = model.st[0].auto_model
    if type(encoder.config) not in MODEL_FOR_MASKED_LM_MAPPING or not model.is_stored:
        raise UsageError(
            f"needs a pretrained language-model head, which transformers does not have for {model.name}",
            option=option,
            fix=f"Set `{option}` to 0, or use an encoder that was trained with masked language modeling.",
        )
    return LanguageModelHead(_from_source(model, AutoModelForMaskedLM, option), encoder)


def _from_source(model: "TrainedModel", kind: Any, option: str, **config: Any) -> Any:
    """Return a model of transformers with the weights of the source.

    Args:
        model: The model in training.
        kind: Class of transformers, or of `modeling_informin`.
        option: The option that asks for a language-model head.
        config: `config`, if it is not that of the source.
    """
    loaded, report = kind.from_pretrained(
        model.name,
        revision=model.source.revision,
        dtype=torch.float32,
        output_loading_info=True,
        trust_remote_code=False,
        **config,
        **SAFE,
    )
    missing = sorted(name for name in report["missing_keys"] if ".pooler." not in f".{name}")
    if missing:
        raise UsageError(
            f"{model.name} lacks {counted(len(missing), 'weight')} that the objective needs, such as {missing[0]}",
            option="model_name",
            fix=f"Use a checkpoint with a language-model head, or set `{option}` to 0.",
        )
    return loaded


def save_wrapper(model: "TrainedModel", folder: str | Path, module: Any = None) -> None:
    """Write a checkpoint of a SentenceTransformer; `module` has whole weights, if they are sharded."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model.finished(module).save_pretrained(str(folder), create_model_card=False)
    trained = module or model.module
    shared = {id(weight) for weight in trained.st.parameters()}  # such as the decoder of the language-model head
    others = trained.state_dict(keep_vars=True).items()
    heads = {name: x.data for name, x in others if not name.startswith("st.") and id(x) not in shared}
    if heads:
        save_file(heads, folder / HEADS_FILE, {"format": "pt"})
    if model.has_lora:
        weights = {name: x.data for name, x in trained.named_parameters() if x.requires_grad}
        save_file(weights, folder / TRAINED_FILE, {"format": "pt"})


def load_wrapper(model: "TrainedModel", folder: str | Path) -> None:
    """Load the weights of such a checkpoint."""
    if model.has_lora:
        model.module.load_state_dict(load_file(Path(folder, TRAINED_FILE)), strict=False)
    else:
        # A checkpoint has BERT's own pooler, even if the model was opened without it.
        saved = load_model(folder, device="cpu", trust_remote_code=model.trusts_code).state_dict()
        missing = model.st.load_state_dict(saved, strict=False).missing_keys
        if missing := [name for name in missing if ".pooler." not in name]:
            raise UsageError(f"{folder} lacks weights, such as {missing[0]}", fix="Use another checkpoint.")
    if Path(folder, HEADS_FILE).exists():
        model.module.load_state_dict(load_file(Path(folder, HEADS_FILE)), strict=False)
