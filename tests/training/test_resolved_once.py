"""The options of a run are filled in once."""

import run_unsup
from informin.training import options


def test_options_are_filled_in_once(command, monkeypatch):
    """Once to check them, once for the encoder, and once more when the resolved copy is checked."""
    calls, fill = [], options.filled_in
    monkeypatch.setattr(options, "filled_in", lambda *args: calls.append(args) or fill(*args))
    assert run_unsup.main(command(max_steps=1, measure_drift=True)) == 0
    assert len(calls) <= 3
