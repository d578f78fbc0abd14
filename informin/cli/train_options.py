"""The options of `informin train`, and what they say about a run.

They are those of `InforMinTrainingArguments`, of the data and the model card, and the fields of the terms and views:
`--reconstruction_weight` sets `Reconstruction.weight`.
"""

import argparse
import functools
from collections.abc import Container, Sequence
from dataclasses import Field, dataclass, fields, replace
from types import UnionType
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from transformers import HfArgumentParser, TrainingArguments
from transformers.hf_argparser import string_to_bool

from informin.cli.train_names import check_names, given_options
from informin.errors import UsageError, error_line, one_line
from informin.objectives import PRESETS, TERMS, Term
from informin.objectives.presets import BERT_BASE, Encoder, Preset, active_terms
from informin.options import default_text
from informin.training.arguments import CardArguments, InforMinTrainingArguments
from informin.training.inputs import DataArguments, ModelArguments, SourceArguments, recipe_options
from informin.training.objective import view_of
from informin.views import VIEWS, View

# Options of transformers that are often used; `--help` shows them and ours.
OFTEN_USED = (
    "output_dir per_device_train_batch_size learning_rate num_train_epochs max_steps warmup_steps lr_scheduler_type "
    "weight_decay max_grad_norm gradient_accumulation_steps seed bf16 eval_strategy eval_steps save_steps "
    "logging_steps save_total_limit resume_from_checkpoint report_to push_to_hub hub_model_id"
).split()
EVALUATION_DATA = ("eval_pairs", "eval_labels", "eval_retrieval")
ARGUMENTS_OF_TRAINER = {"model_name": "model"}  # for what is not a training argument
ARGUMENTS_OF_TRAINER |= {declared.name: "train_dataset" for declared in fields(DataArguments)}
ARGUMENTS_OF_TRAINER |= dict.fromkeys((*EVALUATION_DATA, "senteval_dir"), "eval_dataset")
ARGUMENTS_OF_TRAINER |= {"text_column": "text_column"}
ARGUMENTS_OF_TRAINER |= {declared.name: "provenance" for declared in fields(CardArguments)}
OPTION_KINDS: list[type[Term] | type[View]] = [*TERMS, *VIEWS.values()]  # whose fields are options


@dataclass
class RunOptions:
    """What the options of a run say.

    Attributes:
        model_name: Encoder to train.
        data: Training and evaluation data.
        card: Facts for the model card.
        args: The training arguments.
        objective: The preset that `objective` names, with the terms as changed by the options.
        view: The view that `view` names, with its options.
    """

    model_name: str
    data: DataArguments
    card: CardArguments
    args: InforMinTrainingArguments
    objective: Preset
    view: View


class TrainParser(HfArgumentParser):
    """HfArgumentParser with the options of terms and views, and with errors of one line."""

    def __init__(self):
        dataclasses: Any = [ModelArguments, DataArguments, CardArguments, InforMinTrainingArguments]
        # Without a width, argparse asks for the size of the terminal at each of 220 options.
        formatter = functools.partial(argparse.HelpFormatter, width=80)
        how: Any = {"prog": "informin train", "add_help": False, "allow_abbrev": False, "formatter_class": formatter}
        super().__init__(dataclasses, **how)
        for kind in OPTION_KINDS:
            annotations = get_type_hints(kind)
            for declared in fields(kind):
                add_flag(self, kind, declared, annotations[declared.name])
        self.set_defaults(disable_tqdm=False)  # transformers turns bars off with its messages, which commands hide

    def help_lines(self) -> list[str]:
        """Return what `informin train --help` shows: `--option VALUES`, its help text and its type, between tabs.

        The type is int, float, bool, or choice for choices that do not depend on the version of transformers.
        """
        inherited = {declared.name for declared in fields(TrainingArguments)}
        inherited -= InforMinTrainingArguments.__annotations__.keys() | SourceArguments.__annotations__.keys()
        hidden = inherited - set(OFTEN_USED)
        lines = []
        for action in self._actions:
            if action.option_strings[0].startswith("--no_") or action.dest in hidden:
                continue
            values = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else "X"
            text = " ".join((action.help or "").split())
            if action.default not in (None, argparse.SUPPRESS) and "Default: " not in text:
                default = f"{action.default:g}" if isinstance(action.default, float) else str(action.default)
                text += f" Default: {default.lower() if isinstance(action.default, bool) else default}."
            flag = f"{action.option_strings[0]}{f' {values}' if action.nargs != 0 else ''}"
            kind = "bool" if action.type is string_to_bool else getattr(action.type, "__name__", "")
            if action.choices and action.dest not in inherited:
                kind = "choice"
            lines.append(f"{flag}\t{text}\t{kind if kind in ('int', 'float', 'bool', 'choice') else ''}")
        return lines

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {one_line(message)}. See --help.\n")


