"""Scoring on test collections, for `informin eval --retrieval FOLDER`."""

import argparse
from pathlib import Path

from informin.encoders.encoder import load_encoder
from informin.errors import UsageError
from informin.evaluation.collections import load_collection
from informin.evaluation.search import bm25_ranking, fused_ranking, search_ranking, search_table
from informin.evaluation.table import render


def search(args: argparse.Namespace, folders: list[str]) -> None:
    """Score the models on test collections and print a table for each."""
    if args.output or args.compare or args.whitening is not None:
        used = [name for name in ("output", "compare", "whitening") if getattr(args, name) is not None]
        raise UsageError("has no effect with a test collection", option=used[0], fix="Leave it out.")
    collections = [load_collection(folder) for folder in folders]
    rows: list[dict] = [{} for _ in collections]
    for model_name in args.model_name:
        encoder = load_encoder(
            model_name, args.pooler, args.max_length, args.batch_size, args.device, args.bf16, prompt=args.prompt
        )
        for pooler in encoder.poolers:
            label = f"{Path(model_name).resolve().name}, {pooler}"
            label = label if label not in rows[0] else f"{model_name}, {pooler}"
            for found, collection in zip(rows, collections):
                found[label] = search_ranking(lambda texts: encoder(texts)[pooler], collection)  # noqa: B023
    for found, collection in zip(rows, collections):
        baseline = next(iter(found))
        if args.bm25:
            words = bm25_ranking(collection)
            fused = fused_ranking(found[baseline], words, len(collection.documents))
            found |= {"BM25": words, f"BM25 + {baseline}": fused}
        scores = {name: collection.scores(ranking) for name, ranking in found.items()}
        print(render(search_table(collection, scores, baseline if len(scores) > 1 else None), args.format))
        if len(scores) > 1:
            print(f"p: paired randomization test against {baseline}, two-sided, 10,000 sign flips over queries")
