"""The model card: code examples, citations and the description of the method."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch

from informin.models.checkpoint import Checkpoint
from informin.models.encode import encode
from informin.models.native_loading import load_trainable
from informin.objectives import OBJECTIVES
from informin.publishing.card import CITATIONS, UNPUBLISHED, render_card
from tests.conftest import ROOT, tokenizer_of
from tests.publishing.card_helpers import (
    ATTENTION_MI,
    CONTRAST,
    INFORMIN,
    QUEUE,
    RECONSTRUCTION,
    RECORD,
    SETTINGS,
    SIMCSE,
    code_blocks,
    export_of,
    objective,
    term,
    with_record,
)

MASKED_LM = term("masked language modeling", own=False)


@pytest.mark.parametrize("pinned", [False, True], ids=["unpublished", "pinned"])
def test_code_of_the_card_gives_cls(encoder, tmp_path, pinned):
    """The code blocks run unchanged except for the name, and give our encoder's embeddings."""
    folder = export_of(encoder, tmp_path / "export")
    card = render_card(folder, "me/model", "0" * 40) if pinned else render_card(folder)
    named = "me/model" if pinned else UNPUBLISHED
    blocks = code_blocks(card)
    assert len(blocks) == 2 and all(named in block for block in blocks)
    model = load_trainable(Checkpoint(encoder), dict(SETTINGS))
    for block, count in zip(blocks, (3, 2)):
        names = {}
        exec(block.replace(named, str(folder)), names)
        sentences = ["A dog sleeps.", "The dog is asleep.", "It rains."][:count]
        expected = torch.from_numpy(encode(model, tokenizer_of(encoder), sentences)["cls"])
        torch.testing.assert_close(torch.as_tensor(names["embeddings"]), expected, rtol=1e-4, atol=1e-5)


def test_code_pins_the_commit_if_there_is_one(folder):
    """Every call that loads a model is pinned. Local folders have no commit."""
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"x")
    loads = r"(?:SentenceTransformer|from_pretrained|hf_hub_download)\((.*?)\)"
    for revision in ("0123abc", None):
        calls = re.findall(loads, "\n".join(code_blocks(render_card(folder, "me/model", revision))))
        pin = f', revision="{revision}"' if revision else ""
        assert calls == [f'"me/model"{pin}'] * 4 + [f'"me/model", "onnx/model.onnx"{pin}']
    code = "\n".join(code_blocks(render_card(folder)))
    assert re.findall(loads, code) == [f'"{UNPUBLISHED}"'] * 4 and f'("{UNPUBLISHED}/onnx/model.onnx")' in code


ADDED_MI = ATTENTION_MI | {"own": False}
SCD = objective("scd", "SCD", term("self-contrast", "scd"), term("decorrelation of features", "scd"))
MICSE = objective("micse", "miCSE", CONTRAST, QUEUE, ATTENTION_MI)


@pytest.mark.parametrize(
    ("trained", "cited"),
    [
        (INFORMIN, {"The objective": "chen-etal-2022-information", "The contrast": "gao-etal-2021-simcse"}),
        (SIMCSE, {"The objective": "gao-etal-2021-simcse"}),
        (
            SIMCSE | {"terms": [CONTRAST, ADDED_MI]},
            {
                "The objective": "gao-etal-2021-simcse",
                "The mutual information of attention maps": "klein-nabi-2023-micse",
            },
        ),
        (SCD, {"The objective": "klein-nabi-2022-scd"}),
        (MICSE, {"The objective": "klein-nabi-2023-micse", "The contrast": "gao-etal-2021-simcse"}),
        (objective("own", "My own", CONTRAST, term("my *own*")), {"The contrast": "gao-etal-2021-simcse"}),
        (None, {"The objective": "chen-etal-2022-information"}),
    ],
    ids=["informin", "simcse", "simcse-ami", "scd", "micse", "of-somebody-else", "not-recorded"],
)
def test_citations(folder, trained, cited):
    card = render_card(with_record(folder, objective=trained))
    assert dict(re.findall(r"\n(The .*):\n\n```bibtex\n@inproceedings\{(\S+),", card)) == cited


