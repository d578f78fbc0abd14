"""Draw figures of embeddings like those in the papers, as PNG, SVG and CSV."""

from collections.abc import Callable
from functools import partial

from informin import program
from informin.errors import UsageError
from informin.figures import paper_figures as figures
from informin.figures.drawing import refuse_foreign
from informin.models.encode import POOLERS
from informin.outputs import only_writer


def main(argv: list[str] | None = None) -> int:
    """Draw one figure. Returns the exit code: 0, 1 (a score is undefined), 2 (usage), 130 (interrupted)."""
    options = parser()
    chosen = vars(options.parse_args(argv))
    draw = chosen.pop("draw")
    return program.exit_code(lambda: analyze(draw, chosen), options.option_names())


def analyze(draw: Callable, chosen: dict) -> None:
    """Draw a figure with its output locked, and print the paths of its files."""
    if "seed" in chosen:
        program.require_seed(chosen["seed"])
        if chosen["max_sentences"] < 1:
            raise UsageError(f"is {chosen['max_sentences']}", option="max_sentences", needed="1 or more")
    refuse_foreign(chosen["output"])
    with only_writer(chosen["output"], "output"):
        paths = draw(**chosen)
    print(*paths, sep="\n")


def parser() -> program.Parser:
    """Return the parser, with a subcommand for each figure."""
    parser = program.Parser(prog="informin analyze", description=__doc__)
    subparsers = parser.add_subparsers(required=True, metavar="FIGURE")
    figure = partial(_add_figure, subparsers)
    add = figure(
        figures.alignment, "Alignment and uniformity on STS-B, colored by the average of the 7 STS tests.", "pairs"
    )
    text = "Results of `informin eval`, to reuse their STS averages."
    add("--results", nargs="+", default=[], metavar="FILE", help=text)
    add = figure(
        figures.tsne,
        "t-SNE of sentences, colored by the column label of the file, else by K-means cluster.",
        "sentences",
    )
    add("--clusters", type=int, default=10, help="Number of K-means clusters, for a file without labels. Default: 10.")
    figure(figures.cosines, "Cosine of STS-B pairs against their gold score.", "pairs")
    add = figure(figures.curves, "Loss terms, Spearman, alignment and uniformity of a run over its steps.")
    add("--run", required=True, metavar="FOLDER", help="--output_dir of a run.")
    text = "Runs by the InfoNCE bound and the conditional entropy of their views, over the steps."
    add = figure(figures.information, text)
    text = "--output_dir of runs with --measure_information."
    add("--run", nargs="+", required=True, metavar="FOLDER", help=text)
    add = figure(figures.redundancy, "How strongly embeddings react to changes of style and of content.", "sentences")
    add("--compare", metavar="MODEL", help="Checkpoint to subtract.")
    add = figure(
        figures.drift, "Changes by training, measured without labels: neighbors, uniformity, hubs.", "sentences"
    )
    add("--compare", required=True, metavar="MODEL", help="Checkpoint before training.")
    add("--senteval_dir", help="SentEval's data/downstream, for STS-B dev. Default: $SENTEVAL_DATA, or not scored.")
    return parser


def _add_figure(subparsers, draw: Callable, text: str, kind: str = "") -> Callable:
    """Add the subcommand that draws a figure. Return its `add_argument`.

    Args:
        subparsers: Of the parser.
        draw: Function of `informin.figures.paper_figures`, whose name is the subcommand's.
        text: Help.
        kind: Data of the figure, `pairs` or `sentences`, or "" for figures of runs.
    """
    sub = subparsers.add_parser(draw.__name__, help=text, description=text)
    sub.set_defaults(draw=draw)
    add = sub.add_argument
    add(
        "--output",
        default=f"analysis/{draw.__name__}",
        metavar="STEM",
        help="Path of the files without suffix. Default: %(default)s.",
    )
    if kind:
        add("--model_name", nargs="+", required=True, metavar="MODEL", help="Hub ids or folders.")
        add("--pooler", default="auto", choices=["auto", *POOLERS], help="Pooling. auto: stored in the checkpoint.")
        add("--batch_size", type=int, default=64, help="Sentences per forward pass.")
        add("--device", help="cpu, cuda, ... Default: GPU if available.")
    if kind == "pairs":
        add("--senteval_dir", help="SentEval's data/downstream. Default: $SENTEVAL_DATA, or the Hub.")
        add("--split", choices=["dev", "test"], default="dev", help="Split of STS-B. Default: dev.")
    if kind == "sentences":
        add("--train_file", required=True, metavar="FILE", help="File with one sentence per line, or CSV, JSONL, ...")
        add("--max_sentences", type=int, default=2000, help="Size of the random sample. Default: 2000.")
        add("--seed", type=int, default=42, help="Seed of the sample and of the analysis. Default: 42.")
    return add
