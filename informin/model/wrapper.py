"""A SentenceTransformer as a module in training, and the pretrained language-model head of its encoder."""

from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Transformer
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput

from modeling_informin import InforMinOutput, ProjectionHead, TrainingMixin


class WrapperConfig(PreTrainedConfig):
    """Describes a SentenceTransformer in training: `hidden_size` is the dimension of its embeddings."""

    model_type = "sentence-transformers"


class SentenceTransformerForInforMinCL(TrainingMixin, nn.Module):
    """A SentenceTransformer whose forward pass in training returns `InforMinOutput`.

    Attributes:
        st: The SentenceTransformer.
        config: Dimension of the embeddings, and `informin`, the settings of the run.
        mlp: The projection head; None without one.
        lm_head: The language-model head; None without one.
    """

    supports_gradient_checkpointing = True

    def __init__(self, st: SentenceTransformer, config: WrapperConfig, lm_head: nn.Module | None = None):
        super().__init__()
        self.st, self.config, self.lm_head = st, config, lm_head
        self.heads = nn.ModuleDict()
        self.mlp: ProjectionHead | None = None
        if config.informin["projection_head"] == "mlp":
            self.mlp = ProjectionHead(config.hidden_size)
            self.mlp.apply(self._init_weights)

    @property
    def _no_split_modules(self) -> list[str]:  # read by accelerate, for FSDP
        return self.st._no_split_modules

    @property
    def device(self) -> torch.device:
        return next(self.st.parameters()).device

    @property
    def base_model(self) -> nn.Module:
        """The encoder, which a momentum encoder follows."""
        return self.st[0].auto_model

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embeddings that the encoder reads, to which `neftune_noise_alpha` adds noise.

        T5 has two modules with these weights, and `get_input_embeddings` of transformers returns the unused one.
        """
        encoder: Any = self.base_model
        weight = encoder.get_input_embeddings().weight
        modules = encoder.modules()
        return [module for module in modules if isinstance(module, nn.Embedding) and module.weight is weight][-1]

    def _init_weights(self, module: nn.Module) -> None:
        """Initialize a new layer as BERT does; not every model has an initialization for all layers."""
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        lm_labels: Tensor | None = None,
        output_attentions: bool = False,
        views: dict[str, Any] | None = None,
        packed: Any = None,
    ) -> InforMinOutput:
        """Embed the rows of `packed`; see `modeling_informin.InforMinMixin.forward`."""
        return self.training_outputs(packed, input_ids, attention_mask, views)

    def activation_checkpointing_enable(self, **options: Any) -> None:
        """Recompute the activations of the layers in the backward pass; see the method of transformers."""
        for module in self.st:
            if isinstance(module, Transformer):
                module.auto_model.activation_checkpointing_enable(**options)

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """Do the same; older versions of transformers call this method."""
        for module in self.st:
            if isinstance(module, Transformer):
                module.auto_model.gradient_checkpointing_enable(**options)


class GivenStates(nn.Module):
    """Stands for an encoder, and returns the states that it is given."""

    def forward(self, inputs_embeds: Tensor, **_: Any) -> BaseModelOutput:
        """Return (1, M, d) as the last hidden state."""
        return BaseModelOutput(last_hidden_state=inputs_embeds)


class LanguageModelHead(nn.Module):
    """The pretrained head of a masked language model, without its encoder. Its decoder shares the word embeddings.

    Attributes:
        model: The model of transformers, whose encoder is replaced.
    """

    def __init__(self, model: Any, encoder: Any):
        super().__init__()
        setattr(model, model.base_model_prefix, encoder)
        model.tie_weights()  # with the word embeddings that are trained
        setattr(model, model.base_model_prefix, GivenStates())
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (M, V) for hidden states (M, d)."""
        return self.model(inputs_embeds=tokens[None]).logits[0]
