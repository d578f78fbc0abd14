import shutil

import pytest
from safetensors.torch import load_file, save_file

from informin.evaluation.results import load_results
from informin.model.records import RunRecord
from informin.publishing.card import AddedResults, render_card, result_tables, worse_after_training
from informin.publishing.scores import add_results
from tests.conftest import raises_usage
from tests.evaluation.results_helpers import results, sample, search
from tests.publishing.helpers import change_json, contents, record_of, results_of, tables

OWN_CODE = """
from transformers import BertConfig, BertModel


class OwnConfig(BertConfig):
    model_type = "own"


class OwnModel(BertModel):
    config_class = OwnConfig
"""


def other_weights(folder, to, **record):
    """Return a copy of an export with other weights and a changed record."""
    shutil.copytree(folder, to)
    weights = load_file(to / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] += 1
    save_file(weights, to / "model.safetensors", {"format": "pt"})
    change_json(to / "training.json", **record)
    return to


def test_results_of_the_model_are_added_without_its_path(folder, tmp_path):
    add_results(folder, [results_of(folder, tmp_path / "r.json", score=71.0)])
    results = load_results(folder / "results/model.json")
    assert results.model == "this model" and results.tasks["STS12"]["score"] == 71.0


def test_two_results_of_the_model_are_not_added(folder, tmp_path):
    one = results_of(folder, tmp_path / "sts.json", tasks=["STS12"])
    add_results(folder, [one, one])
    with raises_usage("results"):
        add_results(folder, [one, results_of(folder, tmp_path / "transfer.json", tasks=["MR"])])
    assert list(load_results(folder / "results/model.json").tasks) == ["STS12"]


def test_results_of_the_source_model_are_added_by_pooling(folder, tmp_path):
    path = results_of(folder, tmp_path / "r.json", weights_sha256="1" * 64, pooler="cls", normalized=False)
    add_results(folder, [path])
    assert load_results(folder / "results/base-cls.json").model == "before training"


def test_a_card_has_no_p_values_of_rows_that_are_tested_against_different_ones():
    """Those before training were tested against the source model with BM25, and the others against this model."""
    rows = []
    for score in (50.0, 60.0):
        found = search(score + 10, [score + 10] * 9)
        made = results({}, model="this model")
        made.add("faq", search(score, [score] * 9, with_words={key: found[key] for key in ("measures", "queries")}))
        rows.append(made)
    shown = result_tables(AddedResults(rows[1], {"cls": rows[0]}, {}), 1, samples=True)
    assert "| before training, [CLS] pooling | 50.00 |" in " ".join(shown.split())
    assert "with BM25: this model" in shown and "p, nDCG@10" not in shown


def test_an_average_is_over_the_tasks_of_the_table():
    every = {"STS12": 71.234, **dict.fromkeys(["STS13", "STS14", "STS15", "STS16", "SICK-R"], 10.0), "STS-B": 70.0}
    base, ours = results(every, model="base"), results({"STS12": 71.231, "STS-B": 80.0}, model="this model")
    lines = result_tables(AddedResults(ours, {"cls": base}, {}), 1, samples=False).splitlines()
    (before,) = (line for line in lines if "before training" in line)
    assert [cell.strip() for cell in before.split("|")[2:-1]] == ["71.23", "70.00", "-"]


def test_a_score_that_is_equal_as_shown_is_not_worse():
    base, ours = results({"STS12": 71.234}), results({"STS12": 71.231})
    assert list(worse_after_training(record_of(), AddedResults(ours, {"cls": base}, {}))) == []
    assert len(list(worse_after_training(record_of(), AddedResults(ours, {"cls": results({"STS12": 72.0})}, {})))) == 1


def test_results_of_another_seed_are_recognized_by_its_record(folder, tmp_path):
    seed = other_weights(folder, tmp_path / "seed2", seed=2)
    files = [results_of(folder, tmp_path / "r/1.json", 70.0), results_of(seed, tmp_path / "r/2.json", 72.0)]
    add_results(folder, files)
    assert load_results(folder / "results/other_seeds/seed2.json").model == "seed 2"
    shown = tables(render_card(folder))["STS, Spearman x 100"]
    assert shown["mean ± sd of these 2"][-1] == "71.00 ± 1.41"


