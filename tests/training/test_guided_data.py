"""Training with a guide: the effect of each option, and options that are rejected."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import run_unsup
from informin.errors import UsageError
from informin.guide.cache import CachedGuide
from informin.models import native
from informin.models.open_model import load_model
from informin.objectives.contrast import contrast
from tests.conftest import make_sentences, raises_usage, save_bert, save_roberta, tokenizer_of
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

GUIDED = dict(objective="guided", projection_head="none")
WAYS = {
    "similarity": GUIDED | dict(guided_weight=1.0),
    "neighborhoods": GUIDED | dict(neighbor_weight=1.0, neighbor_count=3),
    "distillation": GUIDED | dict(distillation_weight=1.0),
    "replay": GUIDED | dict(replay_weight=1.0, replay_size=5),
    "all": GUIDED | dict(guided_weight=1.0, neighbor_weight=1.0, neighbor_count=3, distillation_weight=1.0)
    | dict(replay_weight=1.0, replay_size=5, view="neighbor", view_neighbors=3),
    "negatives": dict(objective="simcse", false_negative_fraction=0.1),
    "views": dict(objective="informin", false_negative_fraction=0.1, view="neighbor", view_neighbors=3, mlm_weight=0.1),
    "beside": dict(objective="micse", queue_size=20, distillation_weight=0.5, replay_weight=0.5, replay_size=5),
}  # fmt: skip

TOKENS = [{"input_ids": [1, 2], "attention_mask": [1, 1]}] * 20


@pytest.fixture
def build(encoder, tmp_path):
    def make(model=None, sentences=40, **options):
        common = dict(
            **dict(output_dir=str(tmp_path / "run"), use_cpu=True, per_device_train_batch_size=8, max_steps=3),
            **dict(logging_steps=1, learning_rate=1e-3, disable_tqdm=True, eval_strategy="no", save_strategy="no"),
            **dict(bf16=False, warmup_steps=0, guide_cache=str(tmp_path / "guides")),
        )
        data = make_sentences(sentences) if isinstance(sentences, int) else sentences
        return InforMinTrainer(model or str(encoder), InforMinTrainingArguments(**(common | options)), data)

    return make


def finished(folder: Path) -> str:
    """Save the pooling in an encoder's configuration."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"informin": {"pooling": "mean"}}))
    return str(folder)


@pytest.mark.parametrize("way", WAYS)
def test_every_weight_is_trained_and_every_term_logged(build, way):
    trainer = build(**WAYS[way])
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    moved = {
        name for name, p in trainer.model.named_parameters() if p.requires_grad and not torch.equal(p, before[name])
    }
    still = {name for name, p in trainer.model.named_parameters() if p.requires_grad} - moved
    assert not {name for name in still if "position_embeddings" not in name and "token_type" not in name}
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    for term in trainer.terms:
        assert not term.summand or all(f"terms/{term.name}" in entry for entry in logged)


@pytest.mark.parametrize("own", [True, False], ids=["itself", "another model"])
def test_guide_is_on_the_device_of_training(build, tmp_path, monkeypatch, own):
    """With `use_cpu`, too: without a device, it would be on a GPU if there is one."""
    asked = []
    monkeypatch.setattr(native, "to_device", lambda model, device: asked.append(device))
    build(**WAYS["similarity"], **({} if own else dict(guide_model=finished(save_bert(tmp_path / "guide")))))
    assert asked and set(asked) == {"cpu"}


def test_own_similarities_need_no_guide(build, tmp_path):
    own = dict(objective="simcse", false_negative_fraction=0.1, false_negative_similarity="model")
    build(**own, sentences=TOKENS).train()
    assert not (tmp_path / "guides").exists()
    with raises_usage(option="guide_model", found="has no effect: no term or view uses a guide"):
        build(**own, guide_model="no/guide")


def test_first_step_without_dropout_is_at_distance_zero(build, encoder):
    """The encoder still equals its guide: terms compare embeddings of the same sentences."""
    trainer = build(**(GUIDED | dict(distillation_weight=1.0, replay_weight=1.0, replay_size=5)))
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer.train()
    first = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert abs(first["terms/distillation"]) < 1e-5 and abs(first["terms/replay"]) < 1e-5


