"""Score models on STS and transfer tasks, labeled texts and retrieval."""

import logging
import math
import time
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling
from typing_extensions import Unpack

from informin.distributed import first_only, gather_objects, rank, world_size
from informin.errors import UndefinedScoreError, UsageError
from informin.evaluation.encode import EmbeddingCache, Encode, embed_once, whiten, whitened
from informin.evaluation.labels import LABEL_COLUMNS, LabeledSentences, load_labels
from informin.evaluation.pairs import correlations, cosine
from informin.evaluation.results import COSINE, DOT, Results, checksums, environment, task_name
from informin.evaluation.retrieval import DEPTH, Collection, Similarity, load_retrieval
from informin.evaluation.senteval import TASKS, StsTask, TransferTask, chosen_tasks, load_task, senteval_folder
from informin.evaluation.table import check_same_files, load_others, model_label, score_tables, tables_html, tables_text
from informin.evaluation.transfer import score_transfer
from informin.fast.precision import precision_of, weights_sha256
from informin.files import last_name, only_writer, save_text
from informin.model.checksums import settings_sha256
from informin.model.embedding import encode_in_shares, stored_prompt, width_of
from informin.model.open import Loading, length_limit, load_model, name_of
from informin.model.pooling import NAME_OF_MODE, raise_if_unknown
from informin.options import check_value, with_home

logger = logging.getLogger(__name__)


TESTED = ("ndcg_10", "recall_100")  # measures of retrieval that are saved for each query
FITTED_ON = "the sentences of each task"
Task = StsTask | TransferTask | LabeledSentences | Collection
Prompts = dict[str | None, str | None]  # by side, `query` or `document`; None for that of the model


@dataclass(frozen=True)
class EmbeddedCollection:
    """Embeddings of a test collection.

    Attributes:
        queries: (Q, d).
        documents: (D, d).
        tokens: What `Rankings.embed` keeps for `Rankings.rank`, such as token vectors.
    """

    queries: np.ndarray
    documents: np.ndarray
    tokens: Any = None


class Rankings(Protocol):
    """Further rankings of test collections, which are scored beside that of the vectors.

    `informin.frozen.rankings.SearchRankings` are those of a search index.
    """

    @property
    def settings(self) -> dict[str, Any]:
        """What is saved with the scores of a collection."""

    def has_ranked(self, entry: dict[str, Any]) -> bool:
        """Return whether the saved scores of a collection are those of these rankings, with the same settings."""

    def embed(
        self, model: SentenceTransformer, collection: Collection, prompts: Prompts, batch_size: int
    ) -> EmbeddedCollection | None:
        """Embed a collection in another way, such as with its tokens; None for the usual way.

        It is not called for whitened embeddings and for several processes.
        """

    def rank(
        self, collection: Collection, embedded: EmbeddedCollection, similarity: Similarity | None
    ) -> dict[str, np.ndarray]:
        """Return rankings (Q, K) as those of `Collection.rank`, by the name that their scores have in the results."""


def score_sts(encode: Encode, task: StsTask, similarity: Callable[..., Any] = cosine) -> dict:
    """Return Spearman x 100 of one STS task, with the aggregations that papers use.

    Args:
        encode: Function from N sentences to embeddings (N, d); called once, with the distinct sentences.
        similarity: Function from embeddings (N, d) and (N, d) to the similarities (N,) of the pairs, such as the
            `similarity_pairwise` of a SentenceTransformer.

    Returns:
        `score`: over the pairs of all subsets together ("all", reported by SimCSE and InforMin-CL). `mean`, `wmean`:
        mean of the subsets' correlations, unweighted and weighted by number of pairs. `pearson`: x 100, over all
        pairs. `n`: number of pairs. `subsets`: `score` and `n` of each subset.

    Raises:
        UndefinedScoreError: An embedding is not finite, or all similarities of a subset are equal.
    """
    embedding = embed_once(encode, task.texts())
    sides = ((embedding(pairs.sentences1), embedding(pairs.sentences2)) for pairs in task.subsets)
    predicted = [np.asarray(similarity(x, y)) for x, y in sides]
    overall = correlations(np.concatenate(predicted), np.concatenate([pairs.scores for pairs in task.subsets]))
    scores = [correlations(values, pairs.scores)["spearman"] for values, pairs in zip(predicted, task.subsets)]
    return {
        "score": overall["spearman"],
        "mean": float(np.mean(scores)),
        "wmean": float(np.average(scores, weights=list(map(len, task.subsets)))),
        "pearson": overall["pearson"],
        **task.counts,
        "subsets": {pairs.name: {"score": s, "n": len(pairs)} for pairs, s in zip(task.subsets, scores)},
    }


