"""Save what `informin train --help` shows, after a change of an option. A test compares it with the parser.

python -m tools.train_help
"""

from informin.cli.train import HELP
from informin.cli.train_options import TrainParser

if __name__ == "__main__":
    HELP.write_text("\n".join(TrainParser().help_lines()) + "\n", encoding="utf-8")
