"""Tables of results as text, Markdown and LaTeX."""

import copy

import numpy as np
import pytest

from informin.evaluation.results import Results
from informin.evaluation.retrieval import randomization_test
from informin.evaluation.table import (
    Row,
    Table,
    check_same_files,
    footnotes,
    load_others,
    model_label,
    render,
    score_tables,
    tables_text,
)
from tests.conftest import raises_usage
from tests.evaluation.results_helpers import STS, entry, results, sample, search


@pytest.mark.parametrize(
    "changes, expected",
    [
        (dict(), "model, cls"),
        (dict(model="folder/model/", pooler="mean"), "model, mean"),
        (dict(whitening={"dimensions": None, "fitted_on": "x"}), "model, cls, whitening"),
        (dict(whitening={"dimensions": 256, "fitted_on": "x"}), "model, cls, whitening 256"),
        (dict(prompt="query: "), "model, cls, prompt 'query: '"),
        (dict(truncate_dim=64), "model, cls, 64 dimensions"),
    ],
)
def test_label(changes, expected):
    assert model_label(results({}, **changes)) == expected


def two_results() -> list[Results]:
    """Complete and incomplete groups, and a missing value."""
    first = results(STS | {"MR": 81.256, "TREC": 100.0}, model="a_b&c%d")
    second = results({"STS12": 12.346, "STS-B": None, "MR": 5.0}, model="m", pooler="mean")
    return [first, second]


def test_text():
    sts, transfer = score_tables(two_results())
    assert render(sts, "text") == (
        "STS, Spearman x 100\n"
        "              STS12  STS13  STS14  STS15  STS16  STS-B  SICK-R    Avg\n"
        "a_b&c%d, cls  10.00  20.50  30.00  40.25  50.00  60.00   70.00  40.11\n"
        "m, mean       12.35      -      -      -      -      -       -      -"
    )
    assert render(transfer, "text") == (
        "Transfer, accuracy x 100\n"
        "                 MR    TREC  Avg\n"
        "a_b&c%d, cls  81.26  100.00    -\n"
        "m, mean        5.00       -    -"
    )


def test_markdown():
    assert render(score_tables(two_results())[1], "markdown") == (
        "**Transfer, accuracy x 100**\n"
        "\n"
        "|              |    MR |   TREC | Avg |\n"
        "| ------------ | ----: | -----: | --: |\n"
        "| a_b&c%d, cls | 81.26 | 100.00 |   - |\n"
        "| m, mean      |  5.00 |      - |   - |"
    )


def test_latex():
    assert render(score_tables(two_results())[1], "latex") == (
        "% Transfer, accuracy x 100\n"
        "\\begin{tabular}{lrrr}\n"
        "\\toprule\n"
        " & MR & TREC & Avg \\\\\n"
        "\\midrule\n"
        "a\\_b\\&c\\%d, cls & 81.26 & 100.00 & - \\\\\n"
        "m, mean & 5.00 & - & - \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}"
    )


def test_latex_of_signs_and_spread():
    row = Row("mean ± sd $#", {"a_b": -0.5, "c": 1.0}, {"a_b": 0.25, "c": 2.0}, signed=True)
    lines = render(Table("t", ["a_b", "c"], [row]), "latex").splitlines()
    assert lines[3] == " & a\\_b & c \\\\"
    assert lines[5] == "mean ± sd \\$\\# & -0.50 $\\pm$ 0.25 & +1.00 $\\pm$ 2.00 \\\\"
    row = Row(r"{x}\n~^", {"a": 1.0})
    signs = r"\{x\}\textbackslash{}n\textasciitilde{}\textasciicircum{}"
    assert render(Table("t", ["a"], [row]), "latex").splitlines()[5] == f"{signs} & 1.00 \\\\"


def test_text_cells_are_printed_unchanged():
    row = Row("a", {"b": "1.0 ± 0.5 (3)", "c": "signal", "d": 2.0})
    assert [row.cell(name) for name in "bcde"] == ["1.0 ± 0.5 (3)", "signal", "2.00", "-"]
    assert render(Table("t", ["b"], [row]), "latex").splitlines()[5] == "a & 1.0 $\\pm$ 0.5 (3) \\\\"


SEEDS = ([80.0, 82.5, 81.1], [10.0, 9.0, 14.5])
BEFORE = ([79.0, 82.0, 79.5], [11.0, 9.5, 12.0])


