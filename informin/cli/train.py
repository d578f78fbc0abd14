"""`informin train`: train sentence embeddings on unlabeled text.

The options are those of `InforMinTrainingArguments`, of the data and the model card, and the fields of the terms and
views: `--reconstruction_weight` sets `Reconstruction.weight`.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import Field, dataclass, fields, replace
from types import UnionType
from typing import TYPE_CHECKING, Any, Optional, Union, get_args, get_origin, get_type_hints

from transformers import HfArgumentParser, TrainingArguments
from transformers.hf_argparser import string_to_bool

from informin import program
from informin.errors import UsageError, error_line
from informin.objectives import PRESETS, TERMS, Term
from informin.objectives.objective import active_terms
from informin.objectives.presets import BERT_BASE, Encoder, Preset
from informin.objectives.terms import option
from informin.option_types import checks_options
from informin.training.options import CardArguments, DataArguments, InforMinTrainingArguments
from informin.training.recipes import recipe_options
from informin.views import VIEWS, View

if TYPE_CHECKING:
    from trainer_informin import InforMinTrainer

logger = logging.getLogger(__name__)

# Options of transformers that are often used; `--help` shows them and ours.
OFTEN_USED = (
    "output_dir per_device_train_batch_size learning_rate num_train_epochs max_steps warmup_steps lr_scheduler_type "
    "weight_decay max_grad_norm gradient_accumulation_steps seed bf16 eval_strategy eval_steps save_steps "
    "logging_steps save_total_limit resume_from_checkpoint report_to push_to_hub hub_model_id"
).split()
OPTION_KINDS: list[type[Term] | type[View]] = [*TERMS, *VIEWS.values()]  # whose fields are options


def main(argv: list[str] | None = None) -> int:
    """Train one model.

    Returns:
        The exit code: 0, 1 (NaN loss, failed save or push), 2 (usage error), or 128 + signal.
    """
    argv = sys.argv[1:] if argv is None else argv
    options = Parser().option_names()
    return program.exit_code(lambda: run(argv), options, "Nothing was saved since the last checkpoint.")


def run(argv: list[str]) -> int:
    """Parse the options, load the data, train, export, and print the report. Returns the exit code."""
    given = parse(argv)
    check_inputs(given)
    trainer = new_trainer(given)
    received = train(trainer)
    if received:
        return 128 + received
    trainer.export(report=False)  # first, so that the model exists whatever happens next
    trainer.report(senteval_dir=given.data.senteval_dir)
    page = trainer.push_to_hub() if trainer.args.push_to_hub else None
    if page:
        print(f"\nThe model is at {page}")
    return 0


def new_trainer(given: "Given") -> "InforMinTrainer":
    """Load the data, and return the trainer of a run."""
    import datasets

    from informin.distributed import first_of_machine_first
    from informin.training.record import provenance
    from informin.training.sentences import load_development, load_sentences
    from trainer_informin import InforMinTrainer

    if os.environ.get("RANK", "0") != "0":
        logging.getLogger("informin").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    if given.args.gradient_accumulation_steps > 1:
        logger.warning("Gradient accumulation adds no negatives: each batch is contrasted only with itself.")
    with first_of_machine_first(given.args):
        development = load_development(given.data) if given.args.eval_strategy != "no" else None
        sentences = load_sentences(given.data, given.args.seed)
    return InforMinTrainer(
        given.model_name,
        given.args,
        sentences,
        development,
        provenance=provenance(given.data, given.card),
        objective=given.objective,
        view=given.view,
    )


def train(trainer: "InforMinTrainer") -> int:
    """Train, or resume a run. Returns the number of the signal that interrupted it; 0 if it is finished."""
    from informin.outputs import only_writer
    from informin.training.checkpoints import LAST, can_resume, complete_checkpoints, raise_if_output_used
    from informin.training.signals import StopOnSignal, is_restarted

    folder = str(trainer.args.output_dir)
    resume = trainer.args.resume_from_checkpoint
    is_first = trainer.args.process_index == 0
    with only_writer(folder) if is_first else nullcontext(), StopOnSignal() as stop:
        if is_restarted() and any(can_resume(path) for path in complete_checkpoints(folder)):
            resume = LAST
        if not resume:  # a restarted run may have left incomplete checkpoints
            raise_if_output_used(folder, restarted=is_restarted())
        trainer.add_callback(stop)
        trainer.train(resume_from_checkpoint=resume)
    if stop.received and is_first:
        how = f"To resume, run the same command with --resume_from_checkpoint {LAST}"
        if trainer.args.save_only_model:
            how = "It cannot be resumed, because --save_only_model leaves out the optimizer state."
        print(f"Interrupted at step {trainer.state.global_step}; the checkpoint is in {folder}.\n{how}")
    return stop.received or 0


def check_inputs(given: "Given") -> None:
    """Raise UsageError for what is not on this machine, if the Hub cannot be reached: before the other imports."""
    from informin.training.missing import raise_if_missing

    models = {"model_name": given.model_name, "guide_model": given.args.guide_model}
    raise_if_missing(given.data, models, given.args.revision, given.args.eval_strategy != "no")


@dataclass
class ModelArguments:
    """The encoder to train, and a file of options."""

    model_name: Optional[str] = option(None, "Encoder to train: Hub id or local folder. Required.")
    recipe: Optional[str] = option(
        None,
        "YAML file of options, or the name of one in informin/recipes, such as adapt. Options of the command line "
        "override it.",
    )


@dataclass
class Given:
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


class Formatter(argparse.HelpFormatter):
    """Shows one spelling of each option, and its default."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=34, width=120)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        values = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else "X"
        return action.option_strings[0] + (f" {values}" if action.nargs != 0 else "")


