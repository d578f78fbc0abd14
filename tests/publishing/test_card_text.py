"""The model card: manual edits are kept, and text from outside is escaped."""

import ast
import json
import re

import pytest
from huggingface_hub import ModelCard

from informin.publishing.card import is_untouched, render_card, write_card
from informin.publishing.record import save_record
from tests.publishing.card_helpers import (
    ATTENTION_MI,
    CONTRAST,
    PLAIN,
    RECORD,
    body,
    code_blocks,
    objective,
    put_results,
    random_scores,
    tables,
    term,
    with_record,
)

# Manual edits


def test_every_edit_is_detected(folder):
    """Every character is replaced, removed or inserted. Only line ends at the end of the file are ignored."""
    card = render_card(folder)
    assert is_untouched(card) and is_untouched(card.rstrip("\n")) and is_untouched(f"{card}\n")
    for i, letter in enumerate(card[:-1]):
        other = "y" if letter == "x" else "x"
        for edited in (card[:i] + other + card[i + 1 :], card[:i] + card[i + 1 :], card[:i] + other + card[i:]):
            assert not is_untouched(edited), (i, card[max(0, i - 20) : i + 20])
    assert not is_untouched("") and not is_untouched("# My model\n") and not is_untouched(body(card))


def test_a_card_edited_by_hand_is_kept(folder):
    path = folder / "README.md"
    assert is_untouched(path.read_text(encoding="utf-8"))
    assert write_card(folder, "me/model", "0123abc") and 'revision="0123abc"' in path.read_text(encoding="utf-8")
    edited = path.read_text(encoding="utf-8").replace("## Limitations", "## Limitations and more")
    path.write_text(edited, encoding="utf-8")
    assert not write_card(folder) and path.read_text(encoding="utf-8") == edited
    path.unlink()
    assert write_card(folder) and is_untouched(path.read_text(encoding="utf-8"))


# Text from outside


def shape(card: str) -> dict:
    """Return the headings and the size of each table."""
    text = re.sub(r"```.*?```", "", body(card), flags=re.DOTALL)
    sizes = [(len(table), len(next(iter(table.values())))) for table in tables(card).values()]
    return {"headings": re.findall(r"^(##+ .*|# )", text, re.MULTILINE), "tables": sizes}


TEXTS_FROM_OUTSIDE = {
    "a | b": r"a \| b",
    "a\\|b\\": r"a\\\|b\\",
    "a\n\n## b": "a ## b",
    "a\n---\nb": "a --- b",
    "---": "---",
    "a\r\nb": "a b",
    "{{ 7 * 7 }}": r"{{ 7 \* 7 }}",
    "{% for x in y %}": "{% for x in y %}",
    "{{ card_data }}": "{{ card_data }}",
    "a: b # c": "a: b # c",
    "- [x] [CLS]": "- [x] [CLS]",
    "é ± 日本": "é ± 日本",
    "'\"`": "'\"\\`",
    "`a` ``b``": r"\`a\` \`\`b\`\`",
    "<script>alert(1)</script>": "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<!-- a -->": "&lt;!-- a --&gt;",
    "&lt;b&#62; R&D": "&amp;lt;b&amp;#62; R&D",
    "[x](http://a)": r"[x\](http://a)",
    "![x](http://a)": r"![x\](http://a)",
    "_a_ b_c __d__ *e* ~~f~~ $g$": r"\_a\_ b_c \_\_d\_\_ \*e\* \~\~f\~\~ \$g\$",
}


@pytest.mark.parametrize("described", [False, True], ids=["named", "described"])
@pytest.mark.parametrize(("text", "shown"), TEXTS_FROM_OUTSIDE.items(), ids=map(repr, TEXTS_FROM_OUTSIDE))
def test_text_from_outside_does_not_break_the_card(folder, text, shown, described):
    """Names of folders and files and the user's texts appear as written, and do not change the structure."""
    usual = objective("informin", "x", CONTRAST, ATTENTION_MI)
    benign = shape(render_card(with_record(folder, options={"a": "b"}, objective=usual)))
    base = {"name": text, "hub_id": None, "revision": None, "weights_sha256": "1" * 64}
    data = {"sources": [text], "hub_id": None, "description": text if described else None, "sentences": 3}
    told = objective("informin", text, term("contrast", "simcse"), term(text, "micse", own=False))
    with_record(folder, base_model=base, data=data, development=text, options={text: text}, objective=told)
    assert write_card(folder)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert is_untouched(card) and shape(card) == benign
    name = f"`{shown}`" if shown == " ".join(text.split()) else shown
    assert f"{name} after 125 steps of {shown} with {shown} on 3 sentences ({shown})." in card
    assert f"\nThe {shown}:\n" in card
    title = shown.rpartition("/")[2]  # as of org/name
    assert f"\n# {title}-informin\n" in card and f"\n| {shown} | {shown} |\n" in card
    assert f"\n| {shown} | Spearman x 100 |" in card and f"Spearman on {shown}: step 125 |" in card


HOSTILE = "<script>x</script><!-- [a](http://x) ![b](http://y) `c` | $d$"


