"""`informin check`: what the fast paths compute and how fast they are, on the machine at hand.

equality    the fast paths against informin/training/plain.py, on tiny encoders
speed       `encode` and training steps beside sentence-transformers
report      runs both and the tests for a GPU, and prints one table
"""
