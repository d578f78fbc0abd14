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
HOW |= dict(measure_drift=False, report_to=[], load_best_model_at_end=False, learning_rate=1e-3)
# Adam divides by the size of a gradient: without this epsilon, rounding of gradients near 0 would change the weights.
HOW |= dict(adam_epsilon=1e-4)
HOW |= dict(per_device_train_batch_size=16, eval_strategy="steps", eval_steps=2, save_steps=2, save_total_limit=None)
BACKENDS = {"native": {}, "lora": {"lora_r": 4, "lora_dropout": 0.0}}
CHILD = """
import os, signal, sys
import numpy as np
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

folder, end, *kinds = sys.argv[1:]
for kind in kinds:
    out = f"{folder}/{kind}/{'whole' if end == 'finish' else 'killed'}"
    how = how_to_train(out, **HOW | dict(per_device_train_batch_size=8) | BACKENDS[kind])
    data = dict(train_dataset=make_sentences(96), eval_dataset=load_pairs(f"{folder}/pairs.tsv"))
    trainer = InforMinTrainer(f"{folder}/model", **data, **how, callbacks=[Die()] if end == "die" else [])
    trainer.train("last" if end == "resume" else None)
    types = {type(weight).__name__ for weight in trainer.model.parameters()}
    assert trainer.is_fsdp_enabled and types == {"DTensor"}, types
    embeddings = trainer.encode(make_sentences(8))
    trainer.export(out, report=False)
    if trainer.args.process_index == 1:
        np.save(f"{out}/embeddings.npy", embeddings)
"""


def run_both(*words: str) -> list[int]:
    """Run two processes with the settings of our file to their end, and return their exit codes."""
    settings = yaml.safe_load((ROOT / "configs" / "accelerate" / "fsdp2.yaml").read_text())["fsdp_config"]
    sharded = {name.upper(): str(value) for name, value in settings.items()}
    env = os.environ | sharded | dict(ACCELERATE_USE_FSDP="true", ACCELERATE_USE_CPU="true")
    done = [forked.run(process) for process in forked.group(CHILD, [list(words)] * 2, env)]
    print(*(one.stderr for one in done))  # shown if the test fails
    return [one.returncode for one in done]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the model, and the runs of each backend: `whole`, and `killed`, which resumed at step 2.

    Both processes of one backend are killed after that checkpoint. The other one takes that of `whole`.
    """
    folder = tmp_path_factory.mktemp("fsdp")
    # Without dropout, whose masks would depend on the number of processes.
    bert = save_bert(folder / "bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_hidden_layers=1)
    save_sentence_transformer(folder / "model", bert)
    save_pairs(folder / "pairs.tsv")
    assert run_both(str(folder), "finish", *BACKENDS) == [0, 0]
    assert run_both(str(folder), "die", "native") == [-signal.SIGKILL] * 2
    shutil.rmtree(folder / "native" / "killed" / "checkpoint-4", ignore_errors=True)
    shutil.copytree(folder / "lora" / "whole" / "checkpoint-2", folder / "lora" / "killed" / "checkpoint-2")
    assert run_both(str(folder), "resume", *BACKENDS) == [0, 0]
    return folder


@pytest.mark.parametrize("kind", BACKENDS)
def test_sharded_run_equals_one_process(kind, trained, tmp_path):
    """The resumed run has the same weights."""
    whole, killed = trained / kind / "whole", trained / kind / "killed"
    one, other = (load_file(folder / "model.safetensors") for folder in (whole, killed))
    assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
    how = how_to_train(str(tmp_path), **HOW | dict(eval_strategy="no", save_strategy="no") | BACKENDS[kind])
    alone = InforMinTrainer(str(trained / "model"), train_dataset=make_sentences(96), **how)
    before = alone.encode(make_sentences(8))
    alone.train()
    expected = alone.encode(make_sentences(8))
    assert np.abs(expected - before).max() > 0.05
    np.testing.assert_allclose(np.load(whole / "embeddings.npy"), expected, atol=1e-5)
    np.testing.assert_allclose(load_model(str(whole), device="cpu").encode(make_sentences(8)), expected, atol=1e-5)
