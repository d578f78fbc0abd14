"""Draw what embeddings look like, as the papers' figures: PNG, SVG and the numbers as CSV."""

from collections.abc import Callable

from informin import program
from informin.encoders.encode import POOLERS
from informin.figures import paper_figures as figures


def main(argv: list[str] | None = None) -> int:
    """Draws one kind of picture. Returns the exit code: 0, 1 (a score is undefined), 2 (usage), 130 (interrupted)."""
    options = parser()
    chosen = vars(options.parse_args(argv))
    draw = chosen.pop("draw")
    return program.exit_code(lambda: print(*draw(**chosen), sep="\n"), options.option_names())


def parser() -> program.Parser:
    """A sub-command for each figure."""
    parser = program.Parser(prog="informin analyze", description=__doc__)
    subparsers = parser.add_subparsers(required=True, metavar="FIGURE")

    def figure(draw: Callable, text: str, kind: str = "") -> Callable:
        sub = subparsers.add_parser(draw.__name__, help=text, description=text)
        sub.set_defaults(draw=draw)
        add = sub.add_argument
        add("--output", default=f"analysis/{draw.__name__}", metavar="STEM", help="Path without suffix: %(default)s.")
        if kind:
            add("--model_name", nargs="+", required=True, metavar="MODEL", help="Hub ids or folders.")
            add("--pooler", default="auto", choices=["auto", *POOLERS], help="auto: the checkpoint's own.")
            add("--batch_size", type=int, default=64, help="Sentences a forward pass.")
            add("--device", help="cpu, cuda, ... Default: a GPU where there is one.")
        if kind == "pairs":
            add("--senteval_dir", help="SentEval's data/downstream. Default: $SENTEVAL_DATA, else the Hub.")
            add("--split", choices=["dev", "test"], default="dev", help="Of STS-B. Default: dev.")
        if kind == "sentences":
            add("--sentences", required=True, metavar="FILE", help="Text (one a line), CSV, JSONL, ...")
            add("--max_sentences", type=int, default=2000, help="A random sample of them. Default: 2000.")
            add("--seed", type=int, default=42, help="Of the sample and of what follows. Default: 42.")
        return add

    add = figure(
        figures.alignment, "Alignment and uniformity on STS-B, colored by the average of the 7 STS tests.", "pairs"
    )
    add("--results", nargs="+", default=[], metavar="FILE", help="Of run_eval.py: STS averages need no second run.")
    add = figure(figures.tsne, "t-SNE of sentences, colored by K-means cluster.", "sentences")
    add("--clusters", type=int, default=10, help="Of K-means. Default: 10.")
    figure(figures.cosines, "The cosine of STS-B's pairs against their gold score.", "pairs")
    add = figure(figures.curves, "Terms, Spearman, alignment and uniformity over the steps of a run.")
    add("--run", required=True, metavar="FOLDER", help="The --output_dir of a run.")
    add = figure(figures.redundancy, "What embeddings keep of changes of style, and of content.", "sentences")
    add("--compare", metavar="MODEL", help="A checkpoint to take the differences to.")
    add = figure(figures.drift, "What training changed, without labels: neighbors, spread, hubs.", "sentences")
    add("--compare", required=True, metavar="MODEL", help="The checkpoint before training.")
    add("--senteval_dir", help="SentEval's data/downstream, for STS-B dev. Default: $SENTEVAL_DATA, else not scored.")
    return parser
