"""Fixtures for all tests, without network or downloads.

Tokenizers of a few words, encoders of 2 layers and width 32, and sentences made of those words.

Functions import torch and transformers when they need them: the process of pytest-xdist that only distributes the tests
loads this file, too, and the imports take seconds of its time before the first worker starts.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # transformers would start threads for each tiny model that it loads
os.environ.pop("SENTEVAL_DATA", None)  # tests read no data of this machine
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are tiny: threads would only wait for each other
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # and those of tests with several do not wait in a busy loop
os.environ.setdefault("RAYON_NUM_THREADS", "1")  # for tokenizers, which read a few short sentences at a time

import shutil

if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on a CPU, where Triton is installed; read when it is imported

import re

re._MAXCACHE = 10_000  # transformers compiles hundreds of patterns for each model that it loads

import gc

gc.disable()  # until everything is imported: collecting garbage takes a sixth of the time of imports

import atexit
import dataclasses
import functools
import importlib.metadata
import itertools
import logging
import random
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

# Records read six versions again and again, and each SentenceTransformer reads who publishes two packages.
importlib.metadata.version = functools.cache(importlib.metadata.version)
importlib.metadata.metadata = functools.cache(importlib.metadata.metadata)

from informin.errors import UsageError
from tests.support.browser import Browser
from tests.support.hub_server import HubServer

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"
GENERAL_SENTENCES = ROOT / "tests" / "support" / "general_sentences.txt"
LOGGERS = ("informin", "transformers", "huggingface_hub", "datasets", "bm25s")  # whose levels commands change
WORDS = (
    "the a dog cat bird man woman child house street river runs sleeps eats sees sings old young big small red blue "
    "in on under and not quickly today".split()
)
SIZES = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=66,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
    initializer_range=0.2,  # fresh weights of 0.02 give nearly equal embeddings and gradients near 0
)
FOUR_STEPS = dict(  # of training, scored at two of them
    per_device_train_batch_size=16,
    learning_rate=1e-3,
    max_steps=4,
    eval_steps=2,
    logging_steps=2,
    bf16=False,
    use_cpu=True,
    disable_tqdm=True,
)

NUMBERS = itertools.count()

# Tests write many small files: in memory, if there is enough of it and programs may run there.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
    if shutil.disk_usage(MEMORY).free > 4 * 2**30 and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# A test suite in the background or under nohup ignores signals that its programs must handle.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@functools.cache
def set_up_torch():
    """Make torch use one thread, and wait 0.2 seconds instead of 5 before it terminates idle workers or ends a stream.

    At the end of a training, Trainer does not look for garbage in all objects of all tests. The template of model
    cards is compiled once. Thresholds of false negatives are estimated from fewer pairs of the few sentences.
    """
    import accelerate.utils.memory
    import datasets
    import jinja2
    import torch

    from informin.training import guide

    guide.RANDOM_PAIRS = 20_000
    torch.set_num_threads(1)
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.2
    datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0.2
    accelerate.utils.memory.gc = SimpleNamespace(collect=lambda: 0)
    jinja2.Environment.compile = functools.lru_cache(jinja2.Environment.compile)
    for layer in (torch.nn.Linear, torch.nn.Embedding):
        layer.reset_parameters = unless_on_meta(layer.reset_parameters)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch"):  # pytest would add its handlers to each of 50, three times in each test
            logger.propagate = True
    if shutil.which("nvidia-smi") is None:
        for device in (torch.cuda, torch.xpu, torch.mtia):
            device.manual_seed_all = lambda seed: None  # otherwise keeps each seed with a stack trace


def unless_on_meta(initialize):
    """Return a function that draws the weights of a layer only on a device that stores them.

    Transformers creates each model on the meta device, where drawing changes nothing but takes milliseconds.
    """

    @functools.wraps(initialize)
    def draw(layer):
        if not layer.weight.is_meta:
            initialize(layer)

    return draw


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config, log):
    """Give each worker consecutive tests, so that fixtures of a module are built once, until one runs out of tests."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


