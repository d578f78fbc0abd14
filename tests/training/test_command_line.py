"""Options: what wins over what, the papers' rows, YAML, --help, and the checks with their messages."""

import json
import logging
import re

import pytest
import torch
from transformers import TrainingArguments

from informin.encoders.loading import load_config
from informin.errors import UsageError
from informin.training import command_line as cli
from informin.training.command_line import OFTEN_USED, Parser, bf16_value, paper_values, parse
from informin.training.options import InforMinTrainingArguments
from informin.training.papers import ROWS


@pytest.fixture
def model(tmp_path):
    """Makes the folder of a model of which only the configuration exists."""

    def model(architecture="bert", hidden_size=768) -> str:
        folder = tmp_path / f"{architecture}-{hidden_size}"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"model_type": architecture, "hidden_size": hidden_size}))
        return str(folder)

    return model


@pytest.fixture
def options(model, tmp_path):
    """Parses a command line for a model, and a YAML file where one is given, into one dictionary."""

    def options(*argv: str, yaml: str | None = None, name: str | None = None) -> dict:
        if yaml is not None:
            (tmp_path / "run.yaml").write_text(yaml)
            argv = (f"--config={tmp_path / 'run.yaml'}", *argv)
        *built, config = parse([f"--model_name={name or model()}", "--use_cpu=true", *argv])
        assert config.model_type in ("bert", "roberta")
        return {key: value for part in built for key, value in vars(part).items()}

    return options


@pytest.mark.parametrize(
    "option, default, row, yaml, flag",
    [
        ("learning_rate", 3e-5, 1e-5, 2e-5, 4e-5),
        ("reconstruction_weight", 0.4, 4.0, 0.0, 1.0),
        ("per_device_train_batch_size", 128, 512, 32, 16),
        ("temperature", 0.05, None, 0.1, 0.2),
        ("projection_head", "mlp", None, "none", "mlp"),
        ("max_seq_length", 32, None, 64, 48),
    ],
)
def test_flag_wins_over_yaml_over_paper_row_over_default(options, model, option, default, row, yaml, flag):
    unset = None if option == "reconstruction_weight" else default  # the objective's, once that is known
    assert Parser().options()[option].default == unset
    # SimCSE's RoBERTa row differs from the default in its batch, InforMin-CL's in the rest.
    simcse = ["--objective=simcse"] if option == "per_device_train_batch_size" else []
    roberta = model("roberta")
    assert options(*simcse, name=roberta)[option] == (default if row is None else row)
    assert options(*simcse, name=roberta, yaml=f"{option}: {yaml}")[option] == yaml
    assert options(*simcse, f"--{option}={flag}", name=roberta, yaml=f"{option}: {yaml}")[option] == flag


PAPERS = [  # objective, architecture, hidden size, batch, learning rate, lambda
    ("informin", "bert", 768, 128, 3e-5, 0.4),
    ("informin", "roberta", 768, 128, 1e-5, 4.0),
    ("informin", "roberta", 1024, 128, 3e-5, 4.0),
    ("simcse", "bert", 768, 64, 3e-5, 0.0),
    ("simcse", "bert", 1024, 64, 1e-5, 0.0),
    ("simcse", "roberta", 768, 512, 1e-5, 0.0),
    ("simcse", "roberta", 1024, 512, 3e-5, 0.0),
]
NO_ROW = [  # these take their architecture's base row
    ("informin", "bert", 1024, 128, 3e-5, 0.4),
    ("informin", "bert", 32, 128, 3e-5, 0.4),
    ("simcse", "roberta", 32, 512, 1e-5, 0.0),
]


@pytest.mark.parametrize("objective, architecture, hidden_size, batch, rate, weight", PAPERS + NO_ROW)
def test_the_papers_rows(options, model, objective, architecture, hidden_size, batch, rate, weight):
    found = options(f"--objective={objective}", name=model(architecture, hidden_size))
    names = ("per_device_train_batch_size", "learning_rate", "reconstruction_weight")
    assert [found[name] for name in names] == [batch, rate, weight]


