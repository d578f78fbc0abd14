"""Adapt a model or its embeddings to your texts in closed form, without training or labels."""

import argparse
from dataclasses import asdict
from pathlib import Path

from informin import program
from informin.adapters.linear import ROTATIONS
from informin.adapters.prediction import PRESETS
from informin.adapters.scores import scores_line
from informin.cli.model_options import add_model_options, add_shared_lines, add_text_options, model_options
from informin.cli.processes import processes
from informin.distributed import first_only, rank
from informin.errors import UsageError, counted
from informin.evaluation.drift import MAIN, drift_table
from informin.evaluation.similarity import COSINE
from informin.evaluation.table import render
from informin.jobs.fit import FitResult, fit, refuse_pooler
from informin.jobs.fit_files import ADAPTER, DOCUMENTS, write_fit
from informin.jobs.source_rows import SourceRows
from informin.jobs.text_files import read_texts
from informin.jobs.verdict import AUTO, reason, verdict_line
from informin.models.checkpoint import SAYS_NOTHING
from informin.models.model import Model
from informin.outputs import only_writer, refuse_used
from informin.report.page import PAGE
from informin.report.widths import width_table

NUMPY_LINES = """from safetensors.numpy import load_file
vectors = queries @ load_file("{folder}/adapter.safetensors")["coef"].T
vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)"""