class Parser(program.Parser, HfArgumentParser):
    """HfArgumentParser with the options of terms and views, and with a short `--help`."""

    def __init__(self):
        dataclasses: Any = [ModelArguments, DataArguments, CardArguments, InforMinTrainingArguments]
        usage = "informin train --model_name MODEL [--recipe NAME | FILE.yaml] [options]"
        about = (
            "Train sentence embeddings on unlabeled text. All options of transformers' TrainingArguments are accepted."
        )
        super().__init__(dataclasses, usage=usage, description=about, formatter_class=Formatter)
        for kind in OPTION_KINDS:
            for declared in fields(kind):
                add_flag(self, kind, declared)
        self.set_defaults(disable_tqdm=False)  # transformers turns bars off with its messages, which commands hide
        hidden = {declared.name for declared in fields(TrainingArguments)} - set(OFTEN_USED)
        hidden -= set(InforMinTrainingArguments.__annotations__)
        for action in self._actions:
            is_negation = action.option_strings[0].startswith("--no_")
            if is_negation or action.dest in hidden:
                action.help = argparse.SUPPRESS

    def set_file(self, values: dict[str, Any], name: str) -> None:
        """Use the values of a file as defaults. Raise UsageError for one that is not an option."""
        known = {action.dest for action in self._actions} - {"recipe", "help"}
        unknown = sorted(map(str, set(values) - known))
        if unknown:
            raise UsageError(f"{name}: no such option: {', '.join(unknown)}", option="recipe")
        for option_name, value in values.items():
            if value is False and option_name.endswith("_strategy"):  # YAML reads a bare `no` as false
                values[option_name] = "no"
        self.set_defaults(**values)


