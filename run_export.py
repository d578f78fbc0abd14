"""`informin export` as a script; see `python run_export.py --help`."""

from informin.cli import start

if __name__ == "__main__":
    start("export")

from informin.cli.export import main as main
