"""The exported folder, its model card, what may be pushed, and the Hub."""
