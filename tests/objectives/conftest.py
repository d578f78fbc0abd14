"""Fixtures and helpers for the tests of several terms."""

import pytest
import torch
from torch.nn.functional import normalize
from transformers import AutoConfig

from modeling_informin import BertForInforMinCL, RobertaForInforMinCL
from tests.conftest import how_to_train, make_sentences, tokenizer_of
from trainer_informin import InforMinTrainer

# For tests of what does not depend on the architecture of the encoder.
ONLY_BERT = pytest.mark.parametrize("encoder", ["bert"], indirect=True)


@pytest.fixture
def views():
    """Two views (7, 12) of the same sentences."""
    generator = torch.Generator().manual_seed(0)
    z1 = torch.randn(7, 12, generator=generator)
    return z1, z1 + 0.5 * torch.randn(7, 12, generator=generator)


@pytest.fixture
def build(encoder, tmp_path):
    """Build a trainer on 64 sentences without evaluation; keywords are options."""

    def make(callbacks=None, sentences=64, **options):
        common = dict(
            output_dir=str(tmp_path / "run"),
            use_cpu=True,
            per_device_train_batch_size=16,
            max_steps=3,
            logging_steps=1,
            learning_rate=1e-3,
            disable_tqdm=True,
            eval_strategy="no",
            save_strategy="no",
            bf16=False,
            warmup_steps=0,
        )
        if options.get("objective") == "diffcse":
            options["generator"] = str(encoder)
        how = how_to_train(**(common | options))
        return InforMinTrainer(str(encoder), train_dataset=make_sentences(sentences), callbacks=callbacks, **how)

    return make


def assert_gradient(loss, views) -> None:
    """Check the gradient by finite differences. The tolerance is loose because the loss uses float32."""
    pair = [normalize(view).requires_grad_() for view in views]
    loss(*pair).backward()
    generator = torch.Generator().manual_seed(3)
    steps = [1e-2 * torch.randn(view.shape, generator=generator) for view in pair]
    with torch.no_grad():
        slope = (loss(*(p + s for p, s in zip(pair, steps))) - loss(*(p - s for p, s in zip(pair, steps)))) / 2
    expected = sum((p.grad * s).sum() for p, s in zip(pair, steps))
    torch.testing.assert_close(slope, expected, rtol=0.02, atol=1e-4)


def rows(folder, count=6, copies=2):
    """Return a batch with several copies of the sentences, as the encoder takes it."""
    batch = tokenizer_of(folder)(make_sentences(count), padding=True, return_tensors="pt", return_token_type_ids=False)
    return {name: batch[name].repeat(copies, 1) for name in ("input_ids", "attention_mask")}


def model_of(folder, projection_head="mlp"):
    """Return a model in training with newly initialized heads."""
    kind = RobertaForInforMinCL if "roberta" in folder.name else BertForInforMinCL
    config = AutoConfig.from_pretrained(folder)
    config.informin = {"pooling": "cls", "projection_head": projection_head, "lm_head": False}
    return kind.from_pretrained(folder, config=config)


def head_values(model, batch, ids=range(6), gather=lambda x: x):
    """Return the outputs of a model's heads in training, for sentences with these ids."""
    return model.train()(**batch, views={"sentence_ids": torch.tensor([*ids]), "gather": gather}).heads


def logged(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def without_dropout(module):
    """Return a module in training mode without dropout."""
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return module.train()


def first_batch(trainer):
    """Return the rows of the first step."""
    return trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 1, trainer.args.device)[0][0]


def assert_gradients(own, theirs) -> None:
    """Compare the gradients of an encoder with those of the same encoder in another library."""
    expected = {name: weight.grad for name, weight in theirs.named_parameters()}
    found = {name: weight.grad for name, weight in own.named_parameters() if weight.grad is not None}
    assert len(found) > 30
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-5, msg=name)
