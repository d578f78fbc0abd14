"""report.html: one self-contained page about a run, built from the records in its output folder."""