def hostile(value):
    """Return the value with every text replaced."""
    if isinstance(value, dict):
        return {name: hostile(item) for name, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return HOSTILE if isinstance(value, str) else value


def test_text_from_outside_is_not_html_or_a_link(folder):
    """Includes every text of the record, file names in the folder, and options that are lists."""
    benign = render_card(folder)
    record = hostile(RECORD) | {"schema": 2}
    record["options"] |= {"view_dropout": [HOSTILE], "lr_scheduler_kwargs": {"a": HOSTILE}, HOSTILE: 1}
    save_record(folder, record)
    for name in ("model.json", "base-<b>.json", "other_seeds/seed7.json"):
        put_results(folder, name, random_scores(1))
    (folder / "onnx").mkdir()
    (folder / "onnx" / "`<b>.onnx").write_bytes(b"x")
    scores = {"pairs": HOSTILE, "spearman": {"`<b>.onnx": 1.0}}
    (folder / "onnx" / "scores.json").write_text(json.dumps(scores))
    card = render_card(folder)
    assert "<" not in body(card).rpartition("\n<!-- Written")[0]
    links = [re.findall(r"(?<!\\)\]\(.*?\)", page) for page in (card, benign)]
    assert links[0] == [link for link in links[1] if link != "](https://huggingface.co/org/tiny)"] + links[0][2:]
    assert links[0][2:] == ["](https://onnxruntime.ai)"]
    ours = set(shape(benign)["headings"])
    assert set(shape(card)["headings"]) == ours and "before training, &lt;b&gt;" in card
    assert ModelCard(card).data.to_dict().keys() == PLAIN.keys() | {"model-index"}


INJECTED = ["<script>x</script>", "`x` ``` x", "a | b | c", "x\n\n# Title\n\n| a | b |", "x\n---\nlicense: mit\n---\n"]
FILE_VALUES = [
    ("1_Pooling/config.json", "word_embedding_dimension"),
    ("sentence_bert_config.json", "max_seq_length"),
    ("config.json", "max_seq_length"),
    ("config.json", "temperature"),
    ("config.json", "dtype"),
    ("config.json", "auto_map"),
]


@pytest.mark.parametrize("text", INJECTED)
@pytest.mark.parametrize(("name", "key"), FILE_VALUES)
def test_values_of_every_file_are_shown_as_written(folder, name, key, text):
    """Includes numbers, in a folder that was not checked."""
    (folder / "training.json").unlink()
    benign = render_card(folder)
    values = json.loads((folder / name).read_text())
    if key in ("temperature", "max_seq_length") and name == "config.json":
        values["informin"][key] = text
    else:
        values[key] = {"AutoModel": f"modeling_informin.{text}"} if key == "auto_map" else text
    (folder / name).write_text(json.dumps(values))
    card = render_card(folder)
    ours, before = shape(card), shape(benign)
    if key == "temperature":
        assert ours.pop("tables") != before.pop("tables")  # a row more, as for any option
    assert ours == before and card != benign
    assert ModelCard(card).data.to_dict() == ModelCard(benign).data.to_dict()
    assert "<script" not in card and "`x`" not in card


def test_prompts_and_names_do_not_end_the_code(folder):
    """In Python code they are strings."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "training.json").unlink()
    config["informin"]["prompt"] = prompt = 'a"]); import os; (["\n```\n<script>'
    (folder / "config.json").write_text(json.dumps(config))
    card = render_card(folder, 'me/m"); import os; ("', 'v1"\n```\n')
    for code in code_blocks(card):
        calls = {node.func.id for node in ast.walk(ast.parse(code)) if hasattr(getattr(node, "func", None), "id")}
        assert not any(isinstance(node, ast.Import) for node in ast.walk(ast.parse(code))) and calls <= {
            *("SentenceTransformer", "tokenizer", "model", "range", "len", "print")
        }
    assert json.dumps(prompt + "A dog sleeps.") in card and "&lt;script" in card


@pytest.mark.parametrize(
    ("kept", "given"),
    [
        *(({}, {"license": value}) for value in ("<b>", "MIT", "mit\n---\n<b>", [{"evil": "<b>"}], {"a": 1})),
        *(({}, {"license": value}) for value in (["mit", "<b>"], [["mit"]], [], 7, True, "")),
        *(({}, {"language": value}) for value in ("<b>", "English", "EN", "e", ["en"], 7, False)),
        *(({}, {"base_model": {"name": "a", "hub_id": value}}) for value in ("<b>", "a/b/c", "a b", "a](b", 7)),
        *(({}, {"data": {"hub_id": value}}) for value in ("<b>", "../data", ["a"])),
        *(({"license": value}, {"license": value}) for value in ("mit", "other", "llama3.1", ["mit", "cc0-1.0"])),
        *(({"language": value}, {"language": value}) for value in ("no", "deu", "multilingual", "code")),
    ],
    ids=str,
)
def test_metadata_has_only_what_the_hub_accepts(folder, kept, given):
    """Even if an older or edited training.json contains something else."""
    card = render_card(
        with_record(folder, **{"base_model": None, "data": None, "language": None, "license": None} | given)
    )
    assert ModelCard(card).data.to_dict() == PLAIN | kept
    assert "<b>" not in card


@pytest.mark.parametrize("language", ["multilingual", "code"])
def test_several_languages_are_listed(folder, language):
    assert "one language" not in render_card(with_record(folder, language=language))