def seeds(name: str, scores, **how) -> list[Results]:
    return [results({"STS-B": a, "SICK-R": b}, model=f"{name}{i}", **how) for i, (a, b) in enumerate(zip(*scores))]


def test_mean_and_standard_deviation_over_seeds():
    (table,) = score_tables(seeds("s", SEEDS), seeds=True)
    assert [row.label for row in table.rows] == ["s0, cls", "s1, cls", "s2, cls", "mean ± sd of these 3"]
    last = table.rows[-1]
    for name, values in zip(("STS-B", "SICK-R"), SEEDS):
        mean = sum(values) / 3
        assert last.values[name] == pytest.approx(mean)
        assert last.spread[name] == pytest.approx((sum((x - mean) ** 2 for x in values) / 2) ** 0.5)
        assert last.spread[name] == pytest.approx(np.std(values, ddof=1))
    assert last.cell("STS-B") == "81.20 ± 1.25" and last.cell("Avg") == "-"
    assert len(score_tables(seeds("s", SEEDS)[:1], seeds=True)[0].rows) == 1, "one seed has no spread"


def test_poolings_of_seeds_are_not_averaged():
    """`eval --pooler cls mean --seeds` printed the mean of both poolings."""
    rows = [one for pooler in ("cls", "mean") for one in seeds("s", SEEDS, pooler=pooler)]
    (table,) = score_tables(rows, seeds=True)
    assert [row.label for row in table.rows[-2:]] == ["mean ± sd of 3, cls", "mean ± sd of 3, mean"]
    assert [row.cell("STS-B") for row in table.rows[-2:]] == ["81.20 ± 1.25"] * 2


def test_differences_from_one_result():
    (table,) = score_tables(seeds("s", SEEDS)[:2], others=[results({"STS-B": 81.0}, model="base")])
    assert render(table, "text") == (
        "STS, Spearman x 100\n"
        "                     STS-B  SICK-R  Avg\n"
        "base, cls            81.00       -    -\n"
        "s0, cls              80.00   10.00    -\n"
        "s1, cls              82.50    9.00    -\n"
        "s0, cls - base, cls  -1.00       -    -\n"
        "s1, cls - base, cls  +1.50       -    -"
    )


def test_paired_differences_over_seeds():
    """Differences are computed per row: 1.0, 0.5, 1.6, with their own standard deviation."""
    (table,) = score_tables(seeds("s", SEEDS), seeds("b", BEFORE), seeds=True)
    assert [row.label for row in table.rows] == [
        *("b0, cls", "b1, cls", "b2, cls", "mean ± sd of these 3"),
        *("s0, cls", "s1, cls", "s2, cls", "mean ± sd of these 3"),
        *("s0, cls - b0, cls", "s1, cls - b1, cls", "s2, cls - b2, cls", "mean ± sd of these 3"),
    ]
    gains = np.subtract(SEEDS[0], BEFORE[0])
    assert [row.cell("STS-B") for row in table.rows[8:11]] == ["+1.00", "+0.50", "+1.60"]
    last = table.rows[-1]
    assert (last.values["STS-B"], last.spread["STS-B"]) == pytest.approx((gains.mean(), gains.std(ddof=1)))
    assert last.cell("STS-B") == "+1.03 ± 0.55"
    assert table.rows[3].cell("STS-B") == f"{np.mean(BEFORE[0]):.2f} ± {np.std(BEFORE[0], ddof=1):.2f}"


def test_averages_are_compared_too():
    other = results({name: score - 1.5 for name, score in STS.items()})
    assert score_tables([results(STS)], [other])[0].rows[-1].cell("Avg") == "+1.50"


def test_footnotes():
    first, second = results(STS, model="a"), results({"MR": None, "CR": 1.0}, model="b", similarity="dot")
    assert footnotes([first]) == []
    second.add("faq", search(50.0, [1.0, 2.0], prompts={"query": "q: ", "document": ""}))
    assert footnotes([first, second]) == [
        "b, cls: MR has no score: nothing is finite.",
        "b, cls: faq, prompt of queries: 'q: '; of documents: none.",
        "Similarity in STS and retrieval: dot product, as declared by b, cls.",
    ]


def test_tables_do_not_modify_results():
    rows, others = seeds("s", SEEDS), seeds("b", BEFORE)
    before = copy.deepcopy((rows, others))
    tables_text(rows, others, seeds=True)
    assert (rows, others) == before


