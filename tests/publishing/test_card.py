"""The model card: its metadata, its figures, its code, and when it is left alone."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard

from informin.encoders.encode import encode
from informin.encoders.loading import load_config, load_model
from informin.evaluation.measures import KINDS
from informin.evaluation.results import add_task, environment, new_results, save_results
from informin.evaluation.senteval import STS_TASKS, TASKS, TRANSFER_TASKS
from informin.objectives import OBJECTIVES
from informin.publishing.card import CITATIONS, UNPUBLISHED, is_untouched, render_card, write_card
from informin.publishing.export import export_checkpoint, export_folder
from informin.publishing.record import save_record
from informin.studies.summary import load_study
from tests.conftest import ROOT, tokenizer_of

CARDS = sorted((ROOT / "model_cards").glob("*.md"))
HUB_DATA = "princeton-nlp/datasets-for-simcse"
TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "transformers", "unsupervised"]
PLAIN = {
    "library_name": "sentence-transformers",
    "pipeline_tag": "sentence-similarity",
    "tags": [*TAGS, "informin-cl"],
}
SETTINGS = dict(pooling="cls", projection_head="mlp", lm_head=False, max_seq_length=32, objective="informin")


def term(title: str, paper: str | None = None, own: bool = True) -> dict:
    return {"name": title.replace(" ", "_"), "title": title, "paper": paper, "own": own}


def objective(name: str, title: str, *terms: dict) -> dict:
    """What training.json says of an objective."""
    return {"name": name, "title": title, "terms": list(terms)}


CONTRAST, RECONSTRUCTION = term("contrast", "simcse"), term("reconstruction", "informin")
ATTENTION_MI, QUEUE = (
    term("mutual information of attention maps", "micse"),
    term("negatives of earlier batches", "micse"),
)
MASKED_LM = term("masked language modeling", own=False)
INFORMIN = objective("informin", "InforMin-CL", CONTRAST, RECONSTRUCTION)
SIMCSE = objective("simcse", "unsupervised SimCSE", CONTRAST)
RECORD = {
    "schema": 2,
    "informin": "0.1.0",
    "base_model": {"name": "org/tiny", "hub_id": "org/tiny", "revision": None, "weights_sha256": "1" * 64},
    "data": {"sources": ["a.txt", "b.csv"], "hub_id": None, "description": None, "sentences": 12345},
    "language": "en",
    "license": "apache-2.0",
    "seed": 42,
    "options": {"objective": "informin", "temperature": 0.05, "learning_rate": 3e-05},
    "objective": INFORMIN,
    "development": "pairs.tsv",
    "history": [
        {"step": 0, "spearman": 61.234, "alignment": 0.25, "uniformity": -2.5},
        {"step": 125, "spearman": 63.456, "alignment": 0.1234, "uniformity": None},
        {"step": 250, "spearman": 62.0, "alignment": 0.2, "uniformity": -2.0},
    ],
    "steps": 250,
    "kept_step": 125,
    "chosen": True,
    "sentences_per_second": 97.3,
    "environment": environment(torch.device("cpu")),
}


def export_of(encoder: Path, folder: Path, record: dict | None = RECORD, **settings) -> Path:
    """An exported folder of an encoder as it is."""
    model = load_model(load_config(str(encoder)), str(encoder), SETTINGS | settings)
    export_folder(model, tokenizer_of(encoder), folder, record)
    return folder


@pytest.fixture
def folder(bert, tmp_path) -> Path:
    return export_of(bert, tmp_path / "export")


def with_record(folder: Path, **changes) -> Path:
    save_record(folder, RECORD | changes)
    return folder


def put_results(folder: Path, name: str, scores: dict[str, float | None]) -> dict:
    """Results of these tasks, where `informin.publishing.export.add_results` puts them."""
    identity = dict(weights_sha256="2" * 64, pooler="cls", normalized=False, prompt=None, whitening=None, max_length=66)
    results = new_results("this model", identity | dict(precision="fp32", split="test"), {})
    for task, score in scores.items():
        entry = dict(score=score, n=3, seconds=dict(encode=0.1, score=0.1), truncated=0, data={})
        add_task(results, task, entry | ({"error": "no reason"} if score is None else {}))
    save_results(folder / "results" / name, results)
    return results


def random_scores(seed: int, tasks=TASKS) -> dict[str, float]:
    return dict(zip(tasks, np.random.default_rng(seed).uniform(20, 90, len(tasks)).tolist()))


def body(card: str) -> str:
    return ModelCard(card).text


def tables(card: str) -> dict[str, dict[str, list[str]]]:
    """The rows of each table by their first cell; a table's name is its title, or its first cell."""
    by_title, lines = {}, body(card).splitlines()
    for i, line in enumerate(lines):
        if line.startswith("| ") and not lines[i - 1].startswith("|"):
            rows = []
            while lines[i].startswith("|"):
                rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", lines[i])[1:-1]])
                i += 1
            assert {len(row) for row in rows} == {len(rows[0])}, rows
            title = rows[0][0] or lines[i - len(rows) - 2].strip("*")
            by_title[title] = {row[0]: row[1:] for row in [rows[0], *rows[2:]]}
    return by_title


