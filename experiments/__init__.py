"""What reproduces the papers and the published figures: studies, figures, probes, benchmarks. Not in the wheel."""
