"""All objectives: their losses, logs and gradients in training."""

import shutil
from itertools import product

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cosine_similarity
from transformers import TrainerCallback

from informin.objectives.attention_mi import attention_mi
from informin.objectives.contrast import contrast
from informin.objectives.decorrelation import decorrelation, self_contrast
from informin.objectives.masked_lm import masked_lm
from informin.objectives.reconstruction import reconstruction
from tests.objectives.conftest import ONLY_BERT, logged, rows
from tests.objectives.family_helpers import EVERYTHING, MICSE, NONCONTRASTIVE, SCD, SCD_ROWS


def heads_of(model) -> set[str]:
    """Return the names of the heads that were built."""
    built = {name for name, _ in model.named_children()} - {model.base_model_prefix, "heads"} | set(model.heads)
    return {"cls" if name == "lm_head" else name for name in built}


@ONLY_BERT
@pytest.mark.parametrize(
    "options, heads",
    [(dict(objective="scd", decorrelation_weight=0), set()), (MICSE | dict(queue_size=0), {"mlp"})],
    ids=["scd", "micse"],
)
def test_heads_that_are_not_used_are_not_built(build, options, heads):
    """Tests below check those that are used."""
    assert heads_of(build(**options).model) == heads


def expected_loss(options, seen, model):
    """Compute the loss of a step from the pure functions, with the same weights and random state."""
    model.load_state_dict(seen["state"])
    torch.set_rng_state(seen["rng"])
    outputs = model.train()(**seen["inputs"])
    size, mask = 16, seen["inputs"]["attention_mask"][:16]
    z1, z2 = outputs.projection[:size], outputs.projection[size : 2 * size]
    if options["objective"] == "scd":
        features = [model.heads["decorrelation"].layers(view) for view in (z1, z2)]
        options = SCD_ROWS[model.config.model_type] | options
        loss = self_contrast(z1, z2, options.get("self_contrast_form", "paper"))
        loss = loss + options["decorrelation_weight"] * decorrelation(*features, options["off_diagonal_weight"])
    else:
        loss = contrast(z1, z2, options.get("temperature", 0.05), seen["state"]["heads.queue.embeddings"])
        loss = loss + options.get("reconstruction_weight", 0) * reconstruction(
            z1, z2, options.get("reconstruction_form", "code")
        )
        if "decorrelation_weight" in options:
            features = [model.heads["decorrelation"].layers(view) for view in (z1, z2)]
            loss = loss + options["decorrelation_weight"] * decorrelation(*features, options["off_diagonal_weight"])
        maps = torch.stack(outputs.attentions, 1)
        ami, _ = attention_mi(maps[:size], maps[size : 2 * size], mask, options.get("attention_mi_form", "paper"))
        loss = loss + options.get("attention_mi_weight", 2.5e-3) * ami
    if "mlm_weight" in options:
        loss = loss + options["mlm_weight"] * masked_lm(outputs.lm_losses)
    return loss.item()


LOSSES = {  # and their heads
    "scd": (SCD, {"decorrelation"}),
    "scd-code-mlm": (
        SCD | dict(decorrelation_weight=0.1, off_diagonal_weight=0.5, self_contrast_form="code", mlm_weight=0.2),
        {"decorrelation", "cls"},
    ),
    "micse": (MICSE, {"mlp", "queue"}),
    "micse-one-layer": (
        MICSE | dict(attention_mi_weight=2.0, attention_mi_layers=[1], temperature=0.2),
        {"mlp", "queue"},
    ),
    "everything": (EVERYTHING, {"mlp", "queue", "decorrelation", "cls"}),
}


