"""Read the files that sentence-transformers writes next to a checkpoint."""

from dataclasses import replace

from transformers import PreTrainedConfig

from informin.errors import UsageError
from informin.models.checkpoint import Checkpoint, once
from informin.models.dense import dense_problem
from informin.models.embedding_config import EmbeddingConfig
from informin.models.modules import kind_of, listed_modules
from informin.models.settings import check_files

# Names of the supported poolings in sentence-transformers.
THEIR_POOLINGS = {
    **{"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"},
    **{"cls": "cls", "mean": "mean", "lasttoken": "last"},
}
KNOWN_MODULES = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
ADAPTED = ["Transformer", "Pooling", "Normalize", "Dense"]  # with a linear adapter, optionally followed by Normalize
# Keys in the file of the first module that are used or have no effect.
KNOWN_KEYS = ("max_seq_length", "do_lower_case", "model_args", "model_kwargs", "unpad_inputs")
# Other keys, which must have these values.
TRANSFORMER = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
# Older versions named that file after the architecture.
TRANSFORMER_FILES = (
    "sentence_bert_config.json",
    *(f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "albert")),
    *(f"sentence_{name}_config.json" for name in ("xlm-roberta", "xlnet")),
)


def load_embedding_config(checkpoint: Checkpoint, config: PreTrainedConfig) -> EmbeddingConfig:
    """Return how a checkpoint computes embeddings, by `config.informin` or else by its sentence-transformers files.

    Raises:
        UsageError: One of these files is damaged, or the linear adapter is missing.
    """
    from_files = _sentence_transformers(checkpoint)
    settings = getattr(config, "informin", None)
    own = EmbeddingConfig.from_settings(settings)
    if settings and own is not None and settings.get("adapter") and not from_files.adapter:
        raise UsageError(
            f"{checkpoint} has a linear adapter by its config.json, but modules.json or files of its Dense module are "
            "missing or changed",
            option="model_name",
            fix="Copy or download the whole folder again.",
        )
    return from_files if own is None else replace(own, files=own.files or from_files.files, adapter=from_files.adapter)


@once
def _sentence_transformers(checkpoint: Checkpoint) -> EmbeddingConfig:
    """Return the configuration that the files of sentence-transformers describe."""
    modules = listed_modules(checkpoint)
    if not modules:
        return EmbeddingConfig()
    prompt, files = stored_prompts(checkpoint)
    kinds = [kind_of(module["type"]) or str(module["type"]) for module in modules]
    adapter = modules[3]["path"] if kinds in (ADAPTED, [*ADAPTED, "Normalize"]) else None
    if adapter and dense_problem(checkpoint, adapter):
        adapter = None
    if not (adapter or kinds in KNOWN_MODULES) or modules[0]["path"]:
        unsupported = f"modules.json lists {', '.join(kinds)}, not all of which are supported"
        if "Dense" in kinds:
            values = checkpoint.json(f"{modules[kinds.index('Dense')]['path']}/config.json")
            sizes = [values.get(name) for name in ("in_features", "out_features")]
            change = f", and embeddings have {sizes[0]} dimensions instead of {sizes[1]}" if all(sizes) else ""
            unsupported += f"; a given pooling leaves out its Dense layer{change}"
        return EmbeddingConfig(prompt=prompt, files=files, problem=unsupported)
    more, transformer_problem = _transformer(checkpoint)
    files = files | more
    pooling, pooling_problem = _pooling(checkpoint.json(f"{modules[1]['path']}/config.json"))
    if problem := transformer_problem or pooling_problem:
        return EmbeddingConfig(prompt=prompt, files=files, problem=problem)
    return EmbeddingConfig(pooling, kinds[-1] == "Normalize", prompt, files, adapter=adapter)


@once
def stored_prompts(checkpoint: Checkpoint) -> tuple[str, dict]:
    """Return the default prompt, and the settings in the file with the prompts, such as `prompts` by name."""
    name = "config_sentence_transformers.json"
    values = checkpoint.json(name)
    check_files(checkpoint.name, name, values)
    prompts, default = values.get("prompts") or {}, values.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise UsageError(
            f"{checkpoint}: default_prompt_name in {name} is {default!r}",
            option="model_name",
            needed=f"one of its prompts: {', '.join(prompts) or 'none'}",
        )
    given = {"prompts": prompts, "default_prompt_name": default, "similarity_fn_name": values.get("similarity_fn_name")}
    return prompts.get(default, ""), {name: value for name, value in given.items() if value}


def _transformer(checkpoint: Checkpoint) -> tuple[dict, str | None]:
    """Return the settings in the file of the first module, and the problem with it."""
    name, values = checkpoint.first_json(TRANSFORMER_FILES)
    check_files(checkpoint.name, name, values)
    others = [key for key, value in values.items() if key not in KNOWN_KEYS and value and value != TRANSFORMER.get(key)]
    problem = f"{name} has {', '.join(others)}, which is not supported" if others else None
    return {key: values[key] for key in KNOWN_KEYS[:2] if values.get(key)}, problem


def _pooling(values: dict) -> tuple[str | None, str | None]:
    """Return the pooling that the file of the second module names, and the problem with it."""
    active = [name for name, on in values.items() if name.startswith("pooling_mode_") and on is True]
    mode = values.get("pooling_mode", active[0] if len(active) == 1 else None)
    pooling = THEIR_POOLINGS.get(mode) if isinstance(mode, str) else None
    if pooling is None:
        return None, f"its pooling is {mode or active}, which is not supported"
    if values.get("include_prompt") is False:
        return None, "its pooling leaves out the prompt, which is not supported"
    return pooling, None
