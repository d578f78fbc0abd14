"""Two gloo processes equal one process on the joined batch: value and gradient, through the trainer and DDP."""

import itertools
import os
import shutil
import signal
import time
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from datasets import Dataset
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback

from informin.distributed import gather_with_gradient
from informin.objectives import Contrast
from informin.objectives.term import Masking, Term
from informin.training import callbacks, checkpoints
from informin.training.batch import StackedViews, step_seed
from informin.training.checkpoints import StopOnSignal, complete_checkpoints, step_of
from informin.training.data import load_sentences
from informin.training.guide import GeneralSentences
from informin.training.inputs import DataArguments
from informin.views import VIEWS
from informin.views.encoder import ViewDropout
from informin.views.view import SentenceTokens
from tests.conftest import how_to_train, make_sentences, save_bert, save_pairs, save_roberta
from tests.support import forked
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

WORLD = 2
WITHOUT_HEAD = {  # their terms give no gradient to some weights
    "maps": dict(objective="noncontrastive", attention_mi_weight=1.0),
    "distillation": dict(objective="guided", distillation_weight=1.0, projection_head="mlp"),
}
TERMS = {
    "paper_form": dict(objective="informin", reconstruction_weight=0.1, reconstruction_form="paper"),
    "scd_mlm": dict(objective="scd", projector_size=16, decorrelation_weight=0.1, mlm_weight=0.5),
    "micse": dict(
        objective="micse", queue_size=20, momentum_decay=0.9, attention_mi_weight=1.0, attention_mi_layers=[0, 1]
    ),
    "all": dict(
        objective="informin",
        attention_mi_weight=1.0,
        decorrelation_weight=0.1,
        projector_size=16,
        queue_size=7,
        reconstruction_weight=0.4,
        mlm_weight=0.5,
        view_dropout=[0.1, 0.2],
    ),
    "cached": dict(
        objective="informin",
        reconstruction_weight=0.4,
        mlm_weight=0.5,
        masked_views=True,
        queue_size=7,
        gradient_cache_chunk_size=5,
    ),
    "noncontrastive": dict(objective="noncontrastive", reconstruction_weight=1, attention_mi_weight=0.5),
    "own_near": dict(
        objective="simcse",
        false_negative_fraction=0.3,
        false_negative_weight=0.4,
        queue_size=20,
        false_negative_similarity="model",
    ),
    "guided": dict(
        objective="guided",
        guided_weight=1.0,
        distillation_weight=0.5,
        replay_weight=0.7,
        replay_size=6,
        mlm_weight=0.5,
    ),
}
TERMS["ct"] = dict(objective="ct", tension_negatives=9)
TERMS["ct_in_batch"] = dict(objective="ct", contrastive_tension_form="in_batch")
TERMS["tsdae"] = dict(objective="tsdae")
TERMS["isbert"] = dict(objective="isbert")
TERMS["pairs"] = dict(objective="simcse", view="pair", false_negative_fraction=0.3, false_negative_weight=0.4)
TERMS["diffcse"] = dict(objective="diffcse", replaced_tokens_weight=1, replaced_fraction=1)  # so none is drawn
TERMS["vascl"] = dict(objective="vascl", virtual_augmentation_neighbors=3)
TERMS["cutoffs"] = dict(objective="simcse", view="augment", augment_second="token_cutoff", augment_token_cutoff=0.4)
TERMS["custom"] = dict(objective="custom")


@dataclass
class Variance(Term):
    """A term of the user, as in docs/training.md."""

    weight: float = 0.1

    def loss(self, views):
        deviation = (gather_with_gradient(views.z1).float().var(0) + 1e-4).sqrt()
        return (1 - deviation).relu().mean()


# RoBERTa differs in its positions and in its head for MLM.
CASES = [*(("bert", name) for name in TERMS), ("roberta", "all")]


def make_trainer(folder, options, out):
    has_contrast = options["objective"] in ("informin", "simcse", "micse")
    temperature = {"temperature": 0.2} if has_contrast else {}
    run = dict(output_dir=out, use_cpu=True, bf16=False, eval_strategy="no", per_device_train_batch_size=6, seed=0)
    sentences = make_sentences(100, seed=5)  # used by the guide; batches are created here
    sentences = list(zip(sentences, sentences[::-1])) if options.get("view") == "pair" else sentences
    if options["objective"] == "diffcse":
        options = options | dict(generator=folder)
    if options["objective"] == "custom":
        how = {"args": InforMinTrainingArguments(**run), "objective": [Contrast(temperature=0.2), Variance()]}
    else:
        how = how_to_train(**run, **temperature, **options)
    trainer = InforMinTrainer(folder, train_dataset=sentences, **how)
    model = trainer.model
    for module in model.modules():  # dropout draws differ between one process and two: compare without
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, ViewDropout):
            module.rates = (0.0,) * len(module.rates)
    if "virtual_augmentation" in model.heads:  # whose start is random
        model.heads["virtual_augmentation"].start = lambda h: h.detach().roll(1, dims=1)
    return trainer, model.train(), trainer.processing_class


