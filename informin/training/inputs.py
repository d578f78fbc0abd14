"""The options that name what a run reads. Imports neither torch nor transformers, so that they can be checked first."""

from dataclasses import dataclass
from typing import Optional

from informin.errors import UsageError
from informin.option_types import with_home
from informin.options import check_fields, option


@dataclass
class ModelArguments:
    """The encoder to train, and a file of options."""

    model_name: Optional[str] = option(None, "Encoder to train: Hub id or local folder. Required.")
    recipe: Optional[str] = option(
        None,
        "YAML file of options, or the name of one in informin/recipes, such as adapt. Options of the command line "
        "override it.",
    )

    def __post_init__(self):
        check_fields(self)
        self.model_name = with_home(self.model_name)


@dataclass
class DataArguments:
    """Training sentences and evaluation data.

    Raises:
        UsageError: Both `train_file` and `dataset_name` are given, or options of a dataset without its name.
    """

    train_file: Optional[list[str]] = option(
        None,
        "Training sentences: files or folders of .txt (one sentence per line), .csv, .tsv, .jsonl (each may be .gz), "
        ".parquet or .arrow. Default: wiki1m_for_simcse.txt from the Hub.",
    )
    text_column: Optional[str] = option(
        None,
        "Column with the sentences, or several to join, such as subject,body. Default: `text`, or the only column.",
    )
    dataset_name: Optional[str] = option(None, "Dataset on the Hub, instead of train_file.")
    dataset_config: Optional[str] = option(None, "Configuration of the dataset.")
    dataset_split: str = option("train", "Split of the dataset.")
    streaming: bool = option(
        False, "Read the sentences during training instead of downloading them first. Requires max_steps."
    )
    senteval_dir: Optional[str] = option(
        None, "SentEval's data/downstream folder, for STS-B dev. Default: $SENTEVAL_DATA, else senteval.tar on the Hub."
    )
    eval_pairs: Optional[str] = option(
        None, "Scored sentence pairs, instead of STS-B dev: TSV, CSV or JSONL with sentence1, sentence2, score."
    )
    eval_labels: Optional[str] = option(
        None,
        "Labeled sentences, scored by clustering, nearest neighbors and few-shot classification: TSV, CSV or JSONL "
        "with text, label. STS-B dev is then scored only if it is available locally.",
    )
    eval_retrieval: Optional[str] = option(
        None, "Retrieval pairs: TSV, CSV or JSONL with query, document and, optionally, negative."
    )

    def __post_init__(self):
        if isinstance(self.train_file, str):  # one file in a recipe
            self.train_file = [self.train_file]
        check_fields(self)
        for name in ("train_file", "dataset_name", "senteval_dir", "eval_pairs", "eval_labels", "eval_retrieval"):
            setattr(self, name, with_home(getattr(self, name)))
        if self.train_file and self.dataset_name:
            raise UsageError("is given together with `dataset_name`", option="train_file", fix="Use one of them.")
        for name in ("dataset_config", "dataset_split"):
            if getattr(self, name) != getattr(type(self), name) and not self.dataset_name:
                raise UsageError("has no effect without `dataset_name`", option=name)


@dataclass
class SourceArguments:
    """The training arguments that name what a run reads, or whether it reads evaluation data."""

    revision: Optional[str] = option(None, "Branch, tag or commit of the encoder on the Hub.")
    guide_model: Optional[str] = option(
        None, "Frozen encoder that guides the training. Default: the encoder before training."
    )
    eval_strategy: str = option(
        "steps", "When to evaluate: steps, epoch or no. With no, nothing is scored and the last checkpoint is kept."
    )