SISTERS = [  # objective, architecture, batch, learning rate, what else the paper names
    ("scd", "bert", 192, 3e-5, dict(decorrelation_weight=0.005, off_diagonal_weight=0.013, view_dropout=[0.05, 0.15])),
    (
        *("scd", "roberta", 192, 3e-5),
        dict(decorrelation_weight=0.0033, off_diagonal_weight=0.028, view_dropout=[0.065, 0.24]),
    ),
    ("micse", "bert", 50, 3e-5, dict(ami_weight=2.5e-3, queue_size=384, warmup_steps=250)),
]


@pytest.mark.parametrize("objective, architecture, batch, rate, others", SISTERS)
@pytest.mark.parametrize("hidden_size", [768, 32])
def test_the_sister_papers_rows(options, model, objective, architecture, batch, rate, others, hidden_size):
    found = options(f"--objective={objective}", name=model(architecture, hidden_size))
    assert found | others | {"per_device_train_batch_size": batch, "learning_rate": rate} == found
    assert found["projection_head"] == ("none" if objective == "scd" else "mlp")


def test_every_row_is_tested():
    rows = {(objective, *key) for objective, rows in ROWS.items() for key in rows}
    assert rows == {case[:3] for case in PAPERS} | {(*case[:2], 768) for case in SISTERS}


@pytest.mark.parametrize(
    "argv, filled",
    [
        (
            [],
            "InforMin-CL, table 3, roberta-base): "
            "per_device_train_batch_size 128, learning_rate 1e-05, reconstruction_weight 4.0",
        ),
        (["--learning_rate=1"], "table 3, roberta-base): per_device_train_batch_size 128, reconstruction_weight 4.0"),
        (
            ["--objective=simcse"],
            "SimCSE, appendix A, roberta-base): per_device_train_batch_size 512, learning_rate 1e-05",
        ),
        (["--objective=simcse", "--learning_rate=1", "--per_device_train_batch_size=2"], None),
    ],
)
def test_one_log_line_says_what_the_paper_filled_in(options, model, caplog, argv, filled):
    caplog.set_level(logging.INFO, cli.__name__)
    options(*argv, name=model("roberta"))
    assert not caplog.messages, "a word in the headline is enough"
    options(*argv, "--verbose=true", name=model("roberta"))
    lines = [message for message in caplog.messages if "paper" in message]
    assert len(lines) == (filled is not None) and all(line.endswith(filled) for line in lines)


@pytest.mark.parametrize("processes, batch", [("1", 128), ("4", 32), ("3", 42), ("1000", 1)])
def test_the_papers_batch_is_shared_by_the_processes(model, monkeypatch, processes, batch):
    monkeypatch.setenv("WORLD_SIZE", processes)
    name, values = paper_values({}, load_config(model()))
    assert values["per_device_train_batch_size"] == batch and name == "InforMin-CL, table 3, bert-base"
    given = {"per_device_train_batch_size": 7}
    assert "per_device_train_batch_size" not in paper_values(given, load_config(model()))[1]


@pytest.mark.parametrize(
    "yaml, expected",
    [
        ("train_file: [a.txt, b c.txt]", {"train_file": ["a.txt", "b c.txt"]}),
        ("train_file:\n- a.txt", {"train_file": ["a.txt"]}),
        ("train_file: a.txt", {"train_file": ["a.txt"]}),
        ("eval_on_start: false\nmasked_views: no", {"eval_on_start": False, "masked_views": False}),
        ("fp16_full_eval: true", {"fp16_full_eval": True}),
        ("save_steps: null\nrun_name: ~\nseed: 7", {"save_steps": 125, "run_name": None, "seed": 7}),
        ("max_steps: -1\nadam_beta1: 0.5\nseed: 3", {"max_steps": -1, "adam_beta1": 0.5, "seed": 3}),
        ("learning_rate: 3e-4\nmlm_weight: 1.0e-1", {"learning_rate": 3e-4, "mlm_weight": 0.1}),
        ("run_name: -dash\nhub_model_id: 'ü b'", {"run_name": "-dash", "hub_model_id": "ü b"}),
        ("lr_scheduler_kwargs: {num_cycles: 2}", {"lr_scheduler_kwargs": {"num_cycles": 2}}),
        ("eval_strategy: 'no'", {"eval_strategy": "no"}),
        ("eval_strategy: no", {"eval_strategy": "no"}),  # which YAML reads as false
    ],
)
def test_values_of_yaml(options, yaml, expected):
    found = options(yaml=yaml)
    assert {name: found[name] for name in expected} == expected


