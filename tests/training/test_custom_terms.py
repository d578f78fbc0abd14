"""Terms of the user, from a file outside the package: training, logs, heads, the record, the card, and resuming."""

import importlib.util
import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from informin.objectives import AttentionMI, Contrast, Head, LocalInformation, MaskedLM, Reconstruction, Term
from informin.publishing.card import write_card
from informin.training.callbacks import logged_terms
from informin.views import Crop
from tests.conftest import FOUR_STEPS, make_sentences, raises_usage, save_bert
from tests.training.helpers import assert_same, logged, trained, weights_of
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

FILE = '''
"""A loss of the user."""

from dataclasses import dataclass

from informin import Term


@dataclass
class NearUnitLength(Term):
    """Keeps the projections near unit length."""

    weight: float = 0.1
    length: float = 1.0

    def loss(self, views):
        return (views.z1.norm(dim=-1) - self.length).square().mean()
'''
SENTENCES = make_sentences(64)


@pytest.fixture
def own(tmp_path):
    """The module of the user."""
    path = tmp_path / "own_loss.py"
    path.write_text(FILE)
    spec = importlib.util.spec_from_file_location("own_loss", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_loss"] = module  # dataclasses look up the module of a class
    spec.loader.exec_module(module)
    yield module
    del sys.modules["own_loss"]


def args_in(folder: Path, **options) -> InforMinTrainingArguments:
    how = FOUR_STEPS | dict(max_steps=2, eval_strategy="no", warmup_steps=0, save_steps=1, logging_steps=1) | options
    return InforMinTrainingArguments(str(folder), **how)


def test_a_term_of_the_user_is_trained_logged_recorded_and_resumed(bert, own, tmp_path):
    objective = [Contrast(temperature=0.1), Reconstruction(weight=0.4), own.NearUnitLength(length=2.0)]
    args = args_in(tmp_path / "run")
    trainer = trained(str(bert), args, train_dataset=SENTENCES, objective=objective)
    assert trainer.args is args, "nothing had to be filled in"
    for entry in [entry for entry in trainer.state.log_history if "loss" in entry]:
        total = entry["terms/contrast"] + 0.4 * entry["terms/reconstruction"] + 0.1 * entry["terms/near_unit_length"]
        assert entry["loss"] == pytest.approx(total, rel=1e-5)
    trainer.export(report=False)
    record = json.loads((tmp_path / "run/training.json").read_text())
    assert [term["name"] for term in record["objective"]["terms"]][-1] == "near_unit_length"
    assert record["options"]["near_unit_length_weight"] == 0.1 and record["options"]["length"] == 2.0
    write_card(tmp_path / "run")
    assert "near unit length" in (tmp_path / "run/README.md").read_text()
    shutil.rmtree(tmp_path / "run/checkpoint-2")
    again = InforMinTrainer(str(bert), args_in(tmp_path / "run"), train_dataset=SENTENCES, objective=objective)
    again.train("last")
    assert_same(weights_of(again), weights_of(trainer))


def test_a_resumed_run_has_the_same_terms(bert, own, tmp_path):
    trained(
        str(bert),
        args_in(tmp_path / "run", max_steps=1),
        train_dataset=SENTENCES,
        objective=[Contrast(), own.NearUnitLength()],
    )
    for objective in ([Contrast()], [Contrast(), own.NearUnitLength(weight=0.2)]):
        trainer = InforMinTrainer(str(bert), args_in(tmp_path / "run"), train_dataset=SENTENCES, objective=objective)
        with raises_usage(option="resume_from_checkpoint"):
            trainer.train("last")


@dataclass
class Spread(Term):
    """Minus the standard deviation of the projections, and values to log, two of them with names of the run's own."""

    def __post_init__(self):
        super().__post_init__()
        self.seen = []

    def loss(self, views):
        self.seen.append(views)
        length = views.mask.sum(1)[0]
        own = {"loss": 777, "learning_rate": np.float64(777.0)}
        return {"spread": -views.z1.var(0).mean().sqrt(), "length": length, **own}


@dataclass
class Mine(Term):
    """A loss that a test gives."""

    weight: float = 1.0
    function: object = None

    def loss(self, views):
        return self.function(views)


def test_further_values_are_logged_under_the_name_of_their_term(bert, tmp_path):
    term = Spread()
    args = args_in(tmp_path / "run", save_strategy="no")
    trainer = trained(str(bert), args, train_dataset=SENTENCES, objective=[term, MaskedLM(weight=0.5)])
    losses = zip(logged(trainer, "terms/spread"), logged(trainer, "terms/mlm"))
    assert logged(trainer, "loss") == pytest.approx([spread + 0.5 * mlm for spread, mlm in losses], rel=1e-5)
    assert logged(trainer, "terms/spread/length") == [float(views.mask.sum(1)[0]) for views in term.seen]
    assert logged(trainer, "terms/spread/loss") == logged(trainer, "terms/spread/learning_rate") == [777.0] * 2
    assert not {777.0} & {*logged(trainer, "loss"), *logged(trainer, "learning_rate")}
    assert logged_terms(trainer.state.log_history[0]).keys() == {"spread", "mlm"}
    assert all(views.maps1 is views.row is None and len(views.lm_losses) for views in term.seen)


WRONG = {
    "one per sentence": lambda views: (views.z1 - views.z2).square().mean(1),
    "float": lambda views: 3.0,
    "None": lambda views: None,
    "float in a dictionary": lambda views: {"length": 3.0},
    "nothing": lambda views: {},
    "a vector to log": lambda views: {"mine": views.z1.mean(), "lengths": views.z1.norm(dim=-1)},
    "text to log": lambda views: {"mine": views.z1.mean(), "text": "3"},
}


def test_a_loss_that_is_not_one_number_is_an_error(bert, tmp_path):
    term = Mine(function=WRONG["None"])
    trainer = InforMinTrainer(
        str(bert), args_in(tmp_path / "run"), train_dataset=SENTENCES, objective=[Contrast(), term]
    )
    with raises_usage("objective", found="mine"):
        trainer.train()
    batch = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 1, trainer.args.device)[0][0]
    for name, term.function in WRONG.items():
        with raises_usage("objective", found="mine"):
            pytest.fail(f"{name}: {trainer.compute_loss(trainer.model, batch)}")
    term.function = lambda views: views.z1.mean()
    assert trainer.compute_loss(trainer.model, batch).requires_grad