def limits(card: str) -> list[str]:
    section = card.partition("## Limitations\n")[2].partition("\n## ")[0]
    return [line[2:] for line in section.splitlines() if line.startswith("* ")]


def code_blocks(card: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", card, re.DOTALL | re.MULTILINE)


# Metadata


def test_metadata(folder):
    """What the Hub reads from the card, through the Hub's own library."""
    known = {"base_model": "org/tiny", "language": "en", "license": "apache-2.0"}
    assert ModelCard(render_card(folder)).data.to_dict() == PLAIN | known
    data = RECORD["data"] | {"sources": [f"{HUB_DATA}/x.txt"], "hub_id": HUB_DATA}
    card = ModelCard(render_card(with_record(folder, data=data), "me/my-model"))
    assert card.data.to_dict() == PLAIN | known | {"datasets": [HUB_DATA]}
    assert card.text.startswith("\n# my-model\n")


def test_metadata_says_nothing_of_what_only_this_machine_knows(folder):
    """Of a folder and of files there is no page on the Hub."""
    base = {"name": "own-encoder", "hub_id": None, "revision": None, "weights_sha256": "1" * 64}
    card = render_card(with_record(folder, base_model=base, language=None, license=None))
    assert ModelCard(card).data.to_dict() == PLAIN
    assert "`own-encoder` after 125 steps" in card and "on 12,345 sentences (a.txt, b.csv)." in card


def test_tags_tell_the_objective_and_onnx(bert, tmp_path):
    folder = export_of(bert, tmp_path / "export", RECORD | {"objective": SIMCSE})
    (folder / "onnx").mkdir()
    (folder / "onnx" / "notes.txt").write_text("no model")
    assert ModelCard(render_card(folder)).data.tags == [*TAGS, "simcse"]
    for name in ("model.onnx", "model_quantized.onnx"):
        (folder / "onnx" / name).write_bytes(b"x")
    card = render_card(folder)
    assert ModelCard(card).data.tags == [*TAGS, "simcse", "onnx"]
    assert "using `onnx/model.onnx`, `onnx/model_quantized.onnx`:" in card and len(code_blocks(card)) == 3
    with_record(folder, objective=objective("a name", "two words"))
    card = render_card(folder)
    assert ModelCard(card).data.tags == [*TAGS, "unknown", "onnx"] and "steps of two words on" in card


def test_model_index_holds_the_scores(folder):
    """Of these weights alone, rounded; a task without a score is not there."""
    assert ModelCard(render_card(folder)).data.eval_results is None
    scores = random_scores(1) | {"STS13": None, "MR": None}
    put_results(folder, "model.json", scores)
    put_results(folder, "base-cls.json", random_scores(2))
    put_results(folder, "other_seeds/seed1.json", random_scores(3))
    data = ModelCard(render_card(folder)).data
    by_task = {result.dataset_config: result for result in data.eval_results}
    assert len(data.eval_results) == len(by_task) == 12 and data.model_name == "tiny-informin"
    for task, result in by_task.items():
        assert result.metric_value == round(scores[task], 2)
        kinds = ("semantic-similarity", "spearman_cosine") if task in STS_TASKS else ("text-classification", "accuracy")
        assert (result.task_type, result.metric_type) == kinds
        assert (result.dataset_type, result.dataset_split) == (HUB_DATA, "test")
        assert result.dataset_name == f"{task} (SentEval)"


# Tables


def two_digits(values) -> list[str]:
    return [f"{value:.2f}" for value in values]


def test_tables_of_several_seeds(folder):
    """Before training, each seed, mean ± sd over them (n - 1), against numpy."""
    runs = [random_scores(seed) for seed in (1, 2, 3)]
    put_results(folder, "model.json", runs[0])
    put_results(folder, "other_seeds/seed10.json", runs[2])
    put_results(folder, "other_seeds/seed7.json", runs[1])
    before = {pooler: random_scores(seed) for seed, pooler in ((4, "cls"), (5, "mean"))}
    for pooler, scores in before.items():
        put_results(folder, f"base-{pooler}.json", scores)
    card = render_card(folder)
    assert "\nThe table has 3 runs that differ only in the seed. This model is seed 42." in card
    assert "Transfer: accuracy of a logistic regression" in card
    for title, tasks in (("STS, Spearman x 100", STS_TASKS), ("Transfer, accuracy x 100", TRANSFER_TASKS)):
        table = tables(card)[title]
        x = np.array([[run[task] for task in tasks] for run in runs])
        x = np.column_stack([x, x.mean(axis=1)])
        expected = {"": [*tasks, "Avg"]}
        for pooler, words in (("cls", "[CLS] pooling"), ("mean", "mean pooling")):
            values = [before[pooler][task] for task in tasks]
            expected[f"before training, {words}"] = two_digits([*values, np.mean(values)])
        expected["this model (seed 42)"] = two_digits(x[0])
        expected |= {"seed 7": two_digits(x[1]), "seed 10": two_digits(x[2])}
        spread = zip(x.mean(axis=0), x.std(axis=0, ddof=1))
        expected["mean ± sd of these 3"] = [f"{mean:.2f} ± {sd:.2f}" for mean, sd in spread]
        assert list(table.items()) == list(expected.items())


def test_tables_of_one_seed_and_some_tasks(folder):
    put_results(folder, "model.json", {"STS12": 70.126, "STS-B": None})
    card = render_card(folder)
    assert tables(card)["STS, Spearman x 100"] == {
        "": ["STS12", "STS-B", "Avg"],
        "this model (seed 42)": ["70.13", "-", "-"],
    }
    assert "Transfer, accuracy x 100" not in tables(card) and "differ only in the seed" not in card
    assert "Transfer: " not in card
    assert "Not evaluated" not in card


def put_samples(folder: Path, name: str, **scores: float) -> None:
    """Results with a labeled sample and a search beside STS-B."""
    results = put_results(folder, name, {"STS-B": 80.0})
    common = dict(n=1200, seconds=dict(encode=0.1, score=0.1), truncated=0, data={})
    for task, kind, size in (("my_titles", "labels", "classes"), ("a*b*", "retrieval", "documents")):
        measures = {key: scores[kind] + i for i, key in enumerate(KINDS[kind])}
        add_task(results, task, common | {"score": scores[kind], "kind": kind, size: 20, "measures": measures})
    save_results(folder / "results" / name, results)


def test_samples_have_tables_and_a_place_in_the_model_index(folder):
    put_samples(folder, "model.json", labels=60.5, retrieval=40.0)
    put_samples(folder, "base-mean.json", labels=70.25, retrieval=30.0)
    card = render_card(folder)
    found = tables(card)["my_titles: 1,200 sentences of 20 classes, x 100"]
    assert found[""] == ["V-measure", "1-NN", "10-NN", "8-shot"]
    assert found["before training, mean pooling"] == ["70.25", "71.25", "72.25", "73.25"]
    assert found["this model (seed 42)"] == ["60.50", "61.50", "62.50", "63.50"]
    assert r"**a\*b\*: search, 1,200 queries among 20 documents, x 100**" in body(card)
    assert "V-measure: k-means with the true number of classes" in body(card) and "MRR@10: reciprocal rank" in body(
        card
    )
    results = {entry.dataset_name: [] for entry in ModelCard(card).data.eval_results}
    for entry in ModelCard(card).data.eval_results:
        results[entry.dataset_name].append((entry.task_type, entry.metric_type, entry.metric_value))
    assert results["my_titles"][:2] == [("Clustering", "v_measure", 60.5), ("Clustering", "nearest_neighbor", 61.5)]
    assert results["a*b*"][0] == ("Retrieval", "mrr_10", 40.0) and len(results["a*b*"]) == 7
    lower = "Without this training, the source model has a higher V-measure on my_titles (mean pooling): 70.25 "
    assert [limit for limit in limits(card) if limit.startswith(lower)] and "MRR@10 on" not in card


def test_history_of_several_sets(folder):
    """A table for each; records of older versions, which have none of them, know pairs."""
    sets = [{"kind": "pairs", "name": "pairs.tsv"}, {"kind": "labels", "name": "titles.tsv"}]
    history = [
        {"step": 0, "spearman": 60.0, "alignment": 0.25, "uniformity": -2.5, "v_measure": 70.254, "few_shot": 80.0},
        {"step": 125, "spearman": 61.0, "alignment": 0.25, "uniformity": -2.5, "v_measure": None, "few_shot": 81.0},
    ]
    card = render_card(with_record(folder, development_sets=sets, history=history))
    assert tables(card)["pairs.tsv"]["before training"] == ["60.00", "0.250", "-2.500"]
    assert tables(card)["titles.tsv"]["titles.tsv"] == ["V-measure", "1-NN", "10-NN", "8-shot"]
    assert tables(card)["titles.tsv"]["before training"] == ["70.25", "-", "-", "80.00"]
    assert tables(card)["titles.tsv"]["step 125, this model"] == ["-", "-", "-", "81.00"]
    assert "**Development data**" in card and "Alignment (of similar pairs)" in card
    card = render_card(with_record(folder, development_sets=sets[1:], history=history))
    assert "pairs.tsv |" not in card and "Alignment" not in card
    assert "**Development pairs**" in render_card(with_record(folder))


def test_drift_is_told_with_its_warnings(folder):
    values = dict(alignment=0.75, neighbor_distance=38.52, uniformity=-3.7, effective_rank=295.3, hubness=2.2)
    old = values | dict(neighbors_kept=100.0, rotated_cosine=1.0, stsb_dev=None)
    new = old | dict(neighbors_kept=69.18, rotated_cosine=0.977, neighbor_distance=None)
    drift = {"sentences": 2000, "old": old, "new": new, "warnings": ["tore *apart*: 47%.", "made hubs."]}
    card = render_card(with_record(folder, drift=drift))
    rows = tables(card)["Drift on 2,000 sentences"]
    assert rows["Drift on 2,000 sentences"] == ["before training", "this model"]
    assert rows["10 nearest neighbors kept, %"] == ["100.0", "69.2"]
    assert rows["distance of old neighbors, % of all pairs"] == ["38.5", "not scored"]
    assert rows["STS-B dev"] == ["not scored", "not scored"]
    section = card.partition("## Changes to the embeddings\n")[2].partition("\n## ")[0]
    assert "\nTraining tore \\*apart\\*: 47%.\n\nTraining made hubs.\n" in section
    without = {name: value for name, value in RECORD.items() if name != "drift"}
    for record in (without, RECORD | {"drift": None}):
        save_record(folder, record)
        assert "Changes to the embeddings" not in render_card(folder)
    del old["hubness"]  # of another version
    rows = tables(render_card(with_record(folder, drift=drift)))["Drift on 2,000 sentences"]
    assert rows["hubness"] == ["not scored", "2.20"]


def test_history_shows_the_start_and_the_step_that_was_kept(folder):
    """Undefined is a dash, not a number."""
    table = tables(render_card(folder))["pairs.tsv"]
    assert "\n| --- | ---: | ---: | ---: |\n| before" in render_card(folder)
    assert table == {
        "pairs.tsv": ["Spearman x 100", "alignment", "uniformity"],
        "before training": ["61.23", "0.250", "-2.500"],
        "step 125, this model": ["63.46", "0.123", "-"],
    }
    card = render_card(with_record(folder, history=[], development=None, chosen=False))
    assert "pairs.tsv" not in card and "Development pairs" not in card


def test_training_settings(folder):
    options = {name: [str(value)] for name, value in RECORD["options"].items()} | {"seed": ["42"], "steps": ["250"]}
    chosen = {"checkpoint selected by": ["Spearman on pairs.tsv: step 125"]}
    assert tables(render_card(folder))["setting"] == {"setting": ["value"]} | options | chosen
    singular = {"environment": RECORD["environment"] | {"threads": 4}, "sentences_per_second": 1.2}
    one = render_card(with_record(folder, data=RECORD["data"] | {"sentences": 1}, kept_step=1, **singular))
    assert "after 1 step of InforMin-CL on 1 sentence (a.txt" in one and "(4 threads, 1 sentence per second)" in one
    card = render_card(with_record(folder, chosen=False, kept_step=250))
    assert tables(card)["setting"] == {"setting": ["value"]} | options
    assert "after 250 steps of InforMin-CL on" in card
    versions = ", ".join(f"{name} {RECORD['environment'][name]}" for name in ("python", "torch", "transformers"))
    assert f"on {RECORD['environment']['device']} (1 thread, 97 sentences per second), with {versions}" in card


def test_without_a_record_the_card_says_so(bert, tmp_path):
    card = render_card(export_of(bert, tmp_path / "export", record=None))
    assert "The folder has no training.json. These are the settings in config.json." in card
    assert tables(card)["setting"] == {"setting": ["value"]} | {k: [str(v)] for k, v in SETTINGS.items()}
    assert "an unrecorded encoder after training with informin." in card
    assert ModelCard(card).data.to_dict() == PLAIN | {"tags": [*TAGS, "informin"]}
    assert "Trained with InforMin-CL" not in card and "Not evaluated on the STS and transfer test sets." in card


# Limits


ONE_SEED = "One seed. Scores differ by a few tenths between seeds."


def test_limits(folder):
    always = [
        "Training truncated sentences to 32 tokens. The model accepts up to 66, but longer sentences were not "
        "evaluated.",
        "The training sentences are in one language (en).",
        "Biases that the source model learned from its own training data remain.",
    ]
    assert limits(render_card(folder)) == [*always[:2], ONE_SEED, always[2]]
    put_results(folder, "model.json", random_scores(1))
    alone = "The source model was not evaluated, so the tables do not show what training changed."
    assert limits(render_card(folder)) == [*always[:2], ONE_SEED, alone, always[2]]
    put_results(folder, "other_seeds/seed7.json", random_scores(2))
    put_results(folder, "base-cls.json", dict.fromkeys(TASKS, 1.0))
    assert limits(render_card(folder)) == always


def test_a_better_starting_encoder_is_said(folder):
    """By each group of tasks and each way to read it."""
    put_results(folder, "model.json", dict.fromkeys(STS_TASKS, 70.0) | dict.fromkeys(TRANSFER_TASKS, 80.0))
    put_results(folder, "base-cls.json", dict.fromkeys(STS_TASKS, 69.0) | dict.fromkeys(TRANSFER_TASKS, 81.234))
    put_results(folder, "base-mean.json", dict.fromkeys(STS_TASKS, 72.5))
    assert [limit for limit in limits(render_card(folder)) if "Without this training" in limit] == [
        "Without this training, the source model has a higher STS average (mean pooling): 72.50 instead of 70.00.",
        "Without this training, the source model has a higher transfer average ([CLS] pooling): 81.23 instead of "
        "80.00.",
    ]


def test_half_precision_is_said(folder, tmp_path):
    export_checkpoint(folder, tmp_path / "half", "bfloat16")
    said = (
        "The weights are stored in bfloat16, and transformers loads them in this precision. Pass "
        "`dtype=torch.float32` to compute in float32."
    )
    assert said in limits((tmp_path / "half" / "README.md").read_text())
    assert "float32" not in render_card(folder)


# Code


@pytest.mark.parametrize("pinned", [False, True], ids=["unpublished", "pinned"])
def test_code_of_the_card_gives_cls(encoder, tmp_path, pinned):
    """The blocks as they are, but for the name: run in place, equal to our own encoder."""
    folder = export_of(encoder, tmp_path / "export")
    card = render_card(folder, "me/model", "0" * 40) if pinned else render_card(folder)
    named = "me/model" if pinned else UNPUBLISHED
    blocks = code_blocks(card)
    assert len(blocks) == 2 and all(named in block for block in blocks)
    model = load_model(load_config(str(encoder)), str(encoder), dict(SETTINGS))
    for block, count in zip(blocks, (3, 2)):
        names = {}
        exec(block.replace(named, str(folder)), names)
        sentences = ["A dog sleeps.", "The dog is asleep.", "It rains."][:count]
        expected = torch.from_numpy(encode(model, tokenizer_of(encoder), sentences)["cls"])
        torch.testing.assert_close(torch.as_tensor(names["embeddings"]), expected, rtol=1e-4, atol=1e-5)


def test_code_is_pinned_where_there_is_a_commit(folder):
    """Every call that loads something; of a folder on disk there is no commit."""
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"x")
    loads = r"(?:SentenceTransformer|from_pretrained|hf_hub_download)\((.*?)\)"
    for revision in ("0123abc", None):
        calls = re.findall(loads, "\n".join(code_blocks(render_card(folder, "me/model", revision))))
        pin = f', revision="{revision}"' if revision else ""
        assert calls == [f'"me/model"{pin}'] * 4 + [f'"me/model", "onnx/model.onnx"{pin}']
    code = "\n".join(code_blocks(render_card(folder)))
    assert re.findall(loads, code) == [f'"{UNPUBLISHED}"'] * 4 and f'("{UNPUBLISHED}/onnx/model.onnx")' in code


