"""ONNX files of an exported encoder, for onnxruntime in any language, without torch.

    export_onnx("outputs/model")          # onnx/model.onnx
    quantize_onnx("outputs/model")        # onnx/model_quantized.onnx, a quarter of the size
    encode = load_onnx_encoder("outputs/model")
    embeddings = encode(["A dog."])       # (N, d), as with the pooler `auto` of `informin eval`

`onnx/model.onnx` has the layout of optimum's feature-extraction export, which transformers.js and
text-embeddings-inference load by name. For sentence-transformers (backend="onnx"), see docs/integrations.md.
Inputs are input_ids, attention_mask and, for BERT and some others, token_type_ids, each (N, L) int64. The output is
last_hidden_state (N, L, d), which the caller pools. There is no output `sentence_embedding`, because
text-embeddings-inference would use it whatever pooling it is asked for.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from informin.errors import OnnxMismatchError, UsageError, error_line
from informin.evaluation import GradedPairs, score_pairs
from informin.files import write_json
from informin.interrupts import during
from informin.models.architectures import ARCHITECTURES, architecture_of
from informin.models.checkpoint import Checkpoint
from informin.models.dense import Dense, load_dense
from informin.models.embedding_config import EmbeddingConfig, lower_case
from informin.models.encode import embed, encode, max_length
from informin.models.native_loading import load_config, load_tokenizer
from informin.models.open_model import load_model
from informin.models.sentence_transformers_files import load_embedding_config
from informin.outputs import new_files
from informin.temporary import new_file
from modeling_informin import has_pooler

MODEL = "onnx/model.onnx"
QUANTIZED = "onnx/model_quantized.onnx"  # the 8-bit file that transformers.js loads by default in browsers
SCORES = "onnx/scores.json"
OUTPUT = "last_hidden_state"
# The first opset with GELU as a single operator, which onnxruntime fuses with the bias. Needs onnxruntime 1.18.
OPSET = 20
TOLERANCE = 1e-4
LARGEST = 2**31 - 2**20  # bytes; protobuf cannot write larger files
LONGEST = 1_024  # maximum number of tokens when a file is compared: 8,192 tokens would need gigabytes


class OnnxModel(nn.Module):
    """An ONNX file that `encode` can run like an encoder, with torch's number of threads."""

    device = torch.device("cpu")

    def __init__(self, path: Path, config: PreTrainedConfig):
        from onnxruntime import InferenceSession, SessionOptions

        super().__init__()
        self.config, self.names = config, input_names(config)
        options = SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> BaseModelOutput:
        """Return the hidden states (N, L, d) for ids and mask (N, L)."""
        types = torch.zeros_like(input_ids)
        tokens = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": types}
        (hidden,) = self.session.run([OUTPUT], {name: tokens[name].numpy() for name in self.names})
        return BaseModelOutput(last_hidden_state=torch.from_numpy(hidden))


@dataclass
class OnnxEncoder:
    """Computes the embeddings (N, d) float32 of N sentences with an ONNX file, as configured by `embedding`."""

    model: OnnxModel
    tokenizer: PreTrainedTokenizerBase
    batch_size: int = 64
    embedding: EmbeddingConfig = field(default_factory=lambda: EmbeddingConfig("cls"))
    dense: Dense | None = None

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        if self.dense is None:
            return embed(self.model, self.tokenizer, sentences, self.batch_size, self.embedding)
        unit = replace(self.embedding, normalize=True)
        return self.dense(embed(self.model, self.tokenizer, sentences, self.batch_size, unit), self.embedding.normalize)


