"""Does another weight or form of the reconstruction help long runs of InforMin-CL?

    python -m benchmarks.reconstruction_weights --model_name MODEL --train_file FILE --seeds 11 --output FOLDER

25,600 sentences in 200 steps with the options of configs/studies/lengths-long.yaml; STS-B dev after the last step.
`SENTEVAL_DATA` is SentEval's `data/downstream`. Rules:

* constant: the same weight in every step
* learning rate: the weight times the learning rate divided by its highest value; the rate falls linearly to 0
* first 40 steps: the weight, then 0
* gradient norm: the weight with which the gradient of the reconstruction with respect to the projections has this
  fraction of the norm of the contrast's gradient, in every step
* centered: 2 (1 - cos) after subtracting the mean of the batch, so that embeddings gain nothing by moving together
* standardized: the mean squared distance after batch normalization, 2 (1 - correlation) for each dimension
* apart: the cosine of the two views, which pushes them apart

Runs in OUTPUT/reconstruction_weights.json are not repeated; each model needs its own folder.
"""

import argparse
import json
import tempfile
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch.nn.functional import batch_norm, cosine_similarity
from transformers import TrainerCallback

from informin.files import write_json
from informin.objectives.contrast import contrast
from informin.objectives.decorrelation import self_contrast
from informin.objectives.reconstruction import Reconstruction, reconstruction
from informin.objectives.terms import Views
from informin.training.data_options import DataArguments
from informin.training.sentences import load_development, load_sentences
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

RULES = [
    ("constant", 0.0),
    ("constant", 0.01),
    ("first 40 steps", 0.04),
    ("learning rate", 0.02),
    ("gradient norm", 0.1),
    ("first 40 steps", 0.4),
    ("centered", 0.4),
    ("standardized", 0.4),
    ("apart", 0.3),
    ("apart", 1.0),
]


class ByGradientNorm(Reconstruction):
    """The reconstruction, with a weight that follows the gradient of the contrast."""

    fraction = 0.0

    def loss(self, views: Views) -> dict[str, torch.Tensor]:
        z1, z2 = (z.detach().requires_grad_() for z in (views.z1, views.z2))
        with torch.enable_grad():
            losses = contrast(z1, z2), reconstruction(z1, z2, self.reconstruction_form)
            norms = [torch.cat(torch.autograd.grad(loss, [z1, z2])).norm() for loss in losses]
        self.reconstruction_weight = float(self.fraction * norms[0] / norms[1])
        return super().loss(views)


class UseGradientNorm(TrainerCallback):
    """Replaces the loss of a term when training begins: before, the trainer checks that its terms did not change."""

    def __init__(self, term: Reconstruction):
        self.term = term

    def on_train_begin(self, args, state, control, **kwargs):
        self.term.fraction, self.term.__class__ = self.term.reconstruction_weight, ByGradientNorm


def centered(z1: torch.Tensor, z2: torch.Tensor) -> torch.Tensor:
    mean = torch.cat([z1, z2]).mean(0)
    return 2 * (1 - cosine_similarity(z1 - mean, z2 - mean, dim=-1)).mean()


def standardized(z1: torch.Tensor, z2: torch.Tensor) -> torch.Tensor:
    a, b = (batch_norm(z, None, None, training=True) for z in (z1, z2))
    return (a - b).pow(2).mean()


FORMS = {"centered": centered, "standardized": standardized, "apart": self_contrast}


class OtherForm(Reconstruction):
    """The reconstruction in another form."""

    form = ""

    def loss(self, views: Views) -> dict[str, torch.Tensor]:
        return {"reconstruction": FORMS[self.form](views.z1.float(), views.z2.float())}


class UseForm(TrainerCallback):
    """Replaces the form of a term when training begins, as `UseGradientNorm`."""

    def __init__(self, term: Reconstruction, form: str):
        self.term, self.form = term, form

    def on_train_begin(self, args, state, control, **kwargs):
        self.term.form, self.term.__class__ = self.form, OtherForm


class ByLearningRate(TrainerCallback):
    """Multiplies the weight of a term by the relative learning rate."""

    def __init__(self, term: Reconstruction):
        self.term, self.weight = term, term.reconstruction_weight

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        self.term.reconstruction_weight = self.weight * optimizer.param_groups[0]["lr"] / args.learning_rate


class FirstSteps(TrainerCallback):
    """Sets the weight of a term to 0 after 40 steps."""

    def __init__(self, term: Reconstruction):
        self.term = term

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 40:
            self.term.reconstruction_weight = 0.0


class Sum(TrainerCallback):
    """Adds up the weight of a term over the steps."""

    def __init__(self, term: Reconstruction):
        self.term, self.sum = term, 0.0

    def on_step_end(self, args, state, control, **kwargs):
        self.sum += self.term.reconstruction_weight


CHANGES = {"gradient norm": UseGradientNorm, "learning rate": ByLearningRate, "first 40 steps": FirstSteps}
CHANGES |= {name: partial(UseForm, form=name) for name in FORMS}


def measure(args: argparse.Namespace, rule: str, weight: float, seed: int) -> dict[str, float]:
    """Train once and return STS-B dev, and the sum of the weights over all steps."""
    data = DataArguments(train_file=[args.train_file])
    with tempfile.TemporaryDirectory() as folder:
        options = InforMinTrainingArguments(
            folder, objective="informin" if weight else "simcse", reconstruction_weight=weight or None, pooler="cls",
            reconstruction_form="squared_l2" if weight else None,
            max_seq_length=32, warmup_steps=0, bf16=True, use_cpu=not torch.cuda.is_available(), learning_rate=1e-4,
            max_train_samples=25_600, num_train_epochs=1, per_device_train_batch_size=128, eval_strategy="no",
            save_strategy="no", report_to="none", disable_tqdm=True, seed=seed,
        )  # fmt: skip
        trainer = InforMinTrainer(args.model_name, options, load_sentences(data, seed), load_development(data))
        total = None
        if weight:
            term = next(term for term in trainer.terms if term.name == "reconstruction")
            if rule in CHANGES:
                trainer.add_callback(CHANGES[rule](term))
            trainer.add_callback(total := Sum(term))
        trainer.train()
        return {"dev": trainer.evaluate()["eval_spearman"], "sum": total.sum if total else 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11])
    parser.add_argument("--output", type=Path, default=Path("."))
    args = parser.parse_args()
    file = args.output / "reconstruction_weights.json"
    runs = json.loads(file.read_text()) if file.exists() else []
    known = {(run["rule"], run["weight"], run["seed"]) for run in runs}
    for seed, (rule, weight) in product(args.seeds, RULES):
        if (rule, weight, seed) not in known:
            runs.append({"rule": rule, "weight": weight, "seed": seed} | measure(args, rule, weight, seed))
            write_json(file, runs)
    print("| rule | weight | seed | sum of weights | STS-B dev |\n|---|---:|---:|---:|---:|")
    for run in runs:
        print(f"| {run['rule']} | {run['weight']} | {run['seed']} | {run['sum']:.2f} | {run['dev']:.2f} |")


if __name__ == "__main__":
    main()
