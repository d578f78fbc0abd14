"""All commands that do not train, with a tiny random copy of each family on docs/models.md."""

import functools
import json
import re

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer

from informin.cli import compare as compare_command
from informin.cli import embed as embed_command
from informin.cli import eval as eval_command
from informin.cli import fit as fit_command
from tests.any_encoder.st_models import FAMILIES, save_family
from tests.conftest import ROOT, make_sentences, raises_usage, save_encoder

TEXTS = make_sentences(120)
NATIVE = {"bge": ("bert", "cls"), "e5": ("xlm-roberta", "mean")}


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """Return a function that creates a model of a family once. Keeps copies of remote code in a temporary folder."""

    def create(name: str):
        folder = tmp_path_factory.mktemp("families")
        if name not in NATIVE:
            return save_family(name, folder)
        architecture, pooling = NATIVE[name]
        transformer = Transformer(str(save_encoder(architecture, folder / "plain")))
        modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling), Normalize()]
        SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder / name), create_model_card=False)
        return folder / name

    with pytest.MonkeyPatch.context() as patch:
        modules = str(tmp_path_factory.mktemp("modules"))
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
        yield functools.cache(create)


@pytest.fixture
def files(tmp_path):
    """Texts, labels and pairs."""
    texts, labels, pairs = (tmp_path / name for name in ("texts.txt", "labels.tsv", "pairs.tsv"))
    texts.write_text("\n".join(TEXTS) + "\n")
    rows = [f"{text}\t{'AB'[i % 2]}" for i, text in enumerate(TEXTS[:60])]
    labels.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    rows = [f"{a}\t{b}" for a, b in zip(TEXTS[:20], TEXTS[20:40])]
    pairs.write_text("\n".join(["query\tdocument", *rows]) + "\n")
    return texts, labels, pairs


@pytest.mark.parametrize("name", [*NATIVE, *FAMILIES])
def test_all_commands_run(family, files, tmp_path, capsys, name):
    folder, (texts, labels, pairs) = family(name), files
    trust = ["--trust_remote_code"] if name == "remote" else []
    how = ["--device", "cpu", *trust]
    model = ["--model_name", str(folder), *how]
    assert embed_command.main([*model, "--train_file", str(texts), "--output", str(tmp_path / "x.npy")]) == 0
    theirs = SentenceTransformer(str(folder), device="cpu", trust_remote_code=bool(trust))
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), theirs.encode(TEXTS), atol=1e-5)
    prompts = ["--query_prompt", "the ", "--document_prompt", "a "]
    assert eval_command.main([*model, "--labels", str(labels), "--retrieval", str(pairs), *prompts]) == 0
    assert "prompt of queries: 'the '; of documents: 'a '." in capsys.readouterr().out
    assert fit_command.main([*model, "--train_file", str(texts), "--output_dir", str(tmp_path / "fitted")]) == 0
    compared = [str(folder), str(tmp_path / "fitted"), "--train_file", str(texts), *how]
    assert compare_command.main([*compared, "--output_dir", str(tmp_path / "compared")]) == 0
    models = json.loads((tmp_path / "compared" / "compare.json").read_text())["models"]
    assert {found["model"] for found in models} == {folder.name, "fitted"}
    assert all(found["error"] is None and found["rank"] >= 1 and found["texts_per_second"] > 0 for found in models)


@pytest.mark.parametrize("name", [*NATIVE, *FAMILIES])
def test_guides(family, trainer, name):
    options = dict(objective="guided", guided_weight=1.0, guide_model=str(family(name)))
    if name == "remote":
        with raises_usage(option="model_name", found="it would run modeling_sum.py"):
            trainer("bert", **options)
        return
    run = trainer("bert", **options)
    run.train()
    assert np.isfinite(run.state.log_history[0]["loss"])


def test_the_page_has_every_family():
    rows = re.findall(r"^\| (.*?) \|.*tiny random copy", (ROOT / "docs" / "models.md").read_text(), re.MULTILINE)
    assert len(rows) >= len({*NATIVE, *FAMILIES})