def test_the_model_may_be_named_in_yaml(model, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(f"model_name: {model('roberta', 1024)}\nobjective: simcse\nuse_cpu: true")
    built = parse(["--config", str(path)])
    assert built[0].model_name == model("roberta", 1024)
    assert (built[3].learning_rate, built[3].per_device_train_batch_size) == (3e-5, 512)


@pytest.mark.parametrize(
    "yaml, message",
    [
        ("learning_rat: 1\nzzzz: 2", "no such option: learning_rat, zzzz. Did you mean learning_rate?"),
        ("zzzz: 1", r"no such option: zzzz\.$"),
        ("1: 2", "no such option: 1"),
        ("config: other.yaml", "no such option: config"),
        ("- a\n- b", "run.yaml: found list; needed lines of `option: value`"),
        ("", "run.yaml: found NoneType; needed lines of `option: value`"),
        ("a: [", "run.yaml cannot be read: while parsing"),
        ("[a, b]: 1", "run.yaml cannot be read: while constructing a mapping"),
        ("seed: 1\ntemperature: 1\nseed: 2", "run.yaml cannot be read: 'seed' is there twice"),
        ("temperature: -1", "--temperature is -1.0; needed a number above 0"),
    ],
)
def test_yaml_that_cannot_be_used(options, yaml, message):
    with pytest.raises(UsageError, match=message):
        options(yaml=yaml)


def test_a_yaml_file_that_is_not_there(options):
    with pytest.raises(UsageError, match=r"--config /nowhere/a\.yaml cannot be read: .*No such file"):
        options("--config=/nowhere/a.yaml")


def test_help_is_grouped_whole_and_short(capsys):
    with pytest.raises(SystemExit) as caught:
        parse(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    groups = [line for line in lines if re.fullmatch(r"\S.*:", line)]
    assert [group.split(",")[0].rstrip(":") for group in groups] == [
        *("model", "objective", "data and evaluation data", "model card", "training", "training")
    ]
    listed = re.findall(r"^  --(\w+)", text, re.MULTILINE)
    assert sorted(listed) == sorted(Parser().options())
    assert len(lines) <= 400
    # Groups in their order: ours first, transformers' long tail last.
    places = [lines.index(next(line for line in lines if line.startswith(f"  --{name} "))) for name in OFTEN_USED]
    assert lines.index(groups[4]) < min(places) and max(places) < lines.index(groups[5])
    for name, group in [("model_name", 0), ("temperature", 1), ("train_file", 2), ("license", 3), ("ddp_backend", 5)]:
        place = next(i for i, line in enumerate(lines) if line.startswith(f"  --{name} "))
        assert lines.index(groups[group]) < place < [*map(lines.index, groups), len(lines)][group + 1]


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--nonsense=1", "--nonsense=1: no such option. See --help."),
        ("--learning_rat=1", "--learning_rat=1: no such option. Did you mean --learning_rate? See --help."),
        ("--Train-File", "Did you mean --train_file? See --help."),
        ("stray", "stray: no such option. See --help."),
        ("--seed=x", "argument --seed: invalid int value: 'x'"),
        ("--objective=other", "argument --objective: invalid choice: 'other'"),
    ],
)
def test_argparse_exits_with_code_2(options, capsys, argument, message):
    with pytest.raises(SystemExit) as caught:
        options(argument)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv, message",
    [
        ([], "Which encoder. Give --model_name"),
        (["--seed=1"], "Which encoder. Give --model_name"),
        (["--model_name="], "Which encoder. Give --model_name"),
        (["--model_name=/nowhere/model"], "--model_name /nowhere/model: there is no such folder"),
    ],
)
def test_a_model_is_needed(argv, message):
    with pytest.raises(UsageError, match=message):
        parse(argv)


