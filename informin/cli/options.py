"""Options that several commands share, as dataclasses whose fields cyclopts turns into flags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os.path import expanduser
from typing import Annotated, Literal

from cyclopts import CoercionError, Parameter, Token

from informin.errors import UsageError


def location(_: type, tokens: Sequence[Token]) -> str:
    """Return a path with the home folder in place of `~`. A shell expands it only at the start of a word.

    Raises:
        CoercionError: It is empty, like a variable that is not set. It would stand for the current folder or no output.
    """
    if not tokens[0].value:
        raise CoercionError(msg="it is empty.", token=tokens[0])
    return expanduser(tokens[0].value)


Location = Annotated[str, Parameter(converter=location)]  # a file, a folder or a model
Flag = Annotated[bool, Parameter(show_default=False)]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Overwrite = Annotated[bool, Parameter(name=["--overwrite", "--overwrite_output_dir"], show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OptionalTexts:
    """Where the texts are, if there are any.

    Attributes:
        train_file: Files of texts, or folders of files: .txt (one text per line), .csv, .tsv, .jsonl (plain or .gz),
            .parquet or .arrow. Blank texts are skipped, as are hidden files and unsupported suffixes in folders.
        text_column: Column with the texts, or several columns to join, such as subject,body. Default: `text`,
            `sentence`, or the only column.
    """

    train_file: list[Location] | None = None
    text_column: str | None = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Texts(OptionalTexts):
    """The same for a command that needs texts."""

    train_file: list[Location] = field()


@Parameter(name="*")
@dataclass(frozen=True)
class ModelOptions:
    """How a model is loaded and embeds: keyword arguments of `informin.fit` and the other functions.

    Attributes:
        prompt: Prompt prepended to each text; '' for none. Default: for a search the model's document prompt, otherwise
            its default prompt.
        max_seq_length: Truncate texts to this many tokens. Default: the model's maximum.
        batch_size: Texts per forward pass.
        device: cpu, cuda, cuda:1, mps. Default: a GPU if there is one.
        precision: Precision of the encoder's weights. auto: the fastest one on the processor or GPU. Default: fp32.
        bf16: An older form of --precision bf16.
        revision: Branch, tag or commit of the model on the Hub.
        trust_remote_code: Run code from the model's repository, if it needs any.
    """

    prompt: str | None = None
    max_seq_length: int | None = None
    batch_size: int = 64
    device: str | None = None
    precision: Precision | None = None
    bf16: Annotated[bool, Parameter(show=False)] = False
    revision: str | None = None
    trust_remote_code: Flag = False


@Parameter(name="*")
@dataclass(frozen=True)
class PooledModelOptions(ModelOptions):
    """The same with a pooling, and for commands that only embed.

    Attributes:
        precision: Precision of the encoder's weights. auto: the fastest one on the processor or GPU.
        pooler: Pooling: cls, mean, last, ... Default: the model's own.
    """

    precision: Precision = "auto"
    pooler: str = "auto"


def refuse_given(options: Mapping[str, object], reason: str) -> None:
    """Raise UsageError for an option that is given and has no effect.

    Args:
        options: Values by name. None, False and an empty list mean that an option was not given.
        reason: Why it has no effect, such as "has no effect with `report`".
    """
    for name, value in options.items():
        if value is not None and value is not False and value != []:
            raise UsageError(reason, option=name)


def changed_options(options: ModelOptions) -> dict[str, object]:
    """Return the options of a model that differ from their defaults, by name."""
    defaults = vars(type(options)())
    return {name: value for name, value in vars(options).items() if value != defaults[name]}
