"""The report of `informin compare`, from compare.json."""

from pathlib import Path
from typing import Any

from informin.errors import counted
from informin.evaluation.table import Row, Table
from informin.report import charts, verdicts
from informin.schema import AMOUNT, ANY, FLAG, TEXT, Each, Keys, integer, list_of, or_none, read_checked

COMPARE = "compare.json"
AGAIN = "Run the comparison again with this version."
RECORD = Keys(
    {
        "data": Keys({"files": list_of(TEXT), "texts": integer(0), "held_out": integer(0)}, others=ANY),
        "environment": Keys(others=ANY),
        "models": Each(Keys({"model": TEXT}, {"rank": AMOUNT, "clear": FLAG}, ANY)),
        "shown": Keys(
            {
                "title": TEXT,
                "columns": list_of(TEXT),
                "rows": Each(Keys({"label": TEXT, "values": Keys(others=or_none(TEXT))})),
                "notes": list_of(TEXT),
            }
        ),
        "figure": Each(
            Keys(
                {
                    "name": TEXT,
                    **dict.fromkeys(("rank", "adapted", "low", "high"), AMOUNT),
                    "texts_per_second": or_none(AMOUNT),
                }
            )
        ),
    },
    others=ANY,
)


def of_comparison(path: Path) -> dict[str, Any]:
    """Return the content of the page.

    Raises:
        UsageError: compare.json does not match `RECORD`.
    """
    record = read_checked(path, RECORD, AGAIN)
    shown, data, rows = record["shown"], record["data"], record["figure"]
    table = Table(shown["title"], shown["columns"], [Row(row["label"], row["values"]) for row in shown["rows"]])
    return {
        "title": f"Embedding models on {', '.join(data['files']) or counted(data['texts'], 'text')}",
        "subtitle": f"informin compare, {counted(len(record['models']), 'model')}, {counted(data['texts'], 'text')}",
        "verdict": verdicts.of_comparison(record["models"]),
        "heading": "Models, best first",
        "tables": [table],
        "wide": [charts.comparison(rows, data["held_out"])] if rows else [],
        "notes": shown["notes"],
        "options": {name: value for name, value in data.items() if name != "files"},
        "versions": record["environment"],
    }
