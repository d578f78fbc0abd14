"""Records of runs for the tests of the report."""

import re

import numpy as np

from informin.evaluation.snapshot import take_snapshot

SCRIPT = "<script>alert(1)</script>"
ARABIC = "القطة نائمة على السجادة"
LONG = "x" * 10_000
HOSTILE = (SCRIPT, ARABIC, LONG, 'a "quoted" & <b>bold</b> text\N{RIGHT-TO-LEFT OVERRIDE}', "{{ 7 * 7 }} {% if %}")
MEASURES = dict.fromkeys(
    ("neighbors_kept", "rotated_cosine", "alignment", "neighbor_distance", "uniformity", "effective_rank", "hubness"),
    1.0,
)
DRIFT = {
    "sentences": 60,
    "old": MEASURES | {"stsb_dev": None},
    "new": MEASURES | {"neighbors_kept": 83.5, "stsb_dev": None},
    "warnings": ["created hubs: <i>"],
}


def texts(number: int = 60) -> list[str]:
    """Return distinct sentences, hostile ones first."""
    return [*HOSTILE, *(f"sentence {i}" for i in range(number - len(HOSTILE)))]


def embeddings(seed: int, noise: float = 0.0):
    """Return an encode function of random vectors, the same for each text, plus noise of this size."""

    def encode(some):
        x = np.array([np.random.default_rng(list(text.encode()[:50])).normal(size=8) for text in some])
        return x + noise * np.random.default_rng(seed).normal(size=x.shape)

    return encode


def snapshot() -> dict:
    """Return a snapshot of the hostile sentences."""
    return take_snapshot(texts(), embeddings(0), embeddings(1, 0.5))


def fit_record(found: dict) -> dict:
    """Return the content of report.json of a fit with this snapshot."""
    return {
        "schema": 1,
        "command": "fit",
        "informin": "0.2.0",
        "snapshot": found,
        "general": DRIFT,
        "model": "tiny",
        "texts": 60,
        "dimensions": 8,
        "options": {"preset": "auto", "n_neighbors": 10, "prompt": SCRIPT},
        "strength": 0.5,
        "prediction": {"gain": 0.5, "error": 0.1, "texts": 80, "halves": 0.5, "verdict": "likely to help"},
        "curve": [{"dimension": 8, "rank": 2.0, "loss": 0.0, "error": 0.0}],
        "drift": DRIFT,
        "environment": {"device": "cpu", "torch": "2.13"},
    }


def comparison_record() -> dict:
    """Return the content of compare.json for two models."""
    names = ("tiny", SCRIPT)
    side = dict(adapted=2.5, low=0.9, high=1.1, texts_per_second=None)
    cells = {"rank": "3.00", "of the best": "1.00x", "texts/s": None}
    shown = {
        "title": "Rank of the second half",
        "columns": list(cells),
        "rows": [{"label": name, "values": cells} for name in names],
        "notes": ["rank: 1 is best"],
    }
    return {
        "data": {"files": ["texts.txt"], "seed": 0, "texts": 300, "sampled": 300, "held_out": 60},
        "environment": {"device": "cpu", "torch": "2.13"},
        "models": [{"model": name, "error": None, "rank": 3.0 + i, "clear": True} for i, name in enumerate(names)],
        "shown": shown,
        "figure": [{"name": name, "rank": 3.0 + i, **side} for i, name in enumerate(names)],
    }


def addresses(html: str) -> list[str]:
    """Return what a browser would load from or link to elsewhere."""
    found = re.findall(r"(?:src|href|action|data|poster|srcset)\s*=\s*[\"']?([^\"'\s>]+)", html)
    found += re.findall(r"url\(([^)]*)\)", html) + re.findall("@import.*", html) + re.findall(r"https?://\S+", html)
    return [one for one in found if not one.startswith("#")]