@pytest.mark.parametrize(
    "argv, expected",
    [
        ([], "outputs/bert-768-informin-batch128-lr3e-5-seed42"),
        (["--objective=simcse", "--seed=7"], "outputs/bert-768-simcse-batch64-lr3e-5-seed7"),
        (
            ["--learning_rate=0.001", "--per_device_train_batch_size=8"],
            "outputs/bert-768-informin-batch8-lr0.001-seed42",
        ),
        (["--output_dir=here"], "here"),
    ],
)
@pytest.mark.parametrize("slash", ["", "/"])
def test_default_output_dir(options, model, argv, expected, slash):
    assert options(*argv, name=model() + slash)["output_dir"] == expected


@pytest.mark.parametrize(
    "accelerator, avx512, amx, gpu, expected",
    [
        (None, False, False, True, False),
        (None, True, False, False, True),
        (None, False, True, False, True),
        (torch.device("cuda"), True, True, False, False),
        (torch.device("cuda"), False, False, True, True),
    ],
)
def test_bf16_follows_the_hardware(monkeypatch, accelerator, avx512, amx, gpu, expected):
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: accelerator)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(cli, "is_torch_bf16_gpu_available", lambda: gpu)
    assert bf16_value({}) == bf16_value({"seed": 1}) == {"bf16": expected}
    for given in ({"bf16": False}, {"bf16": True}, {"fp16": True}, {"fp16": False}):
        assert bf16_value(given) == {}, "the user chose"
    assert bf16_value({"use_cpu": True}) == {"bf16": avx512 or amx}
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert bf16_value({}) == {}, "the launcher chose"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert bf16_value({}) == {"bf16": expected}


@pytest.mark.parametrize("given", [True, False])
def test_parse_asks_the_hardware_for_bf16(model, monkeypatch, given):
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: None)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    argv = ["--bf16=false"] if given else []
    *_, args, _ = parse([f"--model_name={model()}", *argv])
    assert args.bf16 is not given and args.use_cpu


@pytest.mark.parametrize(
    "argv, expected",
    [
        ([], None),
        (["--resume_from_checkpoint"], "last"),
        (["--resume_from_checkpoint", "--seed=1"], "last"),
        (["--resume_from_checkpoint", "runs/checkpoint-5"], "runs/checkpoint-5"),
    ],
)
def test_resume_from_checkpoint(options, argv, expected):
    assert options(*argv)["resume_from_checkpoint"] == expected


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
def test_options_that_follow_others(options, argv, expected):
    found = options(*argv)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--reconstruction_weight=-1"], r"--reconstruction_weight is -1\.0; needed 0 or more"),
        (["--reconstruction_weight=inf"], "--reconstruction_weight is inf; needed 0 or more"),
        (["--mlm_weight=-0.1"], r"--mlm_weight is -0\.1; needed 0 or more"),
        (["--mlm_weight=nan"], "--mlm_weight is nan; needed 0 or more"),
        (["--temperature=0"], r"--temperature is 0\.0; needed a number above 0"),
        (["--temperature=inf"], "--temperature is inf; needed a number above 0"),
        (["--mlm_weight=0.1", "--mlm_probability=0"], r"--mlm_probability is 0\.0; needed a share between 0 and 1"),
        (["--mlm_weight=0.1", "--mlm_probability=15"], r"--mlm_probability is 15\.0; needed a share between 0 and 1"),
        (
            ["--masked_views"],
            "--masked_views True has no effect .* with --mlm_weight above 0 also mlm_prob.*, masked_views",
        ),
        (["--per_device_train_batch_size=1"], "A batch of 1 sentence has no negatives"),
        (["--save_total_limit=1"], "--save_total_limit 1 cannot keep both the best and the newest checkpoint"),
        (
            ["--objective=simcse", "--reconstruction_weight=4"],
            r"--reconstruction_weight 4\.0 has no effect with --objective simcse",
        ),
        (["--train_file=a.txt", "--dataset_name=b"], "--train_file and --dataset_name both say what to train on"),
        (["--streaming"], "--streaming reads a Hub data set: it needs --dataset_name"),
        (["--max_train_samples=0"], "--max_train_samples is 0; needed 1 or more"),
        (["--max_seq_length=2"], "--max_seq_length is 2; needed 3 or more"),
        (["--save_steps=100"], "100, which is not a round multiple of 125"),  # transformers' own check
    ],
)
def test_checks(options, argv, message):
    with pytest.raises(UsageError, match=message):
        options(*argv)


