import ast
import re
import shutil

import pytest
from huggingface_hub import ModelCard
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from torch.nn import Identity

from informin.files import read_json
from informin.model.records import FitRecord, RunRecord
from informin.publishing.card import is_edited, render_card, write_card
from tests.conftest import raises_usage
from tests.publishing.helpers import (
    OBJECTIVE,
    change_json,
    code_blocks,
    contents,
    export_of,
    metadata,
    record_of,
    results_of,
    tables,
)

EVIL = "a\n---\n# Title [x](http://evil) <script> `code` {{ 7 * 7 }} | cell"


def with_record(folder, **changes) -> str:
    record_of(**changes).save(folder)
    return render_card(folder)


def add(folder, name: str, score: float, **changes) -> None:
    results_of(folder, folder / "results" / name, score, **changes)


def drift_of(warnings=(), **new) -> dict:
    names = "neighbors_kept rotated_cosine alignment neighbor_distance uniformity effective_rank hubness stsb_dev"
    old = dict.fromkeys(names.split(), 1.0) | {"stsb_dev": None}
    return {"sentences": 60, "old": old, "new": old | new, "warnings": list(warnings)}


def test_metadata(folder):
    values = metadata(render_card(folder, "alice/m"))
    assert values == {
        "language": "en",
        "license": "apache-2.0",
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "base_model": "google-bert/bert-base-uncased",
        "base_model_relation": "finetune",
        "tags": [
            *("sentence-transformers", "sentence-similarity", "feature-extraction", "transformers", "unsupervised"),
            "informin-cl",
        ],
    }


def test_results_are_in_the_metadata(folder):
    add(folder, "model.json", 70.126, model="this model")
    results = metadata(render_card(folder, "alice/m"))["model-index"][0]
    assert results["name"] == "m" and len(results["results"]) == 14
    first = results["results"][0]
    assert first["metrics"] == [{"type": "spearman_cosine", "value": 70.13, "name": "Spearman x 100"}]
    assert (first["dataset"]["config"], first["dataset"]["split"]) == ("STS12", "test")


def test_scores_by_dot_product_are_not_those_of_cosines(folder):
    add(folder, "model.json", 70.126, model="this model", similarity="dot")
    card = render_card(folder, "alice/m")
    assert metadata(card)["model-index"][0]["results"][0]["metrics"][0]["type"] == "spearman_dot"
    assert "correlation of the dot product over" in " ".join(card.split()) and "cosine similarities" not in card


@pytest.mark.parametrize("hub_id", [None, "a b/c", "../x", EVIL])
def test_values_that_are_no_hub_ids_are_left_out(folder, hub_id):
    base = {"name": "model", "hub_id": hub_id, "revision": None}
    data = {"sources": ["a.txt"], "hub_id": hub_id, "sentences": None, "sha256": None}
    values = metadata(with_record(folder, base_model=base, data=data))
    assert "base_model" not in values and "datasets" not in values


def test_a_data_set_of_the_hub_is_named(folder):
    data = {"sources": ["a/b"], "hub_id": "a/b", "sentences": 5, "sha256": None}
    assert metadata(with_record(folder, data=data))["datasets"] == ["a/b"]


def test_texts_from_elsewhere_cannot_change_the_page(folder):
    base = {"name": EVIL, "hub_id": None, "revision": None}
    data = {"sources": [EVIL], "hub_id": None, "sentences": 5, "sha256": None}
    objective = OBJECTIVE | {"title": EVIL, "terms": [{"name": "x", "title": EVIL, "paper": "../../x", "own": True}]}
    options = {"objective": "x", "prompt": EVIL, EVIL: EVIL, "metric_for_best_model": EVIL}
    development = {"development": EVIL, "development_sets": [{"kind": "pairs", "name": EVIL}]}
    environment = {"device": EVIL, "threads": 1, "torch": EVIL}
    drift = drift_of([EVIL])
    card = with_record(
        folder,
        **dict(base_model=base, data=data, objective=objective, options=options, environment=environment),
        **dict(license=EVIL, language=EVIL, drift=drift, informin=EVIL),
        **development,
    )
    page = ModelCard(card).text
    outside = page
    for block in code_blocks(card):
        outside = outside.replace(block, "")
    assert "<script>" not in outside and not re.search(r"(?<!\\)\]\(http://", outside)
    assert "\n# Title" not in page and "49" not in outside.partition("## Training")[0]
    assert [line for line in page.splitlines() if line.startswith("# ")] == [f"# {page.splitlines()[1][2:]}"]
    for block in code_blocks(card):
        compile(block, "card", "exec")
    assert metadata(card)["license"] == EVIL