def test_the_own_code_of_another_seed_runs_if_that_of_the_model_does(folder, tmp_path):
    model, seed = shutil.copytree(folder, tmp_path / "seed1"), other_weights(folder, tmp_path / "seed2", seed=2)
    files = [results_of(model, tmp_path / "r/1.json"), results_of(seed, tmp_path / "r/2.json")]
    for one in (model, seed):
        (one / "modeling_own.py").write_text(OWN_CODE)
        classes = {"AutoConfig": "modeling_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
        change_json(one / "config.json", model_type="own", auto_map=classes)
    with raises_usage("model_name"):
        add_results(model, files)
    add_results(model, files, trust_remote_code=True)
    assert load_results(model / "results/other_seeds/seed2.json").model == "seed 2"


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"seed": 2, "options": {"objective": "simcse"}},
        {"base_model": None},
        {"seed": 2, "development_sha256": "1" * 64},
    ],
)
def test_results_of_another_run_are_not_added(folder, tmp_path, changes):
    other = other_weights(folder, tmp_path / "other", **changes)
    with raises_usage("results"):
        add_results(folder, [results_of(other, tmp_path / "r.json")])
    assert not (folder / "results").exists()


def test_results_of_a_checkpoint_of_another_seed_are_not_added(folder, tmp_path):
    checkpoint = other_weights(folder, tmp_path / "seed2" / "checkpoint-4", seed=2)
    (checkpoint / "trainer_state.json").write_text("{}")
    with raises_usage("results"):
        add_results(folder, [results_of(checkpoint, tmp_path / "r.json")])


def test_results_of_a_seed_whose_weights_changed_are_not_added(folder, tmp_path):
    seed = other_weights(folder, tmp_path / "seed2", seed=2)
    path = results_of(seed, tmp_path / "r.json")
    shutil.copyfile(folder / "model.safetensors", seed / "model.safetensors")
    with raises_usage("results"):
        add_results(folder, [path])


@pytest.mark.parametrize(
    "changes",
    [
        *({"split": "dev"}, {"precision": "bf16"}, {"max_seq_length": 8}, {"prompt": "old "}, {"pooler": "cls"}),
        *({"whitening": {"dimensions": None, "fitted_on": "STS"}}, {"truncate_dim": 8}),
        *({"normalized": False}, {"similarity": "dot"}, {"settings_sha256": "1" * 64}),
    ],
)
def test_results_with_other_settings_are_not_added(folder, tmp_path, changes):
    with raises_usage("results"):
        add_results(folder, [results_of(folder, tmp_path / "r.json", **changes)])


def test_nothing_is_added_if_one_file_does_not_belong_here(folder, tmp_path):
    before = contents(folder)
    files = [results_of(folder, tmp_path / "r/1.json"), results_of(folder, tmp_path / "r/2.json", split="dev")]
    with raises_usage("results"):
        add_results(folder, files)
    assert contents(folder) == before


def test_results_of_the_source_model_on_another_file_of_the_same_name_are_not_added(folder, tmp_path):
    def labels(name: str, checksum: str, **changes):
        path = results_of(folder, tmp_path / name, tasks=(), **changes)
        change_json(path, tasks={"titles": sample(1.0, data={"titles.tsv": checksum * 64})})
        return path

    base = RunRecord.load(folder).base_model["weights_sha256"]
    add_results(folder, [labels("base.json", "1", weights_sha256=base)])
    with raises_usage("results"):
        add_results(folder, [labels("other.json", "2")])
    add_results(folder, [labels("model.json", "1")])


def test_only_trained_models_have_results(folder, tmp_path):
    path = results_of(folder, tmp_path / "r.json")
    (folder / "training.json").unlink()
    with raises_usage("results"):
        add_results(folder, [path])


def test_results_with_the_prompt_of_training(folder, tmp_path):
    record_of(options={"prompt": "old "}).save(folder)
    add_results(folder, [results_of(folder, tmp_path / "r.json", prompt="old ")])
    assert (folder / "results/model.json").is_file()