def pytest_collectstart():
    """Set up torch in each process that collects tests, before the first test module is imported."""
    set_up_torch()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session):
    """Compute in fp32 on every processor, and start the server of tests that fork.

    Tests of `precision` choose another one. A fixture would not reach the fixtures of a module and the server.
    """
    modules = (getattr(item, "module", None) for item in session.items)
    forked = next((module.forked for module in modules if hasattr(module, "forked")), None)
    with pytest.MonkeyPatch.context() as patch:
        if session.items:  # not in the process that only distributes them
            patch.setattr("informin.fast.precision.native_precision", lambda device: "fp32")
        if forked:
            forked.start_server()
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Let a test draw the same random numbers, whichever tests ran before it."""
    import torch

    torch.manual_seed(0)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """End a worker of pytest-xdist, which has sent all results, at once: tearing its interpreter down takes seconds."""
    if hasattr(config, "workerinput"):
        atexit._run_exitfuncs()
        os._exit(0)


def pytest_collection_finish():
    """Exclude all imported modules from garbage collection, and turn it on, for large amounts of garbage only."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@contextmanager
def raises_usage(option=None, **contained: str):
    """Expect a UsageError of this option; `found`, `needed`, `fix` are texts that its fields contain.

    Without `option` the error must name none.
    """
    with pytest.raises(UsageError) as info:
        yield info
    assert info.value.option == option, info.value
    for name, text in contained.items():
        assert text in (getattr(info.value, name) or ""), f"{name}: {info.value}"


def how_to_train(*folder, **options) -> dict:
    """Return the trainer's arguments `args`, `objective` and `view` for options as on the command line.

    Replay reads a few sentences by default: reading and encoding those of the package takes half a second.
    """
    from informin.cli.train_options import OPTION_KINDS, objective_and_view
    from informin.training.arguments import InforMinTrainingArguments

    names = {kind.option_name(declared.name) for kind in OPTION_KINDS for declared in dataclasses.fields(kind)}
    flags = {name: value for name, value in options.items() if name in names}
    others = {name: value for name, value in options.items() if name not in names}
    if flags.get("replay_weight"):
        others = {"replay_file": str(GENERAL_SENTENCES)} | others
    args = InforMinTrainingArguments(*folder, **others)
    objective, view = objective_and_view(args, flags)
    return {"args": args, "objective": objective, "view": view}


def make_sentences(count: int, seed: int = 0) -> list[str]:
    """Return distinct sentences of 3 to 9 known words."""
    source = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(source.choices(WORDS, k=source.randint(3, 9)))] = None
    return list(found)


def save_pairs(path: Path, seed: int = 1) -> Path:
    """Save 12 graded pairs whose sentences differ from those of seed 0."""
    first, second = make_sentences(12, seed), make_sentences(12, seed + 1)
    rows = [f"{a}\t{b}\t{grade % 6}" for grade, (a, b) in enumerate(zip(first, second))]
    path.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    return path


def save_bert(folder: Path, **changes) -> Path:
    """Save a BERT with its language-model head and tokenizer."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tokenizer = BertTokenizerFast(vocab={word: i for i, word in enumerate(vocabulary)}, model_max_length=66)
    torch.manual_seed(1)
    BertForMaskedLM(BertConfig(vocab_size=len(vocabulary), **(SIZES | changes))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_letters(folder: Path) -> Path:
    """Save a static model with a vector for each letter, so that every word has several tokens."""
    import numpy as np
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["[UNK]", *letters, *("##" + letter for letter in letters)]
    backend = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    weights = np.random.default_rng(0).normal(size=(len(pieces), 8)).astype(np.float32)
    modules = [StaticEmbedding(backend, embedding_weights=weights)]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder


def save_roberta(folder: Path, **changes) -> Path:
    """Save a RoBERTa with its language-model head and a tokenizer of words instead of bytes."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForMaskedLM

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *WORDS]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_max_length=64,
    )
    ids = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1)
    torch.manual_seed(1)
    RobertaForMaskedLM(RobertaConfig(vocab_size=len(vocabulary), **(SIZES | ids | changes))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_sentence_transformer(folder: Path, bert: Path, *modules, pooling: str = "mean", normalize: bool = True, **how):
    """Save a BERT as a SentenceTransformer with a pooling, further modules and normalization, and return the folder.

    Args:
        folder: New folder.
        bert: Folder of the BERT.
        modules: Modules between pooling and normalization.
        pooling: Pooling mode of sentence-transformers.
        normalize: Whether to append a Normalize module.
        how: Arguments of SentenceTransformer, such as `prompts`.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    parts = [Transformer(str(bert)), Pooling(SIZES["hidden_size"], pooling_mode=pooling), *modules]
    parts += [Normalize()] if normalize else []
    SentenceTransformer(modules=parts, device="cpu", **how).save_pretrained(str(folder), create_model_card=False)
    return folder


def tokenizer_of(folder: Path, **how):
    """Load the tokenizer of a model folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, **how)


