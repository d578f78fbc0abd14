"""Logging to Weights & Biases, with a stand-in that writes what it gets to a file."""

import json
import sys

from informin.report.page import page
from informin.training.options import InforMinTrainingArguments
from tests.conftest import FOUR_STEPS, make_sentences
from trainer_informin import InforMinTrainer

STAND_IN = """
import json, pathlib
from types import SimpleNamespace

__version__ = "0.0.0"
run, logged = None, pathlib.Path(__file__).with_name("logged.jsonl")


class Config(dict):
    def update(self, values, **kwargs):
        super().update(values)


def init(**kwargs):
    global run, config
    config = Config()
    run = SimpleNamespace(_label=lambda **kwargs: None, summary={}, config=config, url=None, name=kwargs.get("name"))


def log(values, **kwargs):
    with logged.open("a") as file:
        file.write(json.dumps(values) + "\\n")


def define_metric(*args, **kwargs):
    pass


def watch(*args, **kwargs):
    pass
"""


def spread(encode) -> float:
    return float(encode(make_sentences(10)).std())


def forget_wandb() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "wandb"]:
        del sys.modules[name]


def test_wandb_gets_losses_terms_and_own_scores(bert, tmp_path, monkeypatch, capsys):
    package = tmp_path / "wandb"
    (package / "sdk" / "lib").mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    (package / "sdk" / "lib" / "config_util.py").write_text("class ConfigError(Exception):\n    pass\n")
    forget_wandb()
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    options = FOUR_STEPS | {"logging_steps": 2, "measure_drift": False, "report_to": "wandb"}
    trainer = InforMinTrainer(
        str(bert), InforMinTrainingArguments(str(run), **options), make_sentences(64), eval_dataset=spread
    )
    trainer.train()
    trainer.export()
    entries = [json.loads(line) for line in (package / "logged.jsonl").read_text().splitlines()]
    losses = [entry for entry in entries if "train/loss" in entry]
    assert [entry["train/global_step"] for entry in losses] == [2, 4]
    assert all({"train/terms/contrast", "train/terms/reconstruction"} <= entry.keys() for entry in losses)
    assert [entry["train/global_step"] for entry in entries if "eval/spread" in entry] == [0, 2, 4]
    printed = capsys.readouterr().out
    assert (
        f"losses and scores       {run}/report.json, by step" in printed
        and "\n                        wandb\n" in printed
    )
    assert "trainer_state.json of each checkpoint" in page(run)
    forget_wandb()
