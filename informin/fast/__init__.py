"""What makes training and `encode` fast: packing, attention, dropout masks, threads, CUDA graphs, and a kernel."""
