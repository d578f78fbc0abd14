"""The options of the encoder in training, a base class of `InforMinTrainingArguments`."""

from dataclasses import dataclass
from typing import Literal, Optional

from informin.models.lora import AUTO, LoRA
from informin.models.open_model import BACKENDS
from informin.objectives.terms import option, require


@dataclass(repr=False)
class EncoderOptions:
    """Which encoder to train, how it computes embeddings, and which of its weights training changes."""

    model_revision: Optional[str] = option(None, "Branch, tag or commit of the encoder on the Hub.")
    backend: str = option(
        "auto",
        "native: BERT-like encoders, with packing and all objectives. st: a SentenceTransformer, whose own modules "
        "compute the embedding. auto: native if possible and without LoRA, else st.",
        choices=BACKENDS,
    )
    trust_remote_code: bool = option(False, "Run code from the model's repository, if it needs any.")
    code_revision: Optional[str] = option(None, "Branch, tag or commit of that code on the Hub.")
    pooler: Literal["auto", "cls", "mean", "last"] = option(
        "auto",
        "Pooling of the sentence embedding, in training and in the exported model. auto: the pooling that the "
        "checkpoint or its sentence-transformers files specify, else cls.",
    )
    prompt: Optional[str] = option(
        None,
        "Text prepended to every sentence in training; an empty string for none. The exported model keeps the "
        "encoder's own prompts unless export_prompt is set. Default: the encoder's default prompt.",
    )
    export_prompt: bool = option(False, "Make the prompt the default prompt of the exported model.")
    train_dense: bool = option(True, "Train the Dense modules of a SentenceTransformer; false keeps their weights.")
    lora_r: Optional[int] = option(
        None, "Train low-rank matrices of this rank (LoRA) instead of the encoder's weights, such as 16. Needs peft."
    )
    lora_alpha: int = option(32, "With LoRA: scale of the low-rank update, which is multiplied by alpha / r.")
    lora_dropout: float = option(0.05, "With LoRA: dropout rate of the inputs of the adapted layers.")
    lora_target_modules: Optional[list[str]] = option(
        None, "With LoRA: names of the linear layers to adapt, such as q_proj v_proj. Default: auto, all of them."
    )
    lora_merge: bool = option(
        True, "With LoRA: export a complete model with merged weights. False exports the low-rank matrices alone."
    )

    @property
    def lora(self) -> LoRA | None:
        """The options of low-rank adaptation; None for training all weights."""
        if self.lora_r is None:
            return None
        return LoRA(self.lora_r, self.lora_alpha, self.lora_dropout, tuple(self.lora_target_modules or AUTO))

    def check_encoder_options(self) -> None:
        """Raise UsageError for a value out of range, or an option without effect."""
        require(self.lora_r is None or self.lora_r >= 1, "lora_r", self.lora_r, "1 or more")
        require(self.lora_alpha > 0, "lora_alpha", self.lora_alpha, "1 or more")
        require(0 <= self.lora_dropout < 1, "lora_dropout", self.lora_dropout, "0 or more, and below 1")
        require(self.backend != "native" or self.lora_r is None, "backend", self.backend, "st or auto with `lora_r`")
