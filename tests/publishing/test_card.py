"""The model card: metadata, tables of scores, settings and limits."""

import errno
from pathlib import Path

import numpy as np
from huggingface_hub import ModelCard

from informin.evaluation.measures import KINDS
from informin.evaluation.results import add_task, save_results
from informin.evaluation.senteval import STS_TASKS, TASKS, TRANSFER_TASKS
from informin.publishing.card import page, render_card
from informin.publishing.export import export_checkpoint
from informin.publishing.record import save_record
from tests.conftest import raises_usage
from tests.publishing.card_helpers import (
    PLAIN,
    RECORD,
    SETTINGS,
    SIMCSE,
    TAGS,
    body,
    code_blocks,
    export_of,
    objective,
    put_results,
    random_scores,
    tables,
    with_record,
)

HUB_DATA = "princeton-nlp/datasets-for-simcse"


def worse(card: str) -> list[str]:
    """Return where the card says that the model is worse than its start, before everything else."""
    section = card.partition("\n**Where this model is worse than the one it starts from:**\n")[2].partition("\n## ")[0]
    assert section == "" or card.index("**Where this model is worse") < card.index("\n## Usage")
    return [line.removeprefix("* ") for line in section.strip().splitlines()]


def limits(card: str) -> list[str]:
    section = card.partition("## Limitations\n")[2].partition("\n## ")[0]
    return [line[2:] for line in section.splitlines() if line.startswith("* ")]


def test_a_folder_without_write_permission(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(page, "new_file", refuse)
    with raises_usage(found="README.md cannot be written: [Errno 13] Permission denied"):
        page.write_card(folder)


# Metadata


def test_metadata(folder):
    """The metadata as the Hub's own library reads it."""
    known = {"base_model": "org/tiny", "language": "en", "license": "apache-2.0"}
    assert ModelCard(render_card(folder)).data.to_dict() == PLAIN | known
    data = RECORD["data"] | {"sources": [f"{HUB_DATA}/x.txt"], "hub_id": HUB_DATA}
    card = ModelCard(render_card(with_record(folder, data=data), "me/my-model"))
    assert card.data.to_dict() == PLAIN | known | {"datasets": [HUB_DATA]}
    assert card.text.startswith("\n# my-model\n")


def test_metadata_omits_local_paths(folder):
    """Local folders and files have no page on the Hub."""
    base = {"name": "own-encoder", "hub_id": None, "revision": None, "weights_sha256": "1" * 64}
    card = render_card(with_record(folder, base_model=base, language=None, license=None))
    assert ModelCard(card).data.to_dict() == PLAIN
    assert "`own-encoder` after 125 steps" in card and "on 12,345 sentences (a.txt, b.csv)." in card


def test_tags_name_the_objective_and_onnx(bert, tmp_path):
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


def test_model_index_has_the_scores(folder):
    """Only scores of these weights, rounded. Tasks without a score are left out."""
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
    """Write results with a labeled sample and a retrieval sample in addition to STS-B."""
    results = put_results(folder, name, {"STS-B": 80.0})
    common = dict(n=1200, seconds=dict(encode=0.1, score=0.1), truncated=0, data={})
    for task, kind, size in (("my_titles", "labels", "classes"), ("a*b*", "retrieval", "documents")):
        measures = {key: scores[kind] + i for i, key in enumerate(KINDS[kind])}
        add_task(results, task, common | {"score": scores[kind], "kind": kind, size: 20, "measures": measures})
    save_results(folder / "results" / name, results)


def test_samples_are_in_tables_and_the_model_index(folder):
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
    assert [one for one in worse(card) if one.startswith(lower)] and "MRR@10 on" not in card


def test_history_of_several_sets(folder):
    """Each set has a table. Records of older versions have only pairs."""
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


def test_drift_is_shown_with_its_warnings(folder):
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


def test_a_missing_record_is_stated(bert, tmp_path):
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


def test_a_better_starting_encoder_is_stated(folder):
    """For each group of tasks and each pooling."""
    put_results(folder, "model.json", dict.fromkeys(STS_TASKS, 70.0) | dict.fromkeys(TRANSFER_TASKS, 80.0))
    put_results(folder, "base-cls.json", dict.fromkeys(STS_TASKS, 69.0) | dict.fromkeys(TRANSFER_TASKS, 81.234))
    put_results(folder, "base-mean.json", dict.fromkeys(STS_TASKS, 72.5))
    assert worse(render_card(folder)) == [
        "Without this training, the source model has a higher STS average (mean pooling): 72.50 instead of 70.00.",
        "Without this training, the source model has a higher transfer average ([CLS] pooling): 81.23 instead of "
        "80.00.",
    ]


def test_lower_scores_and_harmful_changes_are_stated_first(folder):
    assert worse(render_card(folder)) == []  # 61.23 before, 63.46 after
    start = {"step": 0, "spearman": 63.466, "alignment": 0.1, "uniformity": -2.0}
    history = [start, *RECORD["history"][1:]]
    assert worse(render_card(with_record(folder, history=history))) == [
        "Spearman x 100 on pairs.tsv is 63.46, and 63.47 before."
    ]
    start["spearman"] = 63.456  # equal
    assert worse(render_card(with_record(folder, history=history))) == []
    assert worse(render_card(with_record(folder, history=history[1:]))) == []  # not scored before training
    end = {"stsb_dev": 86.5}
    warned = ["changed neighborhoods: a.", "moved neighbors apart: 47%.", "reduced general ability: b."]
    drift = {"sentences": 50, "old": {**end, "stsb_dev": 89.0}, "new": end, "warnings": warned}
    apart = "Training moved neighbors apart: see [Changes to the embeddings](#changes-to-the-embeddings)."
    lower = "Spearman x 100 on STS-B dev is 86.50, and 89.00 before."
    assert worse(render_card(with_record(folder, drift=drift))) == [lower, apart]
    history[0] = {**start, "spearman": 90.0}
    same = worse(render_card(with_record(folder, drift=drift, history=history, development="STS-B dev")))
    assert same == ["Spearman x 100 on STS-B dev is 63.46, and 90.00 before.", apart]


def test_short_training_is_stated(folder):
    """250 steps of 2 x 16 sentences at 97.3 per second."""
    options = RECORD["options"] | {"sentences_per_step": 16, "gradient_accumulation_steps": 2}
    assert "Training was short: 250 steps in about 82 seconds." in limits(
        render_card(with_record(folder, options=options))
    )
    for changes in ({"sentences_per_second": 13.0}, {"sentences_per_second": None}):
        assert "Training was short" not in render_card(with_record(folder, options=options, **changes))


def test_tasks_are_compared_if_there_is_no_average(folder):
    put_results(folder, "model.json", {"STS-B": 80.0, "SICK-R": 70.0, "STS12": 60.0})
    put_results(folder, "base-mean.json", {"STS-B": 82.0, "SICK-R": 69.0, "STS13": 90.0})
    assert worse(render_card(folder)) == [
        "Without this training, the source model has a higher score on STS-B (mean pooling): 82.00 instead of 80.00."
    ]


def test_half_precision_is_stated(folder, tmp_path):
    export_checkpoint(folder, tmp_path / "half", "bfloat16")
    said = (
        "The weights are stored in bfloat16, and transformers loads them in this precision. Pass "
        "`dtype=torch.float32` to compute in float32."
    )
    assert said in limits((tmp_path / "half" / "README.md").read_text())
    assert "float32" not in render_card(folder)