@pytest.mark.parametrize(
    "encoder, case",
    [*product(["bert"], LOSSES), *product(["roberta"], ["scd", "everything"])],
    indirect=["encoder"],
)
def test_loss_is_the_objective_on_the_batch_and_the_sum_of_the_logged_terms(build, case):
    """Also at the second step, when the queue has the keys of the first. Terms are logged without their weights."""
    options, heads = LOSSES[case]
    trainer, steps = build(max_steps=2, lr_scheduler_type="constant", fast=False, **options), []
    assert heads_of(trainer.model) == heads

    def watch(module, args, kwargs):
        seen = {"rng": torch.get_rng_state(), "inputs": dict(kwargs)}
        seen["state"] = {name: value.clone() for name, value in module.state_dict().items()}
        steps.append(seen)

    compute_loss = trainer.compute_loss

    def keep_labels(model, inputs, **kwargs):
        loss = compute_loss(model, inputs, **kwargs)
        steps[-1]["labels"] = inputs.get("lm_labels")
        return loss

    trainer.compute_loss = keep_labels
    hook = trainer.model.register_forward_pre_hook(watch, with_kwargs=True)
    trainer.train()
    hook.remove()
    assert len(steps) == 2
    for seen, loss in zip(steps, logged(trainer, "loss")):
        assert expected_loss(options, seen, trainer.model) == pytest.approx(loss, rel=1e-4)
    if "queue" in trainer.model.heads:
        filled = [seen["state"]["heads.queue.embeddings"].any(-1).sum().item() for seen in steps]
        assert filled == [0, 16]
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    weights = {term.name: term.weight for term in trainer.terms}
    assert len(entries) == 2 and len(weights) > 1
    for entry in entries:
        assert entry["loss"] == pytest.approx(sum(w * entry[f"terms/{name}"] for name, w in weights.items()), rel=1e-4)
    if "attention_mi" in weights:
        assert all(3 <= entry["terms/attention_mi/positions"] <= 150 for entry in entries)


RATES = {
    "scd": (SCD, None),
    "mlm": (SCD | dict(mlm_weight=0.1, view_dropout=[0.0, 0.4]), (0.0, 0.4, 0.1)),
    "masked-views": (SCD | dict(mlm_weight=0.1, masked_views=True), None),
}


@pytest.mark.parametrize(
    "encoder, case, padding_free",
    [*product(["bert"], RATES, [True]), ("bert", "scd", False), ("bert", "mlm", False), ("roberta", "scd", True)],
    indirect=["encoder"],
)
def test_views_use_their_dropout_rates_in_training(build, case, padding_free):
    """None stands for the published rates."""
    options, rates = RATES[case]
    trainer, dropped = build(max_steps=1, padding_free=padding_free, **options), []
    rates = rates or tuple(SCD_ROWS[trainer.model.config.model_type]["view_dropout"])
    assert trainer.model.base_model.config._attn_implementation == "informin_views"
    embedded = trainer.model.base_model.embeddings.dropout
    hook = embedded.register_forward_hook(lambda module, inputs, outputs: dropped.append(outputs))
    trainer.train()
    hook.remove()
    parts = dropped if padding_free else dropped[0].chunk(len(rates))  # packed views are computed one after the other
    assert len(parts) == len(rates) and len(parts[0]) == (1 if padding_free else 16)
    for part, rate in zip(parts, rates):
        assert (part == 0).float().mean().item() == pytest.approx(rate, abs=0.03)
    modules = [module for module in trainer.model.base_model.modules() if isinstance(module, torch.nn.Dropout)]
    assert {module.rates for module in modules} == {rates} and len(modules) > 4


@ONLY_BERT
def test_bf16_trains_close_to_fp32(build):
    """The momentum encoder's pass without gradient must not leave cast weights in autocast's cache."""
    losses = []
    for bf16 in (False, True):
        how = dict(view_dropout=[0.05, 0.15], padding_free=False)  # packed rows in bf16 have filler: other masks
        trainer = build(max_steps=2, bf16=bf16, **how, **MICSE, decorrelation_weight=0.01, projector_size=16)
        before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
        trainer.train()
        losses.append(logged(trainer, "loss"))
        assert [name for name, p in trainer.model.named_parameters() if torch.equal(p, before[name])] == []
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05, abs=0.05)


