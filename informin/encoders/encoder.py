"""Any checkpoint, ready to embed sentences: ours, of plain transformers, or of sentence-transformers."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from informin.encoders.encode import POOLERS, encode, max_length
from informin.encoders.loading import ARCHITECTURES, load_config, load_tokenizer, load_weights, optional_file, read_json
from informin.errors import UsageError, counted, error_line
from modeling_informin import HEAD_FILE, TRAINING_HEADS

# sentence-transformers' names of the poolings that are offered here.
THEIR_POOLINGS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "cls": "cls", "mean": "mean"}
BERT_POOLER = "pooler."


@dataclass
class Encoder:
    """Embeds sentences by one or more poolers, and knows what it was made from.

    Attributes:
        name: the Hub id or folder it was loaded from.
        poolers: of `encoding.POOLERS`, resolved: never `auto`.
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

    def __call__(self, sentences: Sequence[str], progress: Callable[[int], object] | None = None):
        """(N, d) float32 of N sentences for each pooler, by name."""
        # A token is a byte at least (not so where a tokenizer expands ligatures) and two are special, so that short
        # sentences need no counting.
        long = [s for s in sentences if len(s.encode()) > self.length - 2]
        tokens = self.tokenizer(long, verbose=False)["input_ids"] if long else []
        self.truncated.update(s for s, ids in zip(long, tokens) if len(ids) > self.length)
        device = self.model.device.type
        with torch.autocast(device, dtype=torch.bfloat16) if self.bf16 else nullcontext():
            found = encode(self.model, self.tokenizer, sentences, self.batch_size, self.poolers, self.length, progress)
        if self.normalized:
            found = {pooler: x / np.linalg.norm(x, axis=1, keepdims=True) for pooler, x in found.items()}
        return found

    def weights_sha256(self) -> str:
        """SHA-256 over the names and float32 values of the weights: tells checkpoints apart, whatever their folder.

        BERT's own pooler is left out: no embedding reads it, and where a checkpoint has none it is random.
        """
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            if not name.startswith(BERT_POOLER):
                digest.update(name.encode())
                digest.update(np.ascontiguousarray(tensor.detach().cpu().float().numpy()).data)
        return digest.hexdigest()


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
        poolers: names of `encoding.POOLERS`, or `auto` alone for what the checkpoint says of itself.
        length: cut sentences at this many tokens; None for the checkpoint's own maximum.
        device: None for a GPU where there is one.

    Raises:
        UsageError: no such model, no tokenizer, a pooler that the model cannot do, or `auto` where it says nothing.
    """
    if batch_size < 1:
        raise UsageError(f"--batch_size {batch_size}: needed 1 or more.")
    if "auto" in poolers and len(poolers) > 1:
        raise UsageError(f"--pooler {' '.join(poolers)}: auto is one of the others already. Give auto, or names.")
    model = _load_model(model_name, revision)
    config = model.config
    tokenizer = load_tokenizer(model_name, config, revision)
    modules = _sentence_transformers(model_name, revision)
    resolved = tuple(dict.fromkeys(_resolve(pooler, model_name, config, modules) for pooler in poolers))
    most = max_length(config, tokenizer)
    length = min(most, modules["max_seq_length"] or most) if length is None else length
    if not 3 <= length <= most:
        raise UsageError(f"--max_length {length}: {model_name} reads at least 3 and at most {most} tokens.")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model.eval().to(device)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
        raise UsageError(f"--device {device} cannot be used: {error_line(error)}") from None
    normalized = "auto" in poolers and modules["normalized"]
    return Encoder(model_name, model, tokenizer, resolved, length, normalized, batch_size, bf16)


def _load_model(model_name: str, revision: str | None) -> PreTrainedModel:
    config = load_config(model_name, revision, any_encoder=True)
    own = getattr(config, "informin", None)
    kind = ARCHITECTURES[config.model_type] if own and config.model_type in ARCHITECTURES else AutoModel
    if own:
        config.informin = own | TRAINING_HEADS
        among_weights = kind.__name__ in (config.architectures or [])
        if not among_weights and optional_file(model_name, HEAD_FILE, revision) is None:
            config.informin["projection_head"] = "none"  # saved again by another class
    model, report = load_weights(kind, model_name, config, revision)
    if getattr(config, "max_position_embeddings", None) is None:
        raise UsageError(
            f"--model_name {model_name}: {config.model_type} has no table of positions; needed an encoder like BERT."
        )
    absent = sorted(name for name in report["missing_keys"] if not name.startswith((BERT_POOLER, "mlp.")))
    if absent:
        raise UsageError(
            f"--model_name {model_name} lacks {counted(len(absent), 'weight')} of the encoder, {absent[0]} the first: "
            "what is lacking would be random. Copy the model again from its source."
        )
    return model


def _resolve(pooler: str, model_name: str, config: PreTrainedConfig, modules: dict) -> str:
    own = getattr(config, "informin", None) or {}
    if pooler == "auto":
        found = own.get("pooling") or modules["pooling"]
        if found is None:
            raise UsageError(
                f"--pooler auto: {model_name} does not say how its sentence embedding is read ({modules['problem']}). "
                f"Give one of: --pooler {', '.join(POOLERS)}."
            )
        return found
    if pooler not in POOLERS:
        raise UsageError(f"--pooler {pooler}: needed one of: auto, {', '.join(POOLERS)}.")
    if pooler == "mlp" and own.get("projection_head") != "mlp":
        raise UsageError(
            f"--pooler mlp: {model_name} has no projection head; it is in checkpoints that this project trained with "
            "--projection_head mlp."
        )
    return pooler


def _sentence_transformers(model_name: str, revision: str | None) -> dict:
    """What sentence-transformers' files say: `pooling` or the `problem` with it, `normalized`, `max_seq_length`."""
    found = {"pooling": None, "problem": "no sentence-transformers files", "normalized": False, "max_seq_length": None}
    modules = _json_file(model_name, "modules.json", revision, list)
    if not modules:
        return found
    if not all(isinstance(module, dict) and {"type", "path"} <= module.keys() for module in modules):
        raise UsageError(f"--model_name {model_name}: its modules.json does not say type and path of each module.")
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0]["path"]:
        return found | {"problem": f"its modules.json lists {', '.join(kinds)}, of which not all are known here"}
    prompt = _json_file(model_name, "config_sentence_transformers.json", revision).get("default_prompt_name")
    if prompt is not None:
        return found | {"problem": f"it puts its prompt {prompt!r} before every sentence, which is not done here"}
    pooling = _json_file(model_name, f"{modules[1]['path']}/config.json", revision)
    active = [name for name, on in pooling.items() if name.startswith("pooling_mode_") and on is True]
    mode = pooling.get("pooling_mode", active[0] if len(active) == 1 else None)
    longest = _json_file(model_name, "sentence_bert_config.json", revision).get("max_seq_length")
    if not isinstance(longest, int | None):
        raise UsageError(f"--model_name {model_name}: max_seq_length in its sentence_bert_config.json is {longest!r}.")
    return {
        "pooling": THEIR_POOLINGS.get(mode) if isinstance(mode, str) else None,
        "problem": f"its pooling is {mode or active}, which is not known here",
        "normalized": kinds[-1] == "Normalize",
        "max_seq_length": longest,
    }


def _json_file(model_name: str, name: str, revision: str | None, kind: type = dict):
    path = optional_file(model_name, name, revision)
    return kind() if path is None else read_json(path, kind)
