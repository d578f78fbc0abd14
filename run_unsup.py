"""`informin train` as a script, for `accelerate launch`; see `python run_unsup.py --help`."""

from informin.cli import start

if __name__ == "__main__":
    start("train")