@dataclass(frozen=True)
class Tasks:
    """Data of tasks by name, and SHA-256 of their files or texts. All SentEval tasks have the same split."""

    split: str
    data: dict[str, Task]
    checksums: dict[str, dict[str, str]]


def load_tasks(
    folder: Path | None,
    names: Sequence[str],
    split: str = "test",
    labels: Sequence[str | Path] = (),
    retrieval: Sequence[str | Path] = (),
    columns: tuple[str, str] = LABEL_COLUMNS,
) -> Tasks:
    """Load and check the data of all tasks before the first is scored.

    Args:
        folder: SentEval's `data/downstream`; can be None if `names` is empty.
        names: SentEval tasks.
        split: Split of the SentEval tasks, test or dev.
        labels: Files for `load_labels`. Each is one task, named after the file.
        retrieval: Folders and files for `load_retrieval`. Each is one task, named after it.
        columns: Columns of `labels` with the sentences and their labels.

    Raises:
        UsageError: As `load_task`, `load_labels` and `load_retrieval`. Also if two tasks have the same name.
    """
    data: dict[str, Task] = {}
    sums: dict[str, dict[str, str]] = {}
    for name in names:
        task = load_task(Path(folder or ""), name, split)
        data[name] = task
        sums[name] = checksums(task.files, folder or "")
    for option, paths in (("labels", labels), ("retrieval", retrieval)):
        for path in map(Path, paths):
            name = task_name(path)
            if name in TASKS or name in data:
                raise UsageError(f"{path}: a task {name} already exists", option=option, fix="Rename the file.")
            sample = load_labels(path, option, *columns) if option == "labels" else load_retrieval(path, option)
            data[name] = sample
            sums[name] = {name: sample.sha256}
    return Tasks(split, data, sums)


