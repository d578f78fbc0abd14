"""Finished models: opening them safely, poolings, embedding, checksums, records, and LoRA."""
