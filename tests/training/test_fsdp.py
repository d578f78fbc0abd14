"""configs/accelerate/fsdp2.yaml on two gloo processes without a GPU: train, evaluate, die, resume, export.

accelerate turns FSDP on only for processes with an accelerator. The processes here say that they have one.
"""

import os
import shutil
import signal

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file

from informin.model.open import load_model
from tests.conftest import (
    FOUR_STEPS,
    ROOT,
    how_to_train,
    make_sentences,
    save_bert,
    save_pairs,
    save_sentence_transformer,
)
from tests.support import forked
from trainer_informin import InforMinTrainer

HOW = FOUR_STEPS | dict(objective="guided", guided_weight=1.0, guided_neighbors=0, max_seq_length=16)
HOW |= dict(measure_drift=False, report_to=[], load_best_model_at_end=False, learning_rate=5e-4)
# Adam divides by the size of a gradient: without this epsilon, rounding of gradients near 0 would change the weights.
HOW |= dict(adam_epsilon=1e-4)
HOW |= dict(per_device_train_batch_size=16, eval_strategy="steps", eval_steps=2, save_steps=2, save_total_limit=None)
BACKENDS = {"native": {}, "lora": {"lora_r": 4, "lora_dropout": 0.0}}
CHILD = """
import os, signal, sys
from accelerate.state import PartialState
from accelerate.utils import DistributedType

own = PartialState.__init__

def with_accelerator(self, *args, **kwargs):
    own(self, *args, **kwargs)
    if self._shared_state.get("distributed_type") == DistributedType.MULTI_CPU:
        self._shared_state["distributed_type"] = DistributedType.MULTI_GPU

PartialState.__init__ = with_accelerator
from transformers import TrainerCallback
from informin.evaluation.pairs import load_pairs
from tests.conftest import how_to_train, make_sentences
from tests.training.test_fsdp import BACKENDS, HOW
from trainer_informin import InforMinTrainer

class Die(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            os.kill(os.getpid(), signal.SIGKILL)

kind, model, out, pairs, end = sys.argv[1:]
how = how_to_train(out, **HOW | dict(per_device_train_batch_size=8) | BACKENDS[kind])
args = how["args"]
data = dict(train_dataset=make_sentences(96), eval_dataset=load_pairs(pairs))
trainer = InforMinTrainer(model, **data, **how, callbacks=[Die()] if end == "die" else [])
trainer.train("last" if end == "resume" else None)
kinds = {type(weight).__name__ for weight in trainer.model.parameters()}
assert trainer.is_fsdp_enabled and kinds == {"DTensor"}, kinds
embeddings = trainer.encode(make_sentences(8))
trainer.export(out, report=False)
if args.process_index == 1:
    import numpy as np
    np.save(f"{out}/embeddings.npy", embeddings)
"""


def start(*arguments) -> list:
    """Start both processes with the settings of our file."""
    settings = yaml.safe_load((ROOT / "configs" / "accelerate" / "fsdp2.yaml").read_text())["fsdp_config"]
    sharded = {name.upper(): str(value) for name, value in settings.items()}
    env = os.environ | sharded | dict(ACCELERATE_USE_FSDP="true", ACCELERATE_USE_CPU="true")
    return forked.group(CHILD, [list(map(str, arguments))] * 2, env)


@pytest.fixture
def model(tmp_path):
    """An encoder without dropout, whose masks would depend on the number of processes."""
    bert = save_bert(tmp_path / "bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return save_sentence_transformer(tmp_path / "model", bert)


@pytest.mark.parametrize("kind", BACKENDS)
def test_sharded_run_equals_one_process(kind, model, tmp_path):
    """The resumed run has the same weights. Both processes of one backend are killed after the checkpoint."""
    pairs = save_pairs(tmp_path / "pairs.tsv")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for name, end in ((whole, "finish"), (killed, "die"), (killed, "resume")):
        if end == "die" and kind != "native":
            shutil.copytree(whole / "checkpoint-2", killed / "checkpoint-2")
            continue
        done = [forked.run(process) for process in start(kind, model, name, pairs, end)]
        codes = [one.returncode for one in done]
        assert codes == ([-signal.SIGKILL] * 2 if end == "die" else [0, 0]), done[0].stderr + done[1].stderr
        if end == "die":
            shutil.rmtree(killed / "checkpoint-4", ignore_errors=True)
    one, other = (load_file(folder / "model.safetensors") for folder in (whole, killed))
    assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
    unscored = dict(eval_strategy="no", save_strategy="no")
    alone = InforMinTrainer(
        str(model),
        train_dataset=make_sentences(96),
        **how_to_train(str(tmp_path / "alone"), **HOW | unscored | BACKENDS[kind]),
    )
    before = alone.encode(make_sentences(8))
    alone.train()
    expected = alone.encode(make_sentences(8))
    assert np.abs(expected - before).max() > 0.05
    np.testing.assert_allclose(np.load(whole / "embeddings.npy"), expected, atol=1e-5)
    np.testing.assert_allclose(load_model(str(whole), device="cpu").encode(make_sentences(8)), expected, atol=1e-5)
