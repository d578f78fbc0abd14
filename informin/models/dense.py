"""The Dense module of an adapted model: a matrix for unit-length embeddings, in sentence-transformers' format."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from informin.errors import UsageError, error_line
from informin.files import write_json
from informin.models.checkpoint import Checkpoint

IDENTITY = "torch.nn.modules.linear.Identity"
WEIGHT, BIAS = "linear.weight", "linear.bias"  # sentence-transformers' names


@dataclass(frozen=True)
class Dense:
    """An affine map of embeddings of unit length.

    Attributes:
        weight: (m, d) float32, with m up to d.
        bias: (m,) float32.
    """

    weight: np.ndarray
    bias: np.ndarray

    def __call__(self, embeddings: np.ndarray, normalize: bool) -> np.ndarray:
        """Return the mapped embeddings (N, m) float32, scaled to unit length if `normalize` is set."""
        mapped = embeddings @ self.weight.T + self.bias
        if normalize:
            mapped /= np.linalg.norm(mapped, axis=-1, keepdims=True).clip(min=1e-12)
        return mapped

    def sha256(self) -> str:
        return hashlib.sha256(self.weight.tobytes() + self.bias.tobytes()).hexdigest()

    def save(self, folder: Path) -> None:
        """Write `config.json` and `model.safetensors` into a new folder."""
        folder.mkdir()
        width_out, width_in = self.weight.shape
        settings = {"in_features": width_in, "out_features": width_out, "bias": True, "activation_function": IDENTITY}
        write_json(folder / "config.json", settings, indent=2)
        save_file({WEIGHT: self.weight, BIAS: self.bias}, folder / "model.safetensors", {"format": "pt"})


def dense_problem(checkpoint: Checkpoint, path: str) -> str | None:
    """Return why a Dense module cannot be used here, or None: it must be affine, without more outputs than inputs."""
    settings = checkpoint.json(f"{path}/config.json")
    sizes = [settings.get(name) for name in ("in_features", "out_features")]
    narrows = all(type(size) is int for size in sizes) and 1 <= sizes[1] <= sizes[0]
    if not narrows or not settings.get("bias", True) or settings.get("activation_function") != IDENTITY:
        return "its Dense module is not an affine map without more outputs than inputs"
    return None


def load_dense(checkpoint: Checkpoint, path: str, width: int) -> Dense:
    """Load the Dense module in a folder of a model.

    Raises:
        UsageError: The file is missing, damaged, or has other shapes than (m, width) and (m,), with m up to the width.
    """
    file = checkpoint.path(f"{path}/model.safetensors")
    fix = "Copy the model again from its source."
    if file is None:
        raise UsageError(f"{checkpoint}: {path}/model.safetensors is missing", option="model_name", fix=fix)
    try:
        tensors = load_file(file)
        dense = Dense(tensors[WEIGHT].astype(np.float32), tensors[BIAS].astype(np.float32))
    except (SafetensorError, OSError, KeyError) as error:
        raise UsageError(f"{checkpoint}: {path}/model.safetensors: {error_line(error)}", option="model_name") from None
    outputs = len(dense.bias) if dense.bias.ndim == 1 else 0
    fits = dense.weight.shape == (outputs, width) and 1 <= outputs <= width
    if not fits or not (np.isfinite(dense.weight).all() and np.isfinite(dense.bias).all()):
        found = f"{checkpoint}: {path}/model.safetensors does not contain finite numbers of the model's width {width}"
        raise UsageError(found, option="model_name", fix=fix)
    return dense
