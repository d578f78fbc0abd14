"""The training arguments and the options of the command line: precedence, paper's values, fields, copies and checks."""

import copy
import dataclasses
import pickle
import subprocess
import sys

import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import TrainingArguments

from informin.cli import train
from informin.cli.program import quiet_transformers
from informin.cli.train import HELP, check_inputs, check_values
from informin.cli.train_names import given_options
from informin.cli.train_options import EVALUATION_DATA, OFTEN_USED, TrainParser, parse, recipe
from informin.errors import is_installed
from informin.objectives import PRESETS
from informin.objectives.presets import BERT_BASE, active_terms
from informin.training.arguments import InforMinTrainingArguments, check_terms, prefers_bf16, with_paper_values
from informin.training.inputs import RECIPES, DataArguments, SourceArguments, recipe_options
from informin.training.objective import activate
from informin.views import View
from tests.conftest import GENERAL_SENTENCES, how_to_train, make_sentences, raises_usage, save_bert, save_roberta
from trainer_informin import InforMinTrainer


@pytest.fixture(scope="session")
def roberta_base(tmp_path_factory):
    """An encoder without meaning, as wide as the papers'."""
    sizes = dict(hidden_size=768, num_attention_heads=12, num_hidden_layers=1)
    return save_roberta(tmp_path_factory.mktemp("models") / "roberta-base", **sizes)


@pytest.fixture(scope="session")
def bert_large(tmp_path_factory):
    sizes = dict(hidden_size=1024, num_attention_heads=16, num_hidden_layers=1)
    return save_bert(tmp_path_factory.mktemp("models") / "bert-large", **sizes)


@pytest.mark.parametrize(
    "option, default, row, yaml, flag",
    [
        ("learning_rate", 3e-5, 1e-5, 2e-5, 4e-5),
        ("reconstruction_weight", 0.4, 4.0, 0.0, 1.0),
        ("per_device_train_batch_size", 128, 512, 32, 16),
        ("temperature", 0.05, None, 0.1, 0.2),
        ("projection_head", "auto", None, "none", "mlp"),
        ("max_seq_length", None, None, 64, 48),
    ],
)
def test_precedence_flag_yaml_paper_default(options, roberta_base, option, default, row, yaml, flag):
    # SimCSE's values for RoBERTa differ from the default in the batch size, InforMin-CL's in the others.
    simcse = ["--objective=simcse"] if option == "per_device_train_batch_size" else []
    assert options(*simcse, name=roberta_base)[option] == (default if row is None else row)
    assert options(*simcse, name=roberta_base, yaml=f"{option}: {yaml}").get(option, 0.0) == yaml
    assert options(*simcse, f"--{option}={flag}", name=roberta_base, yaml=f"{option}: {yaml}")[option] == flag


@pytest.mark.parametrize("how", ["LoRA", "in memory"])
def test_published_values_are_those_of_the_encoder_however_it_is_opened(roberta_base, arguments, how):
    if how == "LoRA":
        pytest.importorskip("peft")
    model = SentenceTransformer(str(roberta_base), device="cpu") if how == "in memory" else str(roberta_base)
    args = arguments(objective="scd", eval_strategy="no", learning_rate=None, lora_r=4 if how == "LoRA" else None)
    trainer = InforMinTrainer(model, args, train_dataset=make_sentences(300))
    assert (
        trainer.objective.view_dropout == [0.065, 0.24] and trainer.record().options["decorrelation_weight"] == 0.0033
    )


def test_published_values(options, roberta_base, bert_large):
    scd = options("--objective=scd")
    assert (scd["self_contrast_weight"], scd["decorrelation_weight"], scd["off_diagonal_weight"]) == (1, 0.005, 0.013)
    assert scd["view_dropout"] == [0.05, 0.15] and scd["per_device_train_batch_size"] == 192
    assert options("--objective=scd", name=roberta_base)["view_dropout"] == [0.065, 0.24]
    assert options("--objective=scd", "--view_dropout=0.2")["view_dropout"] == [0.2]
    micse = options("--objective=micse", "--attention_mi_layers", "0", "1")
    assert (micse["queue_size"], micse["momentum_decay"], micse["warmup_steps"]) == (384, 0.995, 250)
    assert options("--objective=simcse", name=bert_large)["learning_rate"] == 1e-5


def test_options_may_come_from_python_a_recipe_and_the_command_line(bert, options):
    given = parse([f"--model_name={bert}", "--seed=3"], {"seed": 1, "temperature": 0.1, "use_cpu": True})
    assert (given.model_name, given.args.seed) == (str(bert), 3)
    assert given.objective.terms(BERT_BASE)[0].temperature == 0.1
    released = options("--recipe=informin-released", "--temperature=0.05", "--mlm_weight=0.2")
    assert released["mlm_weight"] == 0.2 and released["masked_views"] is True