def test_the_introduction_names_method_and_data(folder):
    intro = " ".join(render_card(folder).partition("## Usage")[0].split())
    assert "after 125 steps of InforMin-CL with masked language modeling on 8,000 of 16,000 sentences" in intro
    assert "the mean of its token vectors, normalized to unit length" in intro


def test_usage_without_a_repository_loads_the_folder(folder):
    assert all("path/to/this/folder" in block for block in code_blocks(render_card(folder)))


def test_usage_pins_the_revision(folder):
    blocks = code_blocks(render_card(folder, "alice/m", "a" * 40))
    assert len(blocks) == 2
    assert all(f'"alice/m", revision="{"a" * 40}"' in block for block in blocks)


@pytest.mark.parametrize("pooling, adapted", [("cls", False), ("mean", False), ("lasttoken", False), ("mean", True)])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_examples_run(bert, tmp_path, pooling, adapted, normalize):
    modules = [Normalize(), Dense(32, 32, activation_function=Identity())] if adapted else []
    folder = export_of(bert, tmp_path / "export", modules=modules, pooling=pooling, normalize=normalize)
    assert ("linear layer" in render_card(folder)) == adapted
    first, second = (block.replace("path/to/this/folder", str(folder)) for block in code_blocks(render_card(folder)))
    one: dict = {}
    other: dict = {}
    exec(first, one)
    exec(second, other)
    assert abs(one["embeddings"][:2] - other["embeddings"].detach().numpy()).max() < 1e-5


@pytest.mark.parametrize("head", ["mlp", "none"])
def test_a_projection_head_is_named_only_if_there_is_one(folder, head):
    settings = read_json(folder / "config.json")["informin"] | {"projection_head": head}
    change_json(folder / "config.json", informin=settings)
    assert ("keeps the projection head" in render_card(folder)) == (head == "mlp")


def test_prompts_are_explained(bert, tmp_path):
    prompts = {"prompts": {"default": "old "}, "default_prompt_name": "default"}
    folder = export_of(bert, tmp_path / "export", **prompts)
    assert "adds automatically" in with_record(folder, options={"prompt": "old "})
    card = with_record(folder, options={"prompt": "young "})
    assert (
        'Training used the prompt `"young "`' in card
        and 'encode(["A dog sleeps.", "The dog is asleep.", "It rai' in card
    )
    assert 'prompt="young "' in code_blocks(card)[0]
    assert "Training used no prompt" in with_record(folder, options={})


def test_onnx_files_are_explained(folder):
    (folder / "onnx").mkdir()
    (folder / "onnx/model.onnx").write_text("x")
    card = render_card(folder)
    assert "onnx" in metadata(card)["tags"] and "sentence_embedding" in code_blocks(card)[2]


def test_results_with_those_before_training(folder):
    add(folder, "model.json", 70.0, model="this model")
    add(folder, "base-cls.json", 60.0, model="before training")
    shown = tables(render_card(folder))["STS, Spearman x 100"]
    assert shown["before training, [CLS] pooling"][-1] == "60.00"
    assert shown["this model (seed 1)"][-1] == "70.00"


def test_results_of_several_seeds_have_a_spread(folder):
    add(folder, "model.json", 70.0, model="this model")
    add(folder, "other_seeds/seed2.json", 72.0, model="seed 2")
    add(folder, "other_seeds/seed10.json", 74.0, model="seed 10")
    card = render_card(folder)
    shown = tables(card)["STS, Spearman x 100"]
    assert list(shown)[1:] == ["this model (seed 1)", "seed 2", "seed 10", "mean ± sd of these 3"]
    assert shown["mean ± sd of these 3"][-1] == "72.00 ± 2.00"
    assert "3 runs that differ only in the seed" in card and "One seed." not in card


def test_scores_that_became_worse_come_first(folder):
    add(folder, "model.json", 70.0, model="this model")
    add(folder, "base-mean.json", 75.0, model="before training")
    intro = render_card(folder).partition("## Usage")[0]
    assert "higher STS average (mean pooling): 75.00 instead of 70.00." in intro
    add(folder, "base-mean.json", 65.0, model="before training")
    assert "is worse than" not in render_card(folder)


def test_single_tasks_that_became_worse(folder):
    add(folder, "model.json", 70.0, tasks=["STS12"], model="this model")
    add(folder, "base-mean.json", 75.0, tasks=["STS12"], model="before training")
    assert "higher score on STS12 (mean pooling)" in render_card(folder).partition("## Usage")[0]