def score_model(
    model: SentenceTransformer,
    tasks: Tasks,
    *,
    pooler: str = "auto",
    prompt: str | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    whitening: float | None = None,
    rankings: Rankings | None = None,
    batch_size: int = 64,
    output: str | Path | None = None,
) -> Results:
    """Score a model on every task, one after the other, and save each as soon as it is finished.

    STS and retrieval compare embeddings with the similarity of the model. Texts of an earlier task are not encoded
    again, except for retrieval. All processes must make the same call.

    Args:
        model: The model.
        tasks: Data from `load_tasks`.
        pooler: Name of the pooling in tables; `auto` for the name of the pooling that the model has.
        prompt: Prompt prepended to each text; None for the stored prompts.
        query_prompt: Prompt prepended to the queries of retrieval; None for `prompt`.
        document_prompt: The same for documents.
        whitening: Whiten embeddings with a map fitted on each task's own texts, compare them by cosine, and keep this
            number of dimensions; `math.inf` for all, None for no whitening.
        rankings: Further rankings of retrieval to score; None for the vectors alone.
        batch_size: Texts per forward pass.
        output: File to save the results in and to resume from; None to save nothing.

    Raises:
        UsageError: `output` has results of another model, whitening asks for more dimensions than there are, or an
            embedding is not finite.
    """
    chosen: Prompts = {
        None: prompt,
        "query": prompt if query_prompt is None else query_prompt,
        "document": prompt if document_prompt is None else document_prompt,
    }
    encode = {
        side: EmbeddingCache(partial(encode_in_shares, model, side=side, prompt=text, batch_size=batch_size))
        for side, text in chosen.items()
    }
    prompts = {side: stored_prompt(model, side) if text is None else text for side, text in chosen.items()}
    results = unscored(model, prompts.pop(None) or None, pooler, whitening, tasks.split)
    results = results.resumed(output) if output else results
    # Prompts of retrieval are recorded if they differ from that of other texts.
    sides = {} if set(prompts.values()) == {results.prompt or ""} else {"prompts": prompts}
    pending = [name for name in tasks.data if not _finished(results, name, tasks, sides, rankings)]
    pending = gather_objects(pending)[0]  # and no process saves results before all have read the earlier ones
    for name in pending:
        task = tasks.data[name]
        start = time.perf_counter()
        if isinstance(task, Collection):
            embedded = None
            if rankings and not whitening and world_size() == 1:
                embedded = rankings.embed(model, task, chosen, batch_size)
            if embedded is None:
                embedded = EmbeddedCollection(encode["query"](task.queries), encode["document"](task.documents))
            encoded = time.perf_counter()
            entry = _score_collection(model, task, embedded, results, rankings) | sides
        else:
            encode[None](task.texts())
            encoded = time.perf_counter()
            entry = _score(model, task, encode[None], results)
        entry["seconds"] = {"encode": encoded - start, "score": time.perf_counter() - encoded}
        entry["data"] = tasks.checksums[name]
        results.add(name, entry)
        if output and rank() == 0:
            results.save(output)
        shown = "no score" if entry["score"] is None else f"{entry['score']:.2f}"
        seconds = sum(entry["seconds"].values())
        logger.info(f"{name}: {shown} ({results.model}, {results.pooler}, {seconds:.0f} s)")
    return results


def unscored(
    model: SentenceTransformer,
    prompt: str | None,
    pooler: str = "auto",
    whitening: float | None = None,
    split: str = "test",
) -> Results:
    """Return results of a model without scores, with all that they depend on; see `score_model`."""
    name = name_of(model)
    return Results(
        model=name if Path(name).name else last_name(name),  # `.` would name another folder elsewhere
        weights_sha256=weights_sha256(model),
        pooler=pooler_of(model) if pooler == "auto" else pooler,
        normalized=any(isinstance(module, Normalize) for module in model),
        max_seq_length=length_limit(model),
        precision=precision_of(model),
        split=split,
        prompt=prompt,
        whitening=_whitening_entry(whitening, width_of(model)),
        similarity=COSINE if whitening else str(model.similarity_fn_name),
        settings_sha256=settings_sha256(model),
        truncate_dim=model.truncate_dim,
        environment=environment(model.device),
    )


def pooler_of(model: SentenceTransformer) -> str:
    """Return the name of a model's pooling: cls, mean, last or another one of sentence-transformers.

    For a model without a Pooling module, it is the name of the module that computes the embedding, such as
    StaticEmbedding.
    """
    modules = [module for module in model if not isinstance(module, Normalize)]
    modes = [module.pooling_mode for module in modules if isinstance(module, Pooling)]
    return NAME_OF_MODE.get(modes[0], str(modes[0])) if modes else type(modules[-1]).__name__


def _whitening_entry(whitening: float | None, width: int) -> dict | None:
    if whitening is None:
        return None
    is_number = not isinstance(whitening, bool) and (whitening == math.inf or whitening in range(1, width + 1))
    check_value(is_number, "whitening", whitening, f"1 to {width} for this model")
    return {"dimensions": None if whitening == math.inf else int(whitening), "fitted_on": FITTED_ON}


