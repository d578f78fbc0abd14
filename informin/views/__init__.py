"""What makes two views of a sentence."""
