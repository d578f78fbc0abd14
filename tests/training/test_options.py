"""The training arguments as a class: defaults, fields, copies and checks of the environment."""

import copy
import dataclasses
import inspect
import pickle
import pydoc
from typing import get_type_hints

import pytest
from transformers import HfArgumentParser, TrainingArguments

from informin.evaluation.measures import ALL
from informin.models import native_checks
from informin.objectives import OBJECTIVES, Objective, Term
from informin.objectives.terms import option
from informin.training.command_line import parse
from informin.training.options import InforMinTrainingArguments, arguments_class
from informin.training.term_fields import term_options
from tests.conftest import raises_usage, resolve_for
from tools import option_stubs


@pytest.mark.parametrize(
    "argv, expected",
    [
        ([], {"eval_steps": 125, "save_steps": 125, "eval_on_start": True, "load_best_model_at_end": True}),
        (["--eval_steps=40"], {"eval_steps": 40, "save_steps": 40}),
        (["--eval_steps=40", "--save_steps=80"], {"eval_steps": 40, "save_steps": 80}),
        (
            ["--eval_strategy=no", "--save_total_limit=1"],
            {"eval_on_start": False, "load_best_model_at_end": False, "metric_for_best_model": None, "save_steps": 125},
        ),
        (["--load_best_model_at_end=false", "--save_total_limit=1"], {"save_total_limit": 1}),
        (["--objective=simcse"], {"reconstruction_weight": 0.0}),
        (["--objective=simcse", "--reconstruction_weight=0"], {"reconstruction_weight": 0.0}),
    ],
)
def test_defaults_that_depend_on_other_options(options, argv, expected):
    found = options(*argv)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    "argv, option, found, needed",
    [
        (["--reconstruction_weight=-1"], "reconstruction_weight", "-1.0", "0 or more"),
        (["--reconstruction_weight=inf"], "reconstruction_weight", "inf", "0 or more"),
        (["--mlm_weight=-0.1"], "mlm_weight", "-0.1", "0 or more"),
        (["--mlm_weight=nan"], "mlm_weight", "nan", "0 or more"),
        (["--temperature=0"], "temperature", "0.0", "a number above 0"),
        (["--temperature=inf"], "temperature", "inf", "a number above 0"),
        (["--mlm_weight=0.1", "--mlm_probability=0"], "mlm_probability", "0.0", "between 0 and 1"),
        (["--mlm_weight=0.1", "--mlm_probability=15"], "mlm_probability", "15.0", "between 0 and 1"),
        (
            *(["--per_device_train_batch_size=1"], "per_device_train_batch_size"),
            *("1 sentence, which is too small for contrast", "2 or more"),
        ),
        (["--save_total_limit=1"], "save_total_limit", "is 1", "2 or more"),
        (["--train_file=a.txt", "--dataset_name=b"], "train_file", "together with `dataset_name`", ""),
        (["--max_train_samples=0"], "max_train_samples", "is 0", "1 or more"),
        (["--max_seq_length=2"], "max_seq_length", "is 2", "3 or more"),
        (["--view_dropout", "0", "0.1", "--view_dropout_rate=0.2"], "view_dropout", "with `view_dropout_rate`", ""),
        (["--export_prompt"], "export_prompt", "no effect without `prompt`", ""),
    ],
)
def test_invalid_options_on_the_command_line_are_rejected(options, argv, option, found, needed):
    with raises_usage(option=option, found=found, needed=needed):
        options(*argv)


def test_transformers_own_checks_are_usage_errors(options):
    with raises_usage(found="100, which is not a round multiple of 125"):
        options("--save_steps=100")


def test_simcse_rejects_a_reconstruction_weight_from_yaml(options):
    with raises_usage(option="reconstruction_weight", found="4.0 has no effect with `objective` simcse"):
        options("--objective=simcse", yaml="reconstruction_weight: 4")


@pytest.mark.parametrize("name, plugin", [("FSDP", "FSDP"), ("DeepSpeed", "DEEPSPEED")])
def test_sharded_weights_exclude_a_queue_and_packing(model, monkeypatch, name, plugin):
    plain, queue, packed = (
        InforMinTrainingArguments(objective="simcse", use_cpu=True, **given)
        for given in ({}, {"queue_size": 8}, {"padding_free": True})
    )
    monkeypatch.setattr(native_checks, "_launched_with", lambda launched: launched == plugin)
    assert resolve_for(plain, model()).padding_free is False
    with raises_usage(option="queue_size", found=f"whole weights for its momentum encoder, and {name} shards them"):
        resolve_for(queue, model())
    with raises_usage(option="padding_free", found=f"cannot be combined with {name}"):
        resolve_for(packed, model())


def test_several_gpus_in_one_process_are_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: 3))
    with raises_usage(found="3 GPUs are visible to one process", fix="Start 3 processes with accelerate launch"):
        InforMinTrainingArguments(str(tmp_path), use_cpu=True)


def test_several_processes_need_batches_of_equal_size(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "world_size", property(lambda self: 2))
    one_each = InforMinTrainingArguments(str(tmp_path), use_cpu=True, per_device_train_batch_size=1)
    assert one_each.dataloader_drop_last
    with raises_usage(option="dataloader_drop_last", found="batches of equal size", fix="Leave it on"):
        InforMinTrainingArguments(str(tmp_path), use_cpu=True, dataloader_drop_last=False)


