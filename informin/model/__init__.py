"""Finished models: opening, packing, embedding; and the forward pass that all models in training share."""