def test_second_view_is_mutual_neighbor(build, encoder, tmp_path):
    """Row B + i is the nearest mutual neighbor of row i, or the same sentence if it has none."""
    sentences = make_sentences(40)
    trainer = build(
        sentences=sentences, objective="simcse", false_negative_fraction=0.1, view="neighbor", view_neighbors=3
    )
    x = torch.from_numpy(load_model(str(encoder), ("cls",), bf16=False)(sentences)["cls"])
    x = torch.nn.functional.normalize(x, dim=-1)
    places = (x @ x.T).fill_diagonal_(-2).topk(3).indices
    expected = [next((j for j in places[i].tolist() if i in places[j]), i) for i in range(40)]
    seen = []
    trainer.model.register_forward_pre_hook(lambda module, args, inputs: seen.append(inputs), with_kwargs=True)
    stacked = []
    compute_loss = trainer.compute_loss
    trainer.compute_loss = lambda model, inputs, **kwargs: (
        stacked.append(inputs),
        compute_loss(model, inputs, **kwargs),
    )[1]
    trainer.train()
    tokenizer = tokenizer_of(encoder)
    for rows, inputs in zip(stacked, seen):
        first, second = rows["row"].chunk(2)
        assert second.tolist() == [expected[i] for i in first.tolist()]
        for ids, mask, i in zip(inputs["input_ids"], inputs["attention_mask"], rows["row"].tolist()):
            assert ids[mask.bool()].tolist() == tokenizer(sentences[i])["input_ids"]
    assert sum(i != j for i, j in enumerate(expected)) > 10


@pytest.mark.parametrize(
    "queue", [{}, dict(objective="micse", attention_mi_weight=0, queue_size=24)], ids=["batch", "queue"]
)
def test_mutual_neighbors_are_not_negatives(build, monkeypatch, queue):
    """Neither is the sentence itself or its second view. Compared with a loop over texts, some of them duplicates."""
    sentences = make_sentences(30)
    sentences += sentences[:10]
    calls = []
    monkeypatch.setattr("informin.objectives.contrast.contrast", lambda *given: calls.append(given) or contrast(*given))
    options = dict(objective="simcse", max_steps=5, per_device_train_batch_size=20) | queue
    trainer = build(sentences=sentences, view="neighbor", view_neighbors=3, **options)
    (file,) = Path(trainer.args.guide_cache).glob("*.npy")
    places, _ = CachedGuide("", file, torch.device("cpu"), torch.arange(40) % 30).nearest(3)
    known = [{sentences[i]} | {sentences[j] for j in places[i].tolist() if i % 30 in places[j]} for i in range(40)]
    stacked = []
    compute_loss = trainer.compute_loss
    trainer.compute_loss = lambda model, inputs, **kw: stacked.append(inputs) or compute_loss(model, inputs, **kw)
    trainer.train()
    earlier, negatives = [""] * 24, 0
    for rows, (*_, own, weights) in zip(stacked, calls, strict=True):
        first, second = (part.tolist() for part in rows["row"].chunk(2))
        expected = [[sentences[k] in known[i] for k in second] for i in first]
        assert (weights == 0).tolist() == expected and set(weights.flatten().tolist()) == {0, 1}
        negatives += sum(sum(row) for row in expected) - len(first)
        assert (own is None) == (not queue)
        if queue:
            assert own.tolist() == [[text in known[i] for text in earlier] for i in first]
            earlier = [*(sentences[i] for i in first), *earlier][:24]
    assert negatives > 20, "which were pushed apart before"


def test_resume_is_bit_exact(build, tmp_path):
    way = WAYS["all"] | dict(max_steps=4, save_strategy="steps", save_steps=2)
    whole = build(output_dir=str(tmp_path / "whole"), **way)
    whole.train()
    shutil.rmtree(tmp_path / "whole" / "checkpoint-4")
    resumed = build(output_dir=str(tmp_path / "whole"), **way)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    for (name, a), b in zip(whole.model.named_parameters(), resumed.model.parameters()):
        assert torch.equal(a, b), name


def test_resuming_with_another_guide_is_rejected(build, tmp_path):
    """training.json has the names without their folders."""
    guides = [finished(save_bert(tmp_path / name, initializer_range=0.1)) for name in ("first", "second")]
    (tmp_path / "general.txt").write_text("\n".join(make_sentences(9, seed=4)))
    way = WAYS["replay"] | dict(save_strategy="steps", save_steps=1, max_steps=2)
    way |= dict(replay_file=str(tmp_path / "general.txt"))
    build(**way, guide_model=guides[0]).train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    options = json.loads((tmp_path / "run" / "checkpoint-1" / "training.json").read_text())["options"]
    assert (options["guide_model"], options["replay_file"]) == ("first", "general.txt")
    with raises_usage(option="resume_from_checkpoint", found="belongs to another run: guide_model"):
        build(**way, guide_model=guides[1]).train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))


def test_runs_with_the_same_cache_share_the_guide(build, tmp_path):
    build(**WAYS["all"])
    files = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "guides").iterdir()}
    assert len(files) == 6, "an array and a header: of training sentences, their neighborhoods, general sentences"
    build(**WAYS["all"], seed=2)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "guides").iterdir()} == files


def test_guide_may_have_another_dimension_and_tokenizer(build, tmp_path, roberta):
    """Terms on similarities accept it; terms on embeddings reject it."""
    wide, other = finished(save_bert(tmp_path / "wide", hidden_size=64)), finished(save_roberta(tmp_path / "other"))
    for guide in (wide, other):
        build(**WAYS["similarity"], guide_model=guide, guide_cache=str(tmp_path / "others")).train()
    for way, weight in (("distillation", "distillation"), ("replay", "replay"), ("neighborhoods", "neighbor")):
        with raises_usage(f"{weight}_weight", found="have 64 dimensions; those of the encoder have 32"):
            build(**WAYS[way], guide_model=wide)
    assert not (tmp_path / "guides").exists(), "nothing was embedded"
    with raises_usage("guide_model", found="does not specify the pooling", needed="an embedding model saved by"):
        build(**WAYS["distillation"], guide_model=str(roberta))


