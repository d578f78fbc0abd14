"""A Trainer that saves and pushes exported folders."""

from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainingArguments
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import HubStrategy, get_last_checkpoint
from transformers.utils import PushInProgress

from informin.distributed import any_process
from informin.errors import SaveError, UsageError, error_line
from informin.files import damage, set_usual_modes
from informin.models.model import Model
from informin.models.native_loading import without_bars
from informin.models.tokenizer import forget_truncation
from informin.publishing.export import export_folder
from informin.publishing.hub import Destination, prepare, push_folder, push_in_background
from informin.publishing.origin import refuse_local_base
from informin.publishing.record import save_record
from informin.publishing.sharded import skeleton, with_weights
from informin.temporary import TemporaryFolder
from informin.transformers_private import TrainerHooks


class PublishingTrainer(TrainerHooks, ABC):
    """A Trainer that writes training.json into every checkpoint and pushes exported folders instead of checkpoints."""

    hub_model_id: str | None  # type: ignore[assignment]  # Trainer's has the type of its first value, None
    push_in_progress: PushInProgress | None  # type: ignore[assignment]

    known: dict  # entries of the record that the trainer cannot derive
    trained: Model  # the model in training

    _bones: nn.Module | None = None  # of a model that FSDP shards
    _whole: nn.Module | None = None  # its weights after training

    @abstractmethod
    def record(self) -> dict:
        """Return the record of the run so far, for training.json; see `informin.publishing.record`."""

    @property
    def tokenizer_of_run(self) -> PreTrainedTokenizerBase:
        """The processing class, which is always a tokenizer here."""
        return cast(PreTrainedTokenizerBase, self.processing_class)

    def train(self, *args, **kwargs):
        """Train after a trial of saving the model.

        Raises:
            UsageError: A checkpoint or an export could not be written. No training step was taken.
        """
        self._try_to_save()
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

    def _try_to_save(self) -> None:
        """Write a checkpoint and an export without weights to a temporary folder. Raise UsageError if that fails."""
        problem = None
        if self.is_world_process_zero():
            try:
                with TemporaryFolder() as folder:
                    self.write_model(str(Path(folder, "checkpoint")), state_dict={})
                    export_folder(self.trained, Path(folder, "export"), self.record(), weights=False)
            except Exception as error:  # from any of the libraries that write the files
                problem = f"{error_line(error)} ({type(error).__name__})"
        if any_process(problem is not None):
            raise UsageError(
                f"The model could not be saved in a trial before training: {problem or 'see process 0'}",
                fix="Fix the problem and start again. No training step was taken.",
            )

    def write_model(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        forget_truncation(self.tokenizer_of_run)
        folder = Path(output_dir or output_folder(self.args))
        usual = partial(super().write_model, output_dir, state_dict)
        if not self.args.should_save:
            return usual()  # Trainer calls this in every process
        with without_bars():
            self.trained.save(folder, usual, None if state_dict == {} else partial(self._with_state, state_dict))
        # A pickle of the options, which contains local paths and is not used.
        (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
        save_record(folder, self.record())
        set_usual_modes(folder)  # transformers copies the modeling file with its mode

    def _with_state(self, state_dict: dict | None) -> nn.Module:
        """Return the module with the weights that Trainer gathered, if FSDP shards them."""
        if self._bones and state_dict:
            return with_weights(self._bones, state_dict)
        return self.accelerator.unwrap_model(self.model)

    def export(self, folder: str | None = None) -> None:
        """Export the model, by default to the output folder; see `informin.publishing.export`.

        Raises:
            SaveError: The folder could not be written. Earlier files in it are unchanged.
        """
        if not self.is_world_process_zero():
            return
        output = output_folder(self.args)
        folder, merge = folder or output, getattr(self.args, "lora_merge", True)
        try:
            export_folder(replace(self.trained, module=self.whole_model), folder, self.record(), merge=merge)
        except (OSError, SafetensorError) as error:
            last = get_last_checkpoint(output)
            complete = last and damage(last, contents=False) is None
            fix = f" {last} is complete. Run: python -m informin export {last} NEW_FOLDER" if complete else ""
            raise SaveError(f"The model could not be written to {folder}: {error_line(error)}.{fix}") from error

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Check that a push can succeed and create the repository.

        Raises:
            UsageError: A push cannot succeed; see `informin.publishing.hub.prepare` and `refuse_local_base`.
        """
        if self.is_world_process_zero():
            refuse_local_base(self.args, self.known.get("base_model"))
            self._hub = hub_destination(self.args, token, private)
            self.hub_model_id = self._hub.repo
            self.push_in_progress = None
            self._pushes: list[Future] = []

    def push_to_hub(  # type: ignore[override]  # Trainer returns a CommitInfo; a push here has two commits
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **card,
    ) -> str | None:
        """Upload the exported folder with its card, and wait until the upload ends.

        Args:
            commit_message: Title of the commit.
            blocking: Must be True.
            token: Hub token; None for `hub_token`.
            revision: Branch; None for `hub_revision`.
            private: Whether a new repository is private; None for `hub_private_repo`.
            card: Options of Trainer's model card, which are not supported.

        Returns:
            URL of the model page, on the first process.

        Raises:
            PushError: The upload failed. The exported folder is saved in the output folder.
            UsageError: `blocking` is False, or options of the model card were given.
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
        PublishingTrainer.export(self)  # without the reports of subclasses, which need all processes
        self.finish_push()
        to = replace(self._hub, branch=revision) if revision else self._hub
        return push_folder(output_folder(self.args), to, commit_message or "End of training")

    def create_model_card(self, *args, **kwargs):
        """Raise UsageError, since Trainer's card would replace the exported one."""
        raise UsageError("`create_model_card` is not supported", fix="Call `export`, which writes the model card.")

    def push_checkpoint(self, checkpoint_folder: str) -> None:
        """Push the exported checkpoint in the background, to the root of the repository."""
        strategy = self.args.hub_strategy
        if not self.is_world_process_zero() or strategy == HubStrategy.END:
            return
        running = [job for job in self._pushes if not job.done()]
        if running and not self.args.hub_always_push:
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        names = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: Path(checkpoint_folder).name}
        message = f"Training in progress, step {self.state.global_step}"
        job = push_in_background(checkpoint_folder, self._hub, message, state_as=names.get(HubStrategy(strategy)))
        self._pushes = [*running, job]
        self.push_in_progress = PushInProgress(cast(Future, self._pushes))  # it takes a list, contrary to its type


def output_folder(args: TrainingArguments) -> str:
    """Return the output folder, which InforMinTrainingArguments always sets."""
    return cast(str, args.output_dir)


def hub_destination(args: TrainingArguments, token: str | None = None, private: bool | None = None) -> Destination:
    """Return the repository that the options name, after the checks of `informin.publishing.hub.prepare`.

    Raises:
        UsageError: A push cannot succeed.
    """
    name = args.hub_model_id or Path(output_folder(args)).absolute().name
    private = args.hub_private_repo if private is None else private
    return prepare(name, private, token or args.hub_token, args.hub_revision, getattr(args, "hub_overwrite", False))
