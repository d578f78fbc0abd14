"""The functions behind `informin fit`, `embed` and `eval`, such as `informin.fit`."""