def _finished(results: Results, name: str, tasks: Tasks, sides: dict, rankings: Rankings | None) -> bool:
    """Return whether results contain a score of a task, computed from the same files with the same settings."""
    entry = results.tasks.get(name)
    if entry is None or entry["score"] is None or entry["data"] != tasks.checksums[name]:
        return False
    if not isinstance(tasks.data[name], Collection):
        return True
    return entry.get("prompts") == sides.get("prompts") and (rankings is None or rankings.has_ranked(entry))


def _score(
    model: SentenceTransformer, task: StsTask | TransferTask | LabeledSentences, encode: Encode, results: Results
) -> dict:
    """Return the entry of a task, without seconds and data."""
    texts = whitened(encode, results.whitening["dimensions"]) if results.whitening else encode
    try:
        if isinstance(task, StsTask):
            return score_sts(texts, task, cosine if results.similarity == COSINE else model.similarity_pairwise)
        if isinstance(task, TransferTask):
            return score_transfer(texts, task)
        measures = task.score(texts)
        return {"score": measures["v_measure"], **task.counts, "measures": measures}
    except UndefinedScoreError as error:
        return {"score": None, **task.counts, "error": str(error)}


def _score_collection(
    model: SentenceTransformer,
    collection: Collection,
    embedded: EmbeddedCollection,
    results: Results,
    rankings: Rankings | None,
) -> dict:
    """Return the entry of a test collection, without prompts, seconds and data."""
    queries, documents = embedded.queries, embedded.documents
    if results.whitening:
        try:
            both = whiten(np.concatenate([queries, documents]), results.whitening["dimensions"])
        except UndefinedScoreError as error:
            return {"score": None, **collection.counts, "error": str(error)}
        embedded = EmbeddedCollection(both[: len(queries)], both[len(queries) :])
    similarity = None if results.similarity == COSINE else model.similarity
    ranking = collection.rank(embedded.queries, embedded.documents, similarity=similarity)
    entry = collection.counts | _measured(collection, ranking)
    entry["score"] = entry["measures"]["mrr_10"]
    if rankings:  # an index compares by dot product or cosine only
        found = rankings.rank(collection, embedded, similarity if results.similarity == DOT else None)
        entry |= rankings.settings | {name: _measured(collection, other) for name, other in found.items()}
    return entry


def _measured(collection: Collection, ranking: np.ndarray) -> dict[str, dict]:
    scores = collection.scores(ranking[:, :DEPTH])
    means = {name: float(values.mean()) for name, values in scores.items()}
    return {"measures": means, "queries": {name: scores[name].round(6).tolist() for name in TESTED}}


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

    def save(self, output_dir: str | Path, *, seeds: bool = False) -> None:
        """Write the tables to table.md, and the results of each row to a .json file.

        Args:
            output_dir: A folder. Files with the same names are replaced. Other results are kept.
            seeds: The models are seeds of one recipe: adds mean ± sd.
        """
        output_dir = with_home(output_dir)
        files: dict[str, Results] = {}
        for label, results in _labeled(self.rows).items():
            short = label.replace("/", "-").encode()[:200].decode(errors="ignore")  # file systems take 255 bytes
            files[_unused(short, files)] = results
        for name, results in files.items():
            results.save(Path(output_dir, f"{name}.json"))
        save_text(Path(output_dir, "table.md"), self.table("markdown", seeds=seeds) + "\n")

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return tables_html(score_tables(self.rows, self.others))