def views_apart(rows, shift):
    """Make the second view use other words. Without dropout, equal views would be a special case."""
    half = len(rows) // 2
    words = rows[half:]
    words[words > 4] = (words[words > 4] - 5 + shift) % 27 + 5


def sentences_of(rank, step):
    """Return six sentences. In step 1, three are those of the other process in step 0, so both queues have them."""
    own = [" ".join(s.split()[: 3 if rank else 6]) for s in make_sentences(6, seed=rank + 10 * step)]
    return own[:3] + sentences_of(1 - rank, 0)[3:] if step else own


def make_rows(tokenizer, options, rank, step=0):
    """The rows of one process: its sentences, its masks; lengths, and so padding and masked counts, differ.

    8 tokens at most: attention mutual information then draws every position of a tile, 2 x 8 x 8 of 150.
    """
    sentences = sentences_of(rank, step)
    batch = dict(tokenizer(sentences, padding=True, return_tensors="pt"))
    masking = Masking(0.4, options.get("masked_views", False)) if options.get("mlm_weight") else None
    batch["row"] = torch.arange(6) + 40 * rank + step
    view = VIEWS[options.get("view", "dropout")]()
    if view.columns:  # the second texts of a process are the first texts of the other one
        second = tokenizer(sentences_of(1 - rank, step)[::-1], padding=True, return_tensors="pt")
        batch |= {f"positive_{name}": second[name] for name in ("input_ids", "attention_mask")}
        batch["second_row"] = batch["row"] + 7
        return StackedViews(SentenceTokens(tokenizer), masking, view)(batch, seed=rank)
    if view.scales_embeddings:
        view = replace(view, **{name: options[f"augment_{name}"] for name in ("second", "token_cutoff")})
        return StackedViews(SentenceTokens(tokenizer, width=32), masking, view)(batch, seed=rank)
    rows = StackedViews(SentenceTokens(tokenizer), masking)(batch, seed=rank)
    if "replay_weight" in options:
        general = Dataset.from_dict(dict(tokenizer(make_sentences(20, seed=7))))
        rows = GeneralSentences(general, 6, tokenizer)(rows, seed=rank)
    views_apart(rows["input_ids"][:12], shift=3)
    return rows


def join(all_rows, tokenizer):
    """Return the rows of one process: first views of both processes, then second views, then masked copies."""
    width = max(rows["input_ids"].shape[1] for rows in all_rows)
    padding = {"input_ids": tokenizer.pad_token_id, "attention_mask": 0, "lm_labels": -100}
    joined = {}
    for name in padding.keys() & all_rows[0].keys():
        padded = [
            torch.nn.functional.pad(rows[name], (0, width - rows[name].shape[1]), value=padding[name])
            for rows in all_rows
        ]
        parts = [list(p.split(6)) for p in padded]
        joined[name] = torch.cat([part for group in zip(*parts) for part in group])
    for name in {"sentence_ids", "second_ids"} & all_rows[0].keys():
        joined[name] = torch.cat([rows[name] for rows in all_rows])
    if "factors" in all_rows[0]:
        joined["factors"] = [one for start in (0, 6) for rows in all_rows for one in rows["factors"][start : start + 6]]
    for name in {"row", "second_row", "general_row"} & all_rows[0].keys():
        joined[name] = np.concatenate([rows[name] for rows in all_rows])
    return joined


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


def second_step(trainer, model, rows):
    """Return loss and gradients of the step after an update of the optimizer and the momentum encoder."""
    unwrapped = trainer.accelerator.unwrap_model(model)
    torch.optim.SGD([p for p in unwrapped.parameters() if p.requires_grad], lr=0.02).step()
    unwrapped.heads["queue"].after_step(unwrapped)
    unwrapped.zero_grad()
    loss = trainer.compute_loss(model, rows)
    loss.backward()
    return loss.detach().clone(), gradients(unwrapped)


