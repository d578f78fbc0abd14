"""What the server of tests/forked.py imports before it forks: everything that programs import, also when they run."""

import torch.nn.parallel
import torch.utils.tensorboard

import trainer_informin  # noqa: F401

torch.set_num_threads(1)
