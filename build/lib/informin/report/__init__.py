"""report.html: one local page about a training run or a fit. It contains sentences and is never published."""