@pytest.fixture(scope="session")
def bert(tmp_path_factory) -> Path:
    return save_bert(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="session")
def roberta(tmp_path_factory) -> Path:
    return save_roberta(tmp_path_factory.mktemp("models") / "tiny-roberta")


@pytest.fixture(params=["bert", "roberta"])
def encoder(request) -> Path:
    """Each architecture in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def st_mean(tmp_path_factory, bert) -> Path:
    """A finished model: BERT with mean pooling and normalization."""
    return save_sentence_transformer(tmp_path_factory.mktemp("models") / "st-mean", bert)


@pytest.fixture(scope="session")
def sentences_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "sentences.txt"
    path.write_text("\n".join(make_sentences(96)) + "\n")
    return path


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory) -> Path:
    return save_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv")


@pytest.fixture
def hub():
    """An empty Hub on 127.0.0.1."""
    with HubServer() as server:
        yield server


@pytest.fixture
def logged_in(hub, monkeypatch, tmp_path) -> Iterator[HubServer]:
    """What the client read from its environment when it was imported: this Hub, alice's token, an empty cache.

    It does not wait before it tries again, and a busy machine has as long as it needs to answer.
    """
    import huggingface_hub

    from informin import hub as hub_access
    from informin.hub import hub_is_reachable

    constants = {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_TOKEN_PATH": str(tmp_path / "token"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_ETAG_TIMEOUT": 120,
        "HF_HUB_DOWNLOAD_TIMEOUT": 120,
    }
    for name, value in constants.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setattr(hub_access, "SECONDS", 120)
    for module in ("huggingface_hub.utils._http", "huggingface_hub.file_download"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(sleep=lambda seconds: None))
    hub.add_user("alice", token="hf_alice", orgs={"team": "write", "readers": "read"})
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    hub_is_reachable.cache_clear()
    yield hub
    hub_is_reachable.cache_clear()


@pytest.fixture(scope="session")
def modules_cache(tmp_path_factory) -> Path:
    """A folder for code of models, which processes would overwrite for each other in that of this user."""
    return tmp_path_factory.mktemp("modules-cache")


@pytest.fixture(autouse=True)
def private_caches(modules_cache, monkeypatch):
    """Use no models, datasets and code that this machine has cached, and cache none there."""
    import datasets
    import huggingface_hub
    import transformers

    own = modules_cache.parent / f"caches-{next(NUMBERS)}"  # tmp_path would be created for each test
    monkeypatch.setattr(huggingface_hub.constants, "HF_HOME", str(own / "hub-home"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(own / "hub-cache"))
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(modules_cache))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", own / "datasets-cache")


@pytest.fixture(autouse=True)
def process_as_before():
    """Restore what commands and libraries change for the whole process: the next test may be any other."""
    from transformers.utils import logging as log

    variables, has_bars = dict(os.environ), log.is_progress_bar_enabled()
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [(logger.level, logger.propagate) for logger in loggers]
    yield
    for name in {*os.environ} - {*variables}:
        del os.environ[name]
    os.environ.update(variables)
    for logger, (level, propagates) in zip(loggers, levels):
        if logger.level != level:  # setting it takes a walk through all loggers
            logger.setLevel(level)
        logger.propagate = propagates
    if log.is_progress_bar_enabled() != has_bars:
        (log.enable_progress_bar if has_bars else log.disable_progress_bar)()


@pytest.fixture
def command(bert, sentences_file, pairs_file, tmp_path):
    """Return a function that builds arguments of `informin train`: four steps in fp32, changed by keywords."""

    def build(**changes) -> list[str]:
        options = dict(
            model_name=bert,
            train_file=sentences_file,
            eval_pairs=pairs_file,
            output_dir=tmp_path / "run",
            **FOUR_STEPS,
        )
        options |= changes
        return [f"--{name}={value}" for name, value in options.items() if value is not None]

    return build


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless browser; the test is skipped without one."""
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()