def test_a_model_in_memory_is_its_own_guide(build, encoder, tmp_path):
    """It gives the embeddings that its name gives."""
    trainer = build(**WAYS["similarity"])
    args = dataclasses.replace(trainer.args, guide_cache=str(tmp_path / "own"))
    InforMinTrainer(trainer.model, args, make_sentences(40), processing_class=trainer.processing_class)
    one, other = (np.load(next(Path(folder).glob("*.npy"))) for folder in (tmp_path / "own", trainer.args.guide_cache))
    np.testing.assert_allclose(one.astype(np.float32), other.astype(np.float32), atol=2e-3)


@pytest.mark.parametrize(
    "options, option, found",
    [
        (WAYS["similarity"] | dict(guided_neighbors=40), "guided_neighbors", "40 neighbors for each of 40 different"),
        (dict(objective="simcse", view="neighbor", view_neighbors=40), "view_neighbors", "40 neighbors for each of 40"),
        (
            WAYS["similarity"] | dict(guided_neighbors=10, sentences=make_sentences(8) * 5),
            "guided_neighbors",
            "10 neighbors for each of 8 different sentences",
        ),
        (dict(objective="simcse", guide_model="x"), "guide_model", "x has no effect: no term or view uses a guide"),
        (dict(objective="simcse", replay_file="x.txt"), "replay_file", "x.txt has no effect without"),
        (GUIDED | dict(replay_weight=1.0, replay_file="/nowhere/x.txt"), None, "/nowhere/x.txt does not exist"),
        (WAYS["similarity"] | dict(sentences=TOKENS), None, "tokens without their text"),
        (WAYS["neighborhoods"] | dict(neighbor_count=40), "neighbor_count", "40 neighbors for each of 40 different"),
    ],
)  # fmt: skip
def test_unusable_guide_options_are_rejected_before_embedding(build, tmp_path, options, option, found):
    with raises_usage(option, found=found):
        build(**options)
    assert not (tmp_path / "guides").exists(), "nothing was embedded"


@pytest.mark.parametrize(
    "options, option, found",
    [
        (GUIDED, "objective", "guided has no term with a weight above 0"),
        (GUIDED | dict(false_negative_fraction=0.1), "false_negative_fraction", "no effect with `objective` guided"),
        (dict(objective="micse", view="neighbor"), "attention_mi_weight", "compares attention maps token by token"),
        (
            dict(objective="scd", replay_weight=1.0),
            "view_dropout",
            "general sentences of `replay_weight` are not a view",
        ),
        (dict(view="neighbor", view_neighbors=-1), "view_neighbors", "is -1"),
    ],
)
def test_conflicting_options_are_rejected(options, option, found):
    with raises_usage(option=option, found=found):
        InforMinTrainingArguments(use_cpu=True, bf16=False, **options)


def test_encoder_without_dropout_is_accepted_if_views_may_be_equal(build, tmp_path):
    still = str(save_bert(tmp_path / "still", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    build(still, **WAYS["neighborhoods"]).train()
    build(still, objective="simcse", view="neighbor", view_neighbors=3).train()
    with pytest.raises(UsageError) as error:
        build(still, objective="simcse", false_negative_fraction=0.1)
    assert "Every dropout rate of this model is 0" in str(error.value)


def test_adapt_recipe_on_the_command_line(bert, tmp_path, capsys):
    sentences = tmp_path / "mine.txt"
    sentences.write_text("\n".join(make_sentences(200)) + "\n")
    out = tmp_path / "out"
    argv = (
        f"--model_name={bert} --recipe=adapt --train_file={sentences} --output_dir={out} --max_steps=3 --use_cpu true"
    )
    assert run_unsup.main(argv.split()) == 0
    record = json.loads((out / "training.json").read_text())
    assert record["objective"]["name"] == "guided" and record["options"]["guided_neighbors"] > 0
    assert str(tmp_path) not in (out / "training.json").read_text()
    assert list((out / "guide").glob("*.npy"))
    card = (out / "README.md").read_text()
    assert re.search("guided similarity", card)


def test_unknown_recipe_suggests_a_name(capsys):
    assert run_unsup.main(["--model_name=x", "--recipe=adpt"]) == 2
    assert "--recipe is adpt; expected one of: adapt, informin-" in (error := capsys.readouterr().err)
    assert error.endswith(" Did you mean adapt?\n")
    assert run_unsup.main(["--model_name=x", "--recipe=adapt", "--config=y"]) == 2
    assert "--recipe is given together with --config." in capsys.readouterr().err
    assert Path("informin/recipes/adapt.yaml").is_file()
