"""What `informin fit`, `compare`, `embed` and `eval` do, as functions: `informin.fit` and so on."""
