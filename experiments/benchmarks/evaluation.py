"""Compare time and scores of the seven STS tests here and with sentence-transformers.

    python -m experiments.benchmarks.evaluation --model_name MODEL --senteval_dir FOLDER

Here, a sentence that several tests have is embedded once. There, each file of pairs is an EmbeddingSimilarityEvaluator
of a SentenceTransformer with the same pooling. Both use batch size 64 on one machine, one side after the other in every
round. Both scores are Spearman correlations over all pairs of a test.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from experiments.benchmarks.report import report, spread
from informin.evaluation.evaluate import Tasks, load_tasks, score_model
from informin.evaluation.senteval import chosen_tasks, senteval_folder
from informin.model.open import load_model

SIDES = ("sentence-transformers", "here")


def ours(args: argparse.Namespace, tasks: Tasks) -> dict[str, float]:
    found = score_model(load_model(args.model_name, pooler=args.pooler, max_seq_length=args.length), tasks)
    return {name: entry["score"] for name, entry in found.tasks.items()}


def theirs(args: argparse.Namespace, tasks: Tasks) -> dict[str, float]:
    from sentence_transformers import SentenceTransformer, SimilarityFunction
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    encoder = Transformer(args.model_name, max_seq_length=args.length)
    modules = [encoder, Pooling(encoder.get_embedding_dimension(), pooling_mode=args.pooler)]
    model, found = SentenceTransformer(modules=modules, device="cpu"), {}
    for name, task in tasks.data.items():
        first, second = (
            [s for part in task.subsets for s in getattr(part, side)] for side in ("sentences1", "sentences2")
        )
        grades = np.concatenate([part.scores for part in task.subsets])
        scored = EmbeddingSimilarityEvaluator(
            first, second, grades, batch_size=64, main_similarity=SimilarityFunction.COSINE, write_csv=False
        )(model)
        found[name] = 100 * scored["spearman_cosine"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--senteval_dir")
    parser.add_argument("--pooler", choices=["cls", "mean"], default="mean")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    tasks = load_tasks(senteval_folder(args.senteval_dir), chosen_tasks(["sts"], "test"))
    seconds, scores = {side: [] for side in SIDES}, {}
    for _ in range(args.rounds):
        for side, score in zip(SIDES, (theirs, ours)):
            start = time.perf_counter()
            scores[side] = score(args, tasks)
            seconds[side].append(time.perf_counter() - start)
    rows = []
    for side, own in seconds.items():
        ratios = [other / mine for mine, other in zip(own, seconds[SIDES[0]])]
        average = statistics.mean(scores[side].values())
        rows.append([side, f"{statistics.median(own):.1f}", spread(ratios), f"{average:.2f}"])
    title = f"The seven STS tests, {Path(args.model_name).name} at {args.pooler}, {args.rounds} rounds"
    columns = ("", "seconds", "ratio to sentence-transformers (least to most)", "STS average")
    print(report("evaluation", title, columns, rows, {"seconds": seconds, "scores": scores}))


if __name__ == "__main__":
    main()
