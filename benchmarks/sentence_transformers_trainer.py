"""SimCSE here against sentence-transformers' trainer on the same sentences and settings: score and speed, as a ratio.

    python benchmarks/sentence_transformers_trainer.py --model_name MODEL --train_file FILE --senteval_dir SENTEVAL

Both read [CLS], use the contrast alone (MultipleNegativesRankingLoss on pairs (s, s) there), batch 128, 32 tokens,
learning rate 3e-5 with linear decay, gradient norm clipped at 1. There is no projection head there; here it is as
given. Each runs in a process of its own, one after the other; STS-B dev is scored in fp32 by the same code. Speed is of
training alone: no evaluation, no checkpoint.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
BATCH, LENGTH, RATE = 128, 32, 3e-5


def ours(args: argparse.Namespace, folder: str) -> tuple[float, float]:
    """Runs run_unsup.py; returns STS-B dev and sentences a second."""
    from transformers import AutoModel, AutoTokenizer

    from informin.encoders.encode import encode

    command = [sys.executable, str(ROOT / "run_unsup.py"), "--objective=simcse", f"--model_name={args.model_name}"]
    command += [f"--train_file={args.train_file}", f"--output_dir={folder}", f"--seed={args.seed}"]
    command += [f"--bf16={args.bf16}", f"--max_steps={args.max_steps}", f"--projection_head={args.projection_head}"]
    command += [f"--per_device_train_batch_size={BATCH}", f"--learning_rate={RATE}", f"--max_seq_length={LENGTH}"]
    command += ["--eval_strategy=no", "--save_strategy=no", "--disable_tqdm=true"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    speed = next(line for line in out.splitlines() if line.startswith("training speed"))
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    return score(args, lambda sentences: encode(model, tokenizer, sentences)["cls"]), float(speed.split()[2])


def theirs(args: argparse.Namespace, folder: str) -> tuple[float, float]:
    """Runs sentence-transformers' trainer; returns the same."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.models import Pooling, Transformer

    sentences = Path(args.train_file).read_text(encoding="utf-8").splitlines()
    encoder = Transformer(args.model_name, max_seq_length=LENGTH)
    pooling = Pooling(encoder.get_embedding_dimension(), pooling_mode="cls")
    model = SentenceTransformer(modules=[encoder, pooling], device=None if args.gpu else "cpu")
    options = dict(output_dir=folder, per_device_train_batch_size=BATCH, learning_rate=RATE, num_train_epochs=1)
    options |= dict(max_steps=args.max_steps, bf16=args.bf16 == "true", use_cpu=not args.gpu, seed=args.seed)
    options |= dict(save_strategy="no", report_to="none", disable_tqdm=True, dataloader_drop_last=True)
    trainer = SentenceTransformerTrainer(
        model=model,
        args=Arguments(**options),
        train_dataset=Dataset.from_dict({"anchor": sentences, "positive": sentences}),
        loss=MultipleNegativesRankingLoss(model),
    )
    start = time.perf_counter()
    trainer.train()
    rate = trainer.state.global_step * BATCH / (time.perf_counter() - start)
    model.max_seq_length = 512
    return score(args, model.encode), rate


def score(args: argparse.Namespace, encode) -> float:
    from informin.evaluation import load_stsb_dev, score_pairs

    return score_pairs(encode, load_stsb_dev(args.senteval_dir))["spearman"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model_name", "train_file", "senteval_dir"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max_steps", type=int, default=-1)
    parser.add_argument("--bf16", choices=["true", "false"], default="true")
    parser.add_argument("--projection_head", choices=["mlp", "none"], default="mlp")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--only", choices=["ours", "theirs"], help="run one side alone, in this process")
    args = parser.parse_args()
    if args.only:
        with tempfile.TemporaryDirectory() as folder:
            print("RESULT", json.dumps({"ours": ours, "theirs": theirs}[args.only](args, f"{folder}/run")))
        return
    results = {}
    for side in ("theirs", "ours"):
        command = [sys.executable, __file__, *sys.argv[1:], "--only", side]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        results[side] = json.loads(out.rpartition("RESULT")[2])
    print(f"{'':24}STS-B dev  sentences/s")
    for side, name in (("theirs", "sentence-transformers"), ("ours", "informin-cl")):
        print(f"{name:24}{results[side][0]:9.2f}  {results[side][1]:11.1f}")
    print(f"speed, ours / theirs: {results['ours'][1] / results['theirs'][1]:.2f}")


if __name__ == "__main__":
    main()
