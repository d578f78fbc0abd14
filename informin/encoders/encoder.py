"""Any checkpoint, ready to embed sentences: ours, of plain transformers, or of sentence-transformers."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from informin.encoders.architectures import InforMinModel
from informin.encoders.encode import POOLERS, encode, max_length
from informin.encoders.loading import BERT_POOLER, json_file, load_config, load_saved, load_tokenizer, saved_settings
from informin.errors import UsageError, error_line

# sentence-transformers' names of the poolings that are offered here.
THEIR_POOLINGS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "cls": "cls", "mean": "mean"}


@dataclass
class Encoder:
    """Embeds sentences by one or more poolers, and knows what it was made from.

    Attributes:
        name: the Hub id or folder it was loaded from.
        poolers: of `encode.POOLERS`, resolved: never `auto`.
        length: sentences are cut at this many tokens.
        normalized: embeddings are scaled to length 1, as the checkpoint's own modules say.
        bf16: computes under bfloat16 autocast.
        truncated: the sentences met so far that were cut.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    poolers: tuple[str, ...]
    length: int
    normalized: bool = False
    batch_size: int = 64
    bf16: bool = False
    truncated: set[str] = field(default_factory=set)

    @property
    def dimensions(self) -> int:
        return self.model.config.hidden_size

    @property
    def device(self) -> torch.device:
        return self.model.device

    def __call__(self, sentences: Sequence[str], progress: Callable[[int], object] | None = None):
        """(N, d) float32 of N sentences for each pooler, by name."""
        # A token is a byte at least (not so where a tokenizer expands ligatures) and two are special, so that short
        # sentences need no counting.
        long = [s for s in sentences if len(s.encode()) > self.length - 2]
        tokens = self.tokenizer(long, verbose=False)["input_ids"] if long else []
        self.truncated.update(s for s, ids in zip(long, tokens) if len(ids) > self.length)
        with torch.autocast(self.device.type, dtype=torch.bfloat16) if self.bf16 else nullcontext():
            embeddings = encode(
                self.model, self.tokenizer, sentences, self.batch_size, self.poolers, self.length, progress
            )
        if self.normalized:
            embeddings = {pooler: x / np.linalg.norm(x, axis=1, keepdims=True) for pooler, x in embeddings.items()}
        return embeddings

    def weights_sha256(self) -> str:
        """Tells checkpoints apart, whatever their folder; see `weights_sha256`."""
        return weights_sha256(self.model.state_dict())