def test_tables_of_samples():
    """One table per sample with all measures, differences and means."""
    rows, other = [results({}, model=f"org/seed{i}") for i in (1, 2)], results({}, model="org/start")
    for one, score in zip((*rows, other), (70.0, 72.0, 60.5)):
        one.add("titles", sample(score))
    rows[0].add("faq", search(50.0, [1.0, 2.0]))
    titles, faq = score_tables(rows, [other], seeds=True)
    assert render(titles, "markdown").splitlines() == [
        "**titles: 1,200 sentences of 3 classes, x 100**",
        "",
        "|                         |     V-measure |          1-NN |         10-NN |        8-shot |",
        "| ----------------------- | ------------: | ------------: | ------------: | ------------: |",
        "| start, cls              |         60.50 |         61.50 |         62.50 |         63.50 |",
        "| seed1, cls              |         70.00 |         71.00 |         72.00 |         73.00 |",
        "| seed2, cls              |         72.00 |         73.00 |         74.00 |         75.00 |",
        "| mean ± sd of these 2    |  71.00 ± 1.41 |  72.00 ± 1.41 |  73.00 ± 1.41 |  74.00 ± 1.41 |",
        "| seed1, cls - start, cls |         +9.50 |         +9.50 |         +9.50 |         +9.50 |",
        "| seed2, cls - start, cls |        +11.50 |        +11.50 |        +11.50 |        +11.50 |",
        "| mean ± sd of these 2    | +10.50 ± 1.41 | +10.50 ± 1.41 | +10.50 ± 1.41 | +10.50 ± 1.41 |",
    ]
    assert faq.title == "faq: 2 queries, 40 documents, x 100"
    recalls, accuracies = ["recall@10", "recall@100"], ["accuracy@1", "accuracy@10"]
    assert faq.columns == ["MRR@10", "nDCG@10", "MAP@100", *recalls, *accuracies]
    assert faq.rows[1].cell("MRR@10") == "50.00" and faq.rows[1].cell("accuracy@1") == "-"


def test_sample_without_scores_has_a_footnote():
    one = results({})
    one.add("titles", sample(None))
    (table,) = score_tables([one])
    assert table.rows[0].cell("1-NN") == "-"
    assert footnotes([one]) == ["model, cls: titles has no score: nothing is finite."]


def searched(name: str, seed: int, **more) -> Results:
    one, values = results({}, model=name), np.random.default_rng(seed).uniform(0, 100, 30).tolist()
    one.add("faq", search(50.0, values, **more))
    return one


def test_retrieval_is_tested_against_the_first_row():
    rows = [searched("a", 1), searched("b", 2), searched("c", 3, data={"faq": "2" * 64})]
    (table,) = score_tables(rows)
    assert table.columns[-1] == "p, nDCG@10"
    queries = [np.array(one.tasks["faq"]["queries"]["ndcg_10"]) for one in rows]
    expected = f"{randomization_test(queries[1], queries[0]):.4f}"
    assert [row.cell("p, nDCG@10") for row in table.rows] == ["-", expected, "-"], "the last has other texts"
    note = "p: paired randomization test against a, cls, two-sided, 10,000 sign flips over queries."
    assert footnotes(rows) == [note] and footnotes(rows[:1]) == []
    (table,) = score_tables(rows[1:2], others=rows[:1])
    assert [row.label for row in table.rows] == ["a, cls", "b, cls", "b, cls - a, cls"]
    assert [row.cell("p, nDCG@10") for row in table.rows] == ["-", expected, "-"]
    assert footnotes(rows[1:2], rows[:1]) == [note]


def test_each_collection_is_tested_against_the_first_row_that_has_it():
    rows = [searched("a", 1), searched("b", 2), searched("c", 3)]
    rows[0].add("docs", entry(None, kind="retrieval", documents=40))
    for one, values in zip(rows[1:], ([30.0] * 9, [20.0] * 9)):
        one.add("docs", search(50.0, values))
    _, docs = score_tables(rows)
    expected = f"{randomization_test(np.full(9, 20.0), np.full(9, 30.0)):.4f}"
    assert [row.cell("p, nDCG@10") for row in docs.rows] == ["-", "-", expected]
    notes = [note.split(", two-sided")[0] for note in footnotes(rows) if note.startswith("p")]
    assert notes == [f"p of {x}: paired randomization test against {y}, cls" for x, y in (("faq", "a"), ("docs", "b"))]