def evaluate(
    model: Model | Iterable[Model],
    *,
    tasks: str | Sequence[str] = (),
    labels: Paths = (),
    text_column: str | None = None,
    label_column: str | None = None,
    retrieval: Paths = (),
    rankings: Rankings | None = None,
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
    """Score one or more models on STS and transfer tasks, labeled texts and retrieval.

    Args:
        model: Hub id, folder, or SentenceTransformer; or several of them.
        tasks: `all`, `sts`, `transfer`, or names of SentEval tasks. Default: all if no files are given.
        labels: Labeled files, one task each: TSV, CSV or JSONL with the columns text and label. Rows without a text or
            a label are skipped.
        text_column: Column of `labels` with the texts, or several to join, such as subject,body. Default: text.
        label_column: Column of `labels` with the labels. Default: label.
        retrieval: Test collections, one task each: folders in BEIR's layout or with corpus.tsv, queries.tsv and
            qrels.tsv; or files with the columns query, document and optionally relevance (or score) and negative.
        rankings: More rankings of `retrieval` to score, such as `SearchRankings(language="german")` of
            `informin.frozen.rankings`, which `informin eval` adds: BM25, vectors with BM25, and reranked. None for the
            vectors alone.
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
        loading: Other options of `informin.load_model`. `precision` is fp32 by default, as in published scores.

    Returns:
        The scores, `table`, and `save`.

    Raises:
        UsageError: An option, a model or a file cannot be used.
    """
    models = [model] if isinstance(model, Model) else list(model)
    poolers = [pooler] if isinstance(pooler, str) else list(pooler)
    for name in poolers:  # before minutes of scoring with those before it
        if name != "auto":
            raise_if_unknown(name)
    output = with_home(output)
    check_results_path(output, [(last_name(name_of(one)), how) for one in models for how in poolers])
    files = {"labels": _as_list(labels), "retrieval": _as_list(retrieval)}
    data = _load(_as_list(tasks), files, (text_column, label_column), senteval_dir, split)
    others = load_others(_as_list(compare), len(models) * len(poolers), split)
    check_same_files(others, data.checksums)
    rows: list[Results] = []
    saved: list[str] = []
    for one, how in product(models, poolers):
        st = load_model(one, pooler=how, **loading)
        suffix = _suffix(st.truncate_dim, whitening, split)
        path = None if output is None else Path(output)
        if path and path.suffix != ".json":
            pooling = pooler_of(st) if how == "auto" else how
            saved.append(_unused(f"{last_name(name_of(st))}-{pooling}{suffix}", saved))
            path = path / f"{saved[-1]}.json"
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
                rankings=rankings,
                batch_size=batch_size,
            )
        rows.append(results.of_tasks(data.data))  # without others in the same file
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


def check_results_path(output: str | Path | None, rows: Sequence[tuple[str, str]]) -> None:
    """Raise UsageError if `output` is another file, or if two rows, of a model and a pooling each, would share one."""
    if output is None:
        return
    is_results_file = Path(output).suffix == ".json"
    if not is_results_file and Path(output).is_file():
        raise UsageError(f"is {output}, a file", option="output", needed="a name ending in .json, or a folder")
    if len(rows) > (1 if is_results_file else len(set(rows))):
        found = f"is {output}, and rows of scores would share a file"
        raise UsageError(found, option="output", fix="Give a folder, and models with different names.")


def _suffix(truncate_dim: int | None, whitening: float | None, split: str) -> str:
    """Return the end of the name of a results file, for settings that are not the default."""
    kept = "" if truncate_dim is None else f"-truncated{truncate_dim}"
    kept += "" if whitening is None else f"-whitening{'' if whitening == math.inf else f'{whitening:g}'}"
    return kept + ("" if split == "test" else f"-{split}")


def _labeled(rows: Sequence[Results]) -> dict[str, Results]:
    """Return results by the name of their model and pooling, with its whole path or a number if names are equal."""
    labeled: dict[str, Results] = {}
    for results in rows:
        name = model_label(results, whole=model_label(results) in labeled)
        labeled[_unused(name, labeled)] = results
    return labeled


def _unused(name: str, used: Container[str]) -> str:
    """Return a name, with a number if it is used."""
    numbered = (name if number == 1 else f"{name} ({number})" for number in count(1))
    return next(each for each in numbered if each not in used)


def _as_list(names: Paths) -> list[str | Path]:
    """Return one name or several as a list, with the home folder in place of a leading `~`."""
    return [with_home(name) for name in ([names] if isinstance(names, str | Path) else names)]
