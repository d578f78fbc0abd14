"""What mistakes and hostile inputs get: a table of commands, each run as a person would, with exit code and last line.

    python -m tools.input_table > table.md

It makes its models and files in a temporary folder, and takes some minutes; no row needs the network.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file
from transformers import AutoModel, MPNetConfig, XLMConfig

from informin.files import write_manifest
from tests.conftest import ROOT, SIZES, make_sentences, save_bert, save_pairs, save_roberta

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
ENVIRONMENT["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
TRAIN = dict(model_name="bert", train_file="s.txt", eval_pairs="pairs.tsv", per_device_train_batch_size=16, max_steps=4)
TRAIN |= dict(eval_steps=2, learning_rate=1e-3, bf16="false", use_cpu="true")
# Harm to the folder `run`, which has the checkpoints 2 and 4 and the export, before the same command goes on with it.
HARMS = {
    "optimizer.pt deleted": lambda last: (last / "optimizer.pt").unlink(),
    "scheduler.pt deleted": lambda last: (last / "scheduler.pt").unlink(),
    "rng_state.pth deleted": lambda last: (last / "rng_state.pth").unlink(),
    "model.safetensors cut": lambda last: os.truncate(last / "model.safetensors", 1000),
    "optimizer.pt cut": lambda last: os.truncate(last / "optimizer.pt", 1000),
    "config.json broken": lambda last: (last / "config.json").write_text("{"),
    "trainer_state.json is []": lambda last: (last / "trainer_state.json").write_text("[]"),
    "trainer_state.json is [], with its checksum": lambda last: replaced(last, "trainer_state.json", "[]"),
    "training.json without options, with its checksum": lambda last: replaced(last, "training.json", '{"schema": 1}'),
    "no manifest": lambda last: (last / "manifest.json").unlink(),
}
# Options of a command that goes on with `half`, broken off after step 2.
RESUMES = {
    "another objective": dict(objective="simcse"),
    "another seed": dict(seed=7),
    "another temperature": dict(temperature=0.1),
    "another lambda": dict(reconstruction_weight=4),
    "another form": dict(reconstruction_form="reference"),
    "another batch": dict(per_device_train_batch_size=8),
    "another rate": dict(learning_rate=1e-4),
    "other sentences": dict(train_file="others.txt"),
    "other pairs": dict(eval_pairs="others.tsv"),
    "another encoder": dict(model_name="other-bert"),
    "max_steps below what was reached": dict(max_steps=1),
    "other logging": dict(logging_steps=1),
}
# Folders whose config.json differs from the small BERT's.
CONFIGURATIONS = {
    "evil": ("an unknown model_type with auto_map", dict(model_type="evil")),
    "decoder": ("a model with is_decoder", dict(is_decoder=True)),
    "kernel": ("dropouts that name a kernel", dict(informin={"dropouts": {"_attn_implementation": "evil/kernel"}})),
    "unknown-setting": ("an unknown setting of informin", dict(informin={"pooling": "cls", "surprise": 1})),
    "nan-dropout": ("a dropout of NaN", dict(hidden_dropout_prob=float("nan"))),
    "attentions": ("a model with output_attentions", dict(output_attentions=True)),
    "states": ("a model with output_hidden_states", dict(output_hidden_states=True)),
    "own-code": ("a model with an auto_map that is ignored", dict(auto_map={"AutoModel": "own.OwnBert"})),
    "quantized": ("a model with a quantization_config", dict(quantization_config={"quant_method": "fp8"})),
}
GUIDED = dict(objective="guided")
# Harm to a guide's cached embeddings, before another run reads them.
CACHES = {
    "cut": lambda path: os.truncate(path, 500),
    "NaN": lambda path: np.save(path, np.full_like(np.load(path), np.nan)),
    "fewer rows": lambda path: np.save(path, np.load(path)[:-20]),
    "integers": lambda path: np.save(path, np.load(path).view(np.int16)),
    "without its header": lambda path: path.with_suffix(".json").unlink(),
}
OPTIONS = {
    "--learning_rate=-1": dict(learning_rate=-1),
    "--learning_rate=nan": dict(learning_rate="nan"),
    "--seed=-1": dict(seed=-1),
    "--seed=10^14": dict(seed=10**14),
    "--num_train_epochs=-3": dict(max_steps=None, num_train_epochs=-3),
    "--max_steps=0": dict(max_steps=0),
    "--output_dir=afile/sub": dict(output_dir="afile/sub"),
    "--output_dir in a folder that takes none": dict(output_dir="/proc/run"),
    "a line of 10 MB": dict(train_file="long.txt"),
    "--eval_labels of 5,000 classes": dict(eval_labels="many-classes.tsv"),
    "--eval_labels, a label is NaN": dict(eval_labels="nan.jsonl"),
    "--eval_labels, a label is half a surrogate pair": dict(eval_labels="surrogate.jsonl"),
    "--eval_pairs, a score of 400 digits": dict(eval_pairs="digits.jsonl"),
    "--eval_pairs, a FIFO": dict(eval_pairs="fifo.tsv"),
    "--eval_retrieval, a relevance of -1": dict(eval_retrieval="relevance.tsv"),
    "--eval_retrieval, nested JSON": dict(eval_retrieval="nested.jsonl"),
    "--config with aliases": dict(config="laughs.yaml"),
    "--config, a FIFO": dict(config="fifo"),
    "--report_to=wandb, not installed": dict(report_to="wandb"),
    "--report_to=trackio, not installed": dict(report_to="trackio"),
    "--report_to=tensorbord": dict(report_to="tensorbord"),
    "--learnign_rate=1": dict(learnign_rate=1),
    "--model_name=outputs/rnu": dict(model_name="outputs/rnu"),
    "--model_name=bert/model.safetensors": dict(model_name="bert/model.safetensors"),
    "--license=MIT": dict(license="MIT"),
    "--language=English": dict(language="English"),
    "a CSV of one column without a header": dict(train_file="headless.csv"),
    "a CSV of two columns of sentences": dict(train_file="two.csv"),
    "a CSV with an unclosed quote": dict(train_file="quote.csv"),
    "a FIFO": dict(train_file="fifo"),
    "/dev/stdin": dict(train_file="/dev/stdin"),
    "copies of one sentence": dict(train_file="copies.txt"),
    "one sentence": dict(train_file="one.txt"),
    "pairs of a sentence with itself": dict(eval_pairs="same.tsv"),
    "a RoBERTa with BERT's tokenizer": dict(model_name="mixed"),
    "config.json is []": dict(model_name="list"),
    "another architecture without a safe row": dict(model_name="xlm"),
    "a model that ends in a Dense module": dict(model_name="dense"),
    **{text: dict(model_name=name) for name, (text, _) in CONFIGURATIONS.items()},
    "modules.json names another folder": dict(model_name="module-outside"),
    "weight_map names another folder": dict(model_name="shard-outside"),
    "weights that are a link to another folder": dict(model_name="link-outside"),
    "attention maps of an encoder that gives none": dict(model_name="mpnet", objective="micse", queue_size=0),
    "a prompt longer than --max_seq_length": dict(prompt="the dog sleeps " * 20),
    "--export_prompt without --prompt": dict(export_prompt="true"),
    "--eval_labels of one class": dict(eval_labels="one-class.tsv"),
    "--eval_labels without a column label": dict(eval_labels="no-label.tsv"),
    "--eval_labels that is not there": dict(eval_labels="nowhere.tsv"),
    "--metric_for_best_model=v_measure without labels": dict(metric_for_best_model="v_measure"),
    "--guide_model of another width, with --distillation_weight": GUIDED
    | dict(distillation_weight=1, guide_model="wide"),
    "--guide_model that does not say how it is read": GUIDED | dict(distillation_weight=1, guide_model="other-bert"),
    "--guide_model that nothing reads": dict(guide_model="wide"),
    "--replay_file that nothing reads": dict(replay_file="s.txt"),
    "more neighbors than sentences": GUIDED | dict(neighbor_weight=1, neighbor_count=500),
    "--objective=guided without a weight": GUIDED,
    "guided similarity, a batch of 2": GUIDED | dict(guided_weight=1, per_device_train_batch_size=2),
    "guided similarity, a last batch of 2": GUIDED
    | dict(guided_weight=1, per_device_train_batch_size=47, dataloader_drop_last="false"),
    "--recipe=adpt": dict(recipe="adpt"),
}
EVALUATION = [
    "run_eval.py",
    "--model_name",
    "bert",
    "--pooler",
    "cls",
    "--tasks",
    "STS-B",
    "--senteval_dir",
    "senteval",
]
LABELS = ["run_eval.py", "--model_name", "bert", "--pooler", "cls", "--labels"]
OTHERS = {
    "run_eval.py --labels of one class": [*LABELS, "one-class.tsv"],
    "run_eval.py --labels, every sentence its own class": [*LABELS, "own-classes.tsv"],
    "run_analysis.py drift, two sentences": [
        *("run_analysis.py", "drift", "--model_name", "run", "--compare", "bert", "--pooler", "cls"),
        *("--sentences", "one.txt"),
    ],
    "run_eval.py --compare, a FIFO": [*LABELS, "own-classes.tsv", "--compare", "fifo"],
    "run_study.py ..yaml": ["run_study.py", "..yaml"],
    "run_study.py, aliases": ["run_study.py", "laughs.yaml"],
    "run_study.py, a grid of 10^4": ["run_study.py", "grid.yaml"],
    "run_study.py, a YAML constructor that fails": ["run_study.py", "tag.yaml"],
    "run_push.py, README.md is a FIFO": ["run_push.py", "piped", "me/model", "--dry_run"],
    "run_eval.py --whitening 0": [*EVALUATION, "--whitening", "0"],
    "run_eval.py --whitening --whitening_file, one sentence": [
        *EVALUATION,
        "--whitening",
        "--whitening_file",
        "one.txt",
    ],
    "run_eval.py --whitening_file, a FIFO": [*EVALUATION, "--whitening", "--whitening_file", "fifo"],
    "run_eval.py --poler cls": [*EVALUATION, "--poler", "cls"],
    "run_eval.py, no data and no Hub": ["run_eval.py", "--model_name", "bert", "--pooler", "cls"],
    "run_analysis.py, an unknown model_type with auto_map": [
        *("run_analysis.py", "tsne", "--model_name", "evil", "--pooler", "cls", "--sentences", "s.txt")
    ],
    "run_export.py, an unknown model_type with auto_map": ["run_export.py", "evil", "evil-out"],
    "run_export.py of a cut checkpoint": ["run_export.py", "cut", "cut-out"],
    "run_push.py, vocab.txt is a link": ["run_push.py", "linked-file", "me/model", "--dry_run"],
    "run_push.py, onnx/ is a link": ["run_push.py", "linked-folder", "me/model", "--dry_run"],
    "run_push.py, README.md is a link": ["run_push.py", "linked-card", "me/model", "--dry_run"],
    'run_push.py, repository m"); import os; ("': ["run_push.py", "linked-no", 'm"); import os; ("', "--dry_run"],
    "run_analysis.py tsne of a FIFO": ["run_analysis.py", "tsne", "--model_name", "run", "--sentences", "fifo"],
}


def replaced(checkpoint: Path, name: str, text: str) -> None:
    """Replaces a file of a checkpoint, and says in its manifest that it was written so."""
    (checkpoint / name).write_text(text)
    write_manifest(checkpoint)


def training(output_dir: str, **changes) -> list[str]:
    options = TRAIN | {"output_dir": output_dir} | changes
    return ["run_unsup.py", *(f"--{name}={value}" for name, value in options.items() if value is not None)]


def changed(index: int, options: dict, own: Path) -> list[str]:
    """A run of `CHANGED`."""
    named = {name: own.name if value == "own" else value for name, value in options.items()}
    return training(f"changed-{index}", **named)


def call(folder: Path, command: list[str], stdin: str = "y\n") -> tuple[int, str]:
    """Exit code, and the last line of what was said: of the errors, else of the output."""
    script, *arguments = command
    run = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments],
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
    """The models, files and runs that the rows are about."""
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
    """Models that name files of another folder."""
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


def change_weights(model: Path) -> None:
    weights = {name: weight + 0.1 for name, weight in load_file(model / "model.safetensors").items()}
    save_file(weights, model / "model.safetensors", {"format": "pt"})


# Inputs that are changed when a run was broken off after step 2: its options, what is copied to `own`, and the change.
CHANGED = {
    "the file of a stream was edited": (
        dict(streaming="true", train_file="own"),
        *("s.txt", lambda own: own.write_text("the old dog sleeps\n" * 99)),
    ),
    "replay_file has other sentences": (
        dict(replay_weight=1, replay_file="own"),
        *("s.txt", lambda own: own.write_text("the old dog sleeps\n" * 99)),
    ),
    "guide_model has other weights": (GUIDED | dict(distillation_weight=1, guide_model="own"), "run", change_weights),
}


def prepare_runs(folder: Path) -> None:
    """A run broken off after step 2, damaged ones, those with changed inputs, and exports with links in them."""
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


def rows() -> dict[str, list[str]]:
    """What is tried, in words, and the command."""
    last = "--resume_from_checkpoint"
    commands = {f"resume: {text}": [*training(f"half-{i}", **o), last] for i, (text, o) in enumerate(RESUMES.items())}
    commands["resume: another objective, --resume_with_changes"] = [
        *training("half-0", objective="simcse"),
        *(last, "--resume_with_changes"),
    ]
    commands |= {f"resume: {text}": [*training(f"harmed-{i}"), last] for i, text in enumerate(HARMS)}
    for i, (text, (options, original, _)) in enumerate(CHANGED.items()):
        own = Path(f"own-{i}{Path(original).suffix}")
        commands[f"resume: {text}"] = [*changed(i, options, own), last]
    commands["resume: the damaged checkpoint by name"] = [*training("harmed-0"), last, "harmed-0/damaged-checkpoint-4"]
    commands["resume: the only checkpoint is damaged"] = [*training("gone"), last]
    commands["resume: weights alone"] = [*training("bare"), last]
    commands["--resume_from_checkpoint true"] = [*training("half-11", logging_steps=1), last, "true"]
    commands["a new run into a used folder"] = training("run")
    commands |= {text: training(**({"output_dir": f"new-{i}"} | o)) for i, (text, o) in enumerate(OPTIONS.items())}
    for i, text in enumerate(CACHES):
        how = GUIDED | dict(distillation_weight=1, guide_cache=f"cache-{i}", output_dir=f"new-cache-{i}")
        commands[f"a guide's cached embeddings, {text}"] = training(**how)
    commands |= OTHERS
    commands["run_push.py, NaN in the weights"] = ["run_push.py", "nan", "me/model", "--dry_run"]
    return commands


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        commands = rows()
        with ThreadPoolExecutor(2) as pool:
            resumes = [text for text in commands if text.startswith(("resume", "--resume"))]
            results = {text: call(folder, commands[text]) for text in resumes}  # some build on what an earlier one left
            others = [text for text in commands if text not in results]
            results |= zip(others, pool.map(lambda text: call(folder, commands[text]), others))
        print("| input | exit | what is said last |\n| --- | ---: | --- |")
        for text, (code, line) in results.items():
            shown = line.replace(f"{folder}/", "").replace("|", "\\|").removeprefix("error: ")
            print(f"| {text} | {code} | {shown} |")
        ran = "RUN" if (folder / "CODE-WAS-RUN").exists() else "not run"
        left = sorted(path.name for path in folder.glob("new*"))
        print(
            f"\n{len(results)} rows; foreign code was {ran}; refused runs left behind: {', '.join(left) or 'nothing'}"
        )


if __name__ == "__main__":
    main()