def test_a_simcse_recipe_with_a_weight_in_yaml_is_refused_too(options):
    with pytest.raises(UsageError, match="has no effect with --objective simcse"):
        options("--objective=simcse", yaml="reconstruction_weight: 4")


def test_several_gpus_in_one_process_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: 3))
    with pytest.raises(UsageError, match=r"3 GPUs in one process .* accelerate launch --num_processes 3 run_unsup\.py"):
        InforMinTrainingArguments(str(tmp_path), use_cpu=True)


def test_several_processes_need_batches_of_one_size(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "world_size", property(lambda self: 2))
    one_each = InforMinTrainingArguments(str(tmp_path), use_cpu=True, per_device_train_batch_size=1)
    assert one_each.dataloader_drop_last
    with pytest.raises(UsageError, match="leave --dataloader_drop_last on"):
        InforMinTrainingArguments(str(tmp_path), use_cpu=True, dataloader_drop_last=False)


@pytest.mark.parametrize(
    "argv, weights",
    [
        ([], {"contrast": 1.0, "reconstruction": 0.4}),
        (["--objective=simcse"], {"contrast": 1.0}),
        (["--reconstruction_weight=0", "--mlm_weight=0.1"], {"contrast": 1.0, "mlm": 0.1}),
    ],
)
def test_term_weights_are_those_that_are_on(model, argv, weights):
    *_, args, _ = parse([f"--model_name={model()}", "--use_cpu=true", *argv])
    assert args.term_weights == weights


READ = {  # the list in the message: what is read as it is set, then what a weight above 0 would add
    "scd": (
        "view_dropout, self_contrast_weight, self_contrast_form, decorrelation_weight, off_diagonal_weight, "
        "projector_size, mlm_weight; with --mlm_weight above 0 also mlm_probability, masked_views."
    ),
    "micse": (
        "view_dropout, temperature, queue_size, momentum_decay, momentum_dropout, ami_weight, ami_form, ami_layers, "
        "reconstruction_weight, mlm_weight; with --reconstruction_weight above 0 also reconstruction_form; "
        "with --mlm_weight above 0 also mlm_probability, masked_views."
    ),
    "simcse": (
        "view_dropout, temperature, queue_size, ami_weight, decorrelation_weight, mlm_weight; "
        "with --queue_size above 0 also momentum_decay, momentum_dropout; "
        "with --ami_weight above 0 also ami_form, ami_layers; "
        "with --decorrelation_weight above 0 also off_diagonal_weight, projector_size; "
        "with --mlm_weight above 0 also mlm_probability, masked_views."
    ),
}
UNREAD = [
    ("scd", "temperature", 0.1, READ["scd"]),
    ("scd", "queue_size", 8, READ["scd"]),
    ("scd", "ami_layers", [0, 1], READ["scd"]),
    ("scd", "reconstruction_weight", 0.4, READ["scd"]),
    ("scd", "mlm_probability", 0.3, READ["scd"]),
    ("micse", "self_contrast_form", "reference", READ["micse"]),
    ("micse", "decorrelation_weight", 0.1, READ["micse"]),
    ("micse", "reconstruction_form", "reference", READ["micse"]),
    ("simcse", "momentum_dropout", 0.1, READ["simcse"]),
    ("simcse", "ami_form", "reference", READ["simcse"]),
    ("simcse", "projector_size", 64, READ["simcse"]),
    ("simcse", "reconstruction_form", "unit_squared_l2", READ["simcse"]),
    ("simcse", "masked_views", True, READ["simcse"]),
]


@pytest.mark.parametrize("objective, name, value, read", UNREAD)
def test_an_option_that_the_objective_does_not_read_is_refused(options, tmp_path, objective, name, value, read):
    """On the command line, in YAML and from Python."""
    words = [str(item) for item in value] if isinstance(value, list) else [str(value)]
    message = f"--{name} {value} has no effect with --objective {objective} as it is set. It reads: {read}"
    calls = [
        lambda: options(f"--objective={objective}", f"--{name}", *words),
        lambda: options(f"--objective={objective}", yaml=f"{name}: {json.dumps(value)}"),
        lambda: InforMinTrainingArguments(str(tmp_path), use_cpu=True, objective=objective, **{name: value}),
    ]
    for call in calls:
        with pytest.raises(UsageError) as caught:
            call()
        assert str(caught.value) == message


