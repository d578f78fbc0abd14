"""A Trainer that saves and pushes exported folders."""

import logging
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn
from transformers import Trainer
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import HubStrategy

from informin.distributed import skeleton, with_weights
from informin.errors import PushError, SaveError, UsageError, error_line
from informin.files import set_usual_modes
from informin.models.checksums import forget_truncation
from informin.models.trained import TrainedModel
from informin.publishing.export import export_folder
from informin.publishing.hub import Destination, prepare, push_folder
from informin.records import RunRecord

logger = logging.getLogger(__name__)


class PublishingTrainer(Trainer):
    """A Trainer that writes training.json into every checkpoint and pushes exported folders instead of checkpoints.

    Attributes:
        trained: The model in training.
        facts: Entries of the record that the trainer cannot derive, such as `base_model`.
        record: Returns the record of the run so far, for training.json.
    """

    args: Any  # InforMinTrainingArguments
    hub_model_id: Any
    trained: TrainedModel
    facts: dict[str, Any]
    record: Callable[[], RunRecord]

    _bones: nn.Module | None = None  # of a model that FSDP shards
    _whole: nn.Module | None = None  # its weights after training

    def train(self, *args, **kwargs):
        """Train, and keep the whole weights if FSDP shards them."""
        if self.is_fsdp_enabled and self._bones is None:
            self._bones = skeleton(self.model)
        self._whole = None
        result = super().train(*args, **kwargs)
        self._whole = self.whole_model if self._bones else None
        return result

    @property
    def whole_model(self) -> Any:
        """The model with whole weights. If FSDP shards them, a copy on the CPU, which all processes must ask for in
        training; afterwards it is kept."""
        if self._bones is None:
            return self.accelerator.unwrap_model(self.model)
        return self._whole or with_weights(self._bones, self.accelerator.get_state_dict(self.model))

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        self.write_model(output_dir, state_dict)

    def write_model(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """Write the model, its tokenizer and training.json to a folder."""
        usual = partial(super()._save, output_dir, state_dict)
        if not self.args.should_save:
            return usual()  # Trainer calls this in every process
        folder = Path(output_dir or str(self.args.output_dir))
        forget_truncation(self.trained.tokenizer)
        self.trained.save(folder, usual, with_weights(self._bones, state_dict) if self._bones and state_dict else None)
        # A pickle of the options, which contains local paths and is not used.
        (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
        self.record().save(folder)
        set_usual_modes(folder)  # transformers copies the modeling file with its mode

    def export(self, folder: str | Path | None = None) -> None:
        """Export the model, by default to the output folder. Call it in every process.

        Raises:
            SaveError: The folder could not be written. Earlier files in it are unchanged.
        """
        folder, whole = folder or str(self.args.output_dir), self.whole_model
        if self.is_world_process_zero():
            try:
                export_folder(self.trained, folder, self.record(), module=whole, merge=self.args.lora_merge)
            except (OSError, SafetensorError) as error:
                raise SaveError(f"The model could not be written to {folder}: {error_line(error)}") from error

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Check that a push can succeed and create the repository.

        Raises:
            UsageError: A push cannot succeed; see `informin.publishing.hub.prepare`, or low-rank matrices of a local
                model would be pushed.
        """
        if not self.is_world_process_zero():
            return
        base = self.facts.get("base_model") or {}
        if self.args.lora_r and not self.args.lora_merge and not base.get("hub_id"):
            raise UsageError(
                f"is false, and the source model {self.trained.name} is a local folder, which others do not have",
                option="lora_merge",
                fix="Merge the matrices, or set `base_model` to the Hub id of the source model.",
            )
        self._hub = hub_destination(self.args, token, private)
        self.hub_model_id = self._hub.repo

    def push_to_hub(  # type: ignore[override]  # Trainer returns a CommitInfo; a push here has two commits
        self,
        commit_message: str | None = "End of training",
        token: str | None = None,
        private: bool | None = None,
    ) -> str | None:
        """Export the model, upload it with its card, and wait until the upload ends.

        Args:
            commit_message: Title of the commit.
            token: Hub token; None for `hub_token`.
            private: Whether a new repository is private; None for `hub_private_repo`.

        Returns:
            URL of the model page, on the first process.

        Raises:
            PushError: The upload failed. The exported folder is saved in the output folder.
        """
        if self.hub_model_id is None or token or private:
            self.init_hf_repo(token, private)
        PublishingTrainer.export(self)  # without the report of a subclass
        if not self.is_world_process_zero():
            return None
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        return push_folder(str(self.args.output_dir), self._hub, commit_message or "End of training")

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Upload the exported model after a checkpoint was saved, unless `hub_strategy` is end. A failure is logged.

        Optimizer states are not uploaded.
        """
        if HubStrategy(self.args.hub_strategy) == HubStrategy.END:
            return
        with tempfile.TemporaryDirectory() as folder:
            PublishingTrainer.export(self, folder)
            if self.is_world_process_zero():
                try:
                    push_folder(folder, self._hub, f"Training in progress, step {self.state.global_step}")
                except PushError as error:
                    logger.warning(f"{Path(checkpoint_folder).name} was not pushed: {error_line(error)}")


def hub_destination(args: Any, token: str | None = None, private: bool | None = None) -> Destination:
    """Return the repository that the options name, after the checks of `informin.publishing.hub.prepare`."""
    name = args.hub_model_id or Path(args.output_dir).absolute().name
    private = args.hub_private_repo if private is None else private
    return prepare(name, private, token or args.hub_token, args.hub_revision)
