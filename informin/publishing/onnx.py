"""ONNX files of an exported encoder, for onnxruntime in any language, without torch.

    export_onnx("outputs/model")          # onnx/model.onnx
    quantize_onnx("outputs/model")        # onnx/model_quantized.onnx, a quarter of the size
    encode = load_onnx_encoder("outputs/model")
    embeddings = encode(["A dog."])       # (N, d), as by run_eval.py's pooler `auto`

`onnx/model.onnx` is the layout of optimum's feature-extraction export, which sentence-transformers (backend="onnx"),
transformers.js and text-embeddings-inference load by name: inputs input_ids, attention_mask and, of BERT and others,
token_type_ids, each (N, L) int64; output last_hidden_state (N, L, d), of which the reader makes the embedding. No
output `sentence_embedding`: text-embeddings-inference would take it whatever pooling it is asked for.
"""

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from informin.encoders.architectures import ARCHITECTURES, architecture_of
from informin.encoders.dense import Dense, load_dense
from informin.encoders.embedding_config import EmbeddingConfig, lower_case
from informin.encoders.encode import embed, encode, max_length
from informin.encoders.encoder import load_encoder
from informin.encoders.loading import load_config, load_tokenizer
from informin.encoders.sentence_transformers_files import load_embedding_config
from informin.errors import OnnxMismatchError, UsageError, error_line
from informin.evaluation import GradedPairs, score_pairs
from informin.files import write_json
from informin.interrupts import during
from informin.temporary import TemporaryFolder, new_file
from modeling_informin import has_pooler

MODEL = "onnx/model.onnx"
QUANTIZED = "onnx/model_quantized.onnx"  # transformers.js' name of 8 bits, which it takes in a browser unless told
SCORES = "onnx/scores.json"
OUTPUT = "last_hidden_state"
# The first that has GELU as one operator, which onnxruntime fuses with the bias. Read by onnxruntime 1.18 and newer.
OPSET = 20
TOLERANCE = 1e-4
LONGEST = 1_024  # tokens that a file is tried with: attention over the 8,192 of ModernBERT would take gigabytes


class OnnxModel(nn.Module):
    """An ONNX file in the place of the encoder that `encode` runs, on as many threads as torch would use."""

    device = torch.device("cpu")

    def __init__(self, path: Path, config: PreTrainedConfig):
        from onnxruntime import InferenceSession, SessionOptions

        super().__init__()
        self.config, self.names = config, architecture_of(config).onnx_inputs
        options = SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> BaseModelOutput:
        """(N, L) ids and mask of one sentence each to (N, L, d)."""
        types = torch.zeros_like(input_ids)
        tokens = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": types}
        (hidden,) = self.session.run([OUTPUT], {name: tokens[name].numpy() for name in self.names})
        return BaseModelOutput(last_hidden_state=torch.from_numpy(hidden))


@dataclass
class OnnxEncoder:
    """Computes the embeddings (N, d) float32 of N sentences with an ONNX file, as `embedding` says."""

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
    """The encoder in an ONNX file of an exported folder, with the folder's tokenizer.

    The file is `MODEL`, `QUANTIZED` or another of this layout, relative to the folder. A folder that does not say how
    the embedding is read is read at [CLS].

    Raises:
        UsageError: no such file, one that onnxruntime cannot read, an encoder whose reading is not known here, or
            onnxruntime is not installed.
    """
    require_packages(["onnxruntime"])
    path = _file_of(folder, file)
    config = load_config(str(folder))
    embedding = load_embedding_config(str(folder), config)
    dense = load_dense(str(folder), embedding.adapter, config.hidden_size) if embedding.adapter else None
    embedding = replace(embedding, adapter=None).for_training("auto", None)
    try:
        model = OnnxModel(path, config)
    except Exception as error:  # onnxruntime's errors have no base class of their own
        raise UsageError(f"{path} cannot be read: {error_line(error)}", fix="Create it again.") from None
    tokenizer = load_tokenizer(str(folder), config)
    lower_case(tokenizer, embedding)
    return OnnxEncoder(model, tokenizer, batch_size, embedding, dense)


