"""What an index records about itself, and what it finds."""

from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from informin.errors import UsageError
from informin.evaluation.words import WORD_WEIGHT, versions
from informin.option_types import described, fits

RECORD = "index.json"


@dataclass(frozen=True)
class Hit:
    """A text that was found.

    Attributes:
        row: Number of the text, from 0 in the order in which texts were added.
        text: The text.
        score: The sum that hits are sorted by, in standard deviations.
        vector_score: Cosine of the vectors; their dot product for a model that is compared by it.
        word_score: BM25 score of the words.
        relevant: Whether the cosine is above the threshold, which at most about one unrelated text per query exceeds.
            None if the index has fewer than 100 texts or its texts form no topics.
        token_score: In an index with a second look, the mean over the query's tokens of their largest cosine to a token
            of the text, weighted by inverse document frequency. None in another index.
        id: Your own id of the text; None if it was added without one.
        fields: Further values that were added with the text, such as its title, by name.
    """

    row: int
    text: str
    score: float
    vector_score: float
    word_score: float
    relevant: bool | None
    token_score: float | None = None
    id: Any = None
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def shown_fields(self) -> dict[str, Any]:
        """The fields that are not empty."""
        return {name: value for name, value in self.fields.items() if value is not None}


@dataclass(frozen=True)
class IndexRecord:
    """What index.json holds.

    Attributes:
        model: Name or folder of the model.
        model_sha256: Checksum of the model.
        loading: Options of `load_model`.
        similarity: `dot` for a model that is compared by dot product, and `cosine` for others; empty until version 0.3.
        language, smooth, word_weight, prompt, query_prompt, queries, second_look: See `Index.build`.
        projected: Number of texts that the projection of the token vectors was fitted to; 0 without a second look.
        next_row: Number of the next text that is added.
        scores: `UnrelatedScores` of the texts; None for fewer than 100 texts, or if they form no topics.
        threshold: Cosine that at most about one unrelated text per query exceeds; None without `scores`.
        words: Versions of all that decides what the words of a text are. With other versions, words are built again.
        data: Name of the folder of the data.
        sizes: Bytes of each file in it.
        samples: Checksum of a part of each file; see `informin.search.files.sample_checksum`.
        texts_sha256: Checksum of the texts, whose order is that of the vectors.
    """

    model: str
    model_sha256: str
    loading: dict[str, Any] = field(default_factory=dict)
    similarity: str = ""
    language: str = "english"
    smooth: bool = False
    word_weight: float = WORD_WEIGHT
    prompt: str | None = None
    query_prompt: str | None = None
    queries: str = "model"
    second_look: bool = False
    projected: int = 0
    next_row: int = 0
    scores: dict[str, Any] | None = None
    threshold: float | None = None
    words: dict[str, Any] = field(default_factory=dict)
    data: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    samples: dict[str, str] = field(default_factory=dict)
    texts_sha256: str = ""

    @property
    def by_table(self) -> bool:
        """Whether queries are embedded by a table."""
        return self.queries == "table"

    @property
    def has_current_words(self) -> bool:
        """Whether this environment would split texts into the same words."""
        return self.words == versions()


def parse_record(values: dict[str, Any], name: str) -> IndexRecord:
    """Return the record in the values of an index.json.

    Args:
        name: Name of the file, for errors.

    Raises:
        UsageError: A value is missing, unknown to this version, or of another type.
    """
    known = fields(IndexRecord)
    required = {each.name for each in known if each.default is MISSING and each.default_factory is MISSING}
    missing = required - set(values)
    unknown = set(values) - {each.name for each in known}
    if missing or unknown:
        found = f"{name} has the unknown entry {min(unknown)!r}" if unknown else f"{name} lacks {min(missing)!r}"
        raise UsageError(found, fix="Build the index again, or use the version of informin that wrote it.")
    for each in known:
        if each.name in values and not fits(values[each.name], each.type):
            found = f"{name} has {values[each.name]!r:.60} as {each.name!r}"
            raise UsageError(found, needed=described(each.type), fix="Correct it, or build the index again.")
    return IndexRecord(**values)
