"""No published file has a training sentence, a path of this machine, or anything that this project did not write."""

import json
from pathlib import Path

import pytest

from informin.cli import export, fit, push
from informin.publishing.export import export_folder
from informin.publishing.published import check_export, published_files
from tests.conftest import make_sentences, raises_usage, save_bert
from tests.models.any_encoder.helpers import change, general_trainer, sentence_transformer
from tests.models.any_encoder.st_models import save_family
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

STRAYS = [
    *("report.json", "report.html", "notes.txt", "secrets.json", "x.py", "titles.txt", "drift.json", "snapshot.json"),
    *(
        "documents.npy",
        "trainer_state.json.bak",
        "training_args.bin",
        "pytorch_model.bin",
        "optimizer.pt",
        "rng_state.pth",
    ),
    *("runs/events.out.tfevents.host", "runs/a/config.json", "logs/log.txt", "guide/texts.json", ".env", "README.md~"),
    *("1_Pooling/notes.json", "1_Pooling/x.py", "1_Pooling/vocab.txt", "2_Dense/notes.txt", "model-secret.safetensors"),
    *("results/tiny-cls.json", "results/log.txt", "onnx/trace.json", "onnx/other.onnx", "checkpoint-7/config.json"),
]
SENTENCES = make_sentences(96)
MARKS = [text for text in SENTENCES if text.count(" ") > 3]
MODELS = ["native", "st", "merged", "fit", "fit-st"]


