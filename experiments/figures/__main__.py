"""Draw the papers' figures for any models, as PNG, SVG and CSV.

python -m experiments.figures alignment --model_name A B C             # alignment, uniformity, STS average
python -m experiments.figures information --model_name A B --train_file FILE
python -m experiments.figures tsne --model_name A B --train_file FILE
python -m experiments.figures cosines --model_name A B                   # also K-means and scatter of similar pairs
python -m experiments.figures attention --model_name A B --train_file FILE
python -m experiments.figures geometry --study experiments/results/studies/main-small/summary.json
python -m experiments.figures redundancy --model_name A B --train_file FILE --compare C
python -m experiments.figures drift --model_name NEW --compare OLD --train_file FILE
python -m experiments.figures curves --run outputs/quickstart
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from experiments.figures import plots
from experiments.figures.attention import attention_by_layer
from experiments.figures.information import information as information_of
from experiments.figures.redundancy import probe
from experiments.figures.similar_pairs import measure_pairs
from experiments.published import published
from experiments.tables import markdown, read_summary
from informin.evaluation.drift import draw, measure_drift, stsb_dev
from informin.evaluation.evaluate import load_tasks, score_model
from informin.evaluation.labels import load_labels
from informin.evaluation.pairs import cosine, score_pairs
from informin.evaluation.senteval import STS_TASKS, load_stsb, senteval_folder
from informin.model.embedding import encode_in_shares
from informin.model.open import load_model
from informin.texts import read_texts

Files = list[Path]
GEOMETRY = ("alignment", "uniformity")


@dataclass
class Named:
    """A model with the name that figures show, and its encode()."""

    name: str
    model: object

    def __call__(self, texts) -> np.ndarray:
        return encode_in_shares(self.model, list(texts), title=self.name)


def models(args: argparse.Namespace, names: list[str]) -> Iterator[Named]:
    for name in names:
        yield Named(Path(name).name, load_model(name, pooler=args.pooler, device=args.device))


def sample(args: argparse.Namespace) -> list[str]:
    """Return a random sample of the distinct texts of a file."""
    return draw(list(dict.fromkeys(read_texts(args.train_file))), args.max_sentences, args.seed)


def alignment(args: argparse.Namespace) -> Files:
    """Alignment and uniformity on STS-B dev, colored by the average of the 7 STS tests."""
    folder, rows = senteval_folder(args.senteval_dir), []
    pairs, tasks = load_stsb(folder, args.split), load_tasks(folder, STS_TASKS)
    for encode in models(args, args.model_name):
        average = score_model(encode.model, tasks).average["sts"]
        rows.append({"name": encode.name, "sts_average": average} | score_pairs(encode, pairs))
    columns = ("uniformity", "alignment", "sts_average")
    cells = [[row["name"], *(f"{row[column]:.3f}" for column in columns)] for row in rows]
    print(markdown(pairs.name, ("", *columns), cells))
    labels = ("uniformity: log mean exp(-2 squared distance)", "alignment: mean squared distance of positive pairs")
    return plots.plane(rows, "uniformity", "alignment", labels, f"{pairs.name}, lower is better", args.output)


def information(args: argparse.Namespace) -> Files:
    """InfoNCE bound and conditional entropy of two dropout views of each text."""
    texts, rows = sample(args), []
    for encode in models(args, args.model_name):
        rows.append({"name": encode.name, "sts_average": None} | information_of(encode.model, texts))
    print(markdown("Nats per dimension, nats", ("", "conditional entropy", "InfoNCE bound"), _cells(rows)))
    labels = ("conditional entropy of one view given the other, nats per dimension", "InfoNCE bound, nats")
    title = f"{len(texts):,} texts, two dropout views"
    return plots.plane(rows, "conditional_entropy", "infonce_bound", labels, title, args.output)


def _cells(rows: list[dict]) -> list[list[str]]:
    return [[row["name"], f"{row['conditional_entropy']:.3f}", f"{row['infonce_bound']:.3f}"] for row in rows]


def tsne(args: argparse.Namespace) -> Files:
    """t-SNE of texts, colored by --label_column, else by K-means cluster."""
    texts, labels = sample(args), []
    if args.label_column:
        labeled = load_labels(args.train_file, "train_file", label_column=args.label_column)
        label_of = dict(zip(labeled.sentences, labeled.labels))
        texts = [text for text in texts if text in label_of]
        labels = [label_of[text] for text in texts]
    panels = [(encode.name, *plots.project(encode(texts), seed=args.seed)) for encode in models(args, args.model_name)]
    return plots.tsne(panels, texts, args.output, labels)


def cosines(args: argparse.Namespace) -> Files:
    """Cosine of STS-B pairs against their gold score."""
    pairs = load_stsb(senteval_folder(args.senteval_dir), args.split)
    panels, rows = [], {}
    for encode in models(args, args.model_name):
        x, y = encode(pairs.sentences1), encode(pairs.sentences2)
        panels.append((encode.name, cosine(x, y), pairs.scores))
        rows[encode.name] = measure_pairs(x, y, cosine(x, y), pairs)
        print(encode.name, json.dumps(rows[encode.name]), flush=True)
    cells = [[name, *(f"{value:.3f}" for value in row.values())] for name, row in rows.items()]
    print(markdown(f"Similar pairs of {pairs.name}", ("", *next(iter(rows.values()))), cells))
    return plots.cosine_against_gold(panels, args.output)


def attention(args: argparse.Namespace) -> Files:
    """Mutual information of the attention maps of two dropout views, and their distribution, by layer."""
    texts, rows = sample(args), []
    for encode in models(args, args.model_name):
        rows += [{"name": encode.name} | row for row in attention_by_layer(encode.model, texts)]
    columns = ("layer", "mutual_information", "probabilities", "logarithms")
    cells = [[row["name"], str(row["layer"]), *(f"{row[name]:.3f}" for name in columns[1:])] for row in rows]
    print(markdown("Nats; Kolmogorov-Smirnov distance to normal", ("", *columns), cells))
    return plots.attention(rows, args.output)


def geometry(args: argparse.Namespace) -> Files:
    """Alignment and uniformity of a study's recipes, means over seeds, beside those that the papers print."""
    numbers = read_summary(args.study)[0]
    ours = [
        {"name": name, "source": numbers["name"]} | {measure: row[measure]["mean"] for measure in GEOMETRY}
        for name, row in numbers["settings"].items()
    ]
    theirs: dict[tuple[str, ...], dict] = {}
    for (paper, table, *group, row), value in published().items():
        if table.startswith("figure") and group[0] in GEOMETRY:
            found = theirs.setdefault((paper, table, row), {"name": row, "source": f"{paper}, {table}"})
            found[group[0]] = value
    return plots.geometry(ours, list(theirs.values()), args.output)


