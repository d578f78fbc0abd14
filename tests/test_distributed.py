"""Two gloo processes equal one process on the joined batch: value and gradient, through the trainer and DDP."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from informin.loading import load_config, load_model
from informin.views import TokenMasker, stack_views
from tests.conftest import make_sentences, tokenizer_of
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

WORLD = 2
TERMS = {
    "contrast": dict(objective="simcse"),
    "reconstruction": dict(objective="informin", reconstruction_weight=0.7),
    "squared_l2": dict(objective="informin", reconstruction_weight=0.1, reconstruction_form="squared_l2"),
    "mlm": dict(objective="informin", reconstruction_weight=0.4, mlm_weight=0.5),
    "masked_views": dict(objective="informin", mlm_weight=0.5, masked_views=True),
}


def make_trainer(folder, options, out):
    config = load_config(folder)
    tokenizer = tokenizer_of(folder)
    torch.manual_seed(0)
    heads = {"projection_head": "mlp", "lm_head": bool(options.get("mlm_weight"))}
    model = load_model(config, folder, heads)
    args = InforMinTrainingArguments(
        output_dir=out, use_cpu=True, eval_strategy="no", per_device_train_batch_size=6, temperature=0.2, **options
    )
    trainer = InforMinTrainer(model=model, args=args, train_dataset=[None] * 99, processing_class=tokenizer)
    for module in model.modules():  # dropout draws differ between one process and two: compare without
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return trainer, model.train(), tokenizer


def views_apart(rows, shift):
    """Without dropout the two views would be equal and the gradient special: the second reads other words."""
    half = len(rows) // 2
    words = rows[half:]
    words[words > 4] = (words[words > 4] - 5 + shift) % 27 + 5


def make_rows(tokenizer, options, rank):
    """The rows of one process: its sentences, its masks; lengths, and so padding and masked counts, differ."""
    sentences = make_sentences(6, seed=rank)
    if rank:
        sentences = [" ".join(s.split()[:3]) for s in sentences]
    batch = dict(tokenizer(sentences, padding=True, return_tensors="pt"))
    masker = TokenMasker(tokenizer, 0.4) if options.get("mlm_weight") else None
    rows = stack_views(batch, masker, seed=rank, masked_views=bool(options.get("masked_views")))
    views_apart(rows["input_ids"][:12], shift=3)
    return rows


def join(all_rows, tokenizer):
    """What one process would see: first the first views of both processes, then the second views, then the masked."""
    width = max(rows["input_ids"].shape[1] for rows in all_rows)
    padding = {"input_ids": tokenizer.pad_token_id, "attention_mask": 0, "mlm_labels": -100}
    joined = {}
    for name in all_rows[0]:
        padded = [
            torch.nn.functional.pad(rows[name], (0, width - rows[name].shape[1]), value=padding[name])
            for rows in all_rows
        ]
        parts = [list(p.split(6)) for p in padded]
        joined[name] = torch.cat([part for group in zip(*parts) for part in group])
    return joined


def worker(rank, folder, out, init):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1")
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=WORLD)
    results = {}
    for name, options in TERMS.items():
        trainer, model, tokenizer = make_trainer(folder, options, f"{out}/run")
        wrapped = DistributedDataParallel(model)  # kept by name: its hooks die with it
        loss = trainer.compute_loss(wrapped, make_rows(tokenizer, options, rank))
        loss.backward()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        terms = torch.stack(list(trainer._step_terms.values()))
        dist.all_reduce(terms)
        results[name] = {
            "loss": mean / WORLD,
            "terms": terms / WORLD,
            "grads": {n: p.grad for n, p in model.named_parameters()},
        }
    if rank == 0:
        torch.save(results, f"{out}/two.pt")
    # Out without teardown: torch's gloo group can deadlock there, its destructor holding the lock of the interpreter
    # that its own thread needs to let go of the last tensor.
    os._exit(0)


@pytest.fixture(scope="module")
def two_processes(request, bert, roberta, tmp_path_factory):
    found = {}
    for folder in (bert, roberta):
        out = tmp_path_factory.mktemp("two")
        mp.spawn(worker, (str(folder), str(out), f"file://{out}/init"), nprocs=WORLD, daemon=True)
        found[folder] = torch.load(out / "two.pt")
    return found


@pytest.mark.parametrize("name", TERMS)
def test_two_processes_equal_one_on_the_joined_batch(name, two_processes, encoder, tmp_path):
    trainer, model, tokenizer = make_trainer(str(encoder), TERMS[name], str(tmp_path))
    rows = join([make_rows(tokenizer, TERMS[name], rank) for rank in range(WORLD)], tokenizer)
    loss = trainer.compute_loss(model, rows)
    loss.backward()
    two = two_processes[encoder][name]
    torch.testing.assert_close(two["loss"], loss.detach())
    torch.testing.assert_close(two["terms"], torch.stack(list(trainer._step_terms.values())))
    for parameter, value in model.named_parameters():
        torch.testing.assert_close(two["grads"][parameter], value.grad, rtol=1e-4, atol=1e-6)
    if "mlm_labels" in rows:  # the case that a mean of local means would get wrong
        counts = [(make_rows(tokenizer, TERMS[name], rank)["mlm_labels"] >= 0).sum() for rank in range(WORLD)]
        assert counts[0] != counts[1]