ADDED_MI = ATTENTION_MI | {"own": False}
SCD = objective("scd", "SCD", term("self-contrast", "scd"), term("decorrelation of features", "scd"))
MICSE = objective("micse", "miCSE", CONTRAST, QUEUE, ATTENTION_MI)


@pytest.mark.parametrize(
    ("trained", "cited"),
    [
        (INFORMIN, {"The objective": "chen-etal-2022-information", "The contrast": "gao-etal-2021-simcse"}),
        (SIMCSE, {"The objective": "gao-etal-2021-simcse"}),
        (
            SIMCSE | {"terms": [CONTRAST, ADDED_MI]},
            {
                "The objective": "gao-etal-2021-simcse",
                "The mutual information of attention maps": "klein-nabi-2023-micse",
            },
        ),
        (SCD, {"The objective": "klein-nabi-2022-scd"}),
        (MICSE, {"The objective": "klein-nabi-2023-micse", "The contrast": "gao-etal-2021-simcse"}),
        (objective("own", "My own", CONTRAST, term("my *own*")), {"The contrast": "gao-etal-2021-simcse"}),
        (None, {"The objective": "chen-etal-2022-information"}),
    ],
    ids=["informin", "simcse", "simcse-ami", "scd", "micse", "of-somebody-else", "not-recorded"],
)
def test_citations(folder, trained, cited):
    card = render_card(with_record(folder, objective=trained))
    assert dict(re.findall(r"\n(The .*):\n\n```bibtex\n@inproceedings\{(\S+),", card)) == cited


