"""How a checkpoint is used: pooled, scaled, prompted, cut; as its own settings say, or sentence-transformers' files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tokenizers.normalizers import Lowercase, Sequence
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from informin.encoders.dense import dense_problem
from informin.encoders.files import json_file, refuse_outside
from informin.encoders.settings import check_files
from informin.errors import UsageError, counted
from modeling_informin import POOLINGS

# sentence-transformers' names of the poolings that are offered here.
THEIR_POOLINGS = {
    **{"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"},
    **{"cls": "cls", "mean": "mean", "lasttoken": "last"},
}
KNOWN_MODULES = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
ADAPTED = ["Transformer", "Pooling", "Normalize", "Dense"]  # of a model with a linear adapter, then Normalize or not
# Of its first module's file: what is read here, or is of no consequence; and what else there may be, with this value.
READ = ("max_seq_length", "do_lower_case", "model_args", "model_kwargs", "unpad_inputs")
TRANSFORMER = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
# That file has had a name for each architecture.
TRANSFORMER_FILES = (
    "sentence_bert_config.json",
    *(f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta")),
)
KEPT = ("prompts", "default_prompt_name", "similarity_fn_name", "do_lower_case")  # whatever the pooling


@dataclass(frozen=True)
class Usage:
    """How the embedding of a sentence is read from an encoder.

    Attributes:
        pooling: of `POOLINGS`; None where nothing says, or something that is not known here.
        normalize: it is scaled to length 1.
        prompt: is put before every sentence.
        files: what else the files of sentence-transformers say, to be written again: `max_seq_length`,
            `do_lower_case`, `prompts`, `default_prompt_name`, `similarity_fn_name`.
        problem: why there is no pooling; None where there are no such files.
        training_prompt: the prompt of training, where it is another one; None where it is the same.
        adapter: Folder of the Dense module that maps the unit-length embedding; None for none.
    """

    pooling: str | None = None
    normalize: bool = False
    prompt: str = ""
    files: dict = field(default_factory=dict)
    problem: str | None = None
    training_prompt: str | None = None
    adapter: str | None = None

    def trained(self, pooler: str, prompt: str | None, export_prompt: bool = False) -> "Usage":
        """How the encoder is used in training, and afterwards.

        With another pooling than its own it is another encoder: its scaling and its length are not kept, its prompts
        and what else is of the text are.

        Args:
            pooler: of `POOLINGS`, or auto for its own; [CLS] where nothing says.
            prompt: of training; None for its own.
            export_prompt: the training prompt becomes the encoder's own prompt.

        Raises:
            UsageError: auto, and its files say something that is not known here.
        """
        if self.adapter:
            raise UsageError(
                "has a linear adapter, which training would leave out",
                option="model_name",
                fix="Train the model that the adapter was fitted on, then fit the adapter again.",
            )
        prompts = self._with_prompt(self.in_training.prompt if prompt is None else prompt, export_prompt)
        if pooler == "auto" and self.pooling is None and self.problem:
            raise UsageError(
                f"`pooler` auto: the encoder does not say how its sentence embedding is read ({self.problem}). Give "
                f"one of: `pooler` {', '.join(POOLINGS)}."
            )
        pooling = (self.pooling or "cls") if pooler == "auto" else pooler
        if pooling == self.pooling:
            return replace(self, **prompts)
        return Usage(pooling, **prompts, files={name: self.files[name] for name in KEPT if name in self.files})

    def _with_prompt(self, prompt: str, export_prompt: bool) -> dict[str, str | None]:
        own = prompt if export_prompt else self.prompt
        return {"prompt": own, "training_prompt": None if prompt == own else prompt}

    @property
    def in_training(self) -> "Usage":
        """How embeddings are read while the encoder is trained: after the training prompt."""
        if self.training_prompt is None:
            return self
        return replace(self, prompt=self.training_prompt, training_prompt=None)

    @property
    def settings(self) -> dict:
        """The same for `config.informin`, without what says nothing; `usage_of_settings` reads it again."""
        return {"pooling": self.pooling} | {
            name: value
            for name, value in (
                *(("normalize", self.normalize), ("prompt", self.prompt), ("training_prompt", self.training_prompt)),
                ("sentence_transformers", self.files),
            )
            if value or (name == "training_prompt" and value is not None)
        }


def usage_of_settings(settings: Mapping) -> Usage | None:
    """What `config.informin` says; None where it says nothing."""
    if not settings.get("pooling"):
        return None
    names = ("pooling", "normalize", "prompt", "training_prompt")
    own = {name: settings[name] for name in names if name in settings}
    return Usage(**own, files=settings.get("sentence_transformers", {}))


def usage_of(model_name: str, config: PreTrainedConfig, revision: str | None = None) -> Usage:
    """How a checkpoint says that it is used: its own settings, then the files of sentence-transformers beside it.

    Raises:
        UsageError: such a file is damaged.
    """
    theirs = _sentence_transformers(model_name, revision)
    own = usage_of_settings(getattr(config, "informin", None) or {})
    return theirs if own is None else replace(own, files=own.files or theirs.files, adapter=theirs.adapter)


def reading_length(longest: int, usage: Usage) -> int:
    """The most tokens that are read of a sentence, where the model can read `longest`."""
    return min(longest, usage.files.get("max_seq_length") or longest)


def lower_case(tokenizer: PreTrainedTokenizerBase, usage: Usage) -> None:
    """Has the tokenizer lower the case of what it reads, where the files of sentence-transformers ask for it."""
    backend = tokenizer.backend_tokenizer
    normalizer = json.dumps(json.loads(backend.to_str())["normalizer"])
    lowers = '"Lowercase"' in normalizer or '"lowercase": true' in normalizer
    if usage.files.get("do_lower_case") and not lowers:
        own = [backend.normalizer] if backend.normalizer else []
        backend.normalizer = Sequence([Lowercase(), *own])


def refuse_long_prompt(prompt: str, tokenizer: PreTrainedTokenizerBase, name: str, length: int) -> None:
    """UsageError where a prompt leaves no room for a word between the two special tokens.

    Args:
        name, length: the option that cuts sentences, and the tokens that it leaves.
    """
    tokens = len(tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"]) if prompt else 0
    if tokens and tokens + 3 > length:
        raise UsageError(
            f"`prompt` has {counted(tokens, 'token')}, which with a word and the two special tokens are more than "
            f"`{name}` {length}: nothing of a sentence would be read. Give a shorter one, or a `{name}` of "
            f"{tokens + 3} or more."
        )


def _sentence_transformers(model_name: str, revision: str | None) -> Usage:
    """What sentence-transformers' files say."""
    modules = json_file(model_name, "modules.json", revision, list)
    if not modules:
        return Usage()
    if not all(isinstance(module, dict) and {"type", "path"} <= module.keys() for module in modules):
        raise UsageError(f"`model_name` {model_name}: its modules.json does not say type and path of each module.")
    prompt, files = _prompts(model_name, revision)
    for module in modules:
        refuse_outside(model_name, module["path"], "modules.json")
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    adapter = modules[3]["path"] if kinds in (ADAPTED, [*ADAPTED, "Normalize"]) else None
    if adapter and dense_problem(model_name, adapter, revision):
        adapter = None
    if not (adapter or kinds in KNOWN_MODULES) or modules[0]["path"]:
        problem = f"its modules.json lists {', '.join(kinds)}, of which not all are known here"
        problem += _dense(model_name, modules, kinds, revision)
        return Usage(prompt=prompt, files=files, problem=problem)
    more, problem = _transformer(model_name, revision)
    files |= more
    pooling, pooling_problem = _pooling(json_file(model_name, f"{modules[1]['path']}/config.json", revision))
    if problem := problem or pooling_problem:
        return Usage(prompt=prompt, files=files, problem=problem)
    return Usage(pooling, kinds[-1] == "Normalize", prompt, files, adapter=adapter)


