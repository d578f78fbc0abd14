"""What runs on a GPU only: CUDA graphs of an encoder, and attention within short texts."""
