"""benchmarks/adaptation.py: training and scoring of each peer, skipping of finished runs, and tables."""

import json
import random
import shutil

import numpy as np
import pytest
import torch
import yaml

from informin.evaluation.measures import KINDS
from informin.evaluation.results import IDENTITY, load_results, new_results
from informin.models.open_model import load_model
from informin.studies.plan import normalized, read_study
from informin.studies.runs import runs_of
from informin.studies.summary import save_study
from informin.studies.table import intervals
from informin.summaries import read_summary
from tests.conftest import ROOT, make_sentences
from tests.senteval_data import small_counts, write_senteval

pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from benchmarks import adaptation, adaptation_peers, adaptation_table

FRACTION = 0.005  # of SentEval's data


@pytest.fixture(scope="module")
def model(tmp_path_factory, bert) -> str:
    """A tiny encoder with mean pooling and normalization, like all-MiniLM-L6-v2."""
    folder = str(tmp_path_factory.mktemp("models") / "sentence-encoder")
    modules = [Transformer(str(bert)), Pooling(32, pooling_mode="mean"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(folder, create_model_card=False)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("domain")
    sentences = make_sentences(64)
    (folder / "titles.txt").write_text("\n".join(sentences) + "\n")
    rows = [f"{sentence}\t{'cat' if 'cat' in sentence else 'other'}" for sentence in sentences]
    (folder / "classes.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return {name: str(folder / name) for name in ("titles.txt", "classes.tsv")}


@pytest.fixture(scope="module")
def senteval(tmp_path_factory) -> str:
    return str(write_senteval(tmp_path_factory.mktemp("senteval"), FRACTION))


@pytest.fixture
def call(model, files, senteval, tmp_path, monkeypatch):
    """Return a function that runs the benchmark with a few steps and returns its exit code."""
    small_counts(monkeypatch, FRACTION)

    def call(*options: str) -> int:
        given = ["--model_name", model, "--train_file", files["titles.txt"], "--labels", files["classes.tsv"]]
        given += ["--senteval_dir", senteval, "--output", str(tmp_path / "peers"), "--max_steps", "2"]
        return adaptation.main([*given, "--batch_size", "8", *options])

    return call


def test_study_uses_the_options_of_the_recipe():
    """But for two weights: the published study had a `replay_weight` of 40 and no distillation."""
    recipe = yaml.safe_load((ROOT / "informin/recipes/adapt.yaml").read_text())
    study = read_study(ROOT / "configs/studies/adaptation.yaml")
    (own, _) = [setting.options for setting in study.settings if setting.recipe == "adapt"]
    other = {
        "max_train_samples",
        "eval_strategy",
        "logging_steps",
        "replay_weight",
        "distillation_weight",
    }  # the study uses the whole file
    kept = {name: value for name, value in recipe.items() if name not in other}
    assert normalized(own) == normalized(own | kept)
    assert own["max_steps"] == adaptation.parser().get_default("max_steps")
    assert own["per_device_train_batch_size"] == adaptation.parser().get_default("batch_size")
    assert own["max_seq_length"] == adaptation_peers.LENGTH and study.seeds == adaptation.parser().get_default("seeds")


def test_deleted_words_leave_at_least_one():
    sentences = make_sentences(400)
    columns = adaptation_peers.with_deleted_words(sentences, random.Random(1))
    again, other = (adaptation_peers.with_deleted_words(sentences, random.Random(seed)) for seed in (1, 2))
    assert columns == again != other
    assert list(columns) == ["noisy", "text"] and columns["text"] == sentences
    for noisy, whole in zip(columns["noisy"], sentences):
        rest = iter(whole.split())
        assert noisy and all(word in rest for word in noisy.split())  # in the same order
    long = [(n, s) for n, s in zip(columns["noisy"], sentences) if len(s.split()) > 6]
    assert 0.36 < sum(len(n.split()) for n, _ in long) / sum(len(s.split()) for _, s in long) < 0.45


def test_one_in_eight_tension_pairs_is_positive():
    sentences = make_sentences(2000)
    first, second = adaptation_peers.tension_pairs(sentences, random.Random(1)).values()
    assert first == sentences and set(second) <= set(sentences)
    assert 0.1 < np.mean([a == b for a, b in zip(first, second)]) < 0.15


@pytest.mark.parametrize("name", adaptation_peers.PEERS)
def test_peer_trains_and_saves_a_model_that_both_libraries_load(name, model, tmp_path):
    sentences = make_sentences(64)
    # Two steps change the embeddings in bf16 only at a high learning rate.
    args = adaptation.parser().parse_args(["--model_name", model, "--max_steps", "2", "--learning_rate", "1e-2"])
    args.batch_size = 8
    kept = adaptation_peers.train(adaptation_peers.PEERS[name], args, sentences, 1, tmp_path)
    encoder = load_model(str(tmp_path / "model"))
    assert np.isfinite(kept["loss"]) and encoder.poolers == ("mean",)
    assert encoder.length == load_model(model).length != adaptation_peers.LENGTH
    own = encoder(sentences)["mean"]
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(sentences)
    np.testing.assert_allclose(own, theirs, atol=1e-5)
    assert np.abs(own - load_model(model)(sentences)["mean"]).max() > 0.01


def test_gist_does_not_use_a_sentence_as_its_own_negative(model):
    """Otherwise two negatives would have the cosine of the positive, and the loss would be at least log 3."""
    encoder = SentenceTransformer(model, device="cpu").eval()
    batch = encoder.preprocess(make_sentences(8))
    loss = adaptation_peers.PEERS["gist"].loss(encoder, model).eval()
    assert loss([dict(batch), dict(batch)], None).item() < 0.1


def test_learning_rates_match_the_documentation():
    rates = {name: peer.learning_rate for name, peer in adaptation_peers.PEERS.items()}
    assert rates == {"simcse": 5e-5, "tsdae": 3e-5, "ct": 5e-5, "ct_in_batch": 5e-5, "gist": 3e-5}


def test_training_is_seeded_and_loss_is_float32(model, tmp_path, monkeypatch):
    """Only the encoder runs under autocast: bf16 would round the loss of a good encoder, 0.002, to 0."""
    args = adaptation.parser().parse_args(["--model_name", model, "--max_steps", "1"])
    found, inside, trainer = [], [], adaptation_peers.SentenceTransformerTrainer

    def kept(**given):
        found.append((given["args"], given["train_dataset"][:2]))
        given["loss"].register_forward_pre_hook(lambda *_: inside.append(torch.is_autocast_enabled("cpu")))
        layer = given["model"].transformers_model.encoder.layer[0].output.dense
        layer.register_forward_hook(lambda *passed: inside.append(passed[-1].dtype))
        return trainer(**given)

    monkeypatch.setattr(adaptation_peers, "SentenceTransformerTrainer", kept)
    for seed in (3, 4):
        adaptation_peers.train(adaptation_peers.PEERS["tsdae"], args, make_sentences(64), seed, tmp_path)
    assert [(own.seed, own.warmup_steps, own.learning_rate) for own, _ in found] == [(3, 0, 3e-5), (4, 0, 3e-5)]
    assert found[0][1]["text"] == found[1][1]["text"] and found[0][1]["noisy"] != found[1][1]["noisy"]
    assert inside == [False, torch.bfloat16] * 2


def test_finished_runs_are_not_repeated(call, tmp_path, capsys, monkeypatch):
    only = ("--only", "before", "whitening", "simcse", "--seeds", "1", "2", "--tasks")
    broken = tmp_path / "peers/simcse/titles/seed1/model"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("cut o")
    assert call(*only) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    results = {
        file.parent.relative_to(tmp_path / "peers").as_posix(): load_results(file)
        for file in (tmp_path / "peers").rglob("results.json")
    }
    assert sorted(results) == ["before/once", "simcse/titles/seed1", "simcse/titles/seed2", "whitening/titles/once"]
    assert all(set(one["tasks"]) == {"classes"} and np.isfinite(one["dev"]) for one in results.values())
    assert results["whitening/titles/once"]["whitening"]["fitted_on"].startswith("titles.txt")
    before = results["before/once"]
    weights = {one["weights_sha256"] for name, one in results.items() if "seed" in name}
    assert len(weights) == 2 and before["weights_sha256"] not in weights
    assert results["whitening/titles/once"]["dev"] != before["dev"]
    assert str(tmp_path) not in json.dumps(list(results.values()))
    assert list((tmp_path / "peers").rglob("*.safetensors")) == []

    monkeypatch.setattr(adaptation, "score", lambda *_: pytest.fail("a finished run was repeated"))
    assert call(*only) == 0 and capsys.readouterr().out == ""
    assert call(*only, "--learning_rate", "1e-3") == 2
    assert "contains other results" in capsys.readouterr().err


def test_missing_options_and_sentences_are_errors(call, capsys):
    assert adaptation.main([]) == 2
    assert "--model_name is missing. Give it to train, or give --table to print tables." in capsys.readouterr().err
    assert call("--batch_size", "65") == 2
    assert "has 64 sentences; expected 65 or more" in capsys.readouterr().err


def record(v: float, dev: float | None = 80.0) -> dict:
    """Return the parts of a run's record that `value_of` uses."""
    measures = {"v_measure": v, "nearest_neighbor": v + 10}
    return {
        "averages": {"sts": 75.0, "transfer": None},
        "dev": {"name": "dev", "spearman": dev},
        "samples": {"classes": {"measures": measures}},
    }


def test_tables_pair_by_seed():
    adapted, other = {1: 52.0, 2: 54.0, 3: 53.0}, {3: 51.0, 1: 50.0, 2: 52.5}
    records = {
        "before training": {None: record(50.0)},
        "simcse": {seed: record(v) for seed, v in other.items()},
        "adapt": {seed: record(v) for seed, v in adapted.items()},
    }
    scores, against = adaptation_table.tables("titles", records, "classes", "adapt")
    cells = {row.label: row.values for row in scores.rows}
    assert cells["before training"]["V-measure"] == "50.00" and cells["before training"]["V-measure, change"] is None
    assert cells["adapt"]["V-measure"] == "53.00 ± 1.00" and cells["adapt"]["1-NN"] == "63.00 ± 1.00"
    assert cells["adapt"]["V-measure, change"] == "+3.00 (+0.52 to +5.48)"  # 4.303 / sqrt(3) = 2.484
    assert cells["adapt"]["STS-B dev, change"] == "+0.00" and cells["adapt"]["runs"] == "3"
    low, high = intervals([adapted[seed] - other[seed] for seed in (1, 2, 3)])[1]
    pairs = {row.label: row.values["V-measure"] for row in against.rows}
    assert pairs == {
        "adapt - before training": "+3.00 (+0.52 to +5.48) signal",
        "adapt - simcse": f"+1.83 ({low:+.2f} to {high:+.2f}) signal",
    }
    assert len(adaptation_table.tables("titles", records, "classes", "absent")) == 1
    (row,) = [row for row in adaptation_table.tables("t", records, "classes", "simcse")[1].rows if "adapt" in row.label]
    assert row.values["V-measure"].startswith("-1.83") and "signal" not in row.values["V-measure"]


def test_table_of_a_study_and_its_peers(tmp_path, bert, capsys):
    base = {"model_name": str(bert), "max_steps": 2}
    given = dict(base=base, recipes={"adapt": {"objective": "guided"}, "simcse": {}}, seeds=[1, 2, 3], before=True)
    given |= dict(grid={"train_file": ["titles.txt", "other.txt"]}, labels=["classes.tsv", "kinds.tsv"])
    path = tmp_path / "adaptation.yaml"
    path.write_text(yaml.safe_dump(given))
    study, records = read_study(path), {}
    for run in runs_of(study, tmp_path / "studies"):
        v = 50.0 if run.seed is None else 50 + run.seed + (10 if run.setting.recipe == "adapt" else 0)
        v += 5 if run.setting.options.get("train_file") == "other.txt" else 0
        found = record(v, None if run.seed is None else 80.0) | {"seed": run.seed, "scores": {"classes": v, "kinds": v}}
        found["samples"]["kinds"] = found["samples"]["classes"]
        found["dev"] |= {"alignment": 0.25, "uniformity": -2.0}
        same = {"base_model": {"name": "b", "weights_sha256": "0"}, "precision": "fp32", "data": {"sentences": 9}}
        same |= {"schema": 1, "environment": {}, "seconds": {"training": 1.0, "scoring": 1.0}}
        records[run.setting.name, run.seed] = found | same
    save_study(tmp_path / "summary.json", study, records)
    peer = tmp_path / "peers/tsdae/titles"
    for seed in (1, 2, 3):
        (peer / f"seed{seed}").mkdir(parents=True)
        task = {"kind": "labels", "score": 45.0, "measures": dict.fromkeys(KINDS["labels"], 45.0), "classes": 2}
        task |= {"n": 9, "truncated": 0, "data": {}, "seconds": {"encode": 1.0, "score": 1.0}}
        identity = dict.fromkeys(IDENTITY, "") | {"normalized": False, "whitening": None, "max_length": 64}
        results = new_results("m", identity, {}) | {"tasks": {"classes": task}, "dev": 70.0}
        (peer / f"seed{seed}/results.json").write_text(json.dumps(results))
    command = ["--output", str(tmp_path / "peers"), "--table", str(tmp_path / "summary.json")]
    assert adaptation.main([*command[:1], str(tmp_path), *command[2:3], "absent.json"]) == 2
    assert "absent.json is not JSON" in capsys.readouterr().err
    assert adaptation.main(command) == 0
    printed = capsys.readouterr().out
    titles, titles_against, other, _ = printed.strip().split("**\n\n|")[1:]
    rows = {line.split("|")[1].strip(): line for line in titles.splitlines()[2:] if line.startswith("|")}
    assert list(rows) == ["before training", "DenoisingAutoEncoderLoss (TSDAE)", "adapt", "simcse"]
    assert "45.00 ± 0.00" in rows["DenoisingAutoEncoderLoss (TSDAE)"] and "62.00 ± 1.00" in rows["adapt"]
    assert "DenoisingAutoEncoderLoss" not in other and "+10.00 |" in titles_against

    assert (tmp_path / "peers/table.md").read_text() == printed
    for seed in (2, 3):  # summary.json contains these runs
        (peer / f"seed{seed}/results.json").unlink()
    assert adaptation.main(command) == 0 and capsys.readouterr().out == printed
    (peer / "seed1/results.json").write_text(json.dumps(results | {"tasks": {}}))
    assert adaptation.main(command) == 2
    assert "A run was not scored on classes" in capsys.readouterr().err


def test_committed_table_matches_committed_summaries(tmp_path, capsys):
    results = adaptation.ROOT / "results"
    shutil.copy(results / "peers/summary.json", tmp_path)
    command = ["--output", str(tmp_path), "--table", str(results / "studies/adaptation/summary.json")]
    assert adaptation.main(command) == 0
    assert (tmp_path / "table.md").read_text() == (results / "peers/table.md").read_text()
    assert read_summary(tmp_path / "summary.json") == read_summary(results / "peers/summary.json")
