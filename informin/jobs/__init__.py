"""The functions behind `informin fit`, `compare`, `embed` and `eval`, such as `informin.fit`."""
