"""`informin push` as a script; see `python run_push.py --help`."""

from informin.cli import start

if __name__ == "__main__":
    start("push")

from informin.cli.push import main as main