def add_flag(parser: argparse.ArgumentParser, kind: type[Term] | type[View], declared: Field) -> None:
    """Add the option of a field of a term or a view. It is None unless it is given."""
    annotation = get_type_hints(kind)[declared.name]
    if get_origin(annotation) in (Union, UnionType):  # X | None
        annotation = get_args(annotation)[0]
    how: dict[str, Any] = {"type": annotation}
    if get_origin(annotation) is list:
        how = {"type": get_args(annotation)[0], "nargs": "+"}
    elif annotation is bool:
        how = {"type": string_to_bool, "nargs": "?", "const": True}  # `--masked_views` alone means true
    if "choices" in declared.metadata:
        how["choices"] = declared.metadata["choices"]
    text = declared.metadata["help"] + default_text(kind, declared)
    parser.add_argument(f"--{kind.option_name(declared.name)}", default=None, help=text, **how)


def default_text(kind: type[Term] | type[View], declared: Field) -> str:
    """Return the sentence about a default for a help text: the papers' values, then the general one."""
    is_weight = issubclass(kind, Term) and declared.name == "weight"
    general = 0 if is_weight else declared.default
    by_value: dict[str, list[str]] = {}
    for name, preset in PRESETS.items():
        for term in preset.terms(BERT_BASE):
            value = getattr(term, declared.name) if isinstance(term, kind) else general
            if value != general:
                by_value.setdefault(f"{value:g}", []).append(name)
    values = [f"{value} for {', '.join(names)}" for value, names in by_value.items()]
    if general == 0 and declared.type is not bool:
        values.append("0 (off)")
    elif general is not None:
        values.append(str(general).lower())
    if len(values) > 1:
        values[-1] = f"else {values[-1]}"
    return f" Default: {', '.join(values)}." if values else ""


def parse(argv: Sequence[str], options: dict[str, Any] | None = None) -> Given:
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
    parser = Parser()
    parser.set_file(dict(options or {}), "options")
    first = program.Parser(add_help=False)
    first.add_argument("--recipe")
    first.add_argument("--backend", choices=("auto", "native", "st"))  # of version 0.3
    found, rest = first.parse_known_args(argv)
    if found.backend:
        logger.warning("`backend` has no effect: every encoder is trained alike.")
    if found.recipe:
        parser.set_file(recipe_options(found.recipe), found.recipe)
    try:
        parsed = parser.parse_args_into_dataclasses(rest, look_for_args_file=False, return_remaining_strings=True)
    except UsageError:
        raise
    except (ValueError, TypeError, ImportError) as error:  # from TrainingArguments
        raise UsageError(error_line(error), fix="See `informin train --help`.") from error
    model, data, card, args, others, unknown = parsed
    if unknown:
        raise UsageError(f"no such option: {' '.join(unknown)}", fix="See `informin train --help`.")
    if not model.model_name:
        raise UsageError("is missing", option="model_name", fix="For example: `model_name` bert-base-uncased.")
    flags = {name: value for name, value in vars(others).items() if value is not None}
    objective, view = objective_and_view(args, flags)
    return Given(model_name=model.model_name, data=data, card=card, args=args, objective=objective, view=view)


@checks_options
def recipe(name: str, **options: Any) -> dict[str, Any]:
    """Return arguments of `InforMinTrainer` for a recipe: `args`, `objective` and `view`.

    Args:
        name: A YAML file of options, or the name of one in informin/recipes.
        options: Options as on the command line, which override the recipe.

    Raises:
        UsageError: There is no such recipe, or an option is wrong.

    Example:
        >>> from informin import InforMinTrainer, recipe
        >>> how = recipe("adapt", output_dir="outputs/mine", max_steps=40)
        >>> how["args"].max_steps, how["args"].learning_rate
        (40, 5e-05)
        >>> trainer = InforMinTrainer("all-MiniLM-L6-v2", train_dataset=sentences, **how)  # doctest: +SKIP
    """
    given = parse([], {"model_name": "given to the trainer"} | recipe_options(name) | options)
    return {"args": given.args, "objective": given.objective, "view": given.view}


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
    kind = VIEWS[args.view]
    view = kind(**values_of(kind, flags))
    check_unused(flags, objective, view)
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


def check_unused(flags: dict[str, Any], objective: Preset, view: View) -> None:
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