class Gradients(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.kept = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@ONLY_BERT
def test_activation_checkpointing_gives_the_same_gradients(build):
    """The attention maps are recorded outside the layer's output, and are recomputed all the same."""
    gradients = []
    for checkpointing in (False, True):
        trainer = build(callbacks=[kept := Gradients()], max_steps=2, max_grad_norm=0.0, **EVERYTHING)
        if checkpointing:
            trainer.model.gradient_checkpointing_enable()
        trainer.train()
        gradients.append(kept.kept)
    assert gradients[0].keys() == gradients[1].keys()
    torch.testing.assert_close(gradients[0], gradients[1])


@ONLY_BERT
def test_export_does_not_change_the_model_in_training(build, tmp_path):
    trainer = build(max_steps=2, **EVERYTHING)
    trainer.train()
    model = trainer.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    learning, settings = {name: p.requires_grad for name, p in model.named_parameters()}, model.config.to_dict()
    trainer.export(str(tmp_path / "export"))
    changed = {name for name, value in model.config.to_dict().items() if value != settings[name]}
    assert changed <= {"architectures"} and settings["informin"]["queue_size"] == 24
    assert model.config._attn_implementation == "informin_views"
    assert {name: p.requires_grad for name, p in model.named_parameters()} == learning
    after = model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


TRAINED_HEADS = {  # that of vascl has no weights, and draws random numbers
    "ct": (dict(attention_mi_weight=0.1), {"contrastive_tension"}),  # the second encoder keeps no maps
    "tsdae": (dict(mlm_weight=0.1), {"denoising", "cls"}),
    "isbert": ({}, {"local_information"}),
    "diffcse": (dict(replaced_tokens_weight=1), {"mlp", "replaced_tokens"}),
    "vascl": (dict(virtual_augmentation_neighbors=3), {"mlp", "virtual_augmentation"}),
}


@ONLY_BERT
@pytest.mark.parametrize("case", TRAINED_HEADS)
def test_heads_are_trained_resumed_bit_by_bit_and_not_exported(build, case):
    options, heads = TRAINED_HEADS[case]
    how = dict(objective=case, max_steps=2, save_strategy="steps", save_steps=1, **options)
    whole = build(**how)
    assert heads_of(whole.model) == heads
    before = {name: x.clone() for name, x in whole.model.heads.named_parameters() if x.requires_grad}
    whole.train()
    still = [name for name, x in before.items() if x.equal(whole.model.heads.get_parameter(name))]
    assert bool(before) == (case != "vascl")
    assert {name.split(".")[-2] for name in still} <= {"query", "key"}, "of attention to one position"
    last = {name: x.clone() for name, x in whole.model.state_dict().items()}
    shutil.rmtree(f"{whole.args.output_dir}/checkpoint-2")
    resumed = build(**how)
    resumed.train("last")
    assert all(x.equal(last[name]) for name, x in resumed.model.state_dict().items())
    resumed.export(report=False)
    exported = load_file(f"{resumed.args.output_dir}/model.safetensors")
    assert exported and not [name for name in exported if "heads" in name]


@ONLY_BERT
def test_self_contrast_pushes_the_views_apart(build, encoder):
    """Without decorrelation, the mean cosine of the two views falls."""
    trainer = build(objective="scd", decorrelation_weight=0, max_steps=6, learning_rate=3e-3)
    trainer.train()
    cosines = logged(trainer, "terms/self_contrast")
    assert cosines[-1] < cosines[0] - 0.1
    z1, z2 = trainer.model.train()(**rows(encoder)).projection.chunk(2)
    assert cosine_similarity(z1, z2).mean().item() < cosines[0]


@ONLY_BERT
def test_without_contrast_other_sentences_do_not_matter(build):
    """The loss of a batch is the mean of the losses of its sentences, so nothing pushes them apart."""
    trainer = build(**NONCONTRASTIVE, attention_mi_layers=[0, 1], max_seq_length=8)  # every position is drawn
    assert heads_of(trainer.model) == {"mlp"}
    batch = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 1, trainer.args.device)[0][0]
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0

    def loss(kept):
        copies = torch.cat([kept, kept + 16])
        rows = {name: x for name, x in batch.items() if name != "split_batch"}
        part = {name: x[copies if len(x) == 32 else kept] for name, x in rows.items()}
        part["input_ids"] = part["input_ids"].clone()
        words = part["input_ids"][len(kept) :]
        words[words > 4] = (words[words > 4] - 2) % 27 + 5  # the views differ
        return trainer.compute_loss(trainer.model.train(), trainer.trained.split(part)).item()

    each = [loss(torch.tensor([i])) for i in range(16)]
    assert loss(torch.arange(16)) == pytest.approx(sum(each) / 16, rel=1e-4) and len({*each}) > 8