def test_what_the_terms_name_can_be_cited():
    published = {name for name, objective in OBJECTIVES.items() if objective.rows}
    assert {name for name in OBJECTIVES if (CITATIONS / f"{name}.bib").is_file()} == published
    papers = {term.paper for entry in OBJECTIVES.values() for term in entry.terms if term.paper}
    assert papers and [name for name in papers if not (CITATIONS / f"{name}.bib").is_file()] == []


def test_a_paper_is_a_file_of_ours_alone(folder, tmp_path):
    """Whatever path a record gives, of a term or of the objective, nothing else is read."""
    secret = tmp_path / "secret.bib"
    secret.write_text("@misc{secret}")
    expected = render_card(with_record(folder, objective=INFORMIN))
    near = os.path.relpath(secret.with_suffix(""), CITATIONS)
    for path in (
        near,
        str(secret.with_suffix("")),
        str(secret),
        f"simcse/../{near}",
        "../model_card",
        "",
        ".",
    ):
        terms = [*INFORMIN["terms"], term("x", path), term("y", "micse/")]
        assert render_card(with_record(folder, objective=INFORMIN | {"terms": terms})) == expected
        card = render_card(with_record(folder, objective=objective(str(path), "x")))
        assert "@" not in card.partition("## Citation")[2] and "secret}" not in card