def test_a_worse_development_score_and_drift_come_first(folder):
    history = [{"step": 0, "spearman": 70.0}, {"step": 125, "spearman": 63.0}]
    drift = drift_of(["moved neighbors apart: far. Score both.", "changed neighborhoods: much."])
    intro = with_record(folder, history=history, drift=drift).partition("## Usage")[0]
    assert "Spearman x 100 on STS-B dev is 63.00, and 70.00 before." in intro
    assert "Training moved neighbors apart: see" in intro and "changed neighborhoods" not in intro


def test_development_scores(folder):
    shown = tables(render_card(folder))["STS-B dev"]
    assert shown["before training"] == ["60.00", "0.200", "-2.000"]
    assert shown["step 125, this model"] == ["63.46", "0.123", "-"]
    assert list(shown)[1:] == ["before training", "step 125, this model"]


def test_training_settings(folder):
    shown = tables(render_card(folder))["setting"]
    assert shown["temperature"] == ["0.05"] and shown["seed"] == ["1"] and shown["steps"] == ["250"]
    assert shown["checkpoint selected by"] == ["spearman on STS-B dev: step 125"]


def test_the_checkpoint_was_selected_on_the_data_of_its_metric(folder):
    sets = [{"kind": "pairs", "name": "STS-B dev"}, {"kind": "retrieval", "name": "questions"}]
    how = dict(development="STS-B dev, questions", development_sets=sets)
    options = RunRecord.load(folder).options
    for metric, data in {"eval_ndcg_10": "questions", "spearman": "STS-B dev"}.items():
        card = with_record(folder, **how, options=options | {"metric_for_best_model": metric})
        (shown,) = tables(card)["setting"]["checkpoint selected by"]
        assert shown == f"{metric.removeprefix('eval_')} on {data}: step 125"


def test_drift(folder):
    card = with_record(folder, drift=drift_of(effective_rank=33.4))
    assert tables(card)["Drift on 60 sentences"]["effective rank"] == ["1", "33"]


def test_limitations(folder):
    limits = render_card(folder).partition("## Limitations")[2]
    assert "32 tokens" in limits and "one language (en)" in limits and "One seed." in limits
    assert "250 steps in about 164 seconds" in limits
    assert "1 step in about 1 second." in with_record(folder, steps=1).partition("## Limitations")[2]
    limits = with_record(folder, language=None, options={}, sentences_per_second=None).partition("## Limitations")[2]
    assert "tokens" not in limits and "language" not in limits and "seconds" not in limits


def test_citations(folder):
    card = render_card(folder)
    assert "chen-etal-2022-information" in card and "gao-etal-2021-simcse" in card


def test_an_edited_card_is_left_alone(folder):
    path = folder / "README.md"
    assert not is_edited(path) and write_card(folder, "alice/m")
    path.write_text(path.read_text().replace("# m", "# mine"))
    before = contents(folder)
    assert is_edited(path) and not write_card(folder, "alice/n")
    assert contents(folder) == before


def test_a_card_of_others_is_left_alone(folder):
    (folder / "README.md").write_bytes(b"\xff mine")
    assert not write_card(folder)


def test_a_folder_without_a_record_has_no_card(folder):
    (folder / "training.json").unlink()
    with raises_usage("model_name"):
        render_card(folder)


def test_models_with_modules_of_their_own(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "st")
    (tmp_path / "st" / "config.json").unlink()
    record_of(dimensions=8, remote_code=True).save(tmp_path / "st")
    card = render_card(tmp_path / "st")
    assert "the output of the model's own modules (8 dimensions)" in card
    assert len(code_blocks(card)) == 1 and "trust_remote_code=True" in code_blocks(card)[0]


def test_records_of_other_versions_are_read(folder):
    change_json(folder / "training.json", schema=2, earlier=[])
    assert RunRecord.load(folder) and render_card(folder)


@pytest.mark.parametrize("kind", ["run", "fit"])
def test_the_card_of_low_rank_matrices_pins_their_weights(folder, kind):
    """sentence-transformers reads only their configuration from `revision`."""
    if kind == "fit":
        (folder / "training.json").unlink()
        FitRecord("0.4.0", {"name": "b", "hub_id": None}, "search", 60, 32).save(folder)
    assert "peft" not in render_card(folder, "alice/m", "1" * 40)
    (folder / "adapter_config.json").write_text("{}")
    card = render_card(folder, "alice/m", "1" * 40)
    call = ast.parse(code_blocks(card)[0]).body[1].value
    values = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    assert values == {"revision": "1" * 40, "model_kwargs": {"adapter_kwargs": {"revision": "1" * 40}}}
    assert "This needs peft" in card and "adapter_kwargs" not in render_card(folder, "alice/m")
