"""A Trainer that leaves, and pushes, folders that people can load."""

import tempfile
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError
from transformers import TrainingArguments
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import HubStrategy, get_last_checkpoint
from transformers.utils import PushInProgress

from informin.distributed import any_process
from informin.encoders.tokenizer import forget_truncation
from informin.errors import SaveError, UsageError, error_line
from informin.files import damage, set_usual_modes
from informin.publishing.export import export_folder
from informin.publishing.hub import Destination, prepare, push_folder, push_in_background
from informin.publishing.record import save_record
from informin.transformers_private import TrainerHooks


class PublishingTrainer(TrainerHooks, ABC):
    """The Trainer with training.json in every checkpoint, and the exported folder, not the checkpoint, on the Hub."""

    @abstractmethod
    def record(self) -> dict:
        """What the run was so far, for training.json; see `informin.publishing.record`."""

    def train(self, *args, **kwargs):
        """Trainer's, after a try to save.

        Raises:
            UsageError: what training leaves could not be written; no step was taken.
        """
        self._try_to_save()
        return super().train(*args, **kwargs)

    def _try_to_save(self) -> None:
        """Writes a checkpoint and an export without their weights, and deletes them; UsageError where that fails."""
        problem = None
        if self.is_world_process_zero():
            try:
                with tempfile.TemporaryDirectory(prefix="informin-save-") as folder:
                    self.write_model(str(Path(folder, "checkpoint")), state_dict={})
                    model = self.accelerator.unwrap_model(self.model)
                    export_folder(model, self.processing_class, Path(folder, "export"), self.record(), weights=False)
            except Exception as error:  # of whichever library writes the file
                problem = f"{error_line(error)} ({type(error).__name__})"
        if any_process(problem is not None):
            raise UsageError(
                f"The model could not be saved in a trial before training: {problem or 'see process 0'}",
                fix="Fix the problem and start again. No training step was taken.",
            )

    def write_model(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        forget_truncation(self.processing_class)
        super().write_model(output_dir, state_dict)
        if not self.args.should_save:
            return  # Trainer calls this in every process
        # A pickle of the options, with this machine's paths in it, that nothing reads.
        folder = Path(output_dir or self.args.output_dir)
        (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
        save_record(folder, self.record())
        set_usual_modes(folder)  # transformers copies the modeling file with its mode

    def export(self, folder: str | None = None) -> None:
        """Writes the folder that people load, by default to the output folder; see `informin.publishing.export`.

        SaveError: it could not be written; what was there before is as it was.
        """
        if not self.is_world_process_zero():
            return
        folder, model = folder or self.args.output_dir, self.accelerator.unwrap_model(self.model)
        try:
            export_folder(model, self.processing_class, folder, self.record())
        except (OSError, SafetensorError) as error:
            last = get_last_checkpoint(self.args.output_dir)
            whole = last and damage(last, contents=False) is None
            rest = f" {last} is whole: python run_export.py {last} NEW_FOLDER" if whole else ""
            raise SaveError(f"The model could not be written to {folder}: {error_line(error)}.{rest}") from error

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Trainer's, after a look whether a push can work.

        Raises UsageError: it cannot; see `informin.publishing.hub.prepare`.
        """
        if self.is_world_process_zero():
            self._hub = hub_destination(self.args, token, private)
            self.hub_model_id = self._hub.repo
            self.push_in_progress = None

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **card,
    ) -> str | None:
        """Uploads the exported folder with its card, and waits for it.

        Args:
            blocking: True; see Raises.
            revision: the branch; None for `hub_revision`.
            token, private: of a repository that is made; None for `hub_token` and `hub_private_repo`.
            card: none; see Raises.

        Returns:
            The page's address, on the first process.

        Raises:
            PushError: the upload failed; the exported folder is in the output folder.
            UsageError: it is not to be waited for, which would lose a failure; or something is said about the card,
                which is written from what the run was.
        """
        if not blocking:
            raise UsageError(
                "is False",
                option="blocking",
                needed="True, because a failed upload in the background would go unnoticed",
                fix="To upload checkpoints during training, set `push_to_hub` and `hub_strategy`.",
            )
        if card:
            raise UsageError(
                f"{', '.join(card)} cannot be set here: the model card is generated from training.json",
                fix="Set `license` and `language` in the trainer's `provenance`, or edit the exported model card.",
            )
        if self.hub_model_id is None or token:
            self.init_hf_repo(token, private)
        if not self.is_world_process_zero():
            return None
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        PublishingTrainer.export(self)  # without a report, which other processes would have a part in
        self.finish_push()
        to = replace(self._hub, branch=revision) if revision else self._hub
        return push_folder(self.args.output_dir, to, commit_message)

    def create_model_card(self, *args, **kwargs):
        """Raises UsageError: Trainer's would stand in the place of ours."""
        raise UsageError("`create_model_card` is not supported", fix="Call `export`, which writes the model card.")

    def push_checkpoint(self, checkpoint_folder: str) -> None:
        """Trainer's, with the exported checkpoint at the root of the repository."""
        strategy = self.args.hub_strategy
        if not self.is_world_process_zero() or strategy == HubStrategy.END:
            return
        earlier = [] if self.push_in_progress is None else [j for j in self.push_in_progress.jobs if not j.done()]
        if earlier and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        names = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: Path(checkpoint_folder).name}
        message = f"Training in progress, step {self.state.global_step}"
        job = push_in_background(checkpoint_folder, self._hub, message, state_as=names.get(strategy))
        self.push_in_progress = PushInProgress([*earlier, job])


def hub_destination(args: TrainingArguments, token: str | None = None, private: bool | None = None) -> Destination:
    """The repository that the options name, fit to be pushed to; see `informin.publishing.hub.prepare`.

    Raises UsageError: a push cannot work.
    """
    name = args.hub_model_id or Path(args.output_dir).absolute().name
    private = args.hub_private_repo if private is None else private
    return prepare(name, private, token or args.hub_token, args.hub_revision, args.hub_overwrite)