@pytest.mark.parametrize(
    ("trained", "method"),
    [
        (SIMCSE | {"terms": [CONTRAST, MASKED_LM]}, "unsupervised SimCSE with masked language modeling"),
        (
            INFORMIN | {"terms": [CONTRAST, QUEUE | {"own": False}, RECONSTRUCTION, ADDED_MI, MASKED_LM]},
            "InforMin-CL with negatives of earlier batches, mutual information of attention maps and masked language "
            "modeling",
        ),
        (MICSE, "miCSE"),
        (SCD, "SCD"),
        (None, "informin"),
    ],
    ids=["mlm", "everything", "micse", "scd", "not-recorded"],
)
def test_method_names_what_was_trained(folder, trained, method):
    assert f"125 steps of {method} on 12,345" in render_card(with_record(folder, objective=trained))


def test_method_of_a_run_that_was_changed(folder):
    """Each part of the run by its own objective, older parts by its name; only parts that the kept step has seen."""
    part = {name: RECORD[name] for name in ("seed", "options", "data")}
    other = part | {"data": RECORD["data"] | {"sha256": "3" * 64, "sentences": 7}}
    earlier = [
        other | {"until_step": 10, "options": {"objective": "scd"}},
        part | {"until_step": 30, "objective": SIMCSE},
        part | {"until_step": 60, "objective": SIMCSE, "options": {"temperature": 0.1}},
    ]
    begun = "after 10 steps of scd on 7 sentences (a.txt, b.csv), then 20 steps of unsupervised SimCSE"
    all_of_it = f"{begun}, then 30 steps with other options, then 65 steps of InforMin-CL on 12,345 sentences (a.txt"
    assert all_of_it in render_card(with_record(folder, earlier=earlier))
    before = f"{begun}, then 15 steps with other options on 12,345 sentences (a.txt, b.csv).\n"
    card = render_card(with_record(folder, earlier=earlier, kept_step=45))
    assert (
        before in card
        and "InforMin-CL on" not in card
        and re.findall(r"@inproceedings\{(\S+),", card)
        == [
            *("klein-nabi-2022-scd", "gao-etal-2021-simcse"),
        ]
    )


