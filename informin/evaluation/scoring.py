"""Score a model on many tasks. Each text is encoded once, and each finished task is saved."""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling

from informin.distributed import gather_objects, rank
from informin.errors import UndefinedScoreError, UsageError
from informin.evaluation.collections import (
    DEPTH,
    Collection,
    Similarity,
    load_collection,
    load_retrieval_pairs,
)
from informin.evaluation.embedding_cache import EmbeddingCache, Encode
from informin.evaluation.fusion import FUSION_DEPTH, bm25_search, fused_ranking
from informin.evaluation.labels import LABEL_COLUMNS, LabeledSentences, load_labels
from informin.evaluation.pairs import cosine
from informin.evaluation.results import COSINE, Results, checksums, environment
from informin.evaluation.senteval import TASKS, StsTask, TransferTask, load_task
from informin.evaluation.sts import score_sts
from informin.evaluation.table import model_label
from informin.evaluation.transfer import score_transfer
from informin.evaluation.whitening import whiten, whitened
from informin.files import sha256
from informin.models.checksums import weights_sha256
from informin.models.embedding import embed, width_of
from informin.models.opening import name_of, source_of
from informin.models.pooling import MODES

logger = logging.getLogger(__name__)

TESTED = ("ndcg_10", "recall_100")  # measures of retrieval that are saved for each query
FITTED_ON = "the sentences of each task"
Task = StsTask | TransferTask | LabeledSentences | Collection


@dataclass(frozen=True)
class Tasks:
    """Data of tasks by name, and the SHA-256 of their files. All SentEval tasks have the same split."""

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
        retrieval: Folders for `load_collection` and files for `load_retrieval_pairs`. Each is one task, named after it.
        columns: Columns of `labels` with the sentences and their labels.

    Raises:
        UsageError: As `load_task`, `load_labels`, `load_collection` and `load_retrieval_pairs`. Also if two tasks have
            the same name.
    """
    data: dict[str, Task] = {}
    sums: dict[str, dict[str, str]] = {}
    for name in names:
        task = load_task(Path(folder or ""), name, split)
        data[name], sums[name] = task, checksums(task.files, folder or "")
    for option, paths in (("labels", labels), ("retrieval", retrieval)):
        for path in map(Path, paths):
            name = task_name(path)
            if name in (*TASKS, *data):
                raise UsageError(f"{path}: a task {name} already exists", option=option, fix="Rename the file.")
            if option == "labels":
                # The columns are part of the checksum: other columns of a file are another task.
                suffix = "" if columns == LABEL_COLUMNS else f" ({', '.join(columns)})"
                data[name], sums[name] = load_labels(path, option, *columns), {path.name: sha256(path) + suffix}
            elif path.is_dir():
                collection = load_collection(path)
                data[name], sums[name] = collection, {name: collection.sha256}
            else:
                data[name], sums[name] = load_retrieval_pairs(path, option), {path.name: sha256(path)}
    return Tasks(split, data, sums)


def task_name(path: str | Path) -> str:
    """Return the name of the task of a file or folder, such as banking77 for data/banking77.tsv.gz."""
    path = Path(path)
    if path.is_dir():
        return path.resolve().name
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).stem


def score_model(
    model: SentenceTransformer,
    tasks: Tasks,
    *,
    pooler: str = "auto",
    prompt: str | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    whitening: float | None = None,
    bm25: bool = False,
    batch_size: int = 64,
    output: str | Path | None = None,
) -> Results:
    """Score a model on every task, one after the other, and save each as soon as it is finished.

    STS and retrieval compare embeddings with the similarity of the model. Texts of an earlier task are not encoded
    again. All processes must make the same call.

    Args:
        model: The model.
        tasks: Data from `load_tasks`.
        pooler: Name of the pooling in tables; `auto` for the name of the pooling that the model has.
        prompt: Text before every text; None for the stored prompts.
        query_prompt: Text before the queries of retrieval; None for `prompt`.
        document_prompt: The same for documents.
        whitening: Whiten embeddings with a map fitted on each task's own texts, compare them by cosine, and keep this
            number of dimensions; `math.inf` for all, None for no whitening.
        bm25: In retrieval, add BM25 and its rank fusion with the model.
        batch_size: Texts per forward pass.
        output: File to save the results in and to resume from; None to save nothing.

    Raises:
        UsageError: `output` has results of another model, whitening asks for more dimensions than there are, or an
            embedding is not finite.
    """
    encoders = Encoders(model, prompt, query_prompt, document_prompt, batch_size)
    results = Results(
        model=name_of(model),
        weights_sha256=weights_sha256(model),
        pooler=pooler_of(model) if pooler == "auto" else pooler,
        normalized=any(isinstance(module, Normalize) for module in model),
        max_length=model.max_seq_length,
        precision="bf16" if source_of(model).bf16 else "fp32",
        split=tasks.split,
        prompt=encoders.prompt(None) or None,
        whitening=_whitening_entry(whitening, width_of(model)),
        similarity=COSINE if whitening else str(model.similarity_fn_name),
        environment=environment(model.device),
    )
    results = results.resumed(output) if output else results
    pending = [name for name, task in tasks.data.items() if not _finished(results, name, tasks, encoders, bm25)]
    pending = gather_objects(pending)[0]  # and no process saves results before all have read the earlier ones
    for name in pending:
        task, start = tasks.data[name], time.perf_counter()
        encoders.add(task)
        encoded = time.perf_counter()
        entry = _score(task, encoders, results, bm25)
        entry["seconds"] = {"encode": encoded - start, "score": time.perf_counter() - encoded}
        entry["data"] = tasks.checksums[name]
        results.add(name, entry)
        if output and rank() == 0:
            results.save(output)
        shown = "no score" if entry["score"] is None else f"{entry['score']:.2f}"
        logger.info(f"{model_label(results)}: {name} {shown} ({sum(entry['seconds'].values()):.1f} s)")
    return results


def pooler_of(model: SentenceTransformer) -> str:
    """Return the name of a model's pooling: cls, mean, last or another one of sentence-transformers; st for none."""
    names = {mode: name for name, mode in MODES.items()}
    modes = [module.pooling_mode for module in model if isinstance(module, Pooling)]
    return names.get(modes[0], str(modes[0])) if modes else "st"


