"""The options for the model, for data and for the model card."""

from dataclasses import dataclass
from typing import Optional

from informin.errors import UsageError
from informin.objectives.terms import option


@dataclass
class DataArguments:
    """Training sentences and evaluation data.

    Raises:
        UsageError: Both `train_file` and `dataset_name` are given.
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
        if self.train_file and self.dataset_name:
            raise UsageError("is given together with `dataset_name`", option="train_file", fix="Use one of them.")


@dataclass
class CardArguments:
    """Facts for the model card that cannot be inferred from the run."""

    base_model: Optional[str] = option(None, "Hub id of the encoder, if model_name is a local folder.")
    license: Optional[str] = option(
        None, "License id, such as apache-2.0. Default: the license in the encoder's model card."
    )
    language: Optional[str] = option(
        None, "ISO 639 code of the training sentences' language. Default: en for the default training sentences."
    )