def test_without_a_record_the_method_is_the_configurations(bert, tmp_path):
    folder = export_of(bert, tmp_path / "export", None, objective="simcse", mlm_weight=0.1)
    card = render_card(folder)
    assert "training with simcse." in card and "mlm_weight | 0.1 |" in card
    config = json.loads((folder / "config.json").read_text())
    config["informin"] = {"objective": "a\n\n## b <c>"}
    (folder / "config.json").write_text(json.dumps(config))
    assert "training with a ## b &lt;c&gt;." in render_card(folder)


def test_the_card_loads_nothing_heavy():
    """A program that only writes cards starts at once."""
    code = "import sys, informin.publishing.card; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "informin" in loaded.split()
    assert {"torch", "transformers", "datasets", "sklearn", "pandas"} & set(loaded.split()) == set()


# By hand


def test_any_edit_is_noticed(folder):
    """Each character replaced, left out or put in; only the line ends of an editor at the very end do not count."""
    card = render_card(folder)
    assert is_untouched(card) and is_untouched(card.rstrip("\n")) and is_untouched(f"{card}\n")
    for i, letter in enumerate(card[:-1]):
        other = "y" if letter == "x" else "x"
        for edited in (card[:i] + other + card[i + 1 :], card[:i] + card[i + 1 :], card[:i] + other + card[i:]):
            assert not is_untouched(edited), (i, card[max(0, i - 20) : i + 20])
    assert not is_untouched("") and not is_untouched("# My model\n") and not is_untouched(body(card))


def test_page_edited_by_hand_is_left_alone(folder):
    path = folder / "README.md"
    assert is_untouched(path.read_text(encoding="utf-8"))
    assert write_card(folder, "me/model", "0123abc") and 'revision="0123abc"' in path.read_text(encoding="utf-8")
    edited = path.read_text(encoding="utf-8").replace("## Limitations", "## Limitations and more")
    path.write_text(edited, encoding="utf-8")
    assert not write_card(folder) and path.read_text(encoding="utf-8") == edited
    path.unlink()
    assert write_card(folder) and is_untouched(path.read_text(encoding="utf-8"))


# Text from outside