def results_of(folder, options, out, rank):
    """Return the results of one process. Those that are compared are equal in all processes."""
    trainer, model, tokenizer = make_trainer(folder, options, f"{out}/run")
    wrapped = DistributedDataParallel(model)  # kept by name: its hooks die with it
    loss = trainer.compute_loss(wrapped, make_rows(tokenizer, options, rank))
    loss.backward()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    terms = torch.stack(list(trainer._step_values.values()))
    dist.all_reduce(terms)
    results = {"loss": mean / WORLD, "terms": terms / WORLD, "grads": gradients(model)}
    if "queue_size" in options:
        second, grads = second_step(trainer, wrapped, make_rows(tokenizer, options, rank, step=1))
        dist.all_reduce(second)
        results |= {"second": second / WORLD, "second_grads": grads}
        for name in ("embeddings", "ids"):
            own = getattr(model.heads["queue"], name)
            results[name] = [torch.empty_like(own) for _ in range(WORLD)]
            dist.all_gather(results[name], own)
    return results


def worker(rank, folders, out, init):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1")
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=WORLD)
    results = {case: results_of(folders[case[0]], TERMS[case[1]], out, rank) for case in CASES}
    if rank == 0:
        torch.save(results, f"{out}/two.pt")
    # Out without teardown: torch's gloo group can deadlock there, its destructor holding the lock of the interpreter
    # that its own thread needs to let go of the last tensor.
    os._exit(0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    """Encoders of two layers, for terms of their attention maps."""
    models = tmp_path_factory.mktemp("models")
    return {"bert": str(save_bert(models / "tiny-bert")), "roberta": str(save_roberta(models / "tiny-roberta"))}


@pytest.fixture(scope="module")
def two_processes(folders, tmp_path_factory):
    out = tmp_path_factory.mktemp("two")
    forked.ranks(worker, (folders, str(out), f"file://{out}/init"), WORLD)
    return torch.load(out / "two.pt")


@pytest.mark.parametrize("kind, name", CASES)
def test_two_processes_equal_one_on_the_joined_batch(kind, name, two_processes, folders, tmp_path):
    trainer, model, tokenizer = make_trainer(folders[kind], TERMS[name], str(tmp_path))
    rows = join([make_rows(tokenizer, TERMS[name], rank) for rank in range(WORLD)], tokenizer)
    loss = trainer.compute_loss(model, rows)
    loss.backward()
    two = two_processes[kind, name]
    torch.testing.assert_close(two["loss"], loss.detach())
    torch.testing.assert_close(two["terms"], torch.stack(list(trainer._step_values.values())))
    torch.testing.assert_close(two["grads"], gradients(model), rtol=1e-4, atol=1e-5)
    if "lm_labels" in rows:  # the case that a mean of local means would get wrong
        counts = [(make_rows(tokenizer, TERMS[name], rank)["lm_labels"] >= 0).sum() for rank in range(WORLD)]
        assert counts[0] != counts[1]
    if "queue_size" in TERMS[name]:
        again = join([make_rows(tokenizer, TERMS[name], rank, step=1) for rank in range(WORLD)], tokenizer)
        queue = model.heads["queue"]
        assert torch.isin(again["sentence_ids"], queue.ids).any(), "some are in the queue, as negatives of others"
        second, grads = second_step(trainer, model, again)
        torch.testing.assert_close(two["second"], second, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(two["second_grads"], grads, rtol=1e-4, atol=1e-5)
        assert torch.equal(*two["embeddings"]) and torch.equal(*two["ids"]) and queue.embeddings.any(-1).all()
        torch.testing.assert_close(two["embeddings"][0], queue.embeddings, rtol=1e-4, atol=1e-5)
        assert torch.equal(two["ids"][0], queue.ids)


class Witness(TrainerCallback):
    """Records the random state and the sentences of every step."""

    def __init__(self):
        self.states, self.read = [], []

    def on_step_begin(self, args, state, control, **kwargs):
        self.states.append(torch.get_rng_state())


def train(folder, out, seed, resume=None, sentences=None, **options):
    """Run two epochs of three steps with dropout. Return what this process read, and its weights."""
    usual = dict(output_dir=out, use_cpu=True, bf16=False, seed=seed, eval_strategy="no", max_steps=6)
    usual |= dict(per_device_train_batch_size=4, save_strategy="steps", save_steps=2, save_total_limit=9)
    options = usual | dict(objective="simcse", report_to=[], disable_tqdm=True, learning_rate=1e-3) | options
    witness = Witness()
    sentences = sentences or make_sentences(24)
    trainer = InforMinTrainer(folder, train_dataset=sentences, callbacks=[witness], **how_to_train(**options))
    batches = trainer.get_batch_samples

    def seen(*args, **kwargs):
        stacked, number = batches(*args, **kwargs)
        witness.read += [batch["sentence_ids"] for batch in stacked]
        return stacked, number

    trainer.get_batch_samples = seen
    trainer.train(resume)
    weights = {name: x.clone() for name, x in trainer.model.state_dict().items()}
    return {"states": witness.states, "read": torch.stack(witness.read), "weights": weights}


class Signal(TrainerCallback):
    """Delivers a signal to the second process in the evaluation of step 4."""

    def __init__(self, stop):
        self.stop = stop

    def on_prediction_step(self, args, state, control, **kwargs):
        if dist.get_rank() == 1 and state.global_step == 4:
            self.stop.received = signal.SIGTERM


def stopped(folder, out):
    """Return the steps of complete checkpoints, and the scores, of a run whose evaluation was interrupted."""
    options = dict(output_dir=out, use_cpu=True, bf16=False, objective="simcse", report_to=[], disable_tqdm=True)
    options |= dict(per_device_train_batch_size=4, max_steps=6, eval_steps=2, save_steps=2)
    stop, pairs = StopOnSignal(), save_pairs(Path(f"{out}-{dist.get_rank()}.tsv"))
    callbacks = [Signal(stop), stop]
    trainer = InforMinTrainer(
        folder,
        InforMinTrainingArguments(**options),
        train_dataset=make_sentences(24),
        eval_dataset=str(pairs),
        callbacks=callbacks,
    )
    trainer.train()
    dist.barrier()
    scores = [entry["step"] for entry in trainer.state.log_history if "eval_spearman" in entry]
    return [step_of(path) for path in complete_checkpoints(out)], scores


def best(folder, out):
    """Return the step of the best checkpoint, the last one, and whether it was loaded. Its finishing is slow."""
    finish = checkpoints.finish_checkpoint
    numbers = itertools.count()

    def slowly(*args, **kwargs):
        time.sleep(0.3)
        finish(*args, **kwargs)

    def rising(encode):
        return next(numbers)

    options = dict(output_dir=out, use_cpu=True, bf16=False, objective="simcse", report_to=[], disable_tqdm=True)
    options |= dict(per_device_train_batch_size=4, max_steps=2, eval_steps=1, save_steps=1)
    trainer = InforMinTrainer(
        folder, InforMinTrainingArguments(**options), train_dataset=make_sentences(24), eval_dataset=rising
    )
    with patch.object(checkpoints, "finish_checkpoint", slowly):
        trainer.train()
    return trainer.state.best_global_step, trainer.record().chosen


def training_worker(rank, folder, out, init):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1")
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=WORLD)
    unsaved = dict(save_strategy="no", save_steps=None)
    results = {"whole": train(folder, f"{out}/whole", 1), "other": train(folder, f"{out}/other", 2, **unsaved)}
    for name, options in WITHOUT_HEAD.items():
        results[name] = train(folder, f"{out}/{name}", 1, **unsaved, **options)

    if rank == 0:
        for name, sizes in {"files": [12, 12, 12, 12], "unlike": [3, 20, 1, 5]}.items():
            Path(out, name).mkdir()
            for number, size in enumerate(sizes):
                Path(out, name, f"{number}.txt").write_text("\n".join(make_sentences(size, seed=number)))
    dist.barrier()
    for name, workers in (("files", 2), ("unlike", 0), ("unlike", 2), ("unlike", 1)):
        stream = load_sentences(DataArguments(train_file=[f"{out}/{name}"], streaming=True), seed=1)
        how = f"{name}, {workers} workers"
        started = {"dataloader_multiprocessing_context": "fork"} if workers else {}  # spawn takes seconds
        started["dataloader_num_workers"] = workers
        results[how] = train(folder, f"{out}/{how}", seed=1, sentences=stream, **unsaved, **started)
    dist.barrier()
    if rank == 0:
        shutil.copytree(f"{out}/whole/checkpoint-2", f"{out}/again/checkpoint-2")
    dist.barrier()
    results["lengths"] = train(folder, f"{out}/lengths", seed=1, train_sampling_strategy="group_by_length", **unsaved)
    results["again"] = train(folder, f"{out}/again", seed=1, resume="last")
    results["stopped"] = stopped(folder, f"{out}/stopped")
    results["best"] = best(folder, f"{out}/best")
    torch.save(results, f"{out}/{rank}.pt")
    dist.barrier()
    os._exit(0)


@pytest.fixture(scope="module")
def two_trainings(bert, tmp_path_factory):
    out = tmp_path_factory.mktemp("trainings")
    forked.ranks(training_worker, (str(bert), str(out), f"file://{out}/init"), WORLD)
    return [torch.load(out / f"{rank}.pt") for rank in range(WORLD)]


def test_each_process_has_its_own_dropout_seed(two_trainings):
    states = [state for each in two_trainings for run in ("whole", "other") for state in each[run]["states"]]
    assert len({state.numpy().tobytes() for state in states}) == len(states) == 2 * 2 * 6


def test_the_dropout_seed_of_a_process_is_that_of_no_step(monkeypatch):
    """Not of the masks in step 3 of the first process, for example."""
    monkeypatch.setattr(callbacks, "world_size", lambda: 4)
    monkeypatch.setattr(callbacks, "rank", lambda: 3)
    callbacks.SeedProcesses().on_train_begin(InforMinTrainingArguments(seed=42), None, None)
    assert torch.initial_seed() not in {step_seed(42, *parts) for parts in itertools.product(range(5), repeat=3)}


@pytest.mark.parametrize("name", WITHOUT_HEAD)
def test_weights_without_a_gradient_do_not_stop_processes(two_trainings, name):
    one, other = (each[name]["weights"] for each in two_trainings)
    assert all(weight.equal(other[key]) for key, weight in one.items())
    assert not all(weight.equal(two_trainings[0]["whole"]["weights"][key]) for key, weight in one.items())


def test_processes_split_the_sentences_of_each_epoch(two_trainings):
    for run in ("whole", "other", "lengths"):
        steps = torch.cat([each[run]["read"] for each in two_trainings], dim=1)  # (6, 8)
        for epoch in steps.flatten().chunk(2):
            assert len(epoch.unique()) == 24
        assert not steps[:3].equal(steps[3:])


def test_a_stream_is_split_among_processes_and_workers(two_trainings):
    """Four files, two processes, two workers each: every sentence once."""
    read = torch.cat([each["files, 2 workers"]["read"].flatten() for each in two_trainings])
    assert len(read) == len(read.unique()) == 48


def test_workers_of_a_stream_may_be_spawned(bert, tmp_path):
    """Their functions can be pickled."""
    (tmp_path / "file.txt").write_text("\n".join(make_sentences(24)))
    stream = load_sentences(DataArguments(train_file=[str(tmp_path / "file.txt")], streaming=True), seed=1)
    options = dict(use_cpu=True, eval_strategy="no", max_steps=1, dataloader_num_workers=1)
    trainer = InforMinTrainer(
        str(bert), InforMinTrainingArguments(str(tmp_path / "run"), **options), train_dataset=stream
    )
    loader = trainer.get_train_dataloader().base_dataloader
    ForkingPickler.dumps((loader.dataset, loader.collate_fn, loader.worker_init_fn))


@pytest.mark.parametrize("how", ["0 workers", "1 workers", "2 workers"])
def test_files_of_different_sizes_are_split_evenly(two_trainings, how):
    """29 sentences, mostly of one file, in steps of 8: both processes have epochs of 3 steps without repeats.

    With two workers, each of which leaves out what does not fill a step, one epoch may have 2 steps and the next 3.
    """
    runs = [each[f"unlike, {how}"] for each in two_trainings]
    steps = torch.cat([run["read"] for run in runs], dim=1)  # (6, 8)
    for epoch in [steps[:2]] if how.startswith("2") else steps.split(3):
        assert len(epoch.unique()) == epoch.numel()
    for one, other in zip(*(run["weights"].values() for run in runs), strict=True):
        assert one.equal(other)


def test_two_processes_resume_bit_exactly(two_trainings):
    shared = two_trainings[0]["whole"]["weights"]
    for each in two_trainings:
        whole, again = each["whole"], each["again"]
        assert whole["read"][2:].equal(again["read"])
        assert all(a.equal(b) for a, b in zip(whole["states"][2:], again["states"], strict=True))
        assert all(weight.equal(again["weights"][name]) for name, weight in whole["weights"].items())
        assert all(weight.equal(shared[name]) for name, weight in whole["weights"].items())


def test_two_processes_stop_an_evaluation_together(two_trainings):
    assert [each["stopped"] for each in two_trainings] == [([2, 4], [0, 2])] * WORLD


def test_both_processes_load_the_best_checkpoint_once_it_is_complete(two_trainings):
    assert [each["best"] for each in two_trainings] == [(2, True)] * WORLD
