"""Mistakes and hostile inputs for `tools.input_table`: damaged files, wrong options, and the command of each case."""

import os
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file

from informin.files import write_manifest

TRAIN = dict(model_name="bert", train_file="s.txt", eval_pairs="pairs.tsv", per_device_train_batch_size=16, max_steps=4)
TRAIN |= dict(eval_steps=2, learning_rate=1e-3, bf16="false", use_cpu="true")
# Damage to the newest checkpoint of a run before the same command resumes it.
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
# Changed options of a command that resumes a run interrupted after step 2.
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
    "max_steps below the step reached": dict(max_steps=1),
    "other logging": dict(logging_steps=1),
}
# Changes to config.json of the tiny BERT, by folder.
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
# Damage to cached embeddings of a guide before another run loads them.
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
    "--output_dir in a folder that is not writable": dict(output_dir="/proc/run"),
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
    "--eval_labels, a missing file": dict(eval_labels="nowhere.tsv"),
    "--metric_for_best_model=v_measure without labels": dict(metric_for_best_model="v_measure"),
    "--guide_model of another width, with --distillation_weight": GUIDED
    | dict(distillation_weight=1, guide_model="wide"),
    "--guide_model without stored pooling": GUIDED | dict(distillation_weight=1, guide_model="other-bert"),
    "--guide_model without effect": dict(guide_model="wide"),
    "--replay_file without effect": dict(replay_file="s.txt"),
    "more neighbors than sentences": GUIDED | dict(neighbor_weight=1, neighbor_count=500),
    "--objective=guided without a weight": GUIDED,
    "guided similarity, a batch of 2": GUIDED | dict(guided_weight=1, per_device_train_batch_size=2),
    "guided similarity, a last batch of 2": GUIDED
    | dict(guided_weight=1, per_device_train_batch_size=47, dataloader_drop_last="false"),
    "--recipe=adpt": dict(recipe="adpt"),
}
EVALUATION = [
    "eval",
    "--model_name",
    "bert",
    "--pooler",
    "cls",
    "--tasks",
    "STS-B",
    "--senteval_dir",
    "senteval",
]
LABELS = ["eval", "--model_name", "bert", "--pooler", "cls", "--labels"]
OTHERS = {
    "informin eval --labels of one class": [*LABELS, "one-class.tsv"],
    "informin eval --labels, every sentence its own class": [*LABELS, "own-classes.tsv"],
    "informin analyze drift, two sentences": [
        *("analyze", "drift", "--model_name", "run", "--compare", "bert", "--pooler", "cls"),
        *("--train_file", "one.txt"),
    ],
    "informin eval --compare, a FIFO": [*LABELS, "own-classes.tsv", "--compare", "fifo"],
    "informin study ..yaml": ["study", "..yaml"],
    "informin study, aliases": ["study", "laughs.yaml"],
    "informin study, a grid of 10^4": ["study", "grid.yaml"],
    "informin study, a YAML constructor that fails": ["study", "tag.yaml"],
    "informin push, README.md is a FIFO": ["push", "piped", "me/model", "--dry_run"],
    "informin eval --whitening 0": [*EVALUATION, "--whitening", "0"],
    "informin eval --whitening --whitening_file, one sentence": [
        *EVALUATION,
        "--whitening",
        "--whitening_file",
        "one.txt",
    ],
    "informin eval --whitening_file, a FIFO": [*EVALUATION, "--whitening", "--whitening_file", "fifo"],
    "informin eval --poler cls": [*EVALUATION, "--poler", "cls"],
    "informin eval, no data and no Hub": ["eval", "--model_name", "bert", "--pooler", "cls"],
    "informin analyze, an unknown model_type with auto_map": [
        *("analyze", "tsne", "--model_name", "evil", "--pooler", "cls", "--train_file", "s.txt")
    ],
    "informin export, an unknown model_type with auto_map": ["export", "evil", "evil-out"],
    "informin export of a cut checkpoint": ["export", "cut", "cut-out"],
    "informin push, vocab.txt is a link": ["push", "linked-file", "me/model", "--dry_run"],
    "informin push, onnx/ is a link": ["push", "linked-folder", "me/model", "--dry_run"],
    "informin push, README.md is a link": ["push", "linked-card", "me/model", "--dry_run"],
    'informin push, repository m"); import os; ("': ["push", "linked-no", 'm"); import os; ("', "--dry_run"],
    "informin analyze tsne of a FIFO": ["analyze", "tsne", "--model_name", "run", "--train_file", "fifo"],
}


def replaced(checkpoint: Path, name: str, text: str) -> None:
    """Replace a file of a checkpoint, and update the manifest."""
    (checkpoint / name).write_text(text)
    write_manifest(checkpoint)


def change_weights(model: Path) -> None:
    weights = {name: weight + 0.1 for name, weight in load_file(model / "model.safetensors").items()}
    save_file(weights, model / "model.safetensors", {"format": "pt"})


# Inputs that change after a run is interrupted at step 2: options, file or folder to copy to `own`, and the change.
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


def training(output_dir: str, **changes) -> list[str]:
    options = TRAIN | {"output_dir": output_dir} | changes
    return ["train", *(f"--{name}={value}" for name, value in options.items() if value is not None)]


def changed(index: int, options: dict, own: Path) -> list[str]:
    """Return the command of a case in `CHANGED`."""
    named = {name: own.name if value == "own" else value for name, value in options.items()}
    return training(f"changed-{index}", **named)


def rows() -> dict[str, list[str]]:
    """Return the command of each case by its description."""
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
    commands["resume: only weights"] = [*training("bare"), last]
    commands["--resume_from_checkpoint true"] = [*training("half-11", logging_steps=1), last, "true"]
    commands["a new run into a used folder"] = training("run")
    commands |= {text: training(**({"output_dir": f"new-{i}"} | o)) for i, (text, o) in enumerate(OPTIONS.items())}
    for i, text in enumerate(CACHES):
        how = GUIDED | dict(distillation_weight=1, guide_cache=f"cache-{i}", output_dir=f"new-cache-{i}")
        commands[f"a guide's cached embeddings, {text}"] = training(**how)
    commands |= OTHERS
    commands["informin push, NaN in the weights"] = ["push", "nan", "me/model", "--dry_run"]
    return commands
