"""Rows in the fixed shapes of CUDA graphs give the same gradients. Here an eager call stands for a replay."""

from dataclasses import replace

import pytest

import informin.models.forward as forward
from tests.conftest import FOUR_STEPS, how_to_train, make_sentences, save_bert
from tests.test_gpu import QUEUE_OF, STILL, first_batch, gradients
from trainer_informin import InforMinTrainer


class EagerEncoder:
    """Replaces `GraphedEncoder`.

    Attributes:
        shapes: Shapes of the inputs of each call.
    """

    shapes: list[dict] = []

    def __init__(self, encoder, dtype):
        self.encoder = encoder

    def __call__(self, encode, inputs):
        self.shapes.append({name: tuple(x.shape) for name, x in inputs.items()})
        return encode(inputs)


@pytest.mark.parametrize(
    "objective, padding_free", [("simcse", True), ("simcse", False), ("informin", True), ("micse", None)]
)
def test_gradients_are_those_of_the_usual_shapes(tmp_path, monkeypatch, objective, padding_free):
    monkeypatch.setattr(forward, "GraphedEncoder", EagerEncoder)
    monkeypatch.setattr(EagerEncoder, "shapes", [])
    folder = str(save_bert(tmp_path / "still", **STILL))
    found = []
    for length in (24, None):
        how = dict(objective=objective, view="crop", padding_free=padding_free, eval_strategy="no", report_to="none")
        how |= FOUR_STEPS | QUEUE_OF.get(objective, {})
        data = make_sentences(96)
        run = InforMinTrainer(folder, train_dataset=data, **how_to_train(str(tmp_path / str(length)), **how))
        own = run.model.forward_pass
        own.how = replace(own.how, graph_length=length, threads=1)
        batch = first_batch(run)
        gradients(run, batch)  # fills the queue
        found.append(gradients(run, batch))
    calls = 2 if objective in QUEUE_OF else 1  # of the encoder, and of the momentum encoder
    assert len(EagerEncoder.shapes) == 2 * calls
    for shapes in EagerEncoder.shapes:
        rows, tokens = shapes["input_ids"]
        assert tokens == 24 if padding_free is not True else (rows == 1 and tokens % forward.TOKENS == 0)
    scale = max(x.abs().max() for x in found[1].values())
    assert found[0].keys() == found[1].keys()
    differences = [(found[0][name] - expected).abs().max() / scale for name, expected in found[1].items()]
    assert max(differences) < 1e-5