def shape(card: str) -> dict:
    """The headings, and the size of each table."""
    text = re.sub(r"```.*?```", "", body(card), flags=re.DOTALL)
    sizes = [(len(table), len(next(iter(table.values())))) for table in tables(card).values()]
    return {"headings": re.findall(r"^(##+ .*|# )", text, re.MULTILINE), "tables": sizes}


OUTSIDE = {
    "a | b": r"a \| b",
    "a\\|b\\": r"a\\\|b\\",
    "a\n\n## b": "a ## b",
    "a\n---\nb": "a --- b",
    "---": "---",
    "a\r\nb": "a b",
    "{{ 7 * 7 }}": r"{{ 7 \* 7 }}",
    "{% for x in y %}": "{% for x in y %}",
    "{{ card_data }}": "{{ card_data }}",
    "a: b # c": "a: b # c",
    "- [x] [CLS]": "- [x] [CLS]",
    "é ± 日本": "é ± 日本",
    "'\"`": "'\"\\`",
    "`a` ``b``": r"\`a\` \`\`b\`\`",
    "<script>alert(1)</script>": "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<!-- a -->": "&lt;!-- a --&gt;",
    "&lt;b&#62; R&D": "&amp;lt;b&amp;#62; R&D",
    "[x](http://a)": r"[x\](http://a)",
    "![x](http://a)": r"![x\](http://a)",
    "_a_ b_c __d__ *e* ~~f~~ $g$": r"\_a\_ b_c \_\_d\_\_ \*e\* \~\~f\~\~ \$g\$",
}


@pytest.mark.parametrize("described", [False, True], ids=["named", "described"])
@pytest.mark.parametrize(("text", "shown"), OUTSIDE.items(), ids=map(repr, OUTSIDE))
def test_text_from_outside_does_not_break_the_page(folder, text, shown, described):
    """Names of folders and files, and what the user says: the page keeps its shape, and they are read as written."""
    usual = objective("informin", "x", CONTRAST, ATTENTION_MI)
    benign = shape(render_card(with_record(folder, options={"a": "b"}, objective=usual)))
    base = {"name": text, "hub_id": None, "revision": None, "weights_sha256": "1" * 64}
    data = {"sources": [text], "hub_id": None, "description": text if described else None, "sentences": 3}
    told = objective("informin", text, term("contrast", "simcse"), term(text, "micse", own=False))
    with_record(folder, base_model=base, data=data, development=text, options={text: text}, objective=told)
    assert write_card(folder)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert is_untouched(card) and shape(card) == benign
    name = f"`{shown}`" if shown == " ".join(text.split()) else shown
    assert f"{name} after 125 steps of {shown} with {shown} on 3 sentences ({shown})." in card
    assert f"\nThe {shown}:\n" in card
    title = shown.rpartition("/")[2]  # as of org/name
    assert f"\n# {title}-informin\n" in card and f"\n| {shown} | {shown} |\n" in card
    assert f"\n| {shown} | Spearman x 100 |" in card and f"Spearman on {shown}: step 125 |" in card


HOSTILE = "<script>x</script><!-- [a](http://x) ![b](http://y) `c` | $d$"


