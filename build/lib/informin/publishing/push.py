"""Push the model of a run to the Hub: checks before training, and pushes of checkpoints."""

import logging
import tempfile
from pathlib import Path
from typing import Any

from transformers.trainer_utils import HubStrategy

from informin.errors import PushError, UsageError, error_line
from informin.publishing.hub import Destination, prepare, push_folder
from informin.publishing.saving import export_model

logger = logging.getLogger(__name__)


def destination_of(trainer: Any, token: str | None = None, private: bool | None = None) -> Destination:
    """Return the repository that a trainer's options name, after the checks of `informin.publishing.hub.prepare`.

    Args:
        trainer: The trainer.
        token: Hub token; None for `hub_token`.
        private: Whether a new repository is private; None for `hub_private_repo`.

    Raises:
        UsageError: A push cannot succeed, or low-rank matrices of a local model would be pushed.
    """
    args = trainer.args
    base = trainer.facts.get("base_model") or {}
    if args.lora_r and not args.lora_merge and not base.get("hub_id"):
        raise UsageError(
            f"is false, and the source model {trainer.trained.name} is a local folder, which others do not have",
            option="lora_merge",
            fix="Merge the matrices, or set `base_model` to the Hub id of the source model.",
        )
    name = args.hub_model_id or Path(args.output_dir).absolute().name
    private = args.hub_private_repo if private is None else private
    return prepare(name, private, token or args.hub_token, args.hub_revision)


def push_checkpoint(trainer: Any, to: Destination | None, checkpoint: Path) -> None:
    """Upload the exported model after a checkpoint was saved, unless `hub_strategy` is end. Call it in every process.

    Optimizer states are not uploaded. A failure is logged.

    Args:
        trainer: The trainer.
        to: The repository; None in processes that do not upload.
        checkpoint: Folder of the checkpoint.
    """
    if HubStrategy(trainer.args.hub_strategy) == HubStrategy.END:
        return
    with tempfile.TemporaryDirectory() as folder:
        export_model(trainer, folder)
        if to is None or not trainer.is_world_process_zero():
            return
        try:
            push_folder(folder, to, f"Training in progress, step {trainer.state.global_step}")
        except PushError as error:
            logger.warning(f"{checkpoint.name} was not pushed: {error_line(error)}")
