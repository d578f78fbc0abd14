"""The card that `informin fit` writes: names and prompts are shown as they are, and the license is the base model's."""

import re

import pytest
from huggingface_hub import ModelCard

from informin.adapters.linear import LinearAdapter
from informin.evaluation.drift import MEASURES
from informin.models.checkpoint import Checkpoint
from informin.models.open_model import load_model
from informin.publishing.adapted import adapter_card, save_adapted
from informin.publishing.card import render_card
from informin.publishing.metadata import license_of
from informin.training.data_options import CardArguments, DataArguments
from informin.training.record import provenance
from tests.conftest import make_sentences
from tests.models.any_encoder.helpers import general_trainer, sentence_transformer
from tests.publishing.card_helpers import export_of, tables, with_record

pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
HOSTILE = [
    *("<script>x</script>", "`x` ``` x", "a | b | c", "x\n\n# Title\n\n| a | b |", "x\n---\nlicense: mit\n---\n"),
    *("x\n```\n# T\n```", 'x"); import os; ("', "$(touch x)", "![a](b) [a](b)", "- x", "# x", "&lt;b&gt; ~~x~~ $d$"),
]
TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "informin-cl", "linear-adapter"]
METADATA = {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity", "tags": TAGS}
OTHER = {"license": "other", "license_name": "my-license", "license_link": "https://example.org/LICENSE"}


def shown(name: str = "adapted", source: str = "base", prompt: str = "old ", classes: str = "ours") -> str:
    return adapter_card(name, Checkpoint(source), 1234, LinearAdapter(), None, prompt, classes)


def structure(card: str) -> tuple:
    """Return what markup in a text would change."""
    page = card.partition("\n---\n")[2]
    lines = [line for line in page.splitlines() if not line.startswith(("# ", "The model adds"))]
    starts = [re.match(r"\W*", line)[0] for line in lines]
    rows = {name: found.keys() for name, found in tables(card).items()}
    return starts, rows, len(re.findall(r"(?<!\\)\]\(", page))


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("place", ["name", "source", "prompt"])
def test_texts_of_users_do_not_change_the_card(place, text):
    """The texts of this test have no valid name for the Hub, except for one character."""
    card, expected = (shown(**{place: value}) for value in (text, "a b"))
    assert structure(card) == structure(expected)
    assert ModelCard(card).data.to_dict() == METADATA | (
        {} if place == "source" else {"base_model": "base", "base_model_relation": "finetune"}
    )
    code = "".join(re.findall("^```.*?^```", card, re.DOTALL | re.MULTILINE))
    assert "<script" not in card and "import os" not in code and "$(" not in code


def test_plain_names_are_shown_in_the_code():
    card = shown("my-model", "org/base")
    assert 'SentenceTransformer("my-model")' in card and 'informin search "my-model"' in card
    assert 'fit --model_name "org/base"' in card and "is `org/base` with" in card
    assert ModelCard(card).data.to_dict() == METADATA | {"base_model": "org/base", "base_model_relation": "finetune"}


def test_the_card_says_how_to_embed_queries_and_whether_vectors_can_be_cut():
    given = ("adapted", Checkpoint("base"), 40)
    plain = adapter_card(*given, LinearAdapter(n_components=9), None, "", "none")
    assert "Encode queries and documents the same way." in plain and "(`truncate_dim`). The options were:" in plain
    assert "--train_file TEXTS --dimension 9 --output_dir" in plain
    other = adapter_card(*given, LinearAdapter(rotation="bits"), None, "", "none", asymmetric=True)
    assert "Encode queries with `model.encode_query`, and documents with `model.encode_document`." in other
    assert "do not cut them" in other and "truncate_dim" not in other and "the same way" not in other
    assert "--train_file TEXTS --rotation bits --output_dir" in other


@pytest.mark.parametrize(
    ("given", "hub_id"), [("org/model", "org/model"), ("model", None), ("a b/c", None), (None, None)]
)
def test_a_given_hub_id_is_the_base_model(tmp_path, given, hub_id):
    card = adapter_card("adapted", Checkpoint(tmp_path), 40, LinearAdapter(), None, "", "none", given)
    assert ModelCard(card).data.to_dict().get("base_model") == hub_id
    assert f"This model is `{given or tmp_path.name}` with" in card


@pytest.mark.parametrize(("after", "warned"), [(86.56, []), (86.56, ["created hubs: of 3."]), (87.0, []), (None, [])])
def test_the_card_says_first_where_the_model_is_worse(after, warned):
    old = dict.fromkeys(MEASURES, 1.0) | {"stsb_dev": 86.73}
    drift = {"sentences": 40, "old": old, "new": old | {"stsb_dev": after}, "warnings": warned}
    card = adapter_card("adapted", Checkpoint("base"), 40, LinearAdapter(), drift, "", "none")
    lines = ["* Spearman x 100 on STS-B dev is 86.56, and 86.73 before."] if after == 86.56 else []
    lines += [
        "* The adapter created hubs: see [Changes to the embeddings](#changes-to-the-embeddings)." for _ in warned
    ]
    before, _, rest = card.partition("\n## Usage")
    assert [line for line in before.splitlines() if line.startswith("* ")] == lines
    assert ("worse than the one it starts from" in before) == bool(lines)
    assert ("\nThe adapter created hubs: of 3.\n" in rest) == bool(warned)


@pytest.mark.parametrize(
    ("front", "kept"),
    [
        ("license: cc-by-nc-4.0", {"license": "cc-by-nc-4.0"}),
        ("license:\n- mit\n- cc0-1.0", {"license": ["mit", "cc0-1.0"]}),
        ("license: other\nlicense_name: my-license\nlicense_link: https://example.org/LICENSE", OTHER),
        ("license: other\nlicense_name: '<b>'\nlicense_link: 'javascript:x'", {"license": "other"}),
        ("license: other\nlicense_name: [a]\nlicense_link: LICENSE", {"license": "other"}),  # a file that is not here
        ("license: MIT\nlicense_name: my-license", {}),
        ("license: [", {}),
        ("tags: x", {}),
    ],
)
def test_license_of_a_model(tmp_path, front, kept):
    """For training, the one that the user names replaces all of it."""
    (tmp_path / "README.md").write_text(f"---\nlanguage: en\n{front}\n---\n# Base\n")
    assert license_of(Checkpoint(tmp_path)) == kept
    for given, expected in (({}, {"license": None} | kept), ({"license": "mit"}, {"license": "mit"})):
        told = provenance(Checkpoint(tmp_path), DataArguments(train_file=["a.txt"]), CardArguments(**given))
        assert {name: value for name, value in told.items() if name.startswith("license")} == expected


def test_license_of_the_base_model_is_in_every_card(bert, tmp_path):
    base = sentence_transformer(bert, tmp_path / "base")
    front = "".join(f"{name}: {value}\n" for name, value in OTHER.items())
    (base / "README.md").write_text(f"---\n{front}---\n# Base\n")
    vectors = LinearAdapter().fit(load_model(str(base))(make_sentences(40))["mean"])
    for backend in ("native", "st"):
        save_adapted(load_model(str(base), backend=backend), vectors, tmp_path / backend, texts=40)
    trained = with_record(export_of(bert, tmp_path / "trained"), **license_of(Checkpoint(base)))
    (trained / "README.md").write_text(render_card(trained))
    for folder in ("native", "st", "trained"):
        data = ModelCard((tmp_path / folder / "README.md").read_text()).data.to_dict()
        assert {name: value for name, value in data.items() if name.startswith("license")} == OTHER, folder


def test_license_file_of_a_model_on_the_hub(bert, tmp_path):
    base = sentence_transformer(bert, tmp_path / "base")
    (base / "README.md").write_text("---\nlicense: other\nlicense_name: own\nlicense_link: LICENSE\n---\n")
    link = "https://huggingface.co/org/base/blob/main/LICENSE"
    assert license_of(Checkpoint(base), hub_id="org/base") == OTHER | {"license_name": "own", "license_link": link}
    (base / "README.md").write_text("---\nlicense: other\nlicense_link: ../LICENSE\n---\n")
    assert license_of(Checkpoint(base), hub_id="org/base") == {"license": "other"}


@pytest.mark.parametrize("value", ["<b>", "https://a/b)<b>", "a\nb", "javascript:x", ["a"], 7, {"a": 1}, "x" * 600])
@pytest.mark.parametrize("key", ["license_name", "license_link"])
def test_edited_records_cannot_add_other_metadata(bert, tmp_path_factory, key, value):
    folder = tmp_path_factory.getbasetemp() / "edited-record"
    if not folder.exists():
        export_of(bert, folder)
    data = ModelCard(render_card(with_record(folder, license="other", **{key: value}))).data.to_dict()
    assert key not in data and data["license"] == "other"


@pytest.mark.parametrize("backend", ["native", "st"])
def test_trainer_reads_the_license_itself(bert, tmp_path, backend):
    """Without the command line, too."""
    base = sentence_transformer(bert, tmp_path / "base")
    (base / "README.md").write_text("---\nlicense: mit\n---\n")
    assert general_trainer(base, tmp_path / "run", backend=backend).known["license"] == "mit"
