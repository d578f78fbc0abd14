"""Files of the exported folder: sentence-transformers, tokenizer and modes."""

import json
import logging
import os

import pytest
import torch

import run_unsup
from informin.cli import export as export_command
from informin.models.checkpoint import Checkpoint
from informin.models.encode import encode
from informin.models.native_loading import load_trainable
from informin.models.open_model import in_memory
from informin.publishing.export import export_folder
from tests.conftest import make_sentences, save_bert, save_roberta, tokenizer_of
from tests.publishing.export_helpers import read_json


def test_files_for_sentence_transformers(run):
    """They use the older, verbose format, which every version can read."""
    kinds = {"": "sentence_transformers.models.Transformer", "1_Pooling": "sentence_transformers.models.Pooling"}
    modules = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(kinds.items())]
    assert read_json(run.folder / "modules.json") == modules
    assert read_json(run.folder / "1_Pooling" / "config.json") == {
        "word_embedding_dimension": 32,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    # Of 66 positions, and not the 32 of training.
    longest = {"bert": 66, "roberta": 64}[run.trainer.model.config.model_type]
    settings = {"max_seq_length": longest, "do_lower_case": False, "model_args": {"add_pooling_layer": False}}
    assert read_json(run.folder / "sentence_bert_config.json") == settings
    prompts = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    assert read_json(run.folder / "config_sentence_transformers.json") == prompts


def test_sentence_transformers_gives_cls(run):
    """For short sentences, and for one that is longer than the maximum."""
    from sentence_transformers import SentenceTransformer

    sentences = [*make_sentences(5), " ".join(make_sentences(20))]
    reader = SentenceTransformer(str(run.folder), device="cpu")
    model, tokenizer = run.trainer.model, run.trainer.processing_class
    expected = torch.from_numpy(encode(model, tokenizer, sentences)["cls"])
    torch.testing.assert_close(torch.from_numpy(reader.encode(sentences)), expected, rtol=1e-4, atol=1e-5)
    assert reader.max_seq_length == read_json(run.folder / "sentence_bert_config.json")["max_seq_length"]


@pytest.mark.parametrize("trusted", [False, True])
def test_sentence_transformers_reports_no_missing_weights(run, trusted):
    """No message about a pooler, with the plain class and with ours."""
    from sentence_transformers import SentenceTransformer

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("transformers").addHandler(handler)
    SentenceTransformer(str(run.folder), device="cpu", trust_remote_code=trusted)
    logging.getLogger("transformers").removeHandler(handler)
    assert said == []


@pytest.mark.parametrize(("make", "longest"), [(save_bert, 66), (save_roberta, 64)], ids=["bert", "roberta"])
def test_tokenizer_files_omit_truncation_padding_and_paths(tmp_path, make, longest):
    """The files of some tokenizers, such as all-MiniLM-L6-v2's, contain truncation, padding and paths."""
    base = make(tmp_path / "base")
    own = read_json(base / "tokenizer_config.json")
    traces = dict(
        backend="tokenizers", max_length=8, stride=0, truncation_strategy="longest_first", pad_to_multiple_of=8
    )
    places = ("name_or_path", "special_tokens_map_file", "tokenizer_file", "vocab_file")
    traces |= dict.fromkeys(places, "/home-of/x") | {"is_local": True, "local_files_only": True}
    traces["backend"] = "tokenizers"
    (base / "tokenizer_config.json").write_text(json.dumps(own | traces | {"model_max_length": 10**30}))
    backend = read_json(base / "tokenizer.json")
    padding = dict(strategy={"Fixed": 8}, direction="Right", pad_to_multiple_of=None, pad_id=0, pad_type_id=0)
    cutting = dict(direction="Right", max_length=8, strategy="LongestFirst", stride=0)
    fixed = backend | {"truncation": cutting, "padding": padding | {"pad_token": "[PAD]"}}
    (base / "tokenizer.json").write_text(json.dumps(fixed))
    model = load_trainable(Checkpoint(base), {"projection_head": "mlp", "lm_head": False})
    tokenizer = tokenizer_of(base)
    tokenizer(["the dog"], truncation=True, padding="max_length", max_length=5)
    export_folder(in_memory(model, tokenizer), tmp_path / "export")
    exported = read_json(tmp_path / "export" / "tokenizer.json")
    assert exported["truncation"] is None and exported["padding"] is None
    settings = read_json(tmp_path / "export" / "tokenizer_config.json")
    assert settings.keys() & traces.keys() == set()
    # transformers 4 does not know transformers 5's name of a tokenizer without a class of its own.
    classes = {"TokenizersBackend": "PreTrainedTokenizerFast"}
    kept = {name: value for name, value in own.items() if name not in traces} | {"model_max_length": longest}
    kept["tokenizer_class"] = classes.get(own["tokenizer_class"], own["tokenizer_class"])
    assert settings == settings | kept
    assert read_json(tmp_path / "export" / "sentence_bert_config.json")["max_seq_length"] == longest


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o027, 0o640)])
def test_file_modes_follow_the_umask(command, tmp_path, umask, mode):
    """In the run, its checkpoints, and an export of a checkpoint."""
    before = os.umask(umask)
    try:
        assert run_unsup.main(command()) == 0
        assert export_command.main([str(tmp_path / "run" / "checkpoint-4"), str(tmp_path / "new" / "export")]) == 0
    finally:
        os.umask(before)
    written = [*(tmp_path / "run").rglob("*"), *(tmp_path / "new").rglob("*"), tmp_path / "run", tmp_path / "new"]
    modes = {path: path.stat().st_mode & 0o777 for path in written}
    folders = mode | (mode & 0o444) >> 2
    assert {path: oct(found) for path, found in modes.items() if found != (folders if path.is_dir() else mode)} == {}