def test_a_recipe_in_python_gives_arguments_of_the_trainer(bert, tmp_path):
    given = dict(max_steps=1, guided_neighbors=2, replay_file=str(GENERAL_SENTENCES), use_cpu=True)
    how = recipe("adapt", output_dir=str(tmp_path), **given)
    assert how["args"].max_steps == 1 and how["args"].per_device_train_batch_size == 64
    names = ["guided", "distillation", "replay"]
    assert [term.name for term in how["objective"].terms(BERT_BASE)] == names
    how["args"].per_device_train_batch_size = 8
    trainer = InforMinTrainer(str(bert), train_dataset=make_sentences(20), **how)
    assert [term.name for term in trainer.terms] == names and trainer.terms[0].neighbors == 2


def test_an_output_folder_whose_name_is_not_utf8_is_refused_at_the_start():
    with raises_usage(option="output_dir"):
        InforMinTrainingArguments("outputs/caf\udce9", use_cpu=True)


@pytest.mark.parametrize("option", ["train_file", "text_column", "streaming", "eval_pairs", "model_name", "license"])
def test_options_of_a_recipe_that_only_a_command_reads_are_refused_in_python(option):
    with raises_usage(option=option):
        recipe("adapt", **{option: "given.txt"})


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_are_options(bert, path):
    given = parse([f"--model_name={bert}", f"--recipe={path.stem}", "--use_cpu=true"])
    assert active_terms(given.objective, BERT_BASE)


@pytest.mark.parametrize(
    "yaml, expected",
    [
        ("train_file: [a.txt, b c.txt]", {"train_file": ["a.txt", "b c.txt"]}),
        ("objective: micse\nattention_mi_layers: [0, 1]", {"attention_mi_layers": [0, 1]}),
        ("eval_on_start: false\nmasked_views: true\nmlm_weight: 1", {"eval_on_start": False, "masked_views": True}),
        ("save_steps: null\nseed: 7", {"save_steps": 125, "seed": 7}),
        ("learning_rate: 3e-4\nmlm_weight: 1.0e-1", {"learning_rate": 3e-4, "mlm_weight": 0.1}),
        ("eval_strategy: no", {"eval_strategy": "no"}),  # YAML parses it as false
    ],
)
def test_yaml_values_are_converted(options, yaml, expected):
    values = options(yaml=yaml)
    assert {name: values[name] for name in expected} == expected


@pytest.mark.parametrize("yaml", ["learning_rat: 1", "- a", "", "recipe: other.yaml"])
def test_files_that_are_not_options_are_errors(options, yaml):
    with raises_usage(option="recipe"):
        options(yaml=yaml)


@pytest.mark.parametrize(
    "content, place",
    [
        (b"seed: 1\n\tmax_steps: 1\n", "a.yaml, line 2: "),
        (b"seed: 1\nview_dropout: [0.1, 0.2\n", "a.yaml, line 2: "),
        (b"seed: 1\nmax_steps: 2\nseed: 3\n", "a.yaml, line 3: found seed twice"),
        (b"lr_scheduler_kwargs:\n  power: 1\n  power: 2\n", "a.yaml, line 3: found power twice"),
        (b"seed: 1\n---\nseed: 2\n", "a.yaml, line 2: "),
        (b"seed: !!python/name:os.system\n", "a.yaml, line 1: "),
        (b"[1, 2]: 3\n", "a.yaml, line 1: "),
        (b"seed: 1\ntext_column: caf\xe9\n", "a.yaml, line 2: "),
        ("seed: 1\n".encode("utf-16"), "a.yaml, line 1: "),
        ("seed: 1\n".encode("utf-16-le"), "a.yaml, line 1: "),
        (b"text_column: \x01\n", "a.yaml: "),
        (b"seed: 2024-13-01\n", "a.yaml: "),
    ],
)
def test_the_error_of_a_recipe_names_the_file_and_the_line(tmp_path, content, place):
    (tmp_path / "a.yaml").write_bytes(content)
    with raises_usage(found=place):
        recipe_options(str(tmp_path / "a.yaml"))


def test_recipes_that_cannot_be_read(tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    for name in ("folder.yaml", "nowhere.yaml"):
        with raises_usage(option="recipe", found=name):
            recipe_options(str(tmp_path / name))


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "a.yaml").write_bytes("\ufeffseed: 7\n".encode())
    assert recipe_options(str(tmp_path / "a.yaml")) == {"seed": 7}


