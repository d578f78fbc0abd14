"""The records from which model cards are generated: of a run (training.json), and of a fit (fit.json).

They contain no path, user name or host name: of files and folders, only the last part of the path.
"""

from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from safetensors import SafetensorError, safe_open
from typing_extensions import Self

from informin import __version__
from informin.errors import UsageError
from informin.files import read_json, write_json

TRAINING = "training.json"
FITTED = "fit.json"
HEADS_FILE = "heads.safetensors"  # in checkpoints: the projection head, the language-model head, and those of the terms
ADAPTER = "adapter.safetensors"  # a fit of embeddings without a model
ADAPTER_FORMAT = "informin-linear-adapter"  # in its metadata


class Record:
    """A dataclass that is saved as a JSON file.

    Attributes:
        file: Name of the file.
    """

    file: ClassVar[str]

    @classmethod
    def load(cls, folder: str | Path) -> Self | None:
        """Return the record in a folder; None without its file. Entries that this version does not know are ignored."""
        path = Path(folder, cls.file)
        if not path.is_file():
            return None
        names = {declared.name for declared in fields(cls)}  # type: ignore[arg-type]  # of the subclasses
        return cls(**{name: value for name, value in read_json(path).items() if name in names})

    @classmethod
    def is_in(cls, folder: str | Path) -> bool:
        """Return whether a folder has the file. Another program may have written one of this name."""
        with suppress(OSError, UsageError):
            return "informin" in read_json(Path(folder, cls.file))
        return False

    def save(self, folder: str | Path) -> None:
        """Write the file."""
        write_json(Path(folder, self.file), asdict(self))  # type: ignore[call-overload]


@dataclass
class RunRecord(Record):
    """What a run did.

    Attributes:
        informin: Version of this package.
        base_model: The source model: name; hub_id (None for a folder); revision, a commit; weights_sha256, as in
            results of `informin eval`; settings_sha256, of its configuration and tokenizer. None for one in memory.
        data: sources, file names or a Hub id; hub_id (None for files); description; sentences, their number; sha256 of
            the sentences in order (both None for a stream).
        inputs: Checksums of what else training reads: tokenized rows, and the sentences of a guide with its model.
        language, license, license_name, license_link: For the card; None if unknown.
        objective: name; title; active terms in order, each with name, title, paper (a file in
            informin/templates/citations, or None) and own (False if an option added it to the objective).
        seed, options: Every option that affects the weights.
        development: Name of the development sets; None without evaluation. development_sha256, their checksum;
            development_sets, with kind (pairs, labels, retrieval) and name of each.
        history: step and measures of each evaluation, named as in `informin.evaluation.measures`, and scores of the
            user's own evaluations; None: undefined.
        dimensions: Of the embeddings of a SentenceTransformer; None for native encoders.
        remote_code: Whether the model needs code from its repository; None for native encoders.
        steps, kept_step: Number of steps taken, and the step whose weights were kept. chosen: they had the best
            score of the checkpoints.
        drift: Changes to the embeddings: sentences, their number; old and new, the measures of
            `informin.evaluation.drift`; warnings. None if not measured, and in checkpoints.
        sentences_per_second: Training speed of all processes together; None in checkpoints.
        environment: Versions, device and number of threads.
    """

    file: ClassVar[str] = TRAINING

    seed: int
    options: dict[str, Any]
    objective: dict[str, Any]
    steps: int
    kept_step: int
    chosen: bool
    environment: dict[str, Any]
    base_model: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    language: str | None = None
    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    development: str | None = None
    development_sha256: str | None = None
    development_sets: list[dict[str, str]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    dimensions: int | None = None
    remote_code: bool | None = None
    drift: dict[str, Any] | None = None
    sentences_per_second: float | None = None
    informin: str = __version__


@dataclass
class FitRecord(Record):
    """What `informin fit` or `distill` did.

    Attributes:
        informin: Version of this package.
        base_model: name; hub_id (null for a folder); revision, a commit.
        task: clustering or search.
        texts: Number of texts that it was fitted on.
        dimensions: Of the new embeddings.
        options: Options of the adapter; none for a static model.
        drift: Changes to the embeddings, as in training.json; null if not measured.
        precision: Precision of the weights that embedded the texts; null for given embeddings, and in older records.
        kind: adapter, or static for a table of token vectors.
        remote_code: Whether the model needs code from its repository.
        license: License of the source model, with its name and link if the Hub does not list it.
    """

    file: ClassVar[str] = FITTED

    informin: str
    base_model: dict[str, Any]
    task: str
    texts: int
    dimensions: int
    options: dict[str, Any] = field(default_factory=dict)
    drift: dict[str, Any] | None = None
    precision: str | None = None
    remote_code: bool = False
    kind: str = "adapter"
    license: Any = None
    license_name: str | None = None
    license_link: str | None = None


def has_adapter(folder: str | Path) -> bool:
    """Return whether a folder has the adapter of a fit of embeddings."""
    with suppress(OSError, SafetensorError), safe_open(Path(folder, ADAPTER), "np") as file:
        return (file.metadata() or {}).get("format") == ADAPTER_FORMAT
    return False