def test_models_with_equal_names_have_all_their_rows():
    words, *fused = ({"measures": search(1.0, x)["measures"], "queries": {"ndcg_10": x}} for x in ([5.0], [9.0], [7.0]))
    rows = [searched("m", 1, bm25=words, with_words=own) for own in fused]
    (table,) = score_tables(rows)
    found = [(row.label, row.cell("nDCG@10")) for row in table.rows[2:]]
    assert found == [("with BM25: m, cls", "9.00"), ("with BM25: m, cls", "7.00"), ("BM25", "5.00")]


def test_rows_of_word_search():
    words, fused = (
        {"measures": search(1.0, x)["measures"], "queries": {"ndcg_10": x}} for x in ([5.0] * 30, [9.0] * 30)
    )
    rows = [searched(name, 1, bm25=words, with_words=fused, reranked=words, fused=fused) for name in "ab"]
    (table,) = score_tables(rows)
    fusions = [f"rank fusion: BM25 + {name}, cls" for name in "ab"]
    looks = [f"with BM25, reranked: {name}, cls" for name in "ab"]
    added = ["with BM25: a, cls", "with BM25: b, cls", *looks, "BM25", *fusions]
    assert [row.label for row in table.rows] == ["a, cls", "b, cls", *added]
    assert [row.cell("nDCG@10") for row in table.rows[2:]] == ["9.00", "9.00", "5.00", "5.00", "5.00", "9.00", "9.00"]
    assert [row.cell("p, nDCG@10") for row in table.rows[2:6]] == ["-", "-", *2 * [f"{1 / 10_001:.4f}"]]
    assert "against with BM25: a, cls" in footnotes(rows)[-1]


def test_seeds_have_a_mean_of_each_ranking():
    """Only the rows of the vectors had one. BM25 is one row, and rankings of equal scores are as many as there are."""
    bm25, *found = (
        {"measures": search(x, [x])["measures"], "queries": {"ndcg_10": [x]}} for x in (5.0, 7.0, 7.0, 10.0)
    )
    rows = [searched("m", 1, bm25=bm25, with_words=one, fused=bm25) for one in found]
    (table,) = score_tables(rows, seeds=True)
    shown = {row.label: row.cell("MRR@10") for row in table.rows}
    assert shown["with BM25: mean ± sd of these 3"] == "8.00 ± 1.73"
    assert shown["rank fusion: BM25 + mean ± sd of these 3"] == "5.00 ± 0.00"
    assert [row.label for row in table.rows].count("with BM25: m, cls") == 3
    assert [label for label in shown if "mean" in label or label == "BM25"] == [
        "mean ± sd of these 3",
        "with BM25: mean ± sd of these 3",
        "BM25",
        "rank fusion: BM25 + mean ± sd of these 3",
    ]


def test_results_to_compare_with(tmp_path):
    for name in "ab":
        results(STS, model=name).save(tmp_path / f"{name}.json")
    assert [one.model for one in load_others([tmp_path], 2, "test")] == ["a", "b"] and load_others([], 3, "test") == []
    for paths, rows, split in (([tmp_path], 3, "test"), ([tmp_path / "a.json"], 3, "dev")):
        with raises_usage("compare"):
            load_others(paths, rows, split)
    other = results({})
    other.add("titles", sample(1.0))
    check_same_files([other], {"titles": {"x.tsv": "1" * 64}, "STS12": {}})
    with raises_usage("compare"):
        check_same_files([other], {"titles": {"a.txt": "2" * 64}})
    other = results({"STS12": 70.0})
    other.tasks["STS12"]["data"] = {"STS/a.txt": "1" * 64}
    with raises_usage("compare", found="STS12"):
        check_same_files([other], {"STS12": {"STS/a.txt": "2" * 64}})


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_names_in_tables_stay_on_one_line(form):
    hostile = "a\nb\x1b[31m|c"
    found = render(Table(hostile, ["score", hostile], [Row(hostile, {"score": 1.0, hostile: hostile})]), form)
    assert "\x1b" not in found and "a\\nb" in found.replace("\\\\n", "\\n")
    assert len(found.splitlines()) == {"text": 3, "markdown": 5, "latex": 8}[form]
    if form == "markdown":
        assert {row.replace("\\|", "").count("|") for row in found.splitlines()[2:]} == {4}


def test_formats():
    rows = [results({"MR": None, "STS-B": 80.0})]
    assert tables_text(rows, form="latex").endswith("% model, cls: MR has no score: nothing is finite.")
    assert tables_text(rows, form="markdown").startswith("**STS, Spearman x 100**")
    assert '"score": 80.0' in tables_text(rows, form="json")
