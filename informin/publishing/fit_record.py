"""The record of an adapter or a static model, stored as fit.json next to the weights; the card is generated from it."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from informin.files import read_json, write_json

FITTED = "fit.json"


@dataclass
class FitRecord:
    """What `informin fit` or `distill` did. It contains no path, user name or host name.

    Attributes:
        informin: Version of this package.
        base_model: name; hub_id (null for a folder); revision, a commit.
        task: clustering or search.
        texts: Number of texts that it was fitted on.
        dimensions: Of the new embeddings.
        options: Options of the adapter; none for a static model.
        drift: Changes to the embeddings, as in training.json; null if not measured.
        kind: adapter, or static for a table of token vectors.
        remote_code: Whether the model needs code from its repository.
        license: License of the source model, with its name and link if the Hub does not list it.
    """

    informin: str
    base_model: dict[str, Any]
    task: str
    texts: int
    dimensions: int
    options: dict[str, Any] = field(default_factory=dict)
    drift: dict[str, Any] | None = None
    remote_code: bool = False
    kind: str = "adapter"
    license: Any = None
    license_name: str | None = None
    license_link: str | None = None

    @classmethod
    def load(cls, folder: str | Path) -> "FitRecord | None":
        """Load the record of a folder; None if there is none."""
        path = Path(folder, FITTED)
        return cls(**read_json(path)) if path.is_file() else None

    def save(self, folder: str | Path) -> None:
        """Write fit.json."""
        write_json(Path(folder, FITTED), asdict(self))