def test_papers_of_all_terms_can_be_cited():
    published = {name for name, objective in OBJECTIVES.items() if objective.rows}
    assert {name for name in OBJECTIVES if (CITATIONS / f"{name}.bib").is_file()} == published
    papers = {term.paper for entry in OBJECTIVES.values() for term in entry.terms if term.paper}
    assert papers and [name for name in papers if not (CITATIONS / f"{name}.bib").is_file()] == []


def test_only_our_citation_files_are_read(folder, tmp_path):
    """No other path in a record is read, whether it belongs to a term or to the objective."""
    secret = tmp_path / "secret.bib"
    secret.write_text("@misc{secret}")
    expected = render_card(with_record(folder, objective=INFORMIN))
    near = os.path.relpath(secret.with_suffix(""), CITATIONS)
    for path in (
        near,
        str(secret.with_suffix("")),
        str(secret),
        f"simcse/../{near}",
        "../model_card",
        "",
        ".",
    ):
        terms = [*INFORMIN["terms"], term("x", path), term("y", "micse/")]
        assert render_card(with_record(folder, objective=INFORMIN | {"terms": terms})) == expected
        card = render_card(with_record(folder, objective=objective(str(path), "x")))
        assert "@" not in card.partition("## Citation")[2] and "secret}" not in card


@pytest.mark.parametrize(
    ("trained", "method"),
    [
        (SIMCSE | {"terms": [CONTRAST, MASKED_LM]}, "unsupervised SimCSE with masked language modeling"),
        (
            INFORMIN | {"terms": [CONTRAST, QUEUE | {"own": False}, RECONSTRUCTION, ADDED_MI, MASKED_LM]},
            "InforMin-CL with negatives of earlier batches, mutual information of attention maps and masked language "
            "modeling",
        ),
        (MICSE, "miCSE"),
        (SCD, "SCD"),
        (None, "informin"),
    ],
    ids=["mlm", "everything", "micse", "scd", "not-recorded"],
)
def test_method_names_the_objective(folder, trained, method):
    assert f"125 steps of {method} on 12,345" in render_card(with_record(folder, objective=trained))


def test_method_of_a_changed_run(folder):
    """Each part of the run names its own objective. Parts after the kept step are left out."""
    part = {name: RECORD[name] for name in ("seed", "options", "data")}
    other = part | {"data": RECORD["data"] | {"sha256": "3" * 64, "sentences": 7}}
    earlier = [
        other | {"until_step": 10, "options": {"objective": "scd"}},
        part | {"until_step": 30, "objective": SIMCSE},
        part | {"until_step": 60, "objective": SIMCSE, "options": {"temperature": 0.1}},
    ]
    begun = "after 10 steps of scd on 7 sentences (a.txt, b.csv), then 20 steps of unsupervised SimCSE"
    all_of_it = f"{begun}, then 30 steps with other options, then 65 steps of InforMin-CL on 12,345 sentences (a.txt"
    assert all_of_it in render_card(with_record(folder, earlier=earlier))
    before = f"{begun}, then 15 steps with other options on 12,345 sentences (a.txt, b.csv).\n"
    card = render_card(with_record(folder, earlier=earlier, kept_step=45))
    assert (
        before in card
        and "InforMin-CL on" not in card
        and re.findall(r"@inproceedings\{(\S+),", card)
        == [
            *("klein-nabi-2022-scd", "gao-etal-2021-simcse"),
        ]
    )


def test_without_a_record_the_method_comes_from_the_configuration(bert, tmp_path):
    folder = export_of(bert, tmp_path / "export", None, objective="simcse", mlm_weight=0.1)
    card = render_card(folder)
    assert "training with simcse." in card and "mlm_weight | 0.1 |" in card
    config = json.loads((folder / "config.json").read_text())
    config["informin"] = {"objective": "a\n\n## b <c>"}
    (folder / "config.json").write_text(json.dumps(config))
    assert "training with a ## b &lt;c&gt;." in render_card(folder)


def test_the_card_imports_no_heavy_library():
    """A program that only writes cards starts quickly."""
    code = "import sys, informin.publishing.card; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "informin" in loaded.split()
    assert {"torch", "transformers", "datasets", "sklearn", "pandas"} & set(loaded.split()) == set()