@pytest.mark.parametrize("option", ["model_name", "train_file", "eval_pairs", "text_column", "guide_model"])
def test_the_command_refuses_values_of_a_recipe_that_are_not_text(tmp_path, capsys, option):
    (tmp_path / "a.yaml").write_text(f"{option}: 5\n")
    words = ["--model_name=m"] if option != "model_name" else []
    assert train.main([f"--recipe={tmp_path / 'a.yaml'}", *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: --{option} is 5")


def test_paths_may_be_in_the_home_folder(tmp_path, monkeypatch):
    """A shell does not expand `~` after `=`, and YAML never does."""
    monkeypatch.setenv("HOME", str(tmp_path))
    names = "model_name senteval_dir eval_pairs eval_labels eval_retrieval guide_model guide_cache replay_file".split()
    names += ["output_dir", "resume_from_checkpoint"]
    (tmp_path / "a.yaml").write_text("".join(f"{name}: ~/{name}\n" for name in names) + "train_file: [~/a, ~/b]\n")
    given = parse(["--recipe=~/a.yaml", "--use_cpu=true"])
    found = vars(given.args) | vars(given.data) | {"model_name": given.model_name}
    assert {name: found[name] for name in names} == {name: str(tmp_path / name) for name in names}
    assert given.data.train_file == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert parse(["--model_name=m", "--train_file=~/c", "--use_cpu=true"]).data.train_file == [str(tmp_path / "c")]


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_RANK", "RANK"])
def test_what_a_launcher_sets_may_be_empty_and_must_be_a_number(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "")
    assert InforMinTrainingArguments(tmp_path, use_cpu=True).world_size == 1
    monkeypatch.setenv(name, "two")
    with raises_usage(found=name):
        InforMinTrainingArguments(tmp_path, use_cpu=True)


@pytest.mark.parametrize("argument, code", [("--seed=x", 2), ("--objective=other", 2)])
def test_wrong_arguments_end_the_program(options, argument, code):
    with pytest.raises(SystemExit) as caught:
        options(argument)
    assert caught.value.code == code
    with raises_usage(found="--learning_rat", fix="--learning_rate"):  # no abbreviations
        options("--learning_rat=1")


WRONG_VALUES = {  # by what the error has to say
    "--learning_rate=abc": "a number",
    "--per_device_train_batch_size=1.5": "a whole number",
    "--bf16=maybe": "true or false",
    "--objective=simse": "simcse",
    "--view=crops": "crop",
    "--eval_strategy=never": "epoch",
    "--save_strategy=never": "best",
    "--crop_spans=two": "independent",
    "--reconstruction_weight=much": "a number",
    "--seed": "no value",
}


def test_wrong_values_are_found_before_anything_else(bert, tmp_path):
    """In a process without torch, whose import takes seconds."""
    command, file = ["train", f"--model_name={bert}", f"--train_file={tmp_path / 'no file'}"], tmp_path / "texts.txt"
    file.write_text("a text\n")
    given = [
        *WRONG_VALUES,
        "--seed=1",
        f"--train_file={file} --eval_pairs=no.tsv",
        f"--train_file={file} --eval_labels=no.tsv",
    ]
    code = f"""
import sys
sys.modules["torch"] = None
from informin.cli import run_command
for words in {given!r}:
    assert run_command(*{command!r}, *words.split()) == 2
    print("---", file=sys.stderr)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    *errors, no_texts, no_pairs, no_labels, _ = ran.stderr.split("---\n")
    for word, error in zip(WRONG_VALUES, errors, strict=True):
        assert word.split("=")[0] in error and WRONG_VALUES[word] in error
    assert "no file" in no_texts and "--eval_pairs" in no_pairs and "--eval_labels" in no_labels


@pytest.mark.parametrize(
    "word", ["--learning_rate=1e-5", "--bf16=False", "--seed=7", "--warmup_steps=0.1", "--weight_decay=0.5"]
)
def test_values_that_the_parser_takes_pass(word):
    check_values(given_options([word, "--masked_views"]))
    parse(["--model_name=x", "--eval_strategy=steps", word])


def test_paths_in_the_home_folder_are_found_before_anything_else(bert, tmp_path, monkeypatch):
    """Also those that no shell has expanded: after an equals sign, and in recipes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").symlink_to(bert)
    (tmp_path / "recipe.yaml").write_text("guide_model: ~/model\n")
    for name in ("texts.txt", "pairs.tsv"):
        (tmp_path / name).write_text("a text\n")
    files = ["--model_name=~/model", "--train_file=~/texts.txt", "--eval_pairs=~/pairs.tsv"]
    for guide in ("--guide_model=~/model", "--recipe=~/recipe.yaml"):
        check_inputs([*files, "--objective=guided", guide])


def test_choices_of_transformers_are_those_of_the_installed_version():
    check_values(given_options(["--lr_scheduler_type=of_a_later_version"]))
    with pytest.raises(SystemExit):
        parse(["--model_name=x", "--lr_scheduler_type=of_a_later_version"])


def test_help_shows_our_options_and_the_often_used_ones():
    shown = dict(line.split("\t")[:2] for line in TrainParser().help_lines())
    names = {flag.split()[0][2:] for flag in shown}
    assert {"temperature", "train_file", "license", "max_steps", "model_name", "recipe", *OFTEN_USED} <= names
    assert not {"ddp_backend", "adam_beta1", "no_load_best_model_at_end"} & names
    declared = {field.name for field in dataclasses.fields(InforMinTrainingArguments)}
    ours = declared - {field.name for field in dataclasses.fields(TrainingArguments)}
    assert ours <= names
    assert {"reconstruction_form", "guided_neighbors", "crop_min_fraction", "mlm_weight"} <= names
    assert "0.4 for informin, else 0 (off)" in shown["--reconstruction_weight X"]


def test_help_shows_every_default_once():
    parser = TrainParser()
    parser.set_defaults(num_train_epochs=3.0, lora_merge=False)
    shown = dict(line.split("\t")[:2] for line in parser.help_lines())
    assert shown["--num_train_epochs X"].endswith("training sentences. Default: 3.")
    assert shown["--lora_merge X"].endswith("Default: false.")
    assert shown["--momentum_decay X"].endswith("Default: 0.995.")
    assert not any("Default: None" in text or "Default: ==" in text for text in shown.values())


def test_the_saved_help_is_that_of_the_parser():
    """Of the options of transformers only the names: its texts depend on the version."""
    saved, parsed = (
        {flag: rest for flag, *rest in (line.split("\t") for line in lines)}
        for lines in (HELP.read_text(encoding="utf-8").splitlines(), TrainParser().help_lines())
    )
    assert [*saved] == [*parsed], "run python -m tools.train_help"
    ours = [flag for flag in saved if flag.split()[0][2:] not in OFTEN_USED]
    assert [saved[flag] for flag in ours] == [parsed[flag] for flag in ours], "run python -m tools.train_help"


def test_the_bar_is_shown_although_transformers_is_quiet():
    quiet_transformers()
    assert parse(["--model_name=x"]).args.disable_tqdm is False
    assert parse(["--model_name=x", "--disable_tqdm=true"]).args.disable_tqdm is True


def test_unknown_options_are_named():
    with raises_usage(found="--overwrite_output_dir"):
        parse(["--model_name=x", "--overwrite_output_dir"])


def test_wrong_options_are_errors():
    with raises_usage(option="model_name"):
        parse([])
    with raises_usage(option="recipe"):
        parse(["--recipe=nonsense"])
    with raises_usage():  # of TrainingArguments
        parse(["--model_name=x", "--fp16=true", "--bf16=true"])
    with raises_usage(found="load_best_model_at_end"):  # the best evaluation may have no checkpoint
        parse(["--model_name=x", "--eval_strategy=epoch", "--save_strategy=steps", "--save_steps=1"])


@pytest.mark.parametrize(
    "given, expected",
    [
        ([], {"eval_steps": 125, "save_steps": 125, "eval_on_start": True, "load_best_model_at_end": True}),
        (["--eval_steps=40"], {"eval_steps": 40, "save_steps": 40}),
        (["--eval_steps=40", "--save_steps=80"], {"eval_steps": 40, "save_steps": 80}),
        (
            ["--eval_strategy=no", "--save_total_limit=1"],
            {"eval_on_start": False, "load_best_model_at_end": False, "metric_for_best_model": None, "save_steps": 125},
        ),
        (["--eval_strategy=epoch"], {"save_strategy": "epoch"}),
        (["--save_strategy=no"], {"eval_strategy": "steps", "load_best_model_at_end": False}),
    ],
)
def test_defaults_that_depend_on_other_options(options, given, expected):
    values = options(*given)
    assert {name: values[name] for name in expected} == expected


@pytest.mark.parametrize(
    "option, given",
    [
        ("reconstruction_weight", dict(reconstruction_weight=-1.0)),
        ("temperature", dict(temperature=0.0)),
        ("view_dropout", dict(view_dropout=[0.2, 0.1])),
        ("view_dropout", dict(view_dropout=[1.0])),
        ("view_dropout", dict(view_dropout=[0.1, 0.2, 0.3])),
        ("view_dropout", dict(view_dropout=[])),
        ("objective", dict(objective="other")),
        ("view", dict(view="other")),
        ("tension_negatives", dict(objective="ct", contrastive_tension_form="in_batch", tension_negatives=3)),
        ("pooler", dict(pooler="max")),
        ("projection_head", dict(projection_head="linear")),
        ("objective", dict(objective="noncontrastive")),
        ("objective", dict(objective="noncontrastive", reconstruction_weight=0.0)),
        ("auto_find_batch_size", dict(auto_find_batch_size=True)),
        ("greater_is_better", dict(metric_for_best_model="alignment", greater_is_better=True)),
        # Numbers with which a run would train nothing, or something else.
        ("num_train_epochs", dict(num_train_epochs=-3)),
        ("num_train_epochs", dict(num_train_epochs=0)),
        ("num_train_epochs", dict(num_train_epochs=float("nan"))),
        ("max_steps", dict(max_steps=0)),
        ("per_device_train_batch_size", dict(per_device_train_batch_size=0)),
        ("gradient_accumulation_steps", dict(gradient_accumulation_steps=0)),
        ("learning_rate", dict(learning_rate=-1e-5)),
        ("weight_decay", dict(weight_decay=-0.1)),
        ("neftune_noise_alpha", dict(neftune_noise_alpha=float("nan"))),
        ("max_train_samples", dict(max_train_samples=-1)),
        ("lora_r", dict(lora_r=0)),
        ("optim_args", dict(optim="adafactor", optim_args="relative_step=True")),
        ("lora_dropout", dict(lora_dropout=1.0)),
        ("gradient_cache_chunk_size", dict(gradient_cache_chunk_size=0)),
        # Options of transformers that this trainer does not read, or with which Trainer does something else.
        ("label_smoothing_factor", dict(label_smoothing_factor=0.1)),
        ("label_names", dict(label_names=["label"])),
        ("use_liger_kernel", dict(use_liger_kernel=True)),
        ("liger_kernel_config", dict(liger_kernel_config={"rope": True})),
        ("bf16_full_eval", dict(bf16_full_eval=True)),
        ("fp16_full_eval", dict(fp16_full_eval=True)),
        ("prediction_loss_only", dict(prediction_loss_only=True)),
        ("batch_eval_metrics", dict(batch_eval_metrics=True)),
        ("eval_accumulation_steps", dict(eval_accumulation_steps=4)),
        ("include_for_metrics", dict(include_for_metrics=["loss"])),
        ("train_sampling_strategy", dict(train_sampling_strategy="other")),
        ("train_sampling_strategy", dict(train_sampling_strategy="batch_rebalance")),
        ("fp16", dict(fp16=True)),
        ("ddp_backend", dict(ddp_backend="gloo")),
        ("torch_compile_backend", dict(torch_compile_backend="other")),
        # Options of LoRA without LoRA.
        ("lora_dropout", dict(lora_dropout=0.2)),
        ("lora_merge", dict(lora_merge=False)),
        ("lora_merge", dict(lora_r=2, lora_merge=False, revision="v1.0")),
        # Options of terms and views that are off.
        ("reconstruction_form", dict(objective="simcse", reconstruction_form="unit")),
        ("reconstruction_form", dict(reconstruction_weight=0.0, reconstruction_form="unit")),
        ("masked_views", dict(masked_views=True)),
        ("queue_size", dict(objective="scd", queue_size=8)),
        ("momentum_decay", dict(momentum_decay=0.9)),
        ("false_negative_weight", dict(false_negative_weight=0.5)),
        ("crop_min_fraction", dict(crop_min_fraction=0.3)),
        ("seed", dict(seed=-1)),
        ("seed", dict(seed=2**32)),
        ("repetition_rate", dict(view="crop", repetition_rate=0.3)),
    ],
)
def test_invalid_options_are_rejected(option, given):
    with raises_usage(option=option):
        how_to_train(use_cpu=True, **given)


def test_the_precision_of_a_launcher_that_a_cpu_cannot_compute_in_is_an_error(monkeypatch):
    """No option of the run asks for it."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with raises_usage(found="mixed_precision"):
        how_to_train(use_cpu=True)


def test_a_model_that_cannot_be_compiled_names_the_option(bert, arguments, monkeypatch):
    """As without a C++ compiler."""
    args = arguments(torch_compile=True, torch_compile_backend="eager", eval_strategy="no", max_steps=1)
    trainer = InforMinTrainer(str(bert), args, train_dataset=make_sentences(64))

    def compile_nothing(*_, **__):
        raise torch._dynamo.exc.TorchDynamoException("No working C++ compiler found\nSet TORCHDYNAMO_VERBOSE")

    monkeypatch.setattr(trainer, "compute_loss", compile_nothing)
    with raises_usage("torch_compile", found="C++") as info:
        trainer.train()
    assert "TORCHDYNAMO" not in str(info.value)


@pytest.mark.parametrize("option", ["dataset_config", "dataset_split"])
def test_options_of_a_dataset_need_its_name(option):
    with raises_usage(option):
        DataArguments(train_file=["a.txt"], **{option: "validation"})
    assert getattr(DataArguments(dataset_name="one", **{option: "validation"}), option) == "validation"


@pytest.mark.parametrize("option", EVALUATION_DATA)
def test_evaluation_data_of_a_recipe_that_does_not_evaluate_are_an_error(option):
    """In each spelling that argparse accepts."""
    command = ["--model_name", "m", "--recipe", "adapt"]
    words = [f"--{option}=a.tsv"]
    for spelling in (words, [f"--{option}", "a.tsv"], [f"--{option.replace('_', '-')}", "a.tsv"]):
        with raises_usage(option):
            parse([*command, *spelling])
    for strategy in (["--eval_strategy", "steps"], ["--eval-strategy=steps"]):
        assert parse([*command, *words, *strategy, "--eval_steps=20"]).args.eval_strategy == "steps"
    assert parse([*command, *words, "--eval-strategy=no"]).args.eval_strategy == "no"


def test_options_of_terms_and_views_have_both_spellings():
    command = ["--model_name=m", "--use_cpu=true", "--view=crop", "--crop-min-fraction", "0.3"]
    given = parse([*command, "--reconstruction-weight=2"])
    assert given.view.min_fraction == 0.3
    assert {term.name: term.weight for term in given.objective.terms(BERT_BASE)}["reconstruction"] == 2


@pytest.mark.parametrize("name", ["other", "wandb", "mlflow"])
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_reports_that_cannot_be_written_end_the_run_before_the_data_are_read(bert, tmp_path, capsys, monkeypatch, name):
    """MLflow's callback fails a second time when it is deleted."""
    for package in ("wandb", "mlflow"):
        monkeypatch.setattr(f"transformers.integrations.integration_utils.is_{package}_available", lambda: False)
    command = ["--model_name", str(bert), "--train_file", str(tmp_path), "--eval_strategy", "no", "--report_to", name]
    assert train.main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --report_to ") and error.count("\n") == 1


@pytest.mark.parametrize("optim", [["adamw_bnb_8bit"], ["grokadamw"], ["sgd", "--optim_args", "momentum"]])
def test_optimizers_that_cannot_be_built_end_the_run(bert, tmp_path, capsys, monkeypatch, optim):
    """Their package is not installed, or their arguments cannot be read."""
    for name in ("bitsandbytes", "grokadamw"):
        monkeypatch.setattr(f"transformers.trainer_optimizer.is_{name}_available", lambda: False)
    (tmp_path / "texts.txt").write_text("\n".join(make_sentences(40)))
    command = ["--model_name", str(bert), "--train_file", str(tmp_path), "--eval_strategy", "no", "--max_steps", "1"]
    options = ["--output_dir", str(tmp_path / "run"), "--per_device_train_batch_size", "16", "--optim", *optim]
    assert train.main([*command, *options]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: --optim is {optim[0]}") and ("--optim_args" in error) == (len(optim) > 1)


@pytest.mark.parametrize("kwargs", [None, {"other": 1}])
def test_a_scheduler_whose_arguments_do_not_fit_is_an_error(bert, tmp_path, kwargs):
    args = InforMinTrainingArguments(
        str(tmp_path),
        use_cpu=True,
        per_device_train_batch_size=16,
        eval_strategy="no",
        max_steps=1,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs=kwargs,
    )
    with raises_usage("lr_scheduler_type"):
        InforMinTrainer(str(bert), args, train_dataset=make_sentences(40)).train()


@pytest.mark.parametrize(
    "scheduler, metric, given, mode",
    [
        ("reduce_lr_on_plateau", None, None, "max"),
        ("reduce_lr_on_plateau", "alignment", {"factor": 0.5}, "min"),
        ("reduce_lr_on_plateau", None, {"mode": "min"}, "min"),
        ("greedy", "alignment", None, "min"),
    ],
)
def test_a_scheduler_follows_the_direction_of_the_metric(bert, arguments, pairs_file, scheduler, metric, given, mode):
    args = arguments(lr_scheduler_type=scheduler, lr_scheduler_kwargs=given, metric_for_best_model=metric)
    trainer = InforMinTrainer(str(bert), args, train_dataset=make_sentences(64), eval_dataset=pairs_file)
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    assert trainer.create_scheduler(4, optimizer).mode == mode
    assert args.lr_scheduler_kwargs == given
    with raises_usage(option="lr_scheduler_type" if metric is None else "metric_for_best_model"):
        InforMinTrainer(str(bert), args, train_dataset=make_sentences(64))


@pytest.mark.parametrize("given, least", [(None, 0.0), ({"min_lr": 1e-6}, 1e-6)])
def test_the_greedy_scheduler_lowers_learning_rates_of_encoders(bert, arguments, pairs_file, given, least):
    """Its own least learning rate is 0.001, below which it lowers nothing."""
    args = arguments(lr_scheduler_type="greedy", lr_scheduler_kwargs={"patience": 0} | (given or {}))
    trainer = InforMinTrainer(str(bert), args, train_dataset=make_sentences(64), eval_dataset=pairs_file)
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=3e-5)
    scheduler = trainer.create_scheduler(4, optimizer)
    for score in (50.0, 40.0, 30.0):
        scheduler.step(score)
    assert scheduler.min_lrs == [least] and least < optimizer.param_groups[0]["lr"] < 3e-5


def test_attention_maps_need_a_view_that_keeps_tokens():
    class Words(View):
        def change(self, tokens, generator):
            return tokens + 1

    args = InforMinTrainingArguments(use_cpu=True, objective="micse", per_device_train_batch_size=8)
    active = activate(PRESETS["micse"], BERT_BASE, Words(), None)
    with raises_usage(option="attention_mi_weight"):
        check_terms(active.terms, active.view, args)


def test_a_batch_is_large_enough_for_the_terms():
    args = InforMinTrainingArguments(use_cpu=True, per_device_train_batch_size=1)
    active = activate(PRESETS["simcse"], BERT_BASE, "dropout", None)
    with raises_usage(option="per_device_train_batch_size"):
        check_terms(active.terms, active.view, args)


@pytest.mark.parametrize("given", [dict(objective="simcse", reconstruction_weight=0.0), dict(masked_views=False)])
def test_zeros_and_defaults_of_other_terms_are_accepted(given):
    how_to_train(use_cpu=True, **given)


def test_several_gpus_or_unequal_batches_are_rejected(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(TrainingArguments, "n_gpu", property(lambda self: 3))
        with raises_usage(found="3 GPUs"):
            InforMinTrainingArguments(use_cpu=True)
    monkeypatch.setattr(TrainingArguments, "world_size", property(lambda self: 2))
    InforMinTrainingArguments(use_cpu=True, per_device_train_batch_size=1)
    with raises_usage(option="dataloader_drop_last"):
        InforMinTrainingArguments(use_cpu=True, dataloader_drop_last=False)
    with raises_usage(option="accelerator_config"):
        InforMinTrainingArguments(use_cpu=True, accelerator_config={"split_batches": True})


def test_batch_of_the_paper_is_split_across_processes(monkeypatch):
    args = InforMinTrainingArguments(use_cpu=True)
    monkeypatch.setenv("WORLD_SIZE", "4")
    filled = with_paper_values(args, PRESETS["informin"], BERT_BASE, "x")
    assert filled.per_device_train_batch_size == 32 and "-batch128-" in filled.output_dir


@pytest.mark.parametrize(
    "given, weights",
    [
        ({}, {"contrast": 1.0, "reconstruction": 0.4}),
        (dict(objective="simcse"), {"contrast": 1.0}),
        (dict(objective="simcse", reconstruction_weight=4.0), {"contrast": 1.0, "reconstruction": 4.0}),
        (dict(reconstruction_weight=0.0, mlm_weight=0.1), {"contrast": 1.0, "mlm": 0.1}),
        (
            dict(objective="micse", reconstruction_weight=1),
            {"contrast": 1, "attention_mi": 2.5e-3, "reconstruction": 1},
        ),
        (dict(objective="guided"), {"guided": 1.0}),
        (dict(objective="guided", distillation_weight=15), {"distillation": 15}),
        (dict(objective="guided", guided_weight=2, replay_weight=1), {"guided": 2, "replay": 1}),
    ],
)
def test_a_weight_turns_a_term_on(given, weights):
    """The order is that of the preset, then of the added terms; a preset without a paper has only the given terms."""
    found = active_terms(how_to_train(use_cpu=True, **given)["objective"], BERT_BASE)
    assert {term.name: term.weight for term in found} == weights and [term.name for term in found] == list(weights)


def test_what_is_set_is_what_is_read():
    args = InforMinTrainingArguments("out", use_cpu=True)
    own = SourceArguments.__annotations__ | InforMinTrainingArguments.__annotations__
    empty = {name for name in own if getattr(args, name) is None}
    assert empty == {
        # Filled in by the trainer, on its own copy.
        *("per_device_train_batch_size", "learning_rate", "warmup_steps", "metric_for_best_model"),
        "view",  # that of the objective
        # None means: none, or the encoder's own.
        *("revision", "prompt", "lora_r", "view_dropout", "guide_model", "guide_cache", "replay_file"),
        *("max_train_samples", "max_seq_length", "padding_free", "gradient_cache_chunk_size", "measure_drift"),
        "cuda_graphs",
        "resume_from_checkpoint",
    }
    assert args.bf16 in (True, False) and args.save_steps == 125 and args.save_strategy == "steps"
    given = dict(learning_rate=1e-4, warmup_steps=0.1, metric_for_best_model="uniformity", max_seq_length=40)
    args = InforMinTrainingArguments("out", use_cpu=True, **given)
    assert {name: getattr(args, name) for name in given} == given and args.greater_is_better is False


def test_the_papers_values_are_filled_in_on_a_copy():
    args = InforMinTrainingArguments(use_cpu=True)
    before = dataclasses.asdict(args)
    filled = with_paper_values(args, PRESETS["informin"], BERT_BASE, "models/tiny-bert")
    assert dataclasses.asdict(args) == before and args.learning_rate is None and args.output_dir is None
    assert (filled.learning_rate, filled.per_device_train_batch_size, filled.warmup_steps) == (3e-5, 128, 0)
    assert filled.output_dir == "outputs/tiny-bert-informin-batch128-lr3e-5-seed42"
    assert with_paper_values(filled, PRESETS["micse"], BERT_BASE, "x") is filled


def test_the_trainer_uses_the_given_arguments(bert, unscored):
    args = unscored(warmup_steps=0)
    trainer = InforMinTrainer(str(bert), args, train_dataset=make_sentences(40))
    assert trainer.args is args and args.max_seq_length is None and trainer.max_seq_length == 32


def test_copies_and_pickles_have_every_field():
    first, second = (InforMinTrainingArguments(max_seq_length=n, use_cpu=True, hub_token="hf_x") for n in (8, 9))
    assert first != second and first == copy.copy(first)
    assert "max_seq_length=8" in str(first) and "hf_x" not in repr(first)
    assert pickle.loads(pickle.dumps(first)) == first
    assert dataclasses.replace(first, seed=3).max_seq_length == 8
    for field in dataclasses.fields(InforMinTrainingArguments):
        assert field.metadata.get("help"), field.name
    assert InforMinTrainingArguments.__bases__ == (SourceArguments, TrainingArguments)


@pytest.mark.parametrize("given, expected", [({}, True), (dict(bf16=False), False)])
def test_bf16_follows_the_hardware(monkeypatch, given, expected):
    monkeypatch.setattr("informin.training.arguments.processor_has_bf16", lambda: True)
    args = InforMinTrainingArguments("out", use_cpu=True, **given)
    assert args.bf16 is expected
    args.fp16 = True
    assert not prefers_bf16(args)


def test_a_mac_trains_in_fp32(monkeypatch):
    """Its GPU may emulate bf16."""
    args = InforMinTrainingArguments(use_cpu=True)
    args.use_cpu = False  # as with a GPU
    monkeypatch.setattr("informin.training.arguments.is_torch_bf16_gpu_available", lambda: True)
    assert prefers_bf16(args)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert not prefers_bf16(args)


def test_dictionaries_may_be_json_or_a_file(tmp_path):
    (tmp_path / "accelerator.json").write_text('{"split_batches": true}')
    given = dict(lr_scheduler_kwargs='{"num_cycles": 2}', accelerator_config=str(tmp_path / "accelerator.json"))
    args = InforMinTrainingArguments("out", use_cpu=True, **given)
    assert args.lr_scheduler_kwargs == {"num_cycles": 2} and args.accelerator_config.split_batches


def test_warmup_may_be_missing_but_not_negative():
    assert InforMinTrainingArguments("out", use_cpu=True).warmup_steps is None
    with pytest.raises(ValueError, match="warmup"):
        InforMinTrainingArguments("out", use_cpu=True, warmup_steps=-1)


def test_lora_without_its_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with raises_usage("lora_r", found="peft", fix="lora"):
        InforMinTrainingArguments(tmp_path, lora_r=4)


def test_a_folder_with_the_name_of_a_package_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "faiss_of_mine").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_installed("faiss_of_mine") and is_installed("torch")
