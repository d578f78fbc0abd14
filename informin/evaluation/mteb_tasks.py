"""Retrieval tasks of the mteb package, if it is installed."""

from collections.abc import Mapping
from typing import Any

from informin.errors import UsageError, error_line
from informin.evaluation.collections import OPTION, Collection, make_collection


def load_mteb_task(name: str) -> Collection:
    """Load the test split of an mteb retrieval task, or its only split, as a test collection.

    Raises:
        UsageError: mteb is not installed, does not know the task, cannot load its data, or the task has several
            languages or is not a retrieval task.
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
    judged = {
        (query, document): int(grade)
        for query, grades in relevant.items()
        for document, grade in grades.items()
        if query in queries and document in documents
    }
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
        return _by_id(corpus), _by_id(queries), relevant
    except (KeyError, TypeError, AttributeError, StopIteration):
        raise UsageError(
            f"{name} is not a retrieval task in one language", option=OPTION, fix="Choose another task."
        ) from None


def _by_id(rows: Any) -> dict[str, str]:
    """Return texts by id, from a mapping or from rows with `id`, `text` and optionally `title`."""
    pairs = rows.items() if isinstance(rows, Mapping) else ((row["id"], row) for row in rows)
    return {str(key): _text(row) for key, row in pairs}


def _text(row: str | Mapping[str, str]) -> str:
    if isinstance(row, str):
        return row
    return " ".join(part for part in (row.get("title"), row["text"]) if part)