def weights_sha256(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names and float32 values of the weights.

    BERT's own pooler is left out: no embedding reads it, and where a checkpoint has none it is random.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        if not name.startswith(BERT_POOLER):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(tensor.detach().cpu().float().numpy()).data)
    return digest.hexdigest()


def starting_sha256(model: InforMinModel, model_name: str, revision: str | None = None) -> str:
    """What `load_encoder(model_name).weights_sha256()` gives, from what `load_model` gave, before its first step.

    The names are those of the class that `load_encoder` takes, and a projection head counts where the checkpoint has
    one: a checkpoint is loaded again only if training leaves its head out.
    """
    config = load_config(model_name, revision)
    settings = saved_settings(config, model_name, revision)
    if not settings:
        return weights_sha256(model.base_model.state_dict())
    has_head = settings["projection_head"] == "mlp"
    if has_head and model.config.informin["projection_head"] != "mlp":
        model = load_saved(config, model_name, revision)
    prefixes = (f"{model.base_model_prefix}.", *(["mlp."] if has_head else []))
    return weights_sha256({name: x for name, x in model.state_dict().items() if name.startswith(prefixes)})


def load_encoder(
    model_name: str,
    poolers: Sequence[str] = ("auto",),
    length: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
    bf16: bool = False,
    revision: str | None = None,
) -> Encoder:
    """Loads any BERT-like checkpoint in float32, from a folder or the Hub.

    Args:
        poolers: names of `encode.POOLERS`, or `auto` alone for what the checkpoint says of itself.
        length: cut sentences at this many tokens; None for the checkpoint's own maximum.
        device: None for a GPU where there is one.

    Raises:
        UsageError: no such model, no tokenizer, a pooler that the model cannot do, or `auto` where it says nothing.
    """
    if batch_size < 1:
        raise UsageError(f"`batch_size` {batch_size}: needed 1 or more.")
    if "auto" in poolers and len(poolers) > 1:
        raise UsageError(f"`pooler` {' '.join(poolers)}: auto is one of the others already. Give auto, or names.")
    model = load_saved(load_config(model_name, revision, any_encoder=True), model_name, revision)
    config = model.config
    tokenizer = load_tokenizer(model_name, config, revision)
    modules = _sentence_transformers(model_name, revision)
    resolved = tuple(dict.fromkeys(_resolve(pooler, model_name, config, modules) for pooler in poolers))
    most = max_length(config, tokenizer)
    length = min(most, modules.get("max_seq_length") or most) if length is None else length
    if not 3 <= length <= most:
        raise UsageError(f"`max_length` {length}: {model_name} reads at least 3 and at most {most} tokens.")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model.eval().to(device)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
        raise UsageError(f"`device` {device} cannot be used: {error_line(error)}") from None
    normalized = "auto" in poolers and modules.get("normalized", False)
    return Encoder(model_name, model, tokenizer, resolved, length, normalized, batch_size, bf16)


def _resolve(pooler: str, model_name: str, config: PreTrainedConfig, modules: dict) -> str:
    own = getattr(config, "informin", None) or {}
    if pooler == "auto":
        pooling = own.get("pooling") or modules.get("pooling")
        if pooling is None:
            raise UsageError(
                f"`pooler` auto: {model_name} does not say how its sentence embedding is read ({modules['problem']}). "
                f"Give one of: `pooler` {', '.join(POOLERS)}."
            )
        return pooling
    if pooler not in POOLERS:
        raise UsageError(f"`pooler` {pooler}: needed one of: auto, {', '.join(POOLERS)}.")
    if pooler == "mlp" and own.get("projection_head") != "mlp":
        raise UsageError(
            f"`pooler` mlp: {model_name} has no projection head; it is in checkpoints that this project trained with "
            "`projection_head` mlp."
        )
    return pooler


def _sentence_transformers(model_name: str, revision: str | None) -> dict:
    """What sentence-transformers' files say: `pooling` or the `problem` with it, `normalized`, `max_seq_length`."""
    modules = json_file(model_name, "modules.json", revision, list)
    if not modules:
        return {"problem": "no sentence-transformers files"}
    if not all(isinstance(module, dict) and {"type", "path"} <= module.keys() for module in modules):
        raise UsageError(f"`model_name` {model_name}: its modules.json does not say type and path of each module.")
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0]["path"]:
        return {"problem": f"its modules.json lists {', '.join(kinds)}, of which not all are known here"}
    prompt = json_file(model_name, "config_sentence_transformers.json", revision).get("default_prompt_name")
    if prompt is not None:
        return {"problem": f"it puts its prompt {prompt!r} before every sentence, which is not done here"}
    pooling = json_file(model_name, f"{modules[1]['path']}/config.json", revision)
    active = [name for name, on in pooling.items() if name.startswith("pooling_mode_") and on is True]
    mode = pooling.get("pooling_mode", active[0] if len(active) == 1 else None)
    longest = json_file(model_name, "sentence_bert_config.json", revision).get("max_seq_length")
    if not isinstance(longest, int | None):
        raise UsageError(f"`model_name` {model_name}: max_seq_length in its sentence_bert_config.json is {longest!r}.")
    return {
        "pooling": THEIR_POOLINGS.get(mode) if isinstance(mode, str) else None,
        "problem": f"its pooling is {mode or active}, which is not known here",
        "normalized": kinds[-1] == "Normalize",
        "max_seq_length": longest,
    }
