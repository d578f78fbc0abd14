"""training.json: options, data sources, licenses and names on the Hub."""

import dataclasses
import hashlib

import huggingface_hub
import pytest
import torch
from datasets import Dataset

from informin.errors import UndefinedScoreError
from informin.evaluation.results import environment
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_tokenizer, load_trainable
from informin.models.open_model import in_memory
from informin.publishing.export import export_checkpoint
from informin.training.data_options import CardArguments, DataArguments
from informin.training.record import describe_sentences, provenance
from tests.conftest import raises_usage
from tests.publishing.export_helpers import COMMON, EXPORTED, Run, copy, published, read_json, weights_sha256


def test_training_record(bert_run, bert, sentences_file):
    record = bert_run.record
    sha256 = weights_sha256(bert)
    told = dict(name="tiny-bert", hub_id=None, revision=None, weights_sha256=sha256)
    assert record["base_model"] == told | {"settings_sha256": facts(bert)["base_model"]["settings_sha256"]}
    text = "".join(f"{line}\0" for line in sentences_file.read_text().splitlines())
    assert record["data"] == dict(
        **dict(sources=[sentences_file.name], hub_id=None, description=None, sentences=96),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )
    assert (record["schema"], record["language"], record["license"], record["seed"]) == (2, None, None, 42)
    state = read_json(bert_run.folder / "checkpoint-4" / "trainer_state.json")
    scores = [entry for entry in state["log_history"] if "eval_spearman" in entry]
    names = ("spearman", "alignment", "uniformity")
    history = [{"step": entry["step"]} | {name: entry[f"eval_{name}"] for name in names} for entry in scores]
    assert record["history"] == history and [entry["step"] for entry in history] == [0, 2, 4]
    assert record["development"] == "pairs.tsv" and record["steps"] == 4 and record["chosen"] is True
    assert record["kept_step"] == max(history[1:], key=lambda entry: entry["spearman"])["step"]
    assert record["sentences_per_second"] > 0
    assert record["environment"] == environment(torch.device("cpu"))
    kinds = [
        ("contrast", "simcse", True),
        ("reconstruction", "informin", True),
        ("masked language modeling", None, False),
    ]
    objective = record["objective"]
    assert (objective["name"], objective["title"]) == ("informin", "InforMin-CL")
    assert [(term["title"], term["paper"], term["own"]) for term in objective["terms"]] == kinds
    card = (bert_run.folder / "README.md").read_text()
    assert f"{record['kept_step']} steps of InforMin-CL with masked language modeling on 96 sentences" in card


def test_options_of_the_record(bert_run, bert, sentences_file, tmp_path):
    """All options that affect the weights, and none without effect."""
    mlm = dict(mlm_weight=0.1, mlm_probability=0.15, masked_views=False)
    informin = dict(objective="informin", reconstruction_weight=0.4, reconstruction_form="reference")
    assert bert_run.record["options"] == COMMON | informin | mlm | {"max_steps": 4}
    simcse = dict(objective="simcse", projection_head="none", max_seq_length=16, warmup_steps=0.1, weight_decay=0.01)
    epochs = dict(max_steps=None, num_train_epochs=0.5, eval_strategy="no")
    run = Run(tmp_path / "run", model_name=bert, train_file=sentences_file, **simcse, **epochs)
    assert run.record["options"] == COMMON | simcse | {"num_train_epochs": 0.5}
    unscored = {"development": None, "history": [], "steps": 3, "kept_step": 3, "chosen": False}
    assert {name: run.record[name] for name in unscored} == unscored


def test_undefined_score_is_null(bert, data, tmp_path, monkeypatch):
    """The score before the first step is undefined. The card shows a dash."""
    scores = iter([None, {"spearman": 50.0, "alignment": float("inf"), "uniformity": -1.0}])

    def score(encode, pairs):
        scored = next(scores)
        if scored is None:
            raise UndefinedScoreError("no reason")
        return scored

    monkeypatch.setattr("informin.evaluation.pairs.score_pairs", score)
    run = Run(tmp_path / "run", model_name=bert, max_steps=2, **data)
    undefined = dict.fromkeys(("spearman", "alignment", "uniformity"))
    assert run.record["history"] == [
        {"step": 0, **undefined},
        {"step": 2, "spearman": 50.0, "alignment": None, "uniformity": -1.0},
    ]
    card = (run.folder / "README.md").read_text()
    assert "| before training | - | - | - |" in card and "| step 2, this model | 50.00 | - | -1.000 |" in card