def add_flag(parser: argparse.ArgumentParser, kind: type[Term] | type[View], declared: Field, annotation: Any) -> None:
    """Add the option of a field of a term or a view. It is None unless it is given."""
    if get_origin(annotation) in (Union, UnionType):  # X | None
        annotation = get_args(annotation)[0]
    how: dict[str, Any] = {"type": annotation}
    if get_origin(annotation) is list:
        how = {"type": get_args(annotation)[0], "nargs": "+"}
    elif annotation is bool:
        how = {"type": string_to_bool, "nargs": "?", "const": True}  # `--masked_views` alone means true
    if "choices" in declared.metadata:
        how["choices"] = declared.metadata["choices"]
    text = f"{declared.metadata['help']} {default_of(kind, declared)}".rstrip()
    name = kind.option_name(declared.name)
    spellings = dict.fromkeys([name, name.replace("_", "-")])  # both, as for the options of transformers
    parser.add_argument(*(f"--{spelling}" for spelling in spellings), default=None, help=text, **how)


@functools.cache
def terms_of_presets() -> dict[str, list[Term]]:
    return {name: preset.terms(BERT_BASE) for name, preset in PRESETS.items()}


def default_of(kind: type[Term] | type[View], declared: Field) -> str:
    """Return the sentence of a help text about the default of a field: the papers' values, then the general one."""
    is_weight = issubclass(kind, Term) and declared.name == "weight"
    general = 0 if is_weight else declared.default
    published = {}
    for name, terms in terms_of_presets().items():
        for term in terms:
            value = getattr(term, declared.name) if isinstance(term, kind) else general
            if value != general:
                published[name] = f"{value:g}"
    if general == 0 and declared.type is not bool:
        explains_zero = "; 0 " in declared.metadata["help"]
        return default_text(published, "0" if explains_zero else "0 (off)")
    return default_text(published, None if general is None else str(general).lower())


def parse(argv: Sequence[str], options: dict[str, Any] | None = None) -> RunOptions:
    """Return the model's name and the options of a run.

    Precedence, highest first: the command line, the file that `recipe` names, `options`, the paper's values
    for the model, the default.

    Args:
        argv: Arguments of the command line, without the program's name.
        options: Values as in a YAML file.

    Raises:
        UsageError: An option is wrong.
        SystemExit: After `--help`, and if argparse refuses an argument.
    """
    parser = TrainParser()
    given = given_options(argv)
    check_names(given)
    files = {"options": options or {}} | {name: recipe_options(name) for name in given.get("recipe", [])[-1:]}
    for name, values in files.items():
        check_names(values, "recipe", f"{name}: ")
        parser.set_defaults(**values)
    try:
        parsed = parser.parse_args_into_dataclasses(argv, look_for_args_file=False, return_remaining_strings=True)
    except UsageError:
        raise
    except (ValueError, TypeError, ImportError) as error:  # from TrainingArguments
        raise UsageError(error_line(error), fix="See `informin train --help`.") from error
    model, data, card, args, others, unknown = parsed
    if unknown:
        raise UsageError(f"no such option: {' '.join(unknown)}", fix="See `informin train --help`.")
    if not model.model_name:
        raise UsageError("is missing", option="model_name", fix="For example: `model_name` bert-base-uncased.")
    check_evaluated(args.eval_strategy, given)
    flags = {name: value for name, value in vars(others).items() if value is not None}
    objective, view = objective_and_view(args, flags)
    return RunOptions(model_name=model.model_name, data=data, card=card, args=args, objective=objective, view=view)


