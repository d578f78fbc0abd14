"""report.html: one local page about a training run or a fit. It may contain sentences and is never published."""
