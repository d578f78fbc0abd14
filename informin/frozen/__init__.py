"""What needs no training, for finished models: search, linear adapters, static models, and the search page."""