def hostile(value):
    """With every text in it replaced."""
    if isinstance(value, dict):
        return {name: hostile(item) for name, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


def test_nothing_from_outside_is_read_as_html_or_as_a_link(folder):
    """Every text of the record, names of files in the folder, options that are lists."""
    benign = render_card(folder)
    record = hostile(RECORD) | {"schema": 2}
    record["options"] |= {"view_dropout": [HOSTILE], "lr_scheduler_kwargs": {"a": HOSTILE}, HOSTILE: 1}
    save_record(folder, record)
    for name in ("model.json", "base-<b>.json", "other_seeds/seed7.json"):
        put_results(folder, name, random_scores(1))
    (folder / "onnx").mkdir()
    (folder / "onnx" / "`<b>.onnx").write_bytes(b"x")
    scores = {"pairs": HOSTILE, "spearman": {"`<b>.onnx": 1.0}}
    (folder / "onnx" / "scores.json").write_text(json.dumps(scores))
    card = render_card(folder)
    assert "<" not in body(card).rpartition("\n<!-- Written")[0]
    links = [re.findall(r"(?<!\\)\]\(.*?\)", page) for page in (card, benign)]
    assert links[0] == [link for link in links[1] if link != "](https://huggingface.co/org/tiny)"] + links[0][2:]
    assert links[0][2:] == ["](https://onnxruntime.ai)"]
    ours = set(shape(benign)["headings"])
    assert set(shape(card)["headings"]) == ours and "before training, &lt;b&gt;" in card
    assert ModelCard(card).data.to_dict().keys() == PLAIN.keys() | {"model-index"}


INJECTED = ["<script>x</script>", "`x` ``` x", "a | b | c", "x\n\n# Title\n\n| a | b |", "x\n---\nlicense: mit\n---\n"]
OF_FILES = [
    ("1_Pooling/config.json", "word_embedding_dimension"),
    ("sentence_bert_config.json", "max_seq_length"),
    ("config.json", "max_seq_length"),
    ("config.json", "temperature"),
    ("config.json", "dtype"),
    ("config.json", "auto_map"),
]


@pytest.mark.parametrize("text", INJECTED)
@pytest.mark.parametrize(("name", "key"), OF_FILES)
def test_values_of_every_file_are_read_as_they_are_written(folder, name, key, text):
    """Also those that are numbers, in a folder that nobody checked."""
    (folder / "training.json").unlink()
    benign = render_card(folder)
    values = json.loads((folder / name).read_text())
    if key in ("temperature", "max_seq_length") and name == "config.json":
        values["informin"][key] = text
    else:
        values[key] = {"AutoModel": f"modeling_informin.{text}"} if key == "auto_map" else text
    (folder / name).write_text(json.dumps(values))
    card = render_card(folder)
    ours, before = shape(card), shape(benign)
    if key == "temperature":
        assert ours.pop("tables") != before.pop("tables")  # a row more, as for any option
    assert ours == before and card != benign
    assert ModelCard(card).data.to_dict() == ModelCard(benign).data.to_dict()
    assert "<script" not in card and "`x`" not in card


def test_a_prompt_and_a_name_do_not_end_the_code(folder):
    """What stands in Python code is a text there too."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "training.json").unlink()
    config["informin"]["prompt"] = prompt = 'a"]); import os; (["\n```\n<script>'
    (folder / "config.json").write_text(json.dumps(config))
    card = render_card(folder, 'me/m"); import os; ("', 'v1"\n```\n')
    for code in code_blocks(card):
        calls = {node.func.id for node in ast.walk(ast.parse(code)) if hasattr(getattr(node, "func", None), "id")}
        assert not any(isinstance(node, ast.Import) for node in ast.walk(ast.parse(code))) and calls <= {
            *("SentenceTransformer", "tokenizer", "model", "range", "len", "print")
        }
    assert json.dumps(prompt + "A dog sleeps.") in card and "&lt;script" in card


@pytest.mark.parametrize(
    ("kept", "given"),
    [
        *(({}, {"license": value}) for value in ("<b>", "MIT", "mit\n---\n<b>", [{"evil": "<b>"}], {"a": 1})),
        *(({}, {"license": value}) for value in (["mit", "<b>"], [["mit"]], [], 7, True, "")),
        *(({}, {"language": value}) for value in ("<b>", "English", "EN", "e", ["en"], 7, False)),
        *(({}, {"base_model": {"name": "a", "hub_id": value}}) for value in ("<b>", "a/b/c", "a b", "a](b", 7)),
        *(({}, {"data": {"hub_id": value}}) for value in ("<b>", "../data", ["a"])),
        *(({"license": value}, {"license": value}) for value in ("mit", "other", "llama3.1", ["mit", "cc0-1.0"])),
        *(({"language": value}, {"language": value}) for value in ("no", "deu", "multilingual", "code")),
    ],
    ids=str,
)
def test_metadata_holds_only_what_the_hub_takes(folder, kept, given):
    """Whatever an older or edited training.json says."""
    card = render_card(
        with_record(folder, **{"base_model": None, "data": None, "language": None, "license": None} | given)
    )
    assert ModelCard(card).data.to_dict() == PLAIN | kept
    assert "<b>" not in card


@pytest.mark.parametrize("language", ["multilingual", "code"])
def test_several_languages_are_not_one(folder, language):
    assert "one language" not in render_card(with_record(folder, language=language))


# The cards in model_cards/


def test_every_published_objective_has_a_card():
    published = [name for name, objective in OBJECTIVES.items() if objective.rows]
    assert [path.name for path in CARDS] == sorted(f"all-MiniLM-L6-v2-{objective}.md" for objective in published)


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_card_in_the_repository_has_the_measured_scores(path):
    """Of the main study's seed with the best development score."""
    card, objective = path.read_text(encoding="utf-8"), path.stem.rpartition("-")[2]
    assert is_untouched(card)
    study, runs = load_study(ROOT / "results" / "studies" / "main-small" / "summary.json")
    records = [run for (setting, _), run in runs.items() if setting == objective]
    best = max(records, key=lambda record: record["dev"]["spearman"])
    data = ModelCard(card).data
    scores = {result.dataset_config: result.metric_value for result in data.eval_results}
    assert scores == {task: round(best["scores"][task], 2) for task in study.tasks} and data.model_name == path.stem
    table = tables(card)["STS, Spearman x 100"]
    assert table[f"this model (seed {best['seed']})"][-1] == f"{best['averages']['sts']:.2f}"
    averages = [record["averages"]["sts"] for record in records]
    assert table["mean ± sd of these 5"][-1] == f"{np.mean(averages):.2f} ± {np.std(averages, ddof=1):.2f}"


def test_no_model_index_without_scores(folder):
    """`model_name` belongs to the model-index; alone it would be a stray key of the metadata."""
    metadata = ModelCard(render_card(folder)).data.to_dict()
    assert "model_name" not in metadata and "model-index" not in metadata
