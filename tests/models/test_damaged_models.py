"""Damaged model folders are refused with one line."""

from pathlib import Path

import pytest

from informin.errors import UsageError
from informin.models.open_model import load_model
from modeling_informin import HEAD_FILE
from tests.models.loading_helpers import change, config, refusal

pytestmark = pytest.mark.usefixtures("small_senteval")


def write(name: str, content: str | bytes):
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return damage


def cut_in_half(name: str):
    def damage(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[: (folder / name).stat().st_size // 2])

    return damage


# Commands that load the tokenizer first find its mismatch first; the others find that of the weights.
# Of sentence-transformers, which training tries next.
NO_TYPE = ("MODEL cannot be loaded: Unrecognized model", "MODEL cannot be loaded: unhashable type")
FEWER_TOKENS = (
    "the tokenizer does not belong to the model: ",
    "word_embeddings.weight has the shape (34, 32) in its weights, and (10, 32) by its config.json",
)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (write("config.json", "[]"), "MODEL/config.json is not valid: found list; expected dict. Download or copy"),
        (write("config.json", '"bert"'), "MODEL/config.json is not valid: found str; expected dict."),
        (write("config.json", "null"), "MODEL/config.json is not valid: found NoneType; expected dict."),
        (write("config.json", '{"model'), "MODEL/config.json is not JSON (Unterminated string"),
        (
            write("config.json", ""),
            "MODEL/config.json is not JSON (Expecting value: line 1 column 1 (char 0)).",
        ),
        (write("config.json", b"\xff\xfe\x00"), "MODEL/config.json is not JSON ('utf-8' codec can't decode byte 0xff"),
        (write("config.json", "{}"), ("MODEL has no model_type in config.json", *NO_TYPE)),
        (config(model_type=["bert"]), ("MODEL has the architecture ['bert']", *NO_TYPE)),
        (config(is_decoder="no"), "cannot be loaded: Validation error for field 'is_decoder': TypeError: Field"),
        (config(informin=[1]), "informin in config.json is a list; expected a dict."),
        (config(architectures=3), "architectures in config.json is a int; expected a list."),
        (
            config(num_attention_heads=5),
            "cannot be loaded: The hidden size (32) is not a multiple of the number",
        ),
        (
            config(num_attention_heads=0),
            "has num_attention_heads 0; expected num_attention_heads in config.json from 1 to",
        ),
        (config(hidden_size=0), "has hidden_size 0; expected hidden_size in config.json from 1 to"),
        (
            config(num_hidden_layers=-1),
            "has num_hidden_layers -1; expected num_hidden_layers in config.json from 1 to",
        ),
        (
            config(max_position_embeddings=-1),
            "has max_position_embeddings -1; expected max_position_embeddings in config.json from 1 to",
        ),
        (config(vocab_size=10), FEWER_TOKENS),
        (
            config(vocab_size=99),
            "word_embeddings.weight has the shape (34, 32) in its weights, and (99, 32) by its config.json",
        ),
        (config(pad_token_id=99), "cannot be loaded: Padding_idx must be within num_embeddings (AssertionError)."),
        (
            config(hidden_act="no"),
            "cannot be loaded: 'no' (KeyError). Check that its files are complete, or copy",
        ),
        (config(dtype="no"), "cannot be loaded: module 'torch' has no attribute 'no' (AttributeError)."),
        (cut_in_half("model.safetensors"), "cannot be loaded: Error while deserializing header: incomplete metadata"),
        (write("model.safetensors", ""), "cannot be loaded: Error while deserializing header: header too small"),
        (
            lambda folder: (folder / "model.safetensors").unlink(),
            "cannot be loaded: Error no file named model.saf",
        ),
        (write(HEAD_FILE, ""), "cannot be loaded: Error while deserializing header: header too small"),
        (cut_in_half("tokenizer.json"), "MODEL/tokenizer.json is not JSON (Unterminated string"),
        (write("tokenizer.json", "[]"), "MODEL/tokenizer.json is not valid: found list; expected dict."),
        (
            write("tokenizer.json", "{}"),
            "MODEL has no tokenizer that can be loaded: 'added_tokens' (KeyError). Copy",
        ),
        (cut_in_half("tokenizer_config.json"), "MODEL/tokenizer_config.json is not JSON ("),
        (write("tokenizer_config.json", "[]"), "MODEL/tokenizer_config.json is not valid: found list"),
        (change("tokenizer_config.json", model_max_length="x"), "model_max_length 'x' in tokenizer_config.json"),
        (change("tokenizer_config.json", model_max_length=-1), "model_max_length -1 in tokenizer_config.json"),
        (change("tokenizer_config.json", pad_token=3), "has no tokenizer that can be loaded: Special token pad_token"),
    ],
    ids=[
        *"config-list config-string config-null config-cut config-empty config-binary config-without-type".split(),
        *"type-list decoder-string settings-list architectures-number heads-that-do-not-divide no-heads".split(),
        *"no-width negative-layers negative-positions few-words many-words pad-outside activation dtype".split(),
        *"weights-cut weights-empty no-weights head-empty tokenizer-cut tokenizer-list tokenizer-without".split(),
        *"tokenizer-config-cut tokenizer-config-list length-string length-negative pad-number".split(),
    ],
)
def test_damaged_folders(model, commands, tmp_path, capsys, damage, message):
    damage(model)
    for call in commands.values():
        error = refusal(capsys, call, model)
        messages = (message,) if isinstance(message, str) else message
        assert any(text.replace("MODEL", str(model)) in error for text in messages)
    assert not (tmp_path / "export").exists() and not (tmp_path / "figure.csv").exists()
    assert list((tmp_path / "run").glob("[!.]*")) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (write("modules.json", "{}"), "MODEL/modules.json is not valid: found dict; expected list."),
        (write("modules.json", "[1]"), "modules.json lists a module without type or path."),
        (write("1_Pooling/config.json", "["), "MODEL/1_Pooling/config.json is not JSON ("),
        (write("config_sentence_transformers.json", "[]"), "MODEL/config_sentence_transformers.json is not valid: fou"),
        (
            change("sentence_bert_config.json", max_seq_length="9"),
            "sentence_bert_config.json: max_seq_length is '9'; expected an integer of 1 or more",
        ),
    ],
    ids="modules-no-list modules-of-numbers pooling prompts length".split(),
)
def test_damaged_files_of_sentence_transformers(model, damage, message):
    damage(model)
    with pytest.raises(UsageError) as caught:
        load_model(str(model))
    assert message.replace("MODEL", str(model)) in str(caught.value)
