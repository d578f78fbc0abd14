"""An environment without the extra `search`: the core works, and a command of the wing names the extra."""

import pytest

from tests.conftest import make_sentences, save_pairs
from tests.support import forked

# In a process that imports neither matplotlib nor the packages of the extra, except regex, which transformers needs.
SCRIPT = """
import sys
from tests.support.forked import forget_this_package
forget_this_package()
for name in ("bm25s", "Stemmer", "faiss", "matplotlib"):
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == name]:
        del sys.modules[loaded]
    sys.modules[name] = None
from informin.cli import main

for words in open(sys.argv[1], encoding="utf-8").read().splitlines():
    sys.argv = ["informin", *words.split()]
    try:
        main()
    except SystemExit as end:
        print("code", sys.argv[1], end.code, flush=True)
"""
COMMANDS = """
train --model_name {bert} --train_file texts.txt --eval_pairs pairs.tsv --output_dir run {short}
eval --model_name {model} --retrieval c --labels labels.tsv --output scores.json
eval --report scores.json
fit --model_name {model} --task search --train_file texts.txt --output_dir fitted
distill --model_name {model} --task search --train_file texts.txt --output_dir distilled
export --model_name run --output_dir exported --dtype bfloat16
push --model_name exported --hub_model_id ann/mine --dry_run
eval --model_name {model} --retrieval c --bm25
eval --model_name {model} --retrieval c --language de
index --model_name {model} --train_file texts.txt --output_dir index
search --index index dog
"""
SHORT = "--max_steps 2 --eval_steps 1 --save_steps 2 --use_cpu true --bf16 false --per_device_train_batch_size 8"


@pytest.fixture
def files(tmp_path):
    texts = make_sentences(40)
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    (tmp_path / "labels.tsv").write_text("text\tlabel\n" + "".join(f"{t}\t{i % 2}\n" for i, t in enumerate(texts)))
    save_pairs(tmp_path / "pairs.tsv")
    (tmp_path / "c").mkdir()
    rows = "".join(f"{i}\t{text}\n" for i, text in enumerate(texts))
    (tmp_path / "c" / "corpus.tsv").write_text("id\ttext\n" + rows)
    (tmp_path / "c" / "queries.tsv").write_text("id\ttext\n" + rows)
    (tmp_path / "c" / "qrels.tsv").write_text("query\tdocument\n" + "".join(f"{i}\t{39 - i}\n" for i in range(40)))
    return tmp_path


def test_the_core_works_and_the_wing_names_the_extra(files, bert, st_mean):
    (files / "commands.txt").write_text(COMMANDS.format(bert=bert, model=st_mean, short=SHORT).strip())
    done = forked.run(forked.python(SCRIPT, ["commands.txt"], cwd=files))
    codes = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("code ")]
    expected = [line.split()[0] for line in COMMANDS.split("\n") if line]
    assert [name for name, _ in codes] == expected, done.stderr
    assert [code for _, code in codes] == ["0"] * 7 + ["2"] * 4, done.stderr + done.stdout
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    assert len(errors) == 4 and all("`search`" in line for line in errors), errors
    assert "--bm25" in errors[0] and "--language" in errors[1]
