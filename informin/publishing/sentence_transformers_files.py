"""Write the files with which sentence-transformers loads an exported folder."""

import itertools
from pathlib import Path

from transformers import PreTrainedModel

from informin.encoders.embedding_config import EmbeddingConfig
from informin.files import write_json
from modeling_informin import has_pooler

# sentence-transformers 2.2 rejects other modes, and turns mean_tokens on if it is not listed.
POOLING_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
MODE_OF = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}


def save_sentence_transformers_files(
    encoder: PreTrainedModel, embedding: EmbeddingConfig, longest: int, folder: Path
) -> None:
    """Write modules.json and the settings of each module.

    Args:
        encoder: transformers' own model.
        embedding: How the model computes embeddings.
        longest: Maximum number of tokens per sentence.
        folder: An existing folder.
    """
    kinds = [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        *([("2_Normalize", "Normalize")] if embedding.normalize else []),
    ]
    modes = dict.fromkeys(POOLING_MODES, False) | {MODE_OF[embedding.pooling or "cls"]: True}
    # Otherwise transformers would create a pooler with random weights and report it as missing.
    no_pooler = {"model_args": {"add_pooling_layer": False}} if has_pooler(type(encoder)) else {}
    files = {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(kinds)
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": encoder.config.hidden_size,
            **{f"pooling_mode_{mode}": on for mode, on in modes.items()},
        },
        "sentence_bert_config.json": {
            "max_seq_length": longest,
            "do_lower_case": embedding.files.get("do_lower_case", False),
            **no_pooler,
        },
        "config_sentence_transformers.json": {
            **_prompts(embedding),
            "similarity_fn_name": embedding.files.get("similarity_fn_name", "cosine"),
        },
    }
    (folder / "1_Pooling").mkdir()
    for name, values in files.items():
        write_json(folder / name, values, indent=2)


def _prompts(embedding: EmbeddingConfig) -> dict:
    """Return the source model's prompts. If the default prompt changed, it is added under a new name."""
    prompts, default = embedding.files.get("prompts", {}), embedding.files.get("default_prompt_name")
    if prompts.get(default, "") == embedding.prompt:
        return {"prompts": prompts, "default_prompt_name": default}
    if not embedding.prompt:
        return {"prompts": prompts, "default_prompt_name": None}
    own = [name for name, text in prompts.items() if text == embedding.prompt]
    new = itertools.chain(["default"], (f"default_{i}" for i in itertools.count(2)))
    name = own[0] if own else next(name for name in new if name not in prompts)
    return {"prompts": prompts | {name: embedding.prompt}, "default_prompt_name": name}
