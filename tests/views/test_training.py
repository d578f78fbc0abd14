"""Training with each view."""

import pytest
import torch

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
