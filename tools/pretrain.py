"""Pre-train a small BERT from scratch on a text file, for studies that need a raw encoder. Needs a GPU to be useful.

    python -m tools.pretrain --train_file FILE --output_dir FOLDER [--minutes 5]

The tokenizer is a WordPiece tokenizer of --vocab_size tokens, trained on the text with the rules of --tokenizer, unless
FOLDER has one already. Training is masked language modeling alone: in each sentence, cut at 64 tokens, 20% of the
tokens are predicted (80% masked, 10% random, 10% kept). A batch has sentences of one length, so that nothing is
padded. AdamW's learning rate rises for 5% of the time and then falls linearly to 0. The time decides how many steps
there are, so two runs differ. FOLDER/pretraining.json says what was done.
"""

import argparse
import json
import os
import random
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, PreTrainedTokenizerBase

from informin.files import write_json
from informin.texts import read_texts

LENGTH, SHARE, CHUNK, EVERY = 64, 0.2, 5000, 200


def chunks(lines: list[str]) -> list[list[str]]:
    return [lines[start : start + CHUNK] for start in range(0, len(lines), CHUNK)]


def tokenizer_of(folder: Path, rules: str, lines: list[str], size: int) -> PreTrainedTokenizerBase:
    """Load the tokenizer in a folder, or train it with the rules of another one and save it there."""
    if (folder / "tokenizer.json").exists():
        return AutoTokenizer.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(rules).train_new_from_iterator(chunks(lines), size)
    tokenizer.model_max_length = LENGTH
    tokenizer.save_pretrained(folder)
    return tokenizer


def ids_of(lines: list[str], tokenizer: PreTrainedTokenizerBase) -> list[np.ndarray]:
    return [np.array(ids, np.uint16) for ids in tokenizer(lines, truncation=True, max_length=LENGTH).input_ids]


def by_length(lines: list[str], tokenizer: PreTrainedTokenizerBase, device: str) -> dict[int, torch.Tensor]:
    """Tokenize on all cores, and return the token IDs of the sentences of each length, [sentences, length]."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        parts = pool.map(partial(ids_of, tokenizer=tokenizer), chunks(lines))
        groups: dict[int, list[np.ndarray]] = {}
        for ids in (ids for part in parts for ids in part):
            groups.setdefault(len(ids), []).append(ids)
    return {
        length: torch.from_numpy(np.stack(rows).astype(np.int32)).to(device)
        for length, rows in groups.items()
        if length > 4
    }


def batches(groups: dict[int, torch.Tensor], tokens: int, seed: int):
    """Yield batches of sentences of one length with about this many tokens, forever, shuffled in each epoch."""
    rng = random.Random(seed)
    while True:
        parts = []
        for length, rows in groups.items():
            order = torch.randperm(len(rows), device=rows.device)
            parts += [(length, part) for part in order.split(tokens // length) if len(part) > 1]
        rng.shuffle(parts)
        for length, part in parts:
            yield groups[length][part].long()


def masked(ids: torch.Tensor, tokenizer: PreTrainedTokenizerBase) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the input with masks, and the positions to predict, [sentences, predictions]; never [CLS] and [SEP]."""
    length = ids.shape[1] - 2
    where = 1 + torch.rand(len(ids), length, device=ids.device).topk(max(1, round(SHARE * length))).indices
    old = ids.gather(1, where)
    chance = torch.rand(where.shape, device=ids.device)
    new = torch.where(chance < 0.8, tokenizer.mask_token_id, torch.randint_like(old, len(tokenizer)))
    return ids.scatter(1, where, torch.where(chance < 0.9, new, old)), where


def loss_of(model: BertForMaskedLM, ids: torch.Tensor, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    """Return the cross-entropy of the hidden tokens. The head runs on these alone."""
    inputs, where = masked(ids, tokenizer)
    with torch.autocast(ids.device.type, torch.bfloat16):
        hidden = model.bert(inputs).last_hidden_state
        logits = model.cls(hidden.gather(1, where[..., None].expand(-1, -1, hidden.shape[-1])))
    return functional.cross_entropy(logits.float().flatten(0, 1), ids.gather(1, where).flatten())


def train(model: BertForMaskedLM, groups: dict, tokenizer: PreTrainedTokenizerBase, args: argparse.Namespace) -> dict:
    """Train for `args.minutes`, and return what was done."""
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    other = [weight for weight in model.parameters() if weight.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": other, "weight_decay": 0.0}],
        lr=args.learning_rate, betas=(0.9, 0.98), eps=1e-6, fused=True,
    )  # fmt: skip
    stream = batches(groups, args.batch_tokens, args.seed)
    for _ in range(3):  # compile before the clock starts
        loss_of(model, next(stream), tokenizer).backward()
    optimizer.zero_grad(set_to_none=True)
    start, step, tokens, mean, history = time.perf_counter(), 0, 0, torch.zeros((), device=model.device), []
    for ids in stream:
        done = (time.perf_counter() - start) / (60 * args.minutes)
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * min(done / 0.05, (1 - done) / 0.95)
        loss = loss_of(model, ids, tokenizer)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + ids.numel()
        mean = mean + (loss.detach() - mean) / min(step, EVERY)
        if step % EVERY == 0:  # also waits for the GPU, so that the clock is right
            history.append({"step": step, "tokens": tokens, "loss": round(mean.item(), 4)})
            print(f"{done:4.0%} step {step}, {tokens / 1e6:.1f}M tokens, loss {mean.item():.3f}", flush=True)
    return {"steps": step, "tokens": tokens, "seconds": round(time.perf_counter() - start), "history": history}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--output_dir", required=True, type=Path)
    parser.add_argument("--tokenizer", default="google-bert/bert-base-uncased")
    parser.add_argument("--vocab_size", type=int, default=15360)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--batch_tokens", type=int, default=32768)
    parser.add_argument("--learning_rate", type=float, default=7e-4)
    parser.add_argument("--compile", action="store_true", help="Fuse operations with torch.compile.")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lines = list(read_texts(args.train_file))
    tokenizer = tokenizer_of(args.output_dir, args.tokenizer, lines, args.vocab_size)
    groups = by_length(lines, tokenizer, device)
    print(f"{len(lines)} sentences, {sum(rows.numel() for rows in groups.values()) / 1e6:.1f}M tokens", flush=True)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=args.width, num_hidden_layers=args.layers,
        num_attention_heads=args.width // 64, intermediate_size=4 * args.width, max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = BertForMaskedLM(config).to(device).train()
    if args.compile:
        for layer in model.bert.encoder.layer:
            layer.compile(dynamic=True)
    done = train(model, groups, tokenizer, args)
    model.half().save_pretrained(args.output_dir)
    given = vars(args) | {name: Path(getattr(args, name)).name for name in ("train_file", "output_dir", "tokenizer")}
    device = torch.cuda.get_device_name() if device == "cuda" else device
    write_json(args.output_dir / "pretraining.json", {"options": given, "device": device, **done})
    print(json.dumps({name: value for name, value in done.items() if name != "history"}))


if __name__ == "__main__":
    main()
