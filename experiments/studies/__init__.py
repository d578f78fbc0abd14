"""The same training over settings and seeds."""