@pytest.mark.parametrize("weight", ["1", None, [1.0]])
def test_a_weight_that_is_not_a_number_is_an_error(weight):
    with raises_usage("mine_weight"):
        Mine(weight=weight)


def test_a_term_without_gradient_is_logged(bert, tmp_path):
    term = Mine(function=lambda views: views.z1.detach().norm())
    trainer = trained(
        str(bert), args_in(tmp_path / "run", max_steps=1), train_dataset=SENTENCES, objective=[Contrast(), term]
    )
    assert logged(trainer, "terms/mine")


class Held:
    def __init__(self, value):
        self.value = value


LAYER = torch.nn.Linear(32, 1)


class Probe(torch.nn.Module, Term):
    """A term that is a module."""

    def __init__(self):
        super().__init__()
        self.weight = 1.0
        self.layer = LAYER

    def loss(self, views):
        return self.layer(views.z1).mean()


@dataclass
class Cut(Crop):
    extra: object = None


HOLDERS = {
    "a layer": dict(objective=[Contrast(), Mine(function=LAYER)]),
    "a list": dict(objective=[Contrast(), Mine(function=[{"layer": LAYER}])]),
    "an object": dict(objective=[Contrast(), Mine(function=Held(LAYER))]),
    "a tensor": dict(objective=[Contrast(), Mine(function=torch.ones(1, requires_grad=True))]),
    "a term": dict(objective=[Contrast(), Probe()]),
    "a view": dict(view=Cut(extra=torch.nn.Parameter(torch.ones(1)))),
}


@pytest.mark.parametrize("how", HOLDERS.values(), ids=HOLDERS)
def test_weights_that_would_never_be_trained_are_refused(bert, tmp_path, how):
    with raises_usage(option=next(iter(how))):
        InforMinTrainer(str(bert), args_in(tmp_path / "run"), train_dataset=SENTENCES, **how)


class Projected(Head):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, model, inputs):
        return self.layer(inputs.projection)


def test_the_layer_of_a_field_is_trained_and_resumed_as_a_head(bert, tmp_path):
    """A frozen module needs none."""

    @dataclass
    class Layered(Term):
        layer: object = None
        teacher: object = None

        def head(self, model):
            return Projected(self.layer)

        def loss(self, views):
            return (views.heads["layered"] - self.teacher(views.z1).repeat(2, 1)).square().mean()

    def term(seed):
        torch.manual_seed(seed)
        teacher = torch.nn.Linear(32, 1, bias=False).requires_grad_(False)
        teacher.weight.fill_(0.5)
        return Layered(layer=torch.nn.Linear(32, 1), teacher=teacher)

    one = term(1)
    before = one.layer.weight.detach().clone()
    trainer = trained(str(bert), args_in(tmp_path / "run"), train_dataset=SENTENCES, objective=[Contrast(), one])
    assert not torch.equal(one.layer.weight, before)
    shutil.rmtree(tmp_path / "run/checkpoint-2")
    again = InforMinTrainer(
        str(bert), args_in(tmp_path / "run"), train_dataset=SENTENCES, objective=[Contrast(), term(2)]
    )
    again.train("last")
    assert_same(weights_of(again), weights_of(trainer))