def facts(model_name, *, revision=None, sentences=("a", "b"), data=None, **card) -> dict:
    """Return the facts that are recorded before the first step."""
    files, data = Checkpoint(model_name, revision), DataArguments(**data or {"train_file": ["x.txt"]})
    if isinstance(sentences, tuple):
        sentences = Dataset.from_dict({"text": list(sentences)})
    told = provenance(files, data, CardArguments(**card))
    model = load_trainable(files, {"projection_head": "mlp", "lm_head": False})
    base = dataclasses.replace(in_memory(model, load_tokenizer(files)), name=files.name, checkpoint=files).record_entry(
        told["hub_id"]
    )
    return told | {"base_model": base, "data": describe_sentences(sentences) | told["data"]}


def test_files_and_folders_are_recorded_by_name(bert, tmp_path, monkeypatch):
    for path in ("a/one.txt", "b/c/two.csv"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text("x")
    files = [str(tmp_path / "a" / "one.txt"), f"{tmp_path}/b/c/"]
    told = facts(f"{bert}/", data=dict(train_file=files))
    assert told["base_model"]["name"] == "tiny-bert" and told["base_model"]["hub_id"] is None
    sha256 = hashlib.sha256(b"a\0b\0").hexdigest()
    assert told["data"] == dict(sources=["one.txt", "c"], hub_id=None, description=None, sentences=2, sha256=sha256)
    monkeypatch.chdir(bert)
    assert facts(".")["base_model"]["name"] == "tiny-bert"
    monkeypatch.chdir(tmp_path / "b")
    assert facts(bert, data=dict(train_file=["."]))["data"]["sources"] == ["b"]


def test_a_data_set_in_a_folder_has_no_hub_id(bert, tmp_path):
    """`dataset_name` accepts folders, like datasets.load_dataset."""
    (tmp_path / "own").mkdir()
    told = facts(bert, data=dict(dataset_name=str(tmp_path / "own")))["data"]
    assert told["sources"] == ["own"] and told["hub_id"] is None


def test_hub_ids(bert, tmp_path, monkeypatch):
    """The id, commit and license of a model in the Hub's cache, and the ids of data sets."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "models--org--tiny"
    copy(bert, cached / "snapshots" / commit)
    (cached / "snapshots" / commit / "README.md").write_text("---\nlicense: mit\n---\n# Tiny\n")
    (cached / "refs").mkdir()
    (cached / "refs" / "v1").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    told = facts("org/tiny", revision="v1", data=dict(dataset_name="org/data", dataset_config="small"))
    checksums = {name: facts(bert)["base_model"][name] for name in ("weights_sha256", "settings_sha256")}
    assert told["base_model"] == dict(name="org/tiny", hub_id="org/tiny", revision=commit, **checksums)
    assert told["data"]["sources"] == ["org/data/small/train"] and told["data"]["hub_id"] == "org/data"
    assert told["license"] == "mit" and told["language"] is None


@pytest.mark.parametrize("name", ["/home/me/encoder", "../encoder", "a b"])
def test_a_base_model_that_is_not_a_hub_id_is_refused(name):
    """It would put a local path on a public page."""
    with raises_usage(option="base_model", found=f"is {name!r}", needed="the Hub id"):
        CardArguments(base_model=name)


@pytest.mark.parametrize(
    ("card", "option", "fields"),
    [
        (dict(license="Apache 2.0"), "license", dict(found="is 'Apache 2.0'", fix="Similar ids: apache-2.0")),
        (
            dict(license="GPL-3.0-or-later"),
            "license",
            dict(needed="https://huggingface", fix="gpl-3.0, lgpl-3.0, agpl"),
        ),
        (dict(license=["mit", "Apache"]), "license", dict(fix="Similar ids: ")),
        (dict(license="<b>\n"), "license", dict(found=r"is '<b>\n', which is not in the Hub's list of licenses")),
        (dict(license=""), "license", dict(found="is '', which", needed="or other")),
        (dict(language="English"), "language", dict(found="is 'English'", needed="ISO 639 code such as en or deu")),
        (dict(language="EN"), "language", dict(found="is 'EN'")),
        (dict(language="<b>\n"), "language", dict(found=r"is '<b>\n'")),
    ],
    ids=str,
)
def test_licenses_and_languages_that_the_hub_rejects(card, option, fields):
    with raises_usage(option=option, **fields) as caught:
        CardArguments(**card)
    assert "\n" not in str(caught.value)


def test_default_sentences_are_english_and_from_the_hub(bert):
    told = facts(bert, sentences=Dataset.from_dict({"text": ["a"]}).to_iterable_dataset(), data={"train_file": None})
    assert told["data"]["sources"] == ["princeton-nlp/datasets-for-simcse/wiki1m_for_simcse.txt"]
    assert told["data"]["hub_id"] == "princeton-nlp/datasets-for-simcse" and told["data"]["sentences"] is None
    assert told["language"] == "en"


@pytest.mark.parametrize(
    ("card", "license", "said"),
    [
        (b"---\nlicense: apache-2.0\nlanguage: de\n---\n# Model\n", "apache-2.0", None),
        (b"---\nlicense:\n- mit\n- cc0-1.0\nmodel-index: broken\ntags: 5\n1: 2\n---\n", ["mit", "cc0-1.0"], None),
        (b"---\nlicense: [{evil: <b>}]\n---\n", None, "[{'evil': '<b>'}]"),
        (b"---\nlicense: [mit, Own]\n---\n", None, "['mit', 'Own']"),
        (b"---\nlicense: 2.0\n---\n", None, "2.0"),
        (b"---\nlicense: MIT\n---\n", None, "'MIT'"),
        (b"---\nlicense: |\n  mit\n  ---\n  " + b"x" * 10**5 + b"\n---\n", None, "'mit\\n---\\nxx...xxxxxxxxxxxxx'"),
        (b"---\nlicense: " + b"[" * 10**4 + b"\n---\n", None, None),
        (b"---\nlicense:\n---\n", None, None),
        (b"# No metadata\n", None, None),
        (b"---\n- a list\n---\n", None, None),
        (b"---\nlicense: [mit\n---\n", None, None),
        (b"---\nlicense: \xe4\n---\n", None, None),
    ],
    ids="license two html one-of-two number capitals long deep empty no-metadata list no-yaml no-text".split(),
)
def test_the_license_comes_from_the_encoders_card(bert, tmp_path, caplog, card, license, said):
    """A license that the Hub does not know is left out, with one warning."""
    caplog.set_level("INFO", logger="informin.publishing.metadata")
    base = copy(bert, tmp_path / "base")
    (base / "README.md").write_bytes(card)
    assert facts(base)["license"] == license
    line = (
        f"The model card of {base} has the license {said}, which the Hub does not know. It is ignored; set `license`."
    )
    assert caplog.messages == ([line] if said else [])
    assert facts(base, license="cc-by-4.0")["license"] == "cc-by-4.0"
    assert len(caplog.messages) == (said is not None)


def test_options_for_the_card(bert):
    said = dict(base_model="org/tiny", language="de", data_description="tales", license="mit")
    told = facts(bert, **said)
    assert told["base_model"]["hub_id"] == "org/tiny" and told["base_model"]["name"] == "tiny-bert"
    assert (told["language"], told["license"], told["data"]["description"]) == ("de", "mit", "tales")


def test_checkpoint_without_a_record_is_exported(bert_run, tmp_path):
    checkpoint = copy(bert_run.kept, tmp_path / "checkpoint-1")
    (checkpoint / "training.json").unlink()
    export_checkpoint(checkpoint, tmp_path / "export")
    assert published(tmp_path / "export") == [name for name in EXPORTED if name != "training.json"]
    assert "The folder has no training.json." in (tmp_path / "export" / "README.md").read_text()