def _dense(model_name: str, modules: list[dict], kinds: list[str], revision: str | None) -> str:
    """What is lost without a Dense module, which changes the dimension."""
    if "Dense" not in kinds:
        return ""
    values = json_file(model_name, f"{modules[kinds.index('Dense')]['path']}/config.json", revision)
    sizes = [values.get(name) for name in ("in_features", "out_features")]
    change = f", and embeddings have {sizes[0]} numbers in place of {sizes[1]}" if all(sizes) else ""
    return f": a pooling given here leaves out its Dense layer{change}"


def _prompts(model_name: str, revision: str | None) -> tuple[str, dict]:
    """The text that is put before every sentence, and what the file with the prompts says."""
    name = "config_sentence_transformers.json"
    values = json_file(model_name, name, revision)
    prompts, default = values.get("prompts") or {}, values.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise UsageError(f"`model_name` {model_name}: prompts in its {name} are no texts by name.")
    if default is not None and default not in prompts:
        raise UsageError(
            f"`model_name` {model_name}: default_prompt_name in its {name} is {default!r}, and its prompts are "
            f"{', '.join(prompts) or 'none'}."
        )
    check_files(model_name, name, values)
    said = {"prompts": prompts, "default_prompt_name": default, "similarity_fn_name": values.get("similarity_fn_name")}
    return prompts.get(default, ""), {name: value for name, value in said.items() if value}


def _transformer(model_name: str, revision: str | None) -> tuple[dict, str | None]:
    """What the file of the first module says, and the problem with it."""
    name, values = "", {}
    for name in TRANSFORMER_FILES:
        if values := json_file(model_name, name, revision):
            break
    check_files(model_name, name, values)
    others = [key for key, value in values.items() if key not in READ and value and value != TRANSFORMER.get(key)]
    problem = f"its {name} has {', '.join(others)}, not known here" if others else None
    return {key: values[key] for key in READ[:2] if values.get(key)}, problem


def _pooling(values: dict) -> tuple[str | None, str | None]:
    """The pooling that the file of the second module names, and the problem with it."""
    active = [name for name, on in values.items() if name.startswith("pooling_mode_") and on is True]
    mode = values.get("pooling_mode", active[0] if len(active) == 1 else None)
    pooling = THEIR_POOLINGS.get(mode) if isinstance(mode, str) else None
    if pooling is None:
        return None, f"its pooling is {mode or active}, which is not known here"
    if values.get("include_prompt") is False:
        return None, "its pooling leaves out the prompt, which is not done here"
    return pooling, None
