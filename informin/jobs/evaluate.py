"""Score models on STS and transfer tasks, labeled texts and retrieval."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path
from typing import TypeAlias

from sentence_transformers import SentenceTransformer
from typing_extensions import Unpack

from informin.distributed import first_only
from informin.errors import UsageError
from informin.evaluation.labels import LABEL_COLUMNS
from informin.evaluation.results import Results
from informin.evaluation.scoring import Tasks, load_tasks, pooler_of, score_model
from informin.evaluation.senteval import chosen_tasks, senteval_folder
from informin.evaluation.table import check_same_files, load_others, model_label, score_tables, tables_text
from informin.models.opening import Loading, load_model, name_of
from informin.option_types import checks_options
from informin.outputs import only_writer, save_text
from informin.report.html import tables_html

Paths = str | Path | Sequence[str | Path]
Model: TypeAlias = str | Path | SentenceTransformer


@dataclass(repr=False)
class Evaluation:
    """Scores of one or more models.

    Attributes:
        rows: Results of each model and pooling.
        others: Results to compare with: one for all rows, or one per row.
    """

    rows: list[Results]
    others: list[Results] = field(default_factory=list)

    @property
    def scores(self) -> dict[str, dict[str, float | None]]:
        """The scores x 100 by model and task: V-measure of labels, MRR@10 of retrieval, None for an undefined score."""
        return {
            label: {name: task["score"] for name, task in results.tasks.items()}
            for label, results in _labeled(self.rows).items()
        }

    def table(self, format: str = "text", *, seeds: bool = False) -> str:
        """Return all tables and notes.

        Args:
            format: text, markdown, latex or json (the results themselves).
            seeds: The models are seeds of one recipe: adds mean ± sd.
        """
        return tables_text(self.rows, self.others, seeds, format)

    @checks_options
    def save(self, output_dir: str | Path, *, seeds: bool = False) -> None:
        """Write the tables to table.md, and the results of each row to a .json file.

        Args:
            output_dir: A folder; files of an earlier call are replaced.
            seeds: The models are seeds of one recipe: adds mean ± sd.
        """
        for label, results in _labeled(self.rows).items():
            results.save(Path(output_dir, f"{label.replace('/', '-')}.json"))
        save_text(Path(output_dir, "table.md"), self.table("markdown", seeds=seeds) + "\n")

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return tables_html(score_tables(self.rows, self.others))


@checks_options
def evaluate(
    model: Model | Iterable[Model],
    *,
    tasks: str | Sequence[str] = (),
    labels: Paths = (),
    text_column: str | None = None,
    label_column: str | None = None,
    retrieval: Paths = (),
    bm25: bool = False,
    language: str = "english",
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    senteval_dir: str | Path | None = None,
    split: str = "test",
    whitening: float | None = None,
    output: str | Path | None = None,
    compare: Paths = (),
    prompt: str | None = None,
    batch_size: int = 64,
    pooler: str | Sequence[str] = "auto",
    **loading: Unpack[Loading],
) -> Evaluation:
    """Score one model or several on STS and transfer tasks, labeled texts and retrieval.

    Args:
        model: Hub id, folder, or SentenceTransformer; or several of them.
        tasks: `all`, `sts`, `transfer`, or names of SentEval tasks. Default: all if no files are given.
        labels: One labeled file or several, one task each: TSV, CSV or JSONL with the columns text and label. Rows
            without a label are skipped.
        text_column: Column of `labels` with the texts, or several to join, such as subject,body. Default: text.
        label_column: Column of `labels` with the labels. Default: label.
        retrieval: Test collections, one task each: folders in BEIR's layout or with corpus.tsv, queries.tsv and
            qrels.tsv; or files with the columns query, document and optionally relevance (or score) and negative.
        bm25: In retrieval, also score the rank fusion of BM25 and each model.
        language: Language of the words in `retrieval`, such as `german` or `de`; `other` for no stems and stop words.
        query_prompt: Prompt prepended to queries of `retrieval`. Default: `prompt`, or the stored prompt of queries.
        document_prompt: The same for documents.
        senteval_dir: SentEval's data/downstream. Default: $SENTEVAL_DATA, or senteval.tar from the Hub.
        split: `test`; or `dev`: STS-B, SICK-R and the accuracy that selects C.
        whitening: Whiten the embeddings of each task and keep this number of dimensions; `math.inf` for all.
        output: Save results here and resume from them: a .json file for one row, a folder for several.
        compare: Results files or folders to subtract: one for all rows, or one per row.
        prompt: Prompt prepended to each text, instead of the stored prompts.
        batch_size: Texts per forward pass.
        pooler: See `informin.load_model`; with several, each is a row.
        loading: Other options of `informin.load_model`.

    Returns:
        The scores, `table`, and `save`.

    Raises:
        UsageError: An option, a model or a file cannot be used.
    """
    models = [model] if isinstance(model, Model) else list(model)
    poolers = [pooler] if isinstance(pooler, str) else list(pooler)
    check_output(output, [(Path(name_of(one)).name, how) for one in models for how in poolers])
    files = {"labels": _as_list(labels), "retrieval": _as_list(retrieval)}
    data = _load(_as_list(tasks), files, (text_column, label_column), senteval_dir, split)
    others = load_others(_as_list(compare), len(models) * len(poolers), split)
    check_same_files(others, data.checksums)
    rows: list[Results] = []
    for one, how in product(models, poolers):
        st = load_model(one, pooler=how, **loading)
        path = None if output is None else _results_file(Path(output), st, how, _suffix(whitening, split))
        with first_only(only_writer(path, "output") if path else nullcontext()):
            results = score_model(
                st,
                data,
                pooler=how,
                output=path,
                prompt=prompt,
                query_prompt=query_prompt,
                document_prompt=document_prompt,
                whitening=whitening,
                bm25=bm25,
                language=language,
                batch_size=batch_size,
            )
        results.tasks = {name: results.tasks[name] for name in data.data}  # without others in the same file
        rows.append(results)
    return Evaluation(rows, others)


def _load(
    tasks: list,
    files: dict[str, list],
    columns: tuple[str | None, str | None],
    senteval_dir: str | Path | None,
    split: str,
) -> Tasks:
    """Return the tasks of SentEval and of files; all tasks of SentEval if there are no files either."""
    text, label = columns
    wanted = tasks or ([] if any(files.values()) else ["all"])
    names = chosen_tasks(list(map(str, wanted)), split)
    if split != "test" and not names:
        found = f"is {split}, which has no effect on `labels` and `retrieval`"
        raise UsageError(found, option="split", fix="Name `tasks`, too, or leave it out.")
    folder = senteval_folder(senteval_dir) if names else None
    return load_tasks(folder, names, split, **files, columns=(text or LABEL_COLUMNS[0], label or LABEL_COLUMNS[1]))


def check_output(output: str | Path | None, rows: Sequence[tuple[str, str]]) -> None:
    """Raise UsageError if `output` is another file, or if two rows, of a model and a pooling each, would share one."""
    if output is None:
        return
    is_results_file = Path(output).suffix == ".json"
    if not is_results_file and Path(output).is_file():
        raise UsageError(f"is {output}, a file", option="output", needed="a name ending in .json, or a folder")
    if len(rows) > (1 if is_results_file else len(set(rows))):
        found = f"is {output}, and rows of scores would share a file"
        raise UsageError(found, option="output", fix="Give a folder, and models with different names.")


def _results_file(output: Path, model: SentenceTransformer, pooler: str, suffix: str) -> Path:
    if output.suffix == ".json":
        return output
    return output / f"{Path(name_of(model)).name}-{pooler_of(model) if pooler == 'auto' else pooler}{suffix}.json"


def _suffix(whitening: float | None, split: str) -> str:
    """Return the end of the name of a results file, for settings that are not the default."""
    kept = "" if whitening is None else f"-whitening{'' if whitening == float('inf') else int(whitening)}"
    return kept + ("" if split == "test" else f"-{split}")


def _labeled(rows: Sequence[Results]) -> dict[str, Results]:
    """Return results by the name of their model and pooling, with its whole path or a number if names are equal."""
    labeled: dict[str, Results] = {}
    for results in rows:
        name = model_label(results, whole=model_label(results) in labeled)
        numbered = (name if number == 1 else f"{name} ({number})" for number in count(1))
        labeled[next(label for label in numbered if label not in labeled)] = results
    return labeled


def _as_list(names: Paths) -> list[str | Path]:
    """Return one name or several as a list."""
    return [names] if isinstance(names, str | Path) else list(names)