def load_onnx_encoder(folder: str | Path, file: str = MODEL, batch_size: int = 64) -> OnnxEncoder:
    """Load an ONNX file of an exported folder with the folder's tokenizer.

    Args:
        folder: An exported folder. If it does not configure the pooling, the [CLS] vector is used.
        file: `MODEL`, `QUANTIZED` or another file with this layout, relative to the folder.
        batch_size: Number of sentences per batch.

    Raises:
        UsageError: The file is missing, onnxruntime cannot read it or is not installed, or the pooling is unknown.
    """
    require_packages(["onnxruntime"])
    path = _file_of(folder, file)
    checkpoint = Checkpoint(folder)
    config = load_config(checkpoint)
    embedding = load_embedding_config(checkpoint, config)
    dense = load_dense(checkpoint, embedding.adapter, config.hidden_size) if embedding.adapter else None
    embedding = replace(embedding, adapter=None).for_training("auto", None)
    try:
        model = OnnxModel(path, config)
    except Exception as error:  # onnxruntime's errors have no common base class
        raise UsageError(f"{path} cannot be read: {error_line(error)}", fix="Create it again.") from None
    tokenizer = load_tokenizer(checkpoint)
    lower_case(tokenizer, embedding)
    return OnnxEncoder(model, tokenizer, batch_size, embedding, dense)


def input_names(config: PreTrainedConfig) -> tuple[str, ...]:
    """Return the inputs of an architecture's ONNX file. Raise UsageError if ONNX export does not support it."""
    names = architecture_of(config).onnx_inputs
    if names is None:
        able = ", ".join(name for name, row in ARCHITECTURES.items() if row.onnx_inputs)
        raise UsageError(
            f"The architecture {config.model_type!r} cannot be exported to ONNX",
            needed=f"one of: {able}",
            fix="Export without `onnx`.",
        )
    return names


def refuse_unsupported(folder: str | Path, scored: bool = False) -> None:
    """Raise UsageError if a folder is not an encoder or ONNX export does not support its architecture.

    With `scored`, also if `score_files` does not support the model, because its own modules compute the embeddings.
    """
    checkpoint = Checkpoint(folder)
    config = load_config(checkpoint)
    input_names(config)
    embedding = load_embedding_config(checkpoint, config) if scored else None
    if embedding and embedding.pooling is None and embedding.problem:
        found = f"is set, but the embeddings of {folder} are not pooled hidden states, so no score can be printed"
        raise UsageError(found, option="int8", fix="Leave it out.")


@during("export to ONNX")
def export_onnx(folder: str | Path) -> Path:
    """Write `MODEL` in float32, for any batch size and any length up to the maximum, and return its path.

    Uses torch.onnx.export(dynamo=True), since the TorchScript exporter is deprecated, and transformers' `eager`
    attention: `sdpa` exports checks for rows without a token, which make the file 10% slower.

    The file is kept only if it gives the same embeddings as the model, for a short sentence and for a batch up to the
    maximum length. `QUANTIZED` and `SCORES` are removed, because they may belong to other weights.

    Args:
        folder: Folder with an encoder of `ARCHITECTURES`, of this project or not, and its tokenizer.

    Raises:
        UsageError: The folder has no such encoder, or packages are not installed.
        OnnxMismatchError: The file gives other embeddings than the model.
    """
    require_packages()
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json", needed="an exported model")
    refuse_unsupported(folder)
    encoder = load_model(str(folder), ("cls",), device="cpu")
    model = cast(PreTrainedModel, encoder.module.base_model)
    if has_pooler(type(model)):
        model.pooler = None  # type: ignore[assignment]  # BERT's pooling layer, which would be a second output
    size = sum(x.numel() for x in model.parameters()) * 4
    if size >= LARGEST:
        found = f"{folder} has {size / 2**30:.1f} GiB of weights in float32"
        raise UsageError(found, option="onnx", needed="less than 2 GiB", fix="Export without an ONNX file.")
    model.set_attn_implementation("eager")
    with new_files(folder) as new:
        path = new / MODEL
        path.parent.mkdir()
        _trace(model, path)
        _refuse_difference(model, OnnxModel(path, model.config), encoder.tokenizer)
        for stale in (QUANTIZED, SCORES):
            (folder / stale).unlink(missing_ok=True)
    return folder / MODEL


