"""Write the models, files and runs that the cases of `tools.input_cases` use."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file
from transformers import AutoModel, MPNetConfig, XLMConfig

from informin.files import write_manifest
from tests.conftest import ROOT, SIZES, make_sentences, save_bert, save_pairs, save_roberta
from tools.input_cases import CACHES, CHANGED, CONFIGURATIONS, GUIDED, HARMS, RESUMES, changed, training

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
ENVIRONMENT["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"


def call(folder: Path, command: list[str], stdin: str = "y\n") -> tuple[int, str]:
    """Run an `informin` command. Return its exit code and the last line of stderr, or of stdout if stderr is empty."""
    run = subprocess.run(
        [sys.executable, "-m", "informin", *command],
        cwd=folder,
        env=ENVIRONMENT,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = [line for line in (run.stderr.strip() or run.stdout.strip()).splitlines() if line.strip()]
    return run.returncode, "TRACEBACK " * ("Traceback" in run.stderr) + (said[-1] if said else "")


def prepare(folder: Path) -> None:
    """Write all models, files and runs."""
    save_bert(folder / "bert")
    save_bert(folder / "outputs" / "run")
    save_bert(folder / "other-bert", initializer_range=0.1)
    changes = {name: change for name, (_, change) in CONFIGURATIONS.items()}
    for name, change in {**changes, "list": None}.items():
        shutil.copytree(folder / "bert", folder / name)
        config = folder / name / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | change if change else []))
    config = json.loads((folder / "evil" / "config.json").read_text())
    config |= {"auto_map": {name: f"evil.{name}" for name in ("AutoConfig", "AutoModel")}}
    (folder / "evil" / "config.json").write_text(json.dumps(config))
    (folder / "evil" / "evil.py").write_text("open('CODE-WAS-RUN', 'w')\n")
    wide = save_bert(folder / "wide", hidden_size=64) / "config.json"
    wide.write_text(json.dumps(json.loads(wide.read_text()) | {"informin": {"pooling": "mean"}}))
    for name, config in (("xlm", XLMConfig(emb_dim=32, n_layers=1, n_heads=2)), ("mpnet", MPNetConfig(**SIZES))):
        shutil.copytree(folder / "bert", folder / name)
        AutoModel.from_config(config.__class__(**config.to_diff_dict() | {"vocab_size": 32})).save_pretrained(
            folder / name
        )
    shutil.copytree(folder / "bert", folder / "dense")
    kinds = ("Transformer", "Pooling", "Dense")
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": f"{i}_{kind}" * bool(i)}
        for i, kind in enumerate(kinds)
    ]
    (folder / "dense" / "modules.json").write_text(json.dumps(modules))
    prepare_outside(folder)
    save_roberta(folder / "mixed")
    for path in (folder / "bert").glob("tokenizer*"):
        shutil.copy(path, folder / "mixed")
    write_texts(folder)
    code, said = call(folder, training("run"))
    assert code == 0, said
    prepare_runs(folder)


def prepare_outside(folder: Path) -> None:
    """Save models that refer to files of another folder."""
    names = [f"{what}-outside" for what in ("module", "shard", "link")]
    for name in names:
        shutil.copytree(folder / "bert", folder / name)
    paths = {"Transformer": "", "Pooling": "../dense/1_Pooling"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in paths.items()]
    (folder / names[0] / "modules.json").write_text(json.dumps(modules))
    weights = folder / "bert" / "model.safetensors"
    shards = dict.fromkeys(load_file(weights), str(weights))
    (folder / names[1] / "model.safetensors").unlink()
    (folder / names[1] / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    (folder / names[2] / "model.safetensors").unlink()
    (folder / names[2] / "model.safetensors").symlink_to(weights)


def write_texts(folder: Path) -> None:
    sentences = make_sentences(96)
    texts = {
        "s.txt": sentences,
        "others.txt": make_sentences(96, seed=9),
        "headless.csv": sentences,
        "two.csv": [f"{a},{b}" for a, b in zip(sentences, sentences[::-1])],
        "quote.csv": ["text,n", *(f'"{s}",1' if i != 20 else f'"{s},1' for i, s in enumerate(sentences[:41]))],
        "copies.txt": ["the old dog sleeps"] * 96,
        "one.txt": ["the old dog sleeps"],
        "afile": [""],
    }
    save_pairs(folder / "pairs.tsv")
    save_pairs(folder / "others.tsv", seed=5)
    texts["same.tsv"] = ["sentence1\tsentence2\tscore", *(f"{s}\t{s}\t{i}" for i, s in enumerate(sentences[:6]))]
    texts["one-class.tsv"] = ["text\tlabel", *(f"{s}\ta" for s in sentences)]
    texts["no-label.tsv"] = ["text\tkind", *(f"{s}\ta" for s in sentences)]
    texts["own-classes.tsv"] = ["text\tlabel", *(f"{s}\t{i}" for i, s in enumerate(sentences))]
    texts["long.txt"] = [*sentences, "dog " * 2_500_000]
    texts["many-classes.tsv"] = ["text\tlabel", *(f"sentence {i}\t{i % 5000}" for i in range(10_000))]
    texts["nan.jsonl"] = ['{"text": "a dog", "label": NaN}']
    texts["surrogate.jsonl"] = [f'{{"text": "{s}", "label": "\\ud80{i % 2}"}}' for i, s in enumerate(sentences)]
    texts["digits.jsonl"] = ['{"sentence1": "a", "sentence2": "b", "score": %s}' % ("9" * 400)]
    texts["relevance.tsv"] = ["query\tdocument\trelevance", "a\tb\t-1"]
    texts["nested.jsonl"] = ['{"query": {"a": [1]}, "document": "b"}']
    small = ["base: {model_name: bert, train_file: s.txt, eval_pairs: pairs.tsv}", "recipes: {a: {}}", "seeds: [1]"]
    laughs = ["&a0 [x, x]", *(f"&a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 30))]
    texts["laughs.yaml"] = [*small, f"grid: {{temperature: [{', '.join(laughs)}]}}"]
    hundred = ", ".join(str(i / 1000) for i in range(1, 101))
    texts["grid.yaml"] = [*small, f"grid: {{learning_rate: [{hundred}], temperature: [{hundred}]}}"]
    texts["tag.yaml"] = [*small, "before: !!bool perhaps"]
    texts["..yaml"] = small
    for name, lines in texts.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    os.mkfifo(folder / "fifo")
    os.mkfifo(folder / "fifo.tsv")


def prepare_runs(folder: Path) -> None:
    """Create interrupted and damaged runs, runs with changed inputs, and exports that contain links."""
    for index, (options, original, change) in enumerate(CHANGED.values()):
        own = folder / f"own-{index}{Path(original).suffix}"
        copy = shutil.copytree if (folder / original).is_dir() else shutil.copy
        copy(folder / original, own)
        code, said = call(folder, changed(index, options, own))
        assert code == 0, said
        shutil.rmtree(folder / f"changed-{index}" / "checkpoint-4")
        change(own)
    for index, _ in enumerate(RESUMES):
        shutil.copytree(folder / "run" / "checkpoint-2", folder / f"half-{index}" / "checkpoint-2")
    for index, harm in enumerate(HARMS.values()):
        for name in ("checkpoint-2", "checkpoint-4"):
            shutil.copytree(folder / "run" / name, folder / f"harmed-{index}" / name)
        harm(folder / f"harmed-{index}" / "checkpoint-4")
    shutil.copytree(folder / "harmed-7" / "checkpoint-2", folder / "gone" / "checkpoint-2")
    (folder / "gone" / "checkpoint-2" / "optimizer.pt").unlink()
    shutil.copytree(folder / "run" / "checkpoint-4", folder / "cut")
    os.truncate(folder / "cut" / "model.safetensors", 1000)
    shutil.copytree(folder / "run" / "checkpoint-2", folder / "bare" / "checkpoint-2")
    for name in ("optimizer.pt", "scheduler.pt"):
        (folder / "bare" / "checkpoint-2" / name).unlink()
    write_manifest(folder / "bare" / "checkpoint-2")
    code, said = call(folder, training("guiding", **GUIDED, distillation_weight=1, guide_cache="cache"))
    assert code == 0, said
    for index, harm in enumerate(CACHES.values()):
        shutil.copytree(folder / "cache", folder / f"cache-{index}")
        harm(next((folder / f"cache-{index}").glob("*.npy")))
    (folder / "private").write_text("a password")
    export = shutil.ignore_patterns("checkpoint-*")
    for name in ("linked-file", "linked-folder", "linked-card", "linked-no", "nan", "piped"):
        shutil.copytree(folder / "run", folder / name, ignore=export)
    (folder / "linked-file" / "vocab.txt").symlink_to(folder / "private")
    (folder / "linked-folder" / "onnx").symlink_to(folder)
    (folder / "linked-card" / "README.md").unlink()
    (folder / "linked-card" / "README.md").symlink_to(folder / "private")
    (folder / "piped" / "README.md").unlink()
    os.mkfifo(folder / "piped" / "README.md")
    weights = load_file(folder / "nan" / "model.safetensors")
    next(iter(weights.values())).fill_(float("nan"))
    save_file(weights, folder / "nan" / "model.safetensors", {"format": "pt"})
