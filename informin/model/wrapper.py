"""A SentenceTransformer as a module in training, and the pretrained language-model head of its encoder."""

from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Transformer
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput

from informin.fast.attention import kept_maps
from informin.fast.forward import with_encoder
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
        prompt_tokens: Tokens of the prompt that the pooling leaves out.
    """

    supports_gradient_checkpointing = True
    prompt_tokens = 0

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
        """Embed N rows of L tokens in training; see `modeling_informin.InforMinMixin.forward`."""
        if packed is not None:
            return self.training_outputs(packed, input_ids, attention_mask, views)
        features = self._features(list(self.st), input_ids, attention_mask)
        pooled = features["sentence_embedding"]
        projection = self.project(pooled)
        lm_losses = None
        if lm_labels is not None:
            wanted = lm_labels >= 0
            lm_losses = self.lm_losses(features["token_embeddings"][wanted], lm_labels[wanted])
        return InforMinOutput(
            pooler_output=pooled,
            projection=projection,
            lm_losses=lm_losses,
            heads=self.head_outputs(projection, input_ids, attention_mask, views),
            attentions=kept_maps(self.base_model) or None if output_attentions else None,
        )

    def embed_with(self, encoder: nn.Module | None, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return embeddings (B, d) of the first view (B, L) by a copy of the encoder, not normalized."""
        if self.forward_pass is not None:
            return super().embed_with(encoder, input_ids, attention_mask)
        first, *others = self.st
        own = first if encoder is None else with_encoder(first, encoder)
        return self._features([own, *others], input_ids, attention_mask)["sentence_embedding"]

    def _features(self, modules: list[nn.Module], input_ids: Tensor, attention_mask: Tensor) -> dict[str, Any]:
        """Return what the modules of a SentenceTransformer compute for N rows, without a normalization at the end."""
        features: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if type(modules[0]).__name__ == "StaticEmbedding":  # which reads texts that follow each other
            lengths = attention_mask.sum(1)
            features = {"input_ids": input_ids[attention_mask.bool()], "offsets": lengths.cumsum(0) - lengths}
        if self.prompt_tokens:
            features["prompt_length"] = self.prompt_tokens
        if len(modules) > 1 and isinstance(modules[-1], Normalize):
            modules = modules[:-1]
        for module in modules:
            features = module(features)
        return features

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
