"""The search page: one or two models, a file of sentences, and a search box in the browser."""