@pytest.mark.parametrize(
    "argv, expected",
    [
        (["--objective=scd", "--queue_size=0", "--reconstruction_weight=0", "--masked_views=false"], {"queue_size": 0}),
        (["--objective=micse", "--decorrelation_weight=0"], {"ami_weight": 2.5e-3}),
        (["--objective=micse", "--queue_size=0", "--ami_weight=0"], {"queue_size": 0, "ami_weight": 0}),
        (["--objective=simcse", "--queue_size=8", "--momentum_decay=0.9"], {"momentum_decay": 0.9, "ami_weight": 0}),
        (["--objective=simcse", "--ami_weight=1", "--ami_layers", "7", "9"], {"ami_layers": [7, 9]}),
        (["--decorrelation_weight=0.1", "--projector_size=64"], {"projector_size": 64, "reconstruction_weight": 0.4}),
        (["--objective=scd", "--decorrelation_weight=0"], {"decorrelation_weight": 0, "self_contrast_weight": 1.0}),
    ],
)
def test_options_that_are_read_or_turn_something_off_pass(options, argv, expected):
    found = options(*argv)
    assert {name: found[name] for name in expected} == expected


BAD = [
    ("scd", dict(view_dropout=[0.2, 0.1]), "--view_dropout is 0.2 0.1; needed two rates of which the second is higher"),
    ("scd", dict(view_dropout=[0.1, 0.1]), "--view_dropout is 0.1 0.1; needed two rates"),
    ("scd", dict(view_dropout=[0.1, 0.2, 0.3]), "--view_dropout is 0.1 0.2 0.3; needed two rates"),
    ("scd", dict(view_dropout=[0.1]), "--view_dropout is 0.1; needed two rates"),
    ("simcse", dict(view_dropout=[0.1, 1.0]), "--view_dropout is 0.1 1.0; needed two rates .* below 1"),
    ("simcse", dict(view_dropout=[-0.1, 0.1]), "--view_dropout is -0.1 0.1; needed two rates .* at least 0"),
    ("scd", dict(per_device_train_batch_size=1), "A batch of 1 sentence has .* no variance to normalise by"),
    ("scd", dict(projector_size=0), "--projector_size is 0; needed 1 or more"),
    ("scd", dict(off_diagonal_weight=-1.0), r"--off_diagonal_weight is -1\.0; needed 0 or more"),
    ("scd", dict(decorrelation_weight=-1.0), r"--decorrelation_weight is -1\.0; needed 0 or more"),
    (
        *("scd", dict(self_contrast_weight=0.0, decorrelation_weight=0.0)),
        "Every term of --objective scd has the weight 0: there is nothing to learn",
    ),
    ("micse", dict(queue_size=-1), "--queue_size is -1; needed 0 or more"),
    ("micse", dict(momentum_decay=1.0), r"--momentum_decay is 1\.0; needed a share between 0 and 1"),
    ("micse", dict(momentum_dropout=1.0), r"--momentum_dropout is 1\.0; needed 0 or more, and below 1"),
    ("micse", dict(momentum_dropout=-0.1), r"--momentum_dropout is -0\.1; needed 0 or more, and below 1"),
    ("micse", dict(ami_weight=float("inf")), "--ami_weight is inf; needed 0 or more"),
]