def check_evaluated(eval_strategy: str, given: Container[str]) -> None:
    """Raise UsageError for evaluation data on the command line of a run that a recipe does not evaluate.

    Args:
        eval_strategy: When the run evaluates.
        given: Names of the options on the command line.
    """
    unread = [name for name in EVALUATION_DATA if name in given]
    if eval_strategy == "no" and unread and "eval_strategy" not in given:
        fix = "Set `eval_strategy` steps and `eval_steps`, too."
        raise UsageError("has no effect, because the recipe does not evaluate", option=unread[0], fix=fix)


def recipe(name: str, **options: Any) -> dict[str, Any]:
    """Return arguments of `InforMinTrainer` for a recipe: `args`, `objective` and `view`.

    Pass the model, the data and the facts for the card to the trainer. Those in the recipe have no effect.

    Args:
        name: A YAML file of options, or the name of one in informin/recipes.
        options: Options as on the command line, which override the recipe.

    Raises:
        UsageError: There is no such recipe, or an option is wrong or has no effect here.

    Example:
        >>> from informin import InforMinTrainer, recipe
        >>> how = recipe("adapt", output_dir="outputs/mine", max_steps=40)
        >>> how["args"].max_steps, how["args"].learning_rate
        (40, 5e-05)
        >>> trainer = InforMinTrainer("all-MiniLM-L6-v2", train_dataset=sentences, **how)  # doctest: +SKIP
    """
    for option, argument in ARGUMENTS_OF_TRAINER.items():
        if option in options:
            raise UsageError("has no effect here", option=option, fix=f"Pass `{argument}` to InforMinTrainer.")
    run = parse([], {"model_name": "given to the trainer"} | recipe_options(name) | options)
    return {"args": run.args, "objective": run.objective, "view": run.view}


def values_of(kind: type[Term] | type[View], flags: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a term or a view that flags set, by their name."""
    names = {kind.option_name(declared.name): declared.name for declared in fields(kind)}
    return {names[flag]: value for flag, value in flags.items() if flag in names}


def objective_and_view(args: InforMinTrainingArguments, flags: dict[str, Any]) -> tuple[Preset, View]:
    """Return the objective and the view that the arguments name, changed by the flags of terms and views.

    Raises:
        UsageError: A value is out of range, or has no effect.
    """
    objective = with_flags(PRESETS[args.objective], flags)
    kind = VIEWS[args.view or objective.view]
    view = view_of(objective, args.view, **values_of(kind, flags))
    refuse_unused_flags(flags, objective, view)
    return objective, view


def with_flags(preset: Preset, flags: dict[str, Any]) -> Preset:
    """Return a preset whose terms are changed by flags.

    A weight adds a term that the preset does not have. It replaces the terms of a preset without a paper, such as
    guided, which then has only the terms whose weights are given.
    """
    own = [type(term) for term in preset.terms(BERT_BASE)]
    added = [kind for kind in TERMS if kind not in own and values_of(kind, flags).get("weight")]
    is_replaced = added and not preset.papers

    def terms(encoder: Encoder) -> list[Term]:
        found = []
        for term in preset.terms(encoder):
            values = values_of(type(term), flags)
            if "weight" in values or not is_replaced:
                found.append(replace(term, **values))
        return found + [kind(**values_of(kind, flags)) for kind in added]

    return replace(preset, terms=terms, added=tuple(kind.name for kind in added))


def refuse_unused_flags(flags: dict[str, Any], objective: Preset, view: View) -> None:
    """Raise UsageError if a flag belongs to a term or a view that is not used. Zero and its own default pass."""
    used = set(view.options())
    for term in active_terms(objective, BERT_BASE):
        used |= set(term.options()) | {term.option_name("weight")}
    for kind in OPTION_KINDS:
        for declared in fields(kind):
            name = kind.option_name(declared.name)
            value = flags.get(name)
            if name not in used and value and value != declared.default:
                raise UsageError(
                    f"is {value}, which has no effect with `objective` {objective.name} and `view` {view.name}",
                    option=name,
                    fix="Leave it out, or set the weight of its term above 0.",
                )