def redundancy(args: argparse.Namespace) -> Files:
    """How strongly embeddings react to changes of style and of content; see redundancy.py."""
    texts = sample(args)
    names = ([args.compare] if args.compare else []) + args.model_name
    scores = {encode.name: probe(encode, texts, args.seed) for encode in models(args, names)}
    kinds = [score.kind for score in next(iter(scores.values()))]
    for measure, title in (("cosine", "Cosine to the original"), ("style_accuracy", "Style probe accuracy, %")):
        values = {name: np.array([getattr(score, measure) for score in found]) for name, found in scores.items()}
        rows = [[name, *(f"{x:.3f}" for x in row)] for name, row in values.items()]
        if args.compare:
            base = values[Path(args.compare).name]
            rows += [[f"{name}, change", *(f"{x:+.3f}" for x in row - base)] for name, row in values.items()][1:]
        print(markdown(title, ("", *kinds), rows) + "\n")
    rows = [{"checkpoint": name, **asdict(score)} for name, found in scores.items() for score in found]
    return plots.redundancy(rows, args.output)


def drift(args: argparse.Namespace) -> Files:
    """Changes by training, measured without labels: neighbors, uniformity, hubs."""
    texts, pairs = sample(args), stsb_dev(args.senteval_dir)
    (old,) = models(args, [args.compare])
    drifts = {encode.name: measure_drift(old, encode, texts, pairs) for encode in models(args, args.model_name)}
    for name, measured in drifts.items():
        print(name, json.dumps(measured.record(), indent=1))
    kept, moved = ({name: getattr(d, key) for name, d in drifts.items()} for key in ("kept", "cosine"))
    return plots.drift(kept, moved, args.output)


def curves(args: argparse.Namespace) -> Files:
    """Loss terms, Spearman, alignment and uniformity of a run over its steps, from its newest checkpoint."""
    states = Path(args.run).glob("checkpoint-*/trainer_state.json")
    newest = max(states, key=lambda path: int(path.parent.name.rpartition("-")[2]))
    return plots.training_curves(json.loads(newest.read_text(encoding="utf-8"))["log_history"], args.output)


def add_figure(parsers, function: Callable[[argparse.Namespace], Files]) -> None:
    """Add the subcommand of a figure."""
    name, text = function.__name__, function.__doc__.partition("\n")[0]
    add = parsers.add_parser(name, help=text, description=text).add_argument
    add("--output", default=f"analysis/{name}", metavar="STEM", help="Path of the files without suffix.")
    if name == "curves":
        add("--run", required=True, metavar="FOLDER", help="--output_dir of a run.")
        return
    if name == "geometry":
        add("--study", required=True, metavar="FILE", help="summary.json of a study.")
        return
    add("--model_name", nargs="+", required=True, metavar="MODEL", help="Hub ids or folders.")
    add("--pooler", default="auto", help="Pooling. auto: stored in the model.")
    add("--device", help="cpu, cuda, ... Default: GPU if available.")
    if name in ("alignment", "cosines", "drift"):
        add("--senteval_dir", help="SentEval's data/downstream. Default: $SENTEVAL_DATA, or the Hub.")
        add("--split", choices=["dev", "test"], default="dev", help="Split of STS-B.")
    if name in ("information", "attention", "tsne", "redundancy", "drift"):
        add("--train_file", required=True, metavar="FILE", help="Texts.")
        add("--max_sentences", type=int, default=2000, help="Size of the random sample.")
        add("--seed", type=int, default=42, help="Seed of the sample and of the analysis.")
    if name in ("redundancy", "drift"):
        add("--compare", required=name == "drift", metavar="MODEL", help="Model before training.")
    if name == "tsne":
        add("--label_column", help="Column of --train_file with the labels.")


FIGURES = (alignment, geometry, information, attention, tsne, cosines, redundancy, drift, curves)


def main() -> None:
    """Draw one figure, and print the paths of its files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsers = parser.add_subparsers(required=True, dest="figure", metavar="FIGURE")
    functions = {f.__name__: f for f in FIGURES}
    for function in functions.values():
        add_figure(parsers, function)
    args = parser.parse_args()
    print(*functions[args.figure](args), sep="\n")


if __name__ == "__main__":
    main()
