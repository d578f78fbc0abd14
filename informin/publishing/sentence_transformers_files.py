"""Write the files with which sentence-transformers loads an exported folder."""

from pathlib import Path

from transformers import PreTrainedModel

from informin.files import write_json
from informin.models.embedding_config import EmbeddingConfig
from modeling_informin import has_pooler, sentence_transformers_files


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
    width = encoder.config.hidden_size
    files = sentence_transformers_files(embedding.settings, width, longest, has_pooler(type(encoder)))
    (folder / "1_Pooling").mkdir()
    for name, values in files.items():
        write_json(folder / name, values, indent=2)
