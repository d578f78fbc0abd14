"""A stub of the `informin` command for tests of studies, and what it recorded."""

import json
from pathlib import Path

FRACTION = 0.005  # of SentEval's data
# Replaces `python -m informin`, without torch: writes the files of train and eval, and logs its arguments.
STUB = """
import json, os, pathlib, signal, sys, time
import yaml

here, argv, name = pathlib.Path(__file__).parent, sys.argv[2:], sys.argv[1]
behavior = json.loads((here / "behavior.json").read_text())
signals = []
signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
if name == "train":
    options = yaml.safe_load(pathlib.Path(argv[argv.index("--config") + 1]).read_text())
    folder = pathlib.Path(options["output_dir"])
else:
    folder = pathlib.Path(argv[argv.index("--model_name") + 1])
    own = folder.parent / "options.yaml"  # an untrained encoder has none
    options = yaml.safe_load(own.read_text()) if own.exists() else dict(temperature=0, seed=0)
call = dict(script=name, options=options, argv=argv, threads=os.environ.get("OMP_NUM_THREADS"))
call |= dict(gpu=os.environ.get("CUDA_VISIBLE_DEVICES"), leads_session=os.getsid(0) == os.getpid())
with open(here / "calls.jsonl", "a") as file:
    file.write(json.dumps(call) + chr(10))
print("the stub begins")
if [name, options["temperature"], options["seed"]] in behavior.get("fail", []):
    sys.exit("error: as requested")
end = time.monotonic() + (20 if [name, options["seed"]] in behavior.get("wait", []) else 0)
while time.monotonic() < end and not signals:
    time.sleep(0.01)
if signals:
    time.sleep(0.2)  # time for a second signal, which must not arrive
    (here / "signals.json").write_text(json.dumps(signals))
    sys.exit(128 + signals[0])
score = 70 + options["seed"] + 10 * options["temperature"]
if name == "train":
    (folder / "checkpoint-4").mkdir(parents=True, exist_ok=True)
    (folder / "modules.json").write_text("[]")
    history = [dict(step=2, spearman=1.0, alignment=9.0, uniformity=9.0)]
    history += [dict(step=4, spearman=score, alignment=0.25, uniformity=-2.5)]
    record = dict(schema=2, seed=options["seed"], options=dict(precision="fp32"), development="STS-B dev")
    record |= dict(history=history, steps=4, kept_step=4, environment=dict(torch="2", device="cpu", threads=1))
    record |= dict(base_model=dict(name="tiny", weights_sha256="ab" * 32), data=dict(sentences=100))
    record |= dict(informin="0.1.0", chosen=True)
    (folder / "training.json").write_text(json.dumps(record))
else:
    file = pathlib.Path(argv[argv.index("--output") + 1])
    tasks = json.loads(file.read_text())["tasks"] if file.exists() else {}
    asked = argv[argv.index("--tasks") + 1 : argv.index("--device")] if "--tasks" in argv else []
    asked = [task for task in asked if not task.startswith("--") and "/" not in task]
    titles = ["titles"] if "--labels" in argv else []
    undefined = [task for task in asked if [task, options["seed"]] in behavior.get("undefined", [])]
    entry = dict(n=10, truncated=0, data={"file": "0" * 64}, seconds=dict(encode=1.0, score=1.0))
    tasks |= {task: entry | dict(score=score - 10) for task in asked}
    tasks |= {task: entry | dict(score=None, error="undefined") for task in undefined}
    measures = dict(v_measure=score - 20, v_measure_sd=1.0, nearest_neighbor=score, nearest_10=1.0, few_shot=1.0)
    sample = dict(score=score - 20, kind="labels", measures=measures, data={"titles.tsv": "0" * 64}, classes=2)
    tasks |= {task: entry | sample for task in titles}
    average = {group: score - 10 if len(asked) > 6 and not undefined else None for group in ("sts", "transfer")}
    found = dict(schema=1, model="x", tasks=tasks, average=average, environment=dict(torch="2", device="cpu"))
    found |= dict(weights_sha256="cd" * 32, pooler="cls", normalized=False, whitening=None, max_length=64)
    file.write_text(json.dumps(found | dict(precision="fp32", split="test")))
    sys.exit(1 if undefined else 0)
"""


def calls(stub: Path) -> list[dict]:
    path = stub / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def done(stub: Path) -> list[tuple]:
    return [(call["script"], call["options"]["temperature"], call["options"]["seed"]) for call in calls(stub)]


def run_json(output: Path) -> list[Path]:
    return sorted(output.glob("runs/*/seed*/run.json"))