def main(argv: list[str] | None = None) -> int:
    """Fit an adapter. Returns the exit code: 0, 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin fit", description=__doc__)
    add = parser.add_argument
    add("--model_name", metavar="MODEL", help="Hub id or local folder. The output is this model with the adapter.")
    add_text_options(parser, required=False)
    add_shared_lines(parser)
    add("--embeddings", metavar="FILE",
        help="Embeddings of the texts from any source: .npy, .parquet or .safetensors. Alone, the output is the "
        "adapter itself; with --model_name, they must be this model's and save the time to embed.")  # fmt: skip
    add("--output_dir", required=True, metavar="FOLDER", help="Folder to write; must be new or empty.")
    add("--documents", choices=["adapted", "smoothed"],
        help="Also write documents.npy, the vectors of the texts for your index. smoothed: each is also averaged with "
        "its nearest texts; queries are not. Default: adapted with --embeddings alone.")  # fmt: skip
    add("--preset", default=AUTO, choices=(AUTO, *sorted(PRESETS)),
        help="documents: for search, with whitening. short_texts: for titles and questions, without whitening. auto: "
        "the one with the larger predicted gain; nothing is written if it is likely to hurt.")  # fmt: skip
    add("--n_neighbors", type=int, default=10, help="Number of neighbors of each text.")
    add("--whitening", type=float,
        help="Exponent of the whitening, from 0 (none) to 0.5 (full). Default: 0.3 for documents, 0 for short "
        "texts.")  # fmt: skip
    add("--self_weight", type=float,
        help="Fraction of a text in its own neighborhood mean; lower values suit clustering. Default: 0.8 for "
        "documents, 0.7 for short texts.")  # fmt: skip
    add("--dimension", type=_dimension, metavar="N",
        help="Number of dimensions of the adapted vectors. auto: the smallest one with a small predicted loss; it "
        "needs --model_name. Default: all.")  # fmt: skip
    add("--rotation", default=ROTATIONS[0], choices=ROTATIONS,
        help="principal: the first numbers of a vector approximate it best, for vectors that are cut later. bits: for "
        "binary quantization, one bit per number.")  # fmt: skip
    add("--seed", type=int, default=0, help="Seed of the sample of texts, if there are more than 50,000.")
    add("--senteval_dir",
        help="SentEval's data/downstream, to report STS-B dev. Default: $SENTEVAL_DATA, or not scored.")  # fmt: skip
    add("--name",
        help="What the report and the card call the model. Default: the name of its folder or on the Hub or, for a "
        "folder such as model, the title of its card. A Hub id also becomes base_model in the card.")  # fmt: skip
    add_model_options(parser)
    args = parser.parse_args(argv)
    return program.exit_code(lambda: work(args), parser.option_names(), "Nothing was written.")


def work(args: argparse.Namespace) -> None:
    """Read the texts, fit, print what was found, and save it. The output folder is locked meanwhile."""
    _check_inputs(args.model_name, args.embeddings, args.train_file, args.pooler)
    refuse_used(args.output_dir, "output_dir")
    with processes("Run the same command again."), first_only(only_writer(args.output_dir, "output_dir")):
        texts, source = read_texts(args.train_file, args.text_column) if args.train_file else (None, SourceRows())
        if source.blank:
            print(source.line())
        own = {
            name: getattr(args, name)
            for name in (
                "embeddings",
                "preset",
                "n_neighbors",
                "dimension",
                "rotation",
                "seed",
                "senteval_dir",
                "name",
                "strip_shared_lines",
            )
        }
        weights = {"whitening": args.whitening, "self_weight": args.self_weight}
        result = fit(args.model_name, texts, **own, **weights, **model_options(args))
        print_prediction(result)
        result.refuse_harm()
        if rank() > 0:
            return
        print_fit(result)
        if scores := write_fit(result, args.output_dir, args.documents, source):
            print(f"Scores: {scores_line(scores)}")
        if result.name and SAYS_NOTHING.fullmatch(result.name):
            print(f"The report and the card call the model {result.name}. Use --name to give it another name.")
        if result.encoder:
            print_model(result.encoder, args.output_dir, args.documents, source)
        else:
            print_adapter(Path(args.output_dir), source)


def _dimension(text: str) -> int | str:
    if text == AUTO:
        return AUTO
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is neither auto nor an integer") from None


def _check_inputs(model_name: str | None, embeddings: str | None, train_file: list[str] | None, pooler: str) -> None:
    if not model_name and not embeddings:
        raise UsageError("is missing", option="model_name", fix="Give --model_name with --train_file, or --embeddings.")
    if model_name and not train_file:
        raise UsageError("is missing", option="train_file", fix="--model_name needs the texts.")
    if model_name:
        refuse_pooler(pooler)


def print_prediction(result: FitResult) -> None:
    """Print the preset, unless it was given, and the verdict. Only the first of several processes prints."""
    auto, predicted = result.options["preset"] == AUTO, result.prediction
    if predicted is None and auto:
        print("Preset: documents. For titles, questions and other short texts, use --preset short_texts.")
    elif predicted and auto:
        print(f"Preset: {result.preset}, {reason(predicted)}.")
    if predicted:
        print(f"Verdict: {verdict_line(predicted, auto)}")


def print_fit(result: FitResult) -> None:
    """Print how the adapter was fitted and, with a model, what it changes."""
    adapter, (rows, dimensions) = result.adapter, result.vectors.shape
    distinct = f", {adapter.n_samples_:,} of them distinct," if adapter.n_samples_ < rows else ""
    print(
        f"Fitted on {counted(rows, 'embedding')}{distinct} of {dimensions} dimensions in {result.seconds:.1f} s. "
        f"Strength: {adapter.strength_:.2f} (1 is the full effect)."
    )
    if adapter.strength_ < 0.5:
        print("There are few texts for this dimension, so the adapter changes little. Add texts for a larger effect.")
    if result.curve:
        print(render(width_table([asdict(width) for width in result.curve]), "text"))
    if adapter.n_components:
        print(f"Adapted vectors have {counted(adapter.n_components, 'dimension')}.")
    if result.encoder and result.drift:
        print(render(drift_table({"adapted": result.drift}, "before", MAIN), "text"))
        for warning in result.drift["warnings"]:
            print(f"Warning: the adapter {warning}")


def print_model(encoder: Model, folder: str, documents: str | None, source: SourceRows) -> None:
    """Print what is in the folder of an adapted model, and how to load it."""
    if encoder.similarity != COSINE:
        print(f"The model compares embeddings by {encoder.similarity}, the adapted one by cosine, as it was fitted.")
    if documents:
        print(source.told(Path(folder, DOCUMENTS)), end="")
    more = ", trust_remote_code=True" if encoder.trusted else ""
    print(f'Load it with:\n  SentenceTransformer("{folder}"{more})')
    if encoder.routed:
        print("Embed queries with its encode_query, and documents with its encode_document.")
    print(f"Report: {Path(folder, PAGE)}")


def print_adapter(folder: Path, source: SourceRows) -> None:
    """Print what is in the folder of an adapter, and how to apply it."""
    print(f"{folder / ADAPTER}: the adapter\n{folder / DOCUMENTS}: the texts' vectors for your index")
    print(source.told(folder / DOCUMENTS), end="")
    print(f"Report: {folder / PAGE}")
    print(f"Apply it to queries with NumPy:\n\n{NUMPY_LINES.format(folder=folder)}")
