"""`informin analyze` as a script; see `python run_analysis.py --help`."""

from informin.cli import start

if __name__ == "__main__":
    start("analyze")

from informin.cli.analyze import main as main
