"""Score models on test collections, for `informin eval --retrieval`."""

import argparse
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from informin.cli.texts import backend_of, sides_of
from informin.errors import UsageError
from informin.evaluation.collections import DEPTH, load_collection
from informin.evaluation.mteb_tasks import load_mteb_task
from informin.evaluation.scoring import encode_with_bar
from informin.evaluation.search import FUSION_DEPTH, bm25_search, fused_ranking, search_ranking, search_table
from informin.evaluation.similarity import COSINE
from informin.evaluation.table import prompts_note, render, similarity_note
from informin.models.model import Model
from informin.models.open_model import load_model


def is_collection(path: str) -> bool:
    """Return whether an argument of `--retrieval` is a folder or may be the name of an mteb task."""
    return Path(path).is_dir() or (not Path(path).exists() and re.fullmatch(r"[\w-]+", path) is not None)


def search(args: argparse.Namespace, names: list[str]) -> None:
    """Score the models on test collections and print a table for each.

    Args:
        names: Folders, or names of mteb tasks.
    """
    if args.output or args.compare or args.whitening is not None:
        used = [name for name in ("output", "compare", "whitening") if getattr(args, name) is not None]
        raise UsageError("has no effect with a test collection", option=used[0], fix="Leave it out.")
    collections = [load_collection(name) if Path(name).is_dir() else load_mteb_task(name) for name in names]
    depth = FUSION_DEPTH if args.bm25 else DEPTH
    rows: list[dict] = [{} for _ in collections]
    notes: list[str] = []
    for model_name in args.model_name:
        how = (model_name, args.pooler, args.max_length, args.batch_size, args.device, args.bf16)
        encoder = load_model(*how, prompt=args.prompt, **backend_of(args))
        queries, documents = sides_of(encoder, args) or (encoder, encoder)
        for pooler in encoder.poolers:
            label = f"{Path(model_name).resolve().name}, {pooler}"
            label = label if label not in rows[0] else f"{model_name}, {pooler}"
            if encoder.similarity != COSINE:
                notes.append(similarity_note(encoder.similarity, label))
            if encoder.routed:
                notes.append(f"Routes: the Router of {label} has one for queries and one for documents.")
            if queries.prompt or documents.prompt:
                notes.append(f"{label}: {prompts_note(queries.prompt, documents.prompt)}")
            for found, collection in zip(rows, collections):
                of_documents, of_queries = (partial(_encode, side, pooler) for side in (documents, queries))
                found[label] = search_ranking(of_documents, collection, depth, of_queries, encoder.similarity)
    for found, collection in zip(rows, collections):
        baseline = next(iter(found))
        if args.bm25:
            words, ranks = bm25_search(collection, depth)
            fused = fused_ranking(found[baseline], words, len(collection.documents), ranks)
            found |= {"BM25": words, f"BM25 + {baseline}": fused}
        scores = {name: collection.scores(ranking[:, :DEPTH]) for name, ranking in found.items()}
        print(render(search_table(collection, scores, baseline if len(scores) > 1 else None), args.format))
        if len(scores) > 1:
            print(f"p: paired randomization test against {baseline}, two-sided, 10,000 sign flips over queries")
    for note in notes:
        print(f"% {note}" if args.format == "latex" else note)


def _encode(encoder: Model, pooler: str, texts: Sequence[str]) -> np.ndarray:
    return encode_with_bar(encoder, texts)[pooler]