@pytest.mark.parametrize(
    "argv, weights",
    [
        ([], {"contrast": 1.0, "reconstruction": 0.4}),
        (["--objective=simcse"], {"contrast": 1.0}),
        (["--reconstruction_weight=0", "--mlm_weight=0.1"], {"contrast": 1.0, "mlm": 0.1}),
    ],
)
def test_terms_with_a_weight_are_active(model, argv, weights):
    *_, args = parse([f"--model_name={model()}", "--use_cpu=true", *argv])
    assert {term.name: term.strength for term in args.terms} == weights


@pytest.mark.parametrize(
    "given, measures, expected",
    [
        ({}, {"spearman": ALL["spearman"], "v_measure": ALL["v_measure"]}, ("eval_spearman", True)),
        ({}, {"v_measure": ALL["v_measure"]}, ("eval_v_measure", True)),
        ({}, None, ("eval_spearman", True)),
        ({"eval_strategy": "no"}, {"spearman": ALL["spearman"]}, (None, None)),
        ({"metric_for_best_model": "eval_alignment"}, {"alignment": ALL["alignment"]}, ("eval_alignment", False)),
    ],
)
def test_choose_metric_returns_a_copy_with_the_metric_and_its_direction(given, measures, expected):
    args = InforMinTrainingArguments(use_cpu=True, **given)
    before = dataclasses.asdict(args)
    chosen = args.choose_metric(measures)
    assert (chosen.metric_for_best_model, chosen.greater_is_better) == expected
    assert dataclasses.asdict(args) == before and chosen.choose_metric(measures) == chosen


def test_objective_may_change_before_resolve(model):
    args, other = (InforMinTrainingArguments(objective=name, use_cpu=True) for name in ("micse", "simcse"))
    args.objective = "simcse"
    args, other = (resolve_for(each, model()) for each in (args, other))
    assert args == other and args.warmup_steps == 0 and [term.name for term in args.terms] == ["contrast"]


def test_equality_and_repr_include_the_options_of_terms():
    first, second = (InforMinTrainingArguments(temperature=t, use_cpu=True, hub_token="hf_x") for t in (0.1, 0.2))
    assert first != second and first == copy.copy(first) == dataclasses.replace(first)
    assert "temperature=0.1" in str(first) and "temperature=0.2" in repr(second) and "hf_x" not in repr(first)


def test_every_field_has_a_type_a_default_and_help():
    hints = get_type_hints(InforMinTrainingArguments)
    for field in dataclasses.fields(InforMinTrainingArguments):
        assert field.name in hints
        assert field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        assert field.metadata.get("help"), field.name
    assert term_options().keys() <= hints.keys()
    assert "temperature: Optional[float] = None" in str(inspect.signature(InforMinTrainingArguments)).replace(
        "float | None", "Optional[float]"
    )


def test_editors_and_type_checkers_know_the_options_of_terms():
    assert option_stubs.STUB.read_text(encoding="utf-8") == option_stubs.stub(), "run python -m tools.help_texts"


def test_help_lists_the_options_of_terms():
    shown = pydoc.plain(pydoc.render_doc(InforMinTrainingArguments))
    assert "temperature: Optional[float] = None" in shown and " |  temperature = None" in shown


def test_arguments_are_pickled_with_their_values():
    args = InforMinTrainingArguments(objective="simcse", temperature=0.1, use_cpu=True)
    assert pickle.loads(pickle.dumps(args)) == args and type(pickle.loads(pickle.dumps(args))) is type(args)


def test_hf_argument_parser_reads_the_class():
    argv = "--output_dir here --objective micse --queue_size 8 --mlm_weight 0.1 --masked_views --view_dropout 0.1 0.2"
    parser = HfArgumentParser(InforMinTrainingArguments)
    (args,) = parser.parse_args_into_dataclasses([*argv.split(), "--use_cpu"])
    assert (args.output_dir, args.queue_size, args.masked_views, args.view_dropout) == ("here", 8, True, [0.1, 0.2])
    assert args == InforMinTrainingArguments(
        *("here",), objective="micse", queue_size=8, mlm_weight=0.1, masked_views=True, view_dropout=[0.1, 0.2],
        use_cpu=True,
    )  # fmt: skip
    shown = " ".join(parser.format_help().split())
    assert "--reconstruction_weight" in shown and "0.4 for informin, else 0 (off)" in shown


def test_replace_and_asdict_have_every_field():
    args = InforMinTrainingArguments(objective="simcse", temperature=0.1, use_cpu=True)
    other = dataclasses.replace(args, seed=3)
    assert other.seed == 3 and dataclasses.asdict(other) == dataclasses.asdict(args) | {"seed": 3}
    assert term_options().keys() <= dataclasses.asdict(args).keys()


def test_unknown_and_duplicate_names_fail_as_for_any_dataclass(monkeypatch):
    with pytest.raises(TypeError, match="unexpected keyword argument 'temprature'"):
        InforMinTrainingArguments(temprature=0.1)
    twice = dataclasses.make_dataclass("Twice", [("power", float, option(1.0, "Power."))], bases=(Term,))
    again = dataclasses.make_dataclass("Again", [("power", float, option(1.0, "Power."))], bases=(Term,))
    monkeypatch.setitem(OBJECTIVES, "twice", Objective("Twice", (twice, again)))
    with pytest.raises(TypeError, match="Field name duplicated: 'power'"):
        arguments_class()


def test_recipe_is_applied_once():
    args = InforMinTrainingArguments(recipe="adapt", use_cpu=True)
    assert args.max_steps == 80 and args.recipe is None
    assert dataclasses.replace(args, max_steps=-1).max_steps == -1
