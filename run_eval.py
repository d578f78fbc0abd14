"""`informin eval` as a script; see `python run_eval.py --help`."""

from informin.cli import start

if __name__ == "__main__":
    start("eval")

from informin.cli.eval import main as main
