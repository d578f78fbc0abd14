"""Training with each view."""

import pytest
import torch

from informin.views import Augment, Crop, Repetition, SpanMask
from tests.conftest import FOUR_STEPS, how_to_train, make_sentences
from trainer_informin import InforMinTrainer


def trained(model, folder, **options):
    how = FOUR_STEPS | dict(objective="simcse", max_steps=2, eval_strategy="no", save_strategy="no", report_to="none")
    how = how_to_train(str(folder), **(how | options))
    trainer = InforMinTrainer(str(model), train_dataset=make_sentences(64), **how)
    trainer.train()
    return {name: x.clone() for name, x in trainer.model.state_dict().items()}


@pytest.mark.parametrize("view", ["repetition", "crop"])
def test_second_views_and_their_attention_maps_change_the_training(bert, tmp_path, view):
    plain, other = trained(bert, tmp_path / "a"), trained(bert, tmp_path / "b", view=view)
    maps = trained(bert, tmp_path / "c", view=view, attention_mi_weight=5.0)
    for one, two in ((plain, other), (other, maps)):
        assert any(not torch.equal(one[name], two[name]) for name in one if "attention.self.query" in name)


@pytest.mark.parametrize("objective", ["ct", "isbert"])
def test_objectives_that_encode_a_sentence_once_read_the_second_view(bert, tmp_path, objective):
    """Most views leave the first one as it is."""

    def loss(folder, **options):
        how = dict(max_steps=1, view_dropout=[0.0], eval_strategy="no", save_strategy="no", logging_steps=1)
        how = how_to_train(str(tmp_path / folder), **(FOUR_STEPS | how), objective=objective, **options)
        trainer = InforMinTrainer(str(bert), train_dataset=make_sentences(64), **how)
        return trainer.train().training_loss

    assert abs(loss("plain") - loss("crop", view="crop")) > 1e-3


@pytest.mark.parametrize(
    "objective, view",
    [
        ("mirrorbert", SpanMask()),
        ("consert", Augment(first="feature_cutoff", second="shuffle", feature_cutoff=0.2)),
        ("declutr", Crop(spans="nearby", min_fraction=1 / 16, max_fraction=0.5, min_tokens=32)),
    ],
)
def test_published_objectives_have_their_view(bert, tmp_path, objective, view):
    how = how_to_train(str(tmp_path), **(FOUR_STEPS | dict(max_steps=1, objective=objective, eval_strategy="no")))
    trainer = InforMinTrainer(str(bert), train_dataset=make_sentences(64), **how)
    by_name = InforMinTrainer(str(bert), how["args"], train_dataset=make_sentences(64))
    assert trainer.objective.view == by_name.objective.view == view
    assert by_name.record().options["view"] == view.name and (objective == "consert") == (
        by_name.objective.dropout == 0
    )
    trainer.train()
    others = how_to_train(str(tmp_path), **(FOUR_STEPS | dict(objective=objective, view="repetition")))
    assert others["view"] == Repetition()