@pytest.mark.parametrize("objective, given, message", BAD)
def test_values_that_the_family_cannot_use(options, tmp_path, objective, given, message):
    """On the command line and from Python."""
    argv = [f"--objective={objective}"]
    for name, value in given.items():
        argv += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    calls = [
        lambda: options(*argv),
        lambda: InforMinTrainingArguments(str(tmp_path), use_cpu=True, objective=objective, **given),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=message):
            call()


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(objective="barlow"), "--objective barlow is unknown; needed one of: informin, simcse, scd, micse"),
        (dict(reconstruction_form="l1"), "--reconstruction_form l1 is unknown; needed one of: squared_l2, unit_"),
        (dict(objective="micse", ami_form="code"), "--ami_form code is unknown; needed one of: paper, reference"),
        (dict(objective="scd", self_contrast_form="code"), "--self_contrast_form code is unknown; needed one of: pap"),
    ],
)
def test_unknown_names_are_refused_from_python_and_the_command_line(options, capsys, tmp_path, given, message):
    with pytest.raises(UsageError, match=message):
        InforMinTrainingArguments(str(tmp_path), use_cpu=True, **given)
    with pytest.raises(SystemExit) as caught:  # argparse's own words
        options(*[f"--{name}={value}" for name, value in given.items()])
    assert caught.value.code == 2 and "invalid choice" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--learning_rate=-1", "--learning_rate is -1.0; needed a number above 0."),
        ("--learning_rate=0", "--learning_rate is 0.0; needed a number above 0."),
        ("--learning_rate=nan", "--learning_rate is nan; needed a number above 0."),
        ("--learning_rate=inf", "--learning_rate is inf; needed a number above 0."),
        ("--seed=-1", "--seed is -1; needed a whole number from 0 to 4294967295."),
        (f"--seed={10**14}", f"--seed is {10**14}; needed a whole number from 0 to 4294967295."),
        ("--data_seed=-2", "--data_seed is -2; needed a whole number from 0 to 4294967295."),
        ("--num_train_epochs=-3", "--num_train_epochs is -3.0; needed a number above 0."),
        ("--max_steps=0", "--max_steps is 0; needed 1 or more."),
        ("--max_steps=-2", "--max_steps is -2; needed 1 or more."),
        ("--per_device_train_batch_size=0", "--per_device_train_batch_size is 0; needed 1 or more."),
        ("--per_device_eval_batch_size=-1", "--per_device_eval_batch_size is -1; needed 1 or more."),
        ("--gradient_accumulation_steps=0", "--gradient_accumulation_steps is 0; needed 1 or more."),
        ("--save_total_limit=0", "--save_total_limit is 0; needed 1 or more."),
        ("--logging_steps=0", "--logging_steps is 0.0; needed a number above 0."),
        ("--eval_steps=-5", "--eval_steps is -5.0; needed a number above 0."),
        ("--warmup_steps=-1", "--warmup_steps is -1.0; needed 0 or more."),
        ("--weight_decay=-1", "--weight_decay is -1.0; needed 0 or more."),
        ("--max_grad_norm=nan", "--max_grad_norm is nan; needed 0 or more."),
        (
            "--metric_for_best_model=eval_loss",
            "--metric_for_best_model eval_loss is unknown; needed one of: ",
        ),
        (
            "--greater_is_better=false",
            "--greater_is_better False with spearman would keep the worst one.",
        ),
        ("--resume_from_checkpoint=", "--resume_from_checkpoint is empty. Name a checkpoint, or `last` for the newest"),
        ("--adam_beta2=1", "--adam_beta2 is 1.0; needed 0 or more, and below 1."),
        ("--report_to=wandb", "--report_to wandb: wandb is not installed. Install it: pip install wandb"),
        ("--report_to=trackio", "--report_to trackio: trackio is not installed. Install it: pip install trackio"),
        (
            "--report_to=tensorbord",
            "--report_to tensorbord is unknown. Did you mean tensorboard? Needed of: azure_ml, ",
        ),
    ],
)
def test_numbers_and_loggers_are_checked_when_options_are_built(options, monkeypatch, argument, message):
    monkeypatch.setattr("informin.training.options.get_available_reporting_integrations", lambda: ["tensorboard"])
    with pytest.raises(UsageError, match=re.escape(message)):
        options(argument)


def test_of_alignment_the_lower_is_the_better(options):
    assert options("--metric_for_best_model=eval_alignment")["greater_is_better"] is False
    assert options()["greater_is_better"] is True


@pytest.mark.parametrize("argument", ["--max_steps=-1", "--max_grad_norm=0", f"--seed={2**32 - 1}", "--report_to=none"])
def test_numbers_at_their_limits_pass(options, argument):
    assert options(argument)["output_dir"]