@during("export to ONNX")
def quantize_onnx(folder: str | Path) -> Path:
    """Write `QUANTIZED` from `MODEL`: 8-bit linear layers and embedding tables, with dynamic scales of the activations.

    `per_channel` uses one scale per output of a layer. The embeddings are several times closer to float32 than with one
    scale per layer, at the same speed. `reduce_range` uses 7 of the 8 bits at almost no cost; without it, CPUs without
    VNNI overflow when they add two products in 16 bits. Unsigned weights do not overflow but are slower than float32.

    The sentences of a batch share the scale of the activations, so an embedding depends on its batch about as much as
    on the rounding to 8 bits. To compare embeddings exactly, use `MODEL` or a batch size of 1.

    Raises:
        UsageError: There is no `MODEL`, or packages are not installed.
    """
    require_packages(["onnx", "onnxruntime"])
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder = Path(folder)
    source = _file_of(folder, MODEL)
    with new_file(folder / QUANTIZED) as path, _quiet():
        quantize_dynamic(
            source,
            path,
            op_types_to_quantize=["MatMul", "Gather"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    return folder / QUANTIZED


def score_files(folder: str | Path, pairs: GradedPairs) -> dict[str, float]:
    """Return Spearman x 100 of each ONNX file of a folder by name, and write it to `SCORES` for the model card."""
    names = sorted(path.name for path in Path(folder, "onnx").glob("*.onnx"))
    scores = {name: score_pairs(load_onnx_encoder(folder, f"onnx/{name}"), pairs)["spearman"] for name in names}
    write_json(Path(folder, SCORES), {"pairs": pairs.name, "spearman": scores})
    return scores


def require_packages(names: Sequence[str] = ("onnx", "onnxscript", "onnxruntime")) -> None:
    """Raise UsageError if a package is not installed. The default is what `export_onnx` needs."""
    if absent := [name for name in names if find_spec(name) is None]:
        raise UsageError(
            f"Packages for ONNX are not installed: {', '.join(absent)}", fix=f"Run: pip install {' '.join(absent)}"
        )


def _trace(model: PreTrainedModel, path: Path) -> None:
    """Write the model without the exporter's metadata, such as stack traces with local paths."""
    import onnx

    names = input_names(model.config)
    with _quiet():
        program = torch.onnx.export(
            model,
            kwargs={name: torch.ones(2, 8, dtype=torch.long) for name in names},
            input_names=names,
            output_names=[OUTPUT],
            dynamic_shapes={name: {0: "batch_size", 1: "sequence_length"} for name in names},
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None  # with dynamo=True
    proto = program.model_proto
    graph = proto.graph
    for noted in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del noted.metadata_props[:]
        noted.doc_string = ""
    onnx.save(proto, path)


def _refuse_difference(model: PreTrainedModel, exported: OnnxModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise OnnxMismatchError if [CLS] or mean vectors differ, for a batch of two lengths or a single sentence."""
    longest = "word " * min(max_length(model.config, tokenizer), LONGEST)
    sentences = (longest, "Two men play chess in the park.", "A dog.")
    ours, theirs = (encode(either, tokenizer, sentences, 2, ("cls", "mean")) for either in (model, exported))
    difference = np.max([np.abs(ours[pooler] - theirs[pooler]).max() for pooler in ours])
    if not difference <= TOLERANCE:  # also true for NaN
        raise OnnxMismatchError(
            f"The ONNX file gives other embeddings than the model: a component differs by {difference:.1e}, more than "
            f"{TOLERANCE:.0e}. It was deleted."
        )


def _file_of(folder: str | Path, name: str) -> Path:
    path = Path(folder, name)
    if not path.is_file():
        maker = "quantize_onnx" if name == QUANTIZED else "export_onnx"
        raise UsageError(f"{folder} has no {name}", fix=f"Create it with `{maker}`.")
    return path


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warnings of the exporter and the quantizer, which concern only their own code.

    The quantizer logs with the root logger, which would add a handler permanently if it had none.
    """
    root, handler = logging.getLogger(), logging.NullHandler()
    disabled = root.manager.disable
    root.addHandler(handler)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.removeHandler(handler)