@during("export to ONNX")
def export_onnx(folder: str | Path) -> Path:
    """Writes `MODEL`, in float32, for 1 and more sentences of up to the full length; returns its path.

    The folder has a model of `ARCHITECTURES`, of this project or not, and its tokenizer.

    By torch.onnx.export(dynamo=True): the TorchScript exporter gives a file as good, but is deprecated. The attention
    is transformers' `eager` one: `sdpa` becomes guards against rows without a token, which cost a tenth of the speed.

    The file takes its place once it gives the embeddings that the model gives, of a short sentence alone and of a batch
    up to the full length. `QUANTIZED` and `SCORES` are removed: they may be of other weights.

    Raises:
        UsageError: no such model, or the packages are not installed.
        OnnxMismatchError: the file and the model disagree.
    """
    require_packages()
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json", needed="an exported model")
    refuse_no_file(folder)
    encoder = load_encoder(str(folder), ("cls",), device="cpu")
    model = encoder.model.base_model
    if has_pooler(type(model)):
        model.pooler = None  # BERT's own, where a checkpoint has one: not our embedding, and a second output
    model.set_attn_implementation("eager")
    with TemporaryFolder(folder) as unfinished:
        path = Path(unfinished, "model.onnx")
        _trace(model, path)
        _refuse_difference(model, OnnxModel(path, model.config), encoder.tokenizer)
        (folder / "onnx").mkdir(exist_ok=True)
        for stale in (QUANTIZED, SCORES):
            (folder / stale).unlink(missing_ok=True)
        os.replace(path, folder / MODEL)
    return folder / MODEL


def refuse_no_file(folder: str | Path) -> None:
    """UsageError for a model that cannot be trained here, or of whose architecture no ONNX file is made."""
    config = load_config(str(folder))
    if architecture_of(config).onnx_inputs is None:
        able = ", ".join(name for name, row in ARCHITECTURES.items() if row.onnx_inputs)
        raise UsageError(
            f"The architecture {config.model_type!r} cannot be exported to ONNX",
            needed=f"one of: {able}",
            fix="Export without `onnx`.",
        )


@during("export to ONNX")
def quantize_onnx(folder: str | Path) -> Path:
    """Writes `QUANTIZED` from `MODEL`: linear layers and embedding tables in 8 bits, activations scaled as they come.

    `per_channel`, one scale for each output of a layer, is several times nearer to float32 than one scale for all, at
    the same speed. `reduce_range`, 7 bits of the 8, costs next to nothing; without it CPUs that lack VNNI instructions
    overflow, for they add two products in 16 bits. Unsigned weights do not, but run slower than float32.

    An embedding depends on the other sentences of its batch, which share the scale of the activations, about as much as
    on the 8 bits. Embeddings to be compared exactly need `MODEL`, or a batch of 1.

    Raises:
        UsageError: there is no `MODEL`, or the packages are not installed.
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
    """Spearman x 100 of each ONNX file of a folder, by name; kept in `SCORES` for the model card."""
    names = sorted(path.name for path in Path(folder, "onnx").glob("*.onnx"))
    scores = {name: score_pairs(load_onnx_encoder(folder, f"onnx/{name}"), pairs)["spearman"] for name in names}
    write_json(Path(folder, SCORES), {"pairs": pairs.name, "spearman": scores})
    return scores


def require_packages(names: Sequence[str] = ("onnx", "onnxscript", "onnxruntime")) -> None:
    """UsageError where one is not installed; together they are what exporting needs, and nothing else here does."""
    if absent := [name for name in names if find_spec(name) is None]:
        raise UsageError(
            f"Packages for ONNX are not installed: {', '.join(absent)}", fix=f"Run: pip install {' '.join(absent)}"
        )


def _trace(model: PreTrainedModel, path: Path) -> None:
    """Writes the model without what the exporter notes beside it: stack traces with the paths of this machine."""
    import onnx

    names = architecture_of(model.config).onnx_inputs
    with _quiet():
        proto = torch.onnx.export(
            model,
            kwargs={name: torch.ones(2, 8, dtype=torch.long) for name in names},
            input_names=names,
            output_names=[OUTPUT],
            dynamic_shapes={name: {0: "batch_size", 1: "sequence_length"} for name in names},
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        ).model_proto
    graph = proto.graph
    for noted in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del noted.metadata_props[:]
        noted.doc_string = ""
    onnx.save(proto, path)


def _refuse_difference(model: PreTrainedModel, exported: OnnxModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """OnnxMismatchError where [CLS] or mean vectors differ, of a batch of two lengths or of a sentence alone."""
    longest = "word " * min(max_length(model.config, tokenizer), LONGEST)
    sentences = (longest, "Two men play chess in the park.", "A dog.")
    ours, theirs = (encode(either, tokenizer, sentences, 2, ("cls", "mean")) for either in (model, exported))
    difference = np.max([np.abs(ours[pooler] - theirs[pooler]).max() for pooler in ours])
    if not difference <= TOLERANCE:  # so that NaN is refused
        raise OnnxMismatchError(
            f"The ONNX file gives other embeddings than the model: a component differs by {difference:.1e}, and "
            f"{TOLERANCE:.0e} was allowed. It was not kept."
        )


def _file_of(folder: str | Path, name: str) -> Path:
    path = Path(folder, name)
    if not path.is_file():
        maker = "quantize_onnx" if name == QUANTIZED else "export_onnx"
        raise UsageError(f"{folder} has no {name}", fix=f"Create it with `{maker}`.")
    return path


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of exporter and quantizer, which are about their own insides.

    The quantizer logs by the root logger, which would get a handler for good: it has one meanwhile.
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