def trained(model: Path, folder: Path, **options) -> Path:
    """Export the model of a run with its report, which has sentences."""
    run = general_trainer(model, folder, measure_drift=True, **options)
    run.train()
    run.export(str(folder))
    return folder


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Return a function that makes an output folder of a kind, once."""
    place = tmp_path_factory.mktemp("private-folder")
    made: dict[str, Path] = {}
    bert = sentence_transformer(save_bert(place / "plain"), place / "bert")
    (place / "texts.txt").write_text("\n".join(SENTENCES))

    def fitted(model: Path, folder: Path) -> Path:
        options = ["--train_file", str(place / "texts.txt"), "--preset", "short_texts", "--documents", "adapted"]
        assert fit.main(["--model_name", str(model), "--output_dir", str(folder), *options]) == 0
        return folder

    kinds = {
        "native": lambda folder: trained(bert, folder, backend="native", view="dropout"),
        "st": lambda folder: trained(save_family("labse", place), folder),
        "merged": lambda folder: trained(bert, folder, lora_r=4),
        "matrices": lambda folder: trained(bert, folder, lora_r=4, lora_merge=False),
        "fit": lambda folder: fitted(bert, folder),
        "fit-st": lambda folder: fitted(save_family("t5", place), folder),
    }

    def output(kind: str) -> Path:
        if kind not in made:
            made[kind] = kinds[kind](place / f"output-{kind}")
        return made[kind]

    return output


@pytest.fixture
def output(outputs, tmp_path):
    """Return a copy of an output folder, with other files in it."""

    def with_strays(kind: str) -> Path:
        folder = tmp_path / "private-folder" / kind
        for path in outputs(kind).rglob("*"):
            if path.is_file():
                (folder / path.relative_to(outputs(kind))).parent.mkdir(parents=True, exist_ok=True)
                (folder / path.relative_to(outputs(kind))).write_bytes(path.read_bytes())
        for name in STRAYS:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if not (folder / name).exists():
                (folder / name).write_text(json.dumps({"model": "/private-folder/x", "text": MARKS[0]}))
        return folder

    return with_strays


def private(folder: Path, names: list[Path]) -> dict[str, list[str]]:
    """Return the private texts in files of a folder, by file."""
    words = ["private-folder", str(Path.home()), *MARKS]
    content = {name.as_posix(): (folder / name).read_bytes().decode("latin-1") for name in names}
    return {name: found for name, text in content.items() if (found := [word for word in words if word in text])}


@pytest.mark.parametrize("kind", MODELS)
def test_published_files(output, kind):
    folder = output(kind)
    names = published_files(folder)
    assert not {path.as_posix() for path in names} & set(STRAYS)
    assert {"README.md", "modules.json", "tokenizer.json", "1_Pooling/config.json"} <= {str(path) for path in names}
    assert [path for path in names if path.suffix == ".safetensors"]
    assert private(folder, names) == {}
    if kind != "fit-st":  # the report is where the sentences would have been found
        assert private(folder, [Path("report.json")])


@pytest.mark.parametrize("kind", MODELS)
def test_published_files_are_all_that_a_model_needs(outputs, output, tmp_path, kind):
    """Copied elsewhere, they give the same embeddings."""
    from sentence_transformers import SentenceTransformer

    folder = output(kind)
    for path in published_files(folder):
        (tmp_path / "copy" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / path).write_bytes((folder / path).read_bytes())
    one, other = (
        SentenceTransformer(str(path), device="cpu").encode(MARKS[:3]) for path in (outputs(kind), tmp_path / "copy")
    )
    assert (one == other).all()


@pytest.mark.parametrize("kind", ["native", "st", "merged"])
def test_push_and_export_list_the_same_files(output, tmp_path, capsys, kind):
    folder = output(kind)
    names = [path.as_posix() for path in published_files(folder)]
    capsys.readouterr()  # of the run, if no other test of this process made the folder before
    assert push.main([str(folder), "me/x", "--dry_run"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in listed[: len(names)]] == names
    assert push.main([str(folder), "me/x", "--dry_run", "--update_card"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[1] == "README.md"
    assert export.main([str(folder), str(tmp_path / "export")]) == 0
    assert sorted(capsys.readouterr().out.split()) == names
    assert [path for path in (tmp_path / "export").rglob("*") if path.is_file() and path.name in STRAYS] == []


def test_low_rank_matrices_of_a_local_model_are_not_pushed(output, capsys):
    folder = output("matrices")
    assert push.main([str(folder), "me/x", "--dry_run"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "adapter_config.json names" in error and "lora_merge" in error
    change(folder, "adapter_config.json", base_model_name_or_path="bert")  # a relative path has the form of a Hub id
    with raises_usage(found="adapter_config.json names a local folder", needed="a Hub id", fix="`lora_merge` true"):
        check_export(folder)
    record = json.loads((folder / "training.json").read_text())
    change(folder, "training.json", base_model=record["base_model"] | {"hub_id": "org/bert"})
    with raises_usage(found="names a local folder", needed="the Hub id org/bert"):
        check_export(folder)
    change(folder, "adapter_config.json", base_model_name_or_path="org/bert")
    check_export(folder)
    assert private(folder, published_files(folder)) == {}


def test_low_rank_matrices_name_their_source_on_the_hub(outputs, tmp_path):
    base = outputs("native").parent / "bert"
    how = dict(lora_r=4, lora_merge=False, view="crop", report_to=[], eval_strategy="no", max_steps=1, use_cpu=True)
    args = InforMinTrainingArguments(str(tmp_path / "run"), objective="simcse", measure_drift=False, **how)
    run = InforMinTrainer(str(base), args, SENTENCES, provenance={"hub_id": "org/bert"})
    run.export(str(tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "adapter_config.json").read_text())["base_model_name_or_path"] == "org/bert"
    check_export(tmp_path / "run")
    # Whole weights next to low-rank ones, or the reverse, would be loaded.
    export_folder(run.trained, tmp_path / "run", run.record())
    assert (tmp_path / "run" / "model.safetensors").exists() and not list((tmp_path / "run").glob("adapter_*"))
    export_folder(run.trained, tmp_path / "run", run.record(), merge=False)
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_push_that_cannot_succeed_is_refused_before_training(outputs, tmp_path, monkeypatch):
    base = outputs("native").parent / "bert"
    how = dict(lora_r=4, lora_merge=False, view="crop", push_to_hub=True, hub_model_id="me/x", eval_strategy="no")
    args = InforMinTrainingArguments(str(tmp_path / "run"), objective="simcse", use_cpu=True, report_to=[], **how)
    with raises_usage(option="lora_merge", found="is false", fix="base_model"):
        InforMinTrainer(str(base), args, SENTENCES)


@pytest.mark.parametrize("kind", ["native", "st"])
@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(("config.json", "_name_or_path"), ("tokenizer_config.json", "name_or_path")),
        *(("tokenizer_config.json", "vocab_file"), ("config_sentence_transformers.json", "cache_folder")),
    ],
)
def test_paths_in_settings_are_removed_by_an_export_and_refused_by_a_push(output, tmp_path, kind, name, key):
    """They come from older versions of transformers, and from tokenizers that were trained here."""
    folder = output(kind)
    path = str(tmp_path) if key == "cache_folder" else "/private-folder/of/somebody"
    change(folder, name, **{key: path})
    with raises_usage(found=f"names a path of this machine: {key} is"):
        check_export(folder)
    if key != "cache_folder":
        assert export.main([str(folder), str(tmp_path / "export")]) == 0
        assert key not in json.loads((tmp_path / "export" / name).read_text())
        check_export(tmp_path / "export")


@pytest.mark.parametrize("kind", ["native", "st"])
def test_links_to_files_of_modules_are_refused(output, tmp_path, kind):
    """Also of modules in folders with names of their own."""
    folder = output(kind)
    modules = json.loads((folder / "modules.json").read_text())
    (folder / modules[1]["path"]).rename(folder / "own name [x]")
    modules[1]["path"] = "own name [x]"
    (folder / "modules.json").write_text(json.dumps(modules))
    assert Path("own name [x]/config.json") in published_files(folder)
    (tmp_path / "private.json").write_text("{}")
    (folder / "own name [x]" / "config.json").unlink()
    (folder / "own name [x]" / "config.json").symlink_to(tmp_path / "private.json")
    with raises_usage(found="config.json is a link"):
        published_files(folder)


def test_code_of_a_model_is_published_with_what_it_imports(tmp_path):
    folder = save_family("remote", tmp_path)
    (folder / "modeling_sum.py").write_text("from .helper import x\nimport .other\n")
    for name in ("helper", "other", "stray"):
        (folder / f"{name}.py").write_text("x = 1\n")
    code = {path.name for path in published_files(folder) if path.suffix == ".py"}
    assert code == {"modeling_sum.py", "helper.py", "other.py"}


def test_split_weights_and_modules_of_a_router_are_published(tmp_path):
    folder = tmp_path / "model"
    inner = {"query_0_Transformer": "sentence_transformers.models.Transformer"}
    files = {
        "modules.json": [{"path": "", "type": "sentence_transformers.models.Router"}],
        "router_config.json": {"types": inner},
        "query_0_Transformer/config.json": {},
        "query_0_Transformer/notes.json": {},
        "query_0_Transformer/model.safetensors.index.json": {
            "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "../../x.safetensors", "c": "secret.json"}
        },
        "query_0_Transformer/model-00001-of-00002.safetensors": {},
        "query_0_Transformer/secret.json": {},
        "stray_0_Transformer/config.json": {},
    }
    for name, values in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(values))
    assert {path.as_posix() for path in published_files(folder)} == {
        *("modules.json", "router_config.json", "query_0_Transformer/config.json"),
        "query_0_Transformer/model.safetensors.index.json",
        "query_0_Transformer/model-00001-of-00002.safetensors",
    }
    (folder / "router_config.json").write_text(json.dumps({"types": {"../x": "a.Transformer"}}))
    with raises_usage(option="model_name", found="outside of the folder"):
        published_files(folder)
