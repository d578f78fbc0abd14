"""Tiny random models of the layouts on the Hub that are no native architecture, created from the libraries' classes."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, StaticEmbedding, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    Gemma3TextConfig,
    Gemma3TextModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
)

from tests.conftest import WORDS, save_bert, save_encoder

LENGTH = 24  # maximum length, shorter than the longest of the sentences
PROMPTS = {"query": "the old ", "document": ""}
SPECIAL = ["<pad>", "<unk>", "<eos>"]
DECODER = dict(
    **dict(vocab_size=len(SPECIAL) + len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2),
    **dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=64, pad_token_id=0),
    **dict(bos_token_id=None, eos_token_id=2, initializer_range=0.2),
)


def save_tokenizer(folder: Path, side: str) -> None:
    """Save a tokenizer of words that appends an end-of-text token and pads on one side."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*SPECIAL, *WORDS])}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 2)])
    special = dict(pad_token="<pad>", unk_token="<unk>", eos_token="<eos>", padding_side=side)
    PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=LENGTH, **special).save_pretrained(folder)


def save(folder: Path, plain: Path, pooling: str, *more: nn.Module, default: str | None = None) -> Path:
    """Save a SentenceTransformer with an encoder, a pooling and other modules."""
    transformer = Transformer(str(plain))
    pool = Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling)
    modules = [transformer, pool, *more]
    model = SentenceTransformer(modules=modules, device="cpu", prompts=PROMPTS, default_prompt_name=default)
    model.max_seq_length = LENGTH
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def bert(folder: Path) -> Path:
    """Like all-MiniLM: BERT, mean pooling."""
    return save(folder, save_bert(folder.with_name("plain")), "mean", Normalize())


def bge(folder: Path) -> Path:
    """Like bge: BERT, [CLS]."""
    return save(folder, save_bert(folder.with_name("plain")), "cls", Normalize())


def xlm_roberta(folder: Path) -> Path:
    """Like multilingual-e5: XLM-RoBERTa, mean pooling."""
    return save(folder, save_encoder("xlm-roberta", folder.with_name("plain")), "mean", Normalize())


def qwen3(folder: Path) -> Path:
    """Like Qwen3-Embedding: last token, left padding, a prompt for queries."""
    plain = folder.with_name("plain")
    Qwen3Model(Qwen3Config(**DECODER)).save_pretrained(plain)
    save_tokenizer(plain, "left")
    return save(folder, plain, "lasttoken", Normalize())


def gemma(folder: Path) -> Path:
    """Like EmbeddingGemma: mean pooling, two Dense modules without bias, and a default prompt."""
    plain = folder.with_name("plain")
    Gemma3TextModel(Gemma3TextConfig(**DECODER, sliding_window=16, use_bidirectional_attention=True)).save_pretrained(
        plain
    )
    save_tokenizer(plain, "right")
    both = [Dense(a, b, bias=False, activation_function=nn.Identity()) for a, b in ((32, 64), (64, 32))]
    return save(folder, plain, "mean", *both, Normalize(), default="query")


def labse(folder: Path) -> Path:
    """Like LaBSE: BERT, [CLS], Dense with Tanh."""
    plain = save_bert(folder.with_name("plain"))
    return save(folder, plain, "cls", Dense(32, 32, activation_function=nn.Tanh()), Normalize())


def t5(folder: Path) -> Path:
    """Like gtr-t5 and sentence-t5: the encoder of T5, Dense without bias."""
    plain = folder.with_name("plain")
    sizes = dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, initializer_factor=2.0)
    ids = dict(vocab_size=DECODER["vocab_size"], pad_token_id=0, eos_token_id=2, decoder_start_token_id=0)
    T5EncoderModel(T5Config(**sizes, **ids)).save_pretrained(plain)
    save_tokenizer(plain, "right")
    return save(folder, plain, "mean", Dense(32, 48, bias=False, activation_function=nn.Identity()), Normalize())


def static(folder: Path) -> Path:
    """Like static-retrieval and potion: one vector per token, and no config.json."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["<unk>", *WORDS])}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    weights = np.random.default_rng(0).normal(size=(1 + len(WORDS), 16)).astype(np.float32)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=weights)], device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    assert not (folder / "config.json").exists()
    return folder


def potion(folder: Path) -> Path:
    """Like potion: the files of model2vec, whose config.json names an architecture of its own."""
    static(folder)
    weights = load_file(folder / "model.safetensors")["embedding.weight"]
    save_file({"embeddings": weights.clone()}, folder / "model.safetensors", {"format": "pt"})
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "hidden_dim": 16, "normalize": True}
    (folder / "config.json").write_text(json.dumps(config))
    write_modules(folder, (".", "StaticEmbedding"), ("1_Normalize", "Normalize"))
    return folder


def write_modules(folder: Path, *kinds: tuple[str, str]) -> None:
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))


CODE = """
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput


class SumConfig(PretrainedConfig):
    model_type = "sum-of-words"

    def __init__(self, vocab_size=40, hidden_size=32, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size, self.hidden_size = vocab_size, hidden_size


class SumModel(PreTrainedModel):
    config_class = SumConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, **kwargs):
        return BaseModelOutput(last_hidden_state=torch.tanh(self.embed(input_ids)).cumsum(1))
"""


def remote(folder: Path) -> Path:
    """A model with its own modeling file, as gte-multilingual or nomic-embed-text: `auto_map` names its classes."""
    folder.mkdir(parents=True)
    (folder / "modeling_sum.py").write_text(CODE)
    auto_map = {"AutoConfig": "modeling_sum.SumConfig", "AutoModel": "modeling_sum.SumModel"}
    config = dict(model_type="sum-of-words", architectures=["SumModel"], auto_map=auto_map, hidden_size=32)
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": DECODER["vocab_size"]}))
    save_file({"embed.weight": torch.randn(DECODER["vocab_size"], 32)}, folder / "model.safetensors", {"format": "pt"})
    save_tokenizer(folder, "right")
    write_modules(folder, ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


NATIVE = {"bert": bert, "bge": bge, "xlm-roberta": xlm_roberta}
FAMILIES = {
    "qwen3": qwen3,
    "gemma": gemma,
    "labse": labse,
    "t5": t5,
    "static": static,
    "potion": potion,
    "remote": remote,
}
WITH_DROPOUT = (*NATIVE, "labse", "t5")


def save_family(name: str, folder: Path) -> Path:
    """Save a model of one family in a new folder of that name, next to its encoder."""
    torch.manual_seed(1)
    return (NATIVE | FAMILIES)[name](folder / name)
