"""Collect the cells of long_texts.py: a JSON file, Markdown tables, and a figure of quality against CPU seconds."""

from collections import defaultdict
from pathlib import Path

import matplotlib
import numpy as np

from informin.evaluation.retrieval_table import randomization_test
from informin.files import read_json, write_json

THEN = ", then matrix"
MAIN = ("nDCG@10", "1-NN")  # the score of the figure, in a collection or a domain
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
TITLES = {
    "matrix": "matrix (LinearAdapter)",
    "whitening": "whitening (Su et al., 2021)",
    "tsdae": "TSDAE",
    "simcse": "SimCSE",
    "contriever": "independent crops (Contriever)",
}
MARKERS = "os^Dv<>Ph*Xd8p"


def collect(folder: Path, table: Path, figure: Path | None) -> None:
    """Write the means over seeds as JSON, print them, and draw them."""
    rows = [row for path in sorted(folder.glob("*/*.json")) for row in rows_of(read_json(path))]
    machines = {str(read_json(path)["machine"]): read_json(path)["machine"] for path in folder.glob("*/*.json")}
    found = {}
    for data in sorted({row["data"] for row in rows}):
        found[data] = summary([row for row in rows if row["data"] == data])
        print(f"\n{markdown(data, found[data])}")
    write_json(table, {"machines": list(machines.values()), "data": found})
    if figure:
        draw(found, figure)


def rows_of(cell: dict) -> list[dict]:
    """Return the rows of a cell: the method and, for a trained model, the method followed by the matrix."""
    common = {name: cell[name] for name in ("data", "method", "seed")}
    rows = [common | {name: cell[name] for name in ("scores", "cpu", "per_query")}]
    if "then" in cell:
        rows.append(common | cell["then"] | {"method": cell["method"] + THEN})
    return rows


def summary(rows: list[dict]) -> list[dict]:
    """Return mean and standard deviation over seeds for each method, and p values of nDCG@10 over queries."""
    methods: dict[str, list[dict]] = defaultdict(list)
    for row in rows:
        methods[row["method"]].append(row)
    by_query = {name: np.mean([row["per_query"] for row in runs], axis=0) for name, runs in methods.items()
                if runs[0]["per_query"]}  # fmt: skip
    found = []
    for name, runs in methods.items():
        scores = {key: [row["scores"][key] for row in runs] for key in runs[0]["scores"]}
        p = {base: randomization_test(by_query[name], by_query[base]) for base in ("before", "matrix")
             if name in by_query and base in by_query and base != name}  # fmt: skip
        found.append({
            "method": name, "seeds": [row["seed"] for row in runs], "cpu": float(np.mean([row["cpu"] for row in runs])),
            "scores": {key: [float(np.mean(x)), float(np.std(x, ddof=1)) if len(x) > 1 else None]
                       for key, x in scores.items()},
            "p": p,
        })  # fmt: skip
    first = {"before": 0, "matrix": 1}
    return sorted(found, key=lambda row: (first.get(row["method"], 2), row["method"]))


def markdown(data: str, rows: list[dict]) -> str:
    """Return a table of one data set. STS-B dev is shown as the change from before."""
    keys = list(rows[0]["scores"])
    with_p = any(row["p"] for row in rows)
    before = next((row["scores"]["STS-B dev"][0] for row in rows if row["method"] == "before"), 0.0)
    titles = [*keys[:-1], "STS-B dev", *(["p, before", "p, matrix"] if with_p else []), "seeds", "CPU seconds"]
    lines = [f"| {data} | " + " | ".join(titles) + " |", "| --- |" + " ---: |" * len(titles)]
    for row in rows:
        cells = [shown(*row["scores"][key]) for key in keys[:-1]]
        general = row["scores"]["STS-B dev"][0]
        cells.append(f"{general:.2f}" if row["method"] == "before" else f"{general - before:+.2f}")
        cells += [f"{row['p'][base]:.4f}" if base in row["p"] else "" for base in ("before", "matrix")] * with_p
        seeds = " ".join(map(str, row["seeds"])) if row["seeds"] != [0] else ""
        lines.append("| " + " | ".join([titled(row["method"]), *cells, seeds, f"{row['cpu']:.0f}"]) + " |")
    return "\n".join(lines)


def titled(method: str) -> str:
    base = method.removesuffix(THEN)
    return TITLES.get(base, base) + method[len(base) :]


def shown(mean: float, deviation: float | None) -> str:
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def draw(found: dict[str, list[dict]], path: Path) -> None:
    """Draw the change of the main score against CPU seconds, one panel per data set."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = sorted(found, key=lambda name: (name != "CISI", name))
    scored = {name: found[name] for name in names if set(MAIN) & set(found[name][0]["scores"]) and len(found[name]) > 2}
    methods = list(
        dict.fromkeys(row["method"] for rows in scored.values() for row in rows if row["method"] != "before")
    )
    bases = list(dict.fromkeys(name.removesuffix(THEN) for name in methods))
    columns = min(3, len(scored) + 1)  # the last cell has the legend
    lines = -(-(len(scored) + 1) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.2 * columns, 3.9 * lines), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(scored) :]:
        axis.axis("off")
    handles = {}
    for axis, (data, rows) in zip(axes.flat, scored.items()):
        main = next(key for key in MAIN if key in rows[0]["scores"])
        start = next(row["scores"][main][0] for row in rows if row["method"] == "before")
        for row in rows:
            base = row["method"].removesuffix(THEN)
            if row["method"] == "before":
                continue
            color, filled = (
                f"C{bases.index(base)}" if bases.index(base) < 10 else "black",
                not row["method"].endswith(THEN),
            )
            mean, deviation = row["scores"][main]
            marks = axis.errorbar(
                row["cpu"], mean - start, deviation, fmt=MARKERS[bases.index(base) % len(MARKERS)], color=color,
                markerfacecolor=color if filled else "none", markersize=8, label=titled(row["method"]),
            )  # fmt: skip
            handles.setdefault(titled(row["method"]), marks)
        axis.axhline(0, color="gray", linewidth=0.8)
        axis.set(xscale="log", xlabel="CPU seconds, log scale", title=f"{data}: {main} {start:.1f} before")
        axis.set_xlim(0.6 * min(row["cpu"] for row in rows if row["cpu"]), 1.6 * max(row["cpu"] for row in rows))
        axis.set_xticks([tick for tick in TICKS if axis.get_xlim()[0] < tick < axis.get_xlim()[1]])
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.minorticks_off()
    for line in axes:
        line[0].set_ylabel("change of the score, points")
    axes.flat[len(scored)].legend(handles.values(), handles, loc="upper left", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