class Encoders:
    """Encode functions of a model for texts, queries and documents, which encode each distinct text once."""

    def __init__(
        self,
        model: SentenceTransformer,
        prompt: str | None,
        query_prompt: str | None,
        document_prompt: str | None,
        batch_size: int,
    ):
        def encoder(side: str | None) -> EmbeddingCache:
            return EmbeddingCache(partial(embed, model, side=side, prompt=self._prompts[side], batch_size=batch_size))

        self.model = model
        self._prompts = {
            None: prompt,
            "query": prompt if query_prompt is None else query_prompt,
            "document": prompt if document_prompt is None else document_prompt,
        }
        self.texts, self.queries, self.documents = encoder(None), encoder("query"), encoder("document")

    def prompt(self, side: str | None) -> str:
        """Return the text before queries, documents or, for None, other texts."""
        named, prompts = self._prompts[side], self.model.prompts
        default = prompts.get(self.model.default_prompt_name or "", "")
        return named if named is not None else prompts.get(side or "", default)

    def add(self, task: Task) -> None:
        """Encode the texts of a task that are not encoded yet."""
        if isinstance(task, Collection):
            self.queries(task.queries)
            self.documents(task.documents)
        else:
            self.texts(task.texts())

    def side_prompts(self, task: Task) -> dict[str, str] | None:
        """Return the prompts of a retrieval task if one differs from that of other texts; else None."""
        prompts = {side: self.prompt(side) for side in ("query", "document")}
        differ = isinstance(task, Collection) and any(prompt != self.prompt(None) for prompt in prompts.values())
        return prompts if differ else None


def _whitening_entry(whitening: float | None, width: int) -> dict | None:
    if whitening is None:
        return None
    if whitening != math.inf and not 1 <= whitening <= width:
        raise UsageError(f"is {whitening}", option="whitening", needed=f"1 to {width} for this model")
    return {"dimensions": None if whitening == math.inf else int(whitening), "fitted_on": FITTED_ON}


def _finished(results: Results, name: str, tasks: Tasks, encoders: Encoders, bm25: bool) -> bool:
    """Return whether results contain a score of a task, computed from the same files with the same prompts."""
    entry, task = results.tasks.get(name), tasks.data[name]
    if entry is None or entry["score"] is None or entry["data"] != tasks.checksums[name]:
        return False
    lacks_bm25 = bm25 and isinstance(task, Collection) and "bm25" not in entry
    return entry.get("prompts") == encoders.side_prompts(task) and not lacks_bm25


def _score(task: Task, encoders: Encoders, results: Results, bm25: bool) -> dict:
    """Return the entry of a task, without seconds and data."""
    model, whitening = encoders.model, results.whitening
    encode: Encode = whitened(encoders.texts, whitening["dimensions"]) if whitening else encoders.texts
    is_cosine = results.similarity == COSINE
    try:
        if isinstance(task, Collection):
            similarity = None if is_cosine else model.similarity
            return _score_collection(task, encoders, similarity, whitening, bm25)
        if isinstance(task, StsTask):
            return score_sts(encode, task, cosine if is_cosine else model.similarity_pairwise)
        if isinstance(task, TransferTask):
            return score_transfer(encode, task)
        measures = task.score(encode)
        return {"score": measures["v_measure"], "kind": task.kind, **task.counts, "measures": measures}
    except UndefinedScoreError as error:
        sizes = {"n": task.examples} if isinstance(task, StsTask | TransferTask) else {"kind": task.kind, **task.counts}
        return {"score": None, **sizes, "error": str(error)}


def _score_collection(
    collection: Collection, encoders: Encoders, similarity: Similarity | None, whitening: dict | None, bm25: bool
) -> dict:
    queries, documents = encoders.queries(collection.queries), encoders.documents(collection.documents)
    if whitening:
        both = whiten(np.concatenate([queries, documents]), whitening["dimensions"])
        queries, documents = both[: len(queries)], both[len(queries) :]
    ranking = collection.rank(queries, documents, FUSION_DEPTH if bm25 else DEPTH, similarity)
    scores = _retrieval_scores(collection, ranking)
    entry = {"score": scores["measures"]["mrr_10"], "kind": collection.kind, **collection.counts, **scores}
    if prompts := encoders.side_prompts(collection):
        entry["prompts"] = prompts
    if bm25:
        words, ranks = bm25_search(collection, FUSION_DEPTH)
        fused = fused_ranking(ranking, words, len(documents), ranks)
        entry |= {"bm25": _retrieval_scores(collection, words), "fused": _retrieval_scores(collection, fused)}
    return entry


def _retrieval_scores(collection: Collection, ranking: np.ndarray) -> dict[str, dict]:
    """Return the means of all measures, and those of `TESTED` for each query."""
    scores = collection.scores(ranking[:, :DEPTH])
    return {
        "measures": {name: float(values.mean()) for name, values in scores.items()},
        "queries": {name: scores[name].round(6).tolist() for name in TESTED},
    }
