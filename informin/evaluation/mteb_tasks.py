"""Retrieval tasks of the mteb package, if it is installed."""

import logging
from collections.abc import Mapping
from typing import Any

from informin.errors import UsageError, counted, error_line
from informin.evaluation.collection_files import OPTION, Judgments, full_text, identifier, judge
from informin.evaluation.collections import Collection, make_collection
from informin.evaluation.grades import HIGHEST, whole_grade

logger = logging.getLogger(__name__)


def load_mteb_task(name: str) -> Collection:
    """Load the test split of an mteb retrieval task, or its only split, as a test collection.

    Raises:
        UsageError: mteb is not installed, does not know the task, cannot load its data, or the task has several
            languages or is not a retrieval task; or as `informin.evaluation.collections.load_collection`.
    """
    try:
        import mteb
    except ImportError:
        raise UsageError(
            f"{name} is neither a file nor a folder, and not an mteb task because mteb is not installed",
            option=OPTION,
            fix="Check the path, or install mteb.",
        ) from None
    try:
        task = mteb.get_task(name)
        task.load_data()
    except Exception as error:  # mteb and the libraries that load its data can raise anything
        raise UsageError(
            f"{name} cannot be loaded as an mteb task: {error_line(error)}",
            option=OPTION,
            fix="Check the name, and download the data of the task.",
        ) from None
    documents, queries, relevant = _texts(task, name)
    judged: Judgments = {}
    unknown = 0  # judgments of unknown queries and documents, which are left out
    for query, grades in relevant.items():
        for document, grade in grades.items():
            if str(query) in queries and str(document) in documents:
                place = f"{name}, query {query}, document {document}"
                judge(judged, str(query), str(document), whole_grade(grade, "grade", place, least=-HIGHEST), place)
            else:
                unknown += 1
    if unknown:
        logger.warning(f"{name}: {counted(unknown, 'judgment')} of queries or documents that do not exist.")
    if not any(grade > 0 for grade in judged.values()):
        raise UsageError(f"{name} has no relevant document", option=OPTION, fix="Choose another task.")
    return make_collection(name, documents, queries, judged, shared_ids=True)


def _texts(task: Any, name: str) -> tuple[dict[str, str], dict[str, str], Mapping[str, Mapping[str, float]]]:
    """Return documents and queries by id, and grades; mteb 1 keeps them as attributes, mteb 2 in `dataset`."""
    try:
        if getattr(task, "corpus", None):
            split = "test" if "test" in task.corpus else next(iter(task.corpus))
            corpus, queries, relevant = task.corpus[split], task.queries[split], task.relevant_docs[split]
        else:
            subset = task.dataset["default"]
            data = subset["test"] if "test" in subset else next(iter(subset.values()))
            corpus, queries, relevant = data["corpus"], data["queries"], data["relevant_docs"]
        return _by_id(name, corpus), _by_id(name, queries), {key: {**grades} for key, grades in relevant.items()}
    except (KeyError, TypeError, AttributeError, StopIteration):
        raise UsageError(
            f"{name} is not a retrieval task in one language", option=OPTION, fix="Choose another task."
        ) from None


def _by_id(name: str, rows: Any) -> dict[str, str]:
    """Return texts by id, from a mapping or from rows with `id`, `text` and optionally `title`."""
    found: dict[str, str] = {}
    for key, row in rows.items() if isinstance(rows, Mapping) else ((row["id"], row) for row in rows):
        place = f"{name}, id {key}"
        if (known := identifier(key, place)) in found:
            raise UsageError(f"{place} occurs twice", option=OPTION, fix="Choose another task.")
        found[known] = full_text({"text": row} if isinstance(row, str) else row, place)
    return found
