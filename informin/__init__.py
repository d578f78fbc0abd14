"""InforMin-CL: unsupervised sentence embeddings as an extension of the HuggingFace Trainer."""

__version__ = "0.2.0"
