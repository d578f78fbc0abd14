"""The verdict of a report: whether the run helped, in one sentence, and how reliable that is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from informin.adapters.halves import RECORD
from informin.adapters.prediction import (
    FEWEST,
    HELPS,
    HURTS,
    UNCLEAR,
    Prediction,
    track_record,
)
from informin.errors import counted
from informin.evaluation.measures import ALL

UNITS = {"pairs": "pair", "labels": "sentence", "retrieval": "query"}
SYMBOLS = {"good": "▲", "unclear": "●", "bad": "▼"}


@dataclass(frozen=True)
class Verdict:
    """A verdict.

    Attributes:
        kind: good, unclear or bad.
        word: The verdict in a few words.
        sentence: What was found.
        reliability: How far to trust it.
    """

    kind: str
    word: str
    sentence: str
    reliability: str

    @property
    def symbol(self) -> str:
        """A sign that does not depend on color."""
        return SYMBOLS[self.kind]

    def __str__(self) -> str:
        return f"{self.word}. {self.sentence} {self.reliability}"


def of_fit(record: Mapping) -> Verdict:
    """Return the verdict of `informin fit`, which predicts without labels."""
    found = record["prediction"]
    measure = "Score both models on your own labels or queries with informin eval before you rely on it."
    if found is None:
        sentence = "Embeddings alone cannot be judged, because halves of texts must be embedded for that."
        return Verdict("unclear", "No evidence", sentence, f"Give the model to get a verdict. {measure}")
    predicted = Prediction(*(found[field.name] for field in fields(Prediction)))
    if predicted.texts < FEWEST:
        sentence = f"Only {counted(predicted.texts, 'text')} of four words or more could be held out."
        return Verdict("unclear", "No evidence", sentence, f"A verdict needs {FEWEST} or more. {measure}")
    chosen = record["options"]["preset"] == "auto"
    kind = {HELPS: "good", UNCLEAR: "unclear", HURTS: "bad"}[predicted.verdict]
    trust = f"This is a prediction without labels. {track_record(predicted.verdict, chosen)} {measure}"
    return Verdict(kind, predicted.verdict.capitalize(), predicted.rank_change, trust)


def of_training(scores: Sequence[Mapping], chosen: bool, evaluated: bool) -> Verdict:
    """Return the verdict of a training run: whether the interval of the change of the first score excludes 0.

    Args:
        scores: Entry `scores` of report.json.
        chosen: Whether the checkpoint was chosen by these scores.
        evaluated: Whether the run was scored, if only without intervals.
    """
    if not scores and evaluated:
        sentence = "The scores have no intervals, so it is unknown whether their change is more than chance."
        advice = "Intervals need measure_drift, the original encoder and 30 distinct sentences."
        return Verdict("unclear", "No evidence", sentence, advice)
    if not scores:
        sentence = (
            "The run has no scores before and after on evaluation data, and nothing else shows whether it helped."
        )
        advice = "Train with labeled evaluation data, or score both models with informin eval."
        return Verdict("unclear", "No evidence", sentence, advice)
    first, *others = scores
    change, low, high = first["difference"]
    kind, word = ("good", "Helped") if low > 0 else ("bad", "Hurt") if high < 0 else ("unclear", "No evidence")
    sentence = (
        f"{ALL[first['measure']].title} on {first['name']} changed by {change:+.2f} (95% interval {low:+.2f} to "
        f"{high:+.2f}, {_units(first)})."
    )
    if against := [one for one in others if kind == "good" and one["difference"][2] < 0]:
        listed = ", ".join(f"{ALL[one['measure']].title} on {one['name']}" for one in against)
        kind, word, sentence = "unclear", "Mixed", f"{sentence} But it made {listed} worse."
    trust = "The interval covers the choice of these examples, not the seed: repeat the run with informin study."
    if chosen:
        trust = f"The saved checkpoint was chosen by scores on these data, which makes it look a little better. {trust}"
    return Verdict(kind, word, sentence, trust)


def of_comparison(models: Sequence[Mapping]) -> Verdict:
    """Return the verdict of `informin compare` on the models of compare.json, best first."""
    scored = [model for model in models if "rank" in model]
    right = {name: f"{found} of {pairs}" for name, (found, pairs) in RECORD.items()}
    trust = (
        f"This is a prediction without labels. In our tests, the model with the lower rank had the better score in "
        f"{right['all']} pairs of models, and in {right['clear']} with a clear difference."
    )
    if len(scored) < 2:
        return Verdict("unclear", "No evidence", "Fewer than two models could be ranked.", trust)
    best, *others = scored
    close = [model["model"] for model in others if not model["clear"]]
    found = f"{best['model']} finds the second half of a text best from its first half (rank {best['rank']:.2f})."
    if not close:
        return Verdict("good", "A clear best", f"{found} All other models are clearly behind.", trust)
    return Verdict("unclear", "No clear best", f"{found} Not clearly behind: {', '.join(close)}.", trust)


def _units(entry: Mapping) -> str:
    noun = UNITS[entry["kind"]]
    return f"{entry['n']:,} queries" if noun == "query" and entry["n"] != 1 else counted(entry["n"], noun)
