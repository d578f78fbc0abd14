"""Write report.html of a run again, from the records in its output folder."""

from pathlib import Path

from informin import program
from informin.errors import InforMinError, error_line
from informin.report.page import write_page


def main(argv: list[str] | None = None) -> int:
    """Write the page. Returns the exit code: 0, 2 (usage), 130 (interrupted)."""
    parser = program.Parser(prog="informin report", description=__doc__)
    parser.add_argument("run", help="Output folder of informin train, fit or compare, or the folder of a study.")
    args = parser.parse_args(argv)
    return program.exit_code(lambda: print(write_page(args.run)), parser.option_names())


def leave_report(folder: str | Path) -> None:
    """Write the page of a run that is finished. A problem is printed and does not make the run fail."""
    try:
        print(f"Report: {write_page(folder)}")
    except (InforMinError, OSError) as error:
        program.say(f"The report could not be written: {error_line(error)}")