def test_every_field_of_a_term_and_a_view_is_recorded_without_folders_and_compared(bert, tmp_path):
    """Also one with the name of an option of the run, or of another term."""

    @dataclass
    class Other(Mine):
        learning_rate: object = None
        prompt: object = None

    def start(value=1.0, rate=5, extra=3):
        terms = [Mine(function=norm_of), Other(function=norm_of, learning_rate=rate, prompt={"/home/alice/x": value})]
        view = Cut(extra=[extra, "/home/alice/stop.txt"])
        args = args_in(tmp_path / "run")
        return InforMinTrainer(str(bert), args, train_dataset=SENTENCES, objective=[Contrast(), *terms], view=view)

    trainer = start()
    trainer.train()
    trainer.export(report=False)
    options = json.loads((tmp_path / "run/training.json").read_text())["options"]
    assert options["learning_rate"] == trainer.args.learning_rate and options["other_learning_rate"] == 5
    assert options["other_prompt"] == {"x": 1.0} and "prompt" not in trainer.model.config.informin
    assert options["function"] == options["other_function"] and options["cut_extra"] == [3, "stop.txt"]
    files = ("training.json", "README.md", "config.json", "checkpoint-2/training.json", "checkpoint-2/config.json")
    assert not [name for name in files if "alice" in (tmp_path / "run" / name).read_text()]
    for changed in (dict(value=2.0), dict(rate=6), dict(extra=4)):
        with raises_usage(option="resume_from_checkpoint"):
            start(**changed).train("last")
    start().train("last")


def norm_of(views):
    return views.z1.norm(dim=-1).mean()


class Counter(Head):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, model, inputs):
        return inputs.gather(inputs.projection), self.steps.clone()

    def after_step(self, model):
        self.steps += 1


def test_a_term_of_the_user_may_have_a_head(bert, own, tmp_path):
    class Counted(own.NearUnitLength):
        def head(self, model):
            return Counter()

        def loss(self, views):
            projection, steps = views.heads["counted"]
            assert torch.equal(projection, torch.cat([views.z1, views.z2]))
            return (1 + steps) * super().loss(views)

    args = args_in(tmp_path / "run", save_strategy="no", gradient_accumulation_steps=2)
    trainer = trained(str(bert), args, train_dataset=SENTENCES, objective=[Contrast(), Counted()])
    assert trainer.model.heads["counted"].steps == 2 and len(logged(trainer, "terms/counted")) == 2


@pytest.mark.parametrize("term, options", [(Contrast, dict(queue_size=32)), (LocalInformation, {})])
def test_a_subclass_of_a_term_has_its_head(bert, tmp_path, term, options):
    """Its head has the name of the subclass."""

    @dataclass
    class Own(term):
        pass

    def losses(kind, folder):
        args = args_in(tmp_path / folder, save_strategy="no")
        return logged(trained(str(bert), args, train_dataset=SENTENCES, objective=[kind(**options)]), "loss")

    assert losses(Own, "own") == losses(term, "theirs")


def test_terms_read_attention_maps_of_the_same_layers(bert, tmp_path):
    @dataclass
    class Second(AttentionMI):
        pass

    terms = [Contrast(), AttentionMI(layers=[0], form="paper"), Second(layers=[0])]
    args = args_in(tmp_path / "run", save_strategy="no")
    values = trained(str(bert), args, train_dataset=SENTENCES, objective=terms)
    assert logged(values, "terms/attention_mi") and logged(values, "terms/second")
    folder = save_bert(tmp_path / "two-layers")
    with raises_usage(option="objective", found="attention_mi of layers [0] and second of layers [1]"):
        InforMinTrainer(str(folder), args, train_dataset=SENTENCES, objective=[terms[0], terms[1], Second(layers=[1])])


def test_a_weight_may_change_during_training(bert, tmp_path):
    term = Reconstruction(weight=1.0)

    class Anneal(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            term.weight = 1.0 - state.global_step / 4

    args, objective = args_in(tmp_path / "run", save_strategy="no"), [Contrast(), term]
    trainer = trained(str(bert), args, train_dataset=SENTENCES, objective=objective, callbacks=[Anneal()])
    values = zip(logged(trainer, "terms/contrast"), logged(trainer, "terms/reconstruction"), (1.0, 0.75), strict=True)
    assert logged(trainer, "loss") == pytest.approx([one + weight * other for one, other, weight in values], rel=1e-5)


def test_a_model_without_attention_maps_is_refused(bert, tmp_path):
    """transformers returns an empty tuple if the attention function gives no maps."""
    objective = [Contrast(), AttentionMI()]
    trainer = InforMinTrainer(str(bert), args_in(tmp_path / "run"), train_dataset=SENTENCES, objective=objective)
    trainer.model.register_forward_hook(lambda module, args, outputs: replace(outputs, attentions=()))
    with raises_usage(option="attention_mi_weight"):
        trainer.train()
