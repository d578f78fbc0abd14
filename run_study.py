"""`informin study` as a script; see `python run_study.py --help`."""

from informin.cli import start

if __name__ == "__main__":
    start("study")

from informin.cli.study import main as main
