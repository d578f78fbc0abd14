"""`informin eval`: several models and poolings, comparison with saved results, and output formats."""

import json
import re
import shutil

import numpy as np
import pytest

from informin.evaluation.results import IDENTITY, new_results, save_results
from tests.cli.eval_command.helpers import another, line, read, scores

# Several models and poolers


def test_one_row_per_model_and_pooling(run, bert, roberta, tmp_path, encoded):
    folder = tmp_path / "out"
    options = dict(model_name=[bert, roberta], pooler=["cls", "mean"], tasks=["STS-B", "MR"])
    code, out, _ = run(output=folder, **options)
    labels = [f"tiny-{model}, {pooler}" for model in ("bert", "roberta") for pooler in ("cls", "mean")]
    assert code == 0
    assert [path.name for path in sorted(folder.iterdir())] == [f"{x.replace(', ', '-')}.json" for x in labels]
    assert [x.rpartition(",")[0] + "," + x.rpartition(",")[2][:5].rstrip() for x in out.splitlines()[2:6]] == labels
    for name in labels:
        found = read(folder / f"{name.replace(', ', '-')}.json")
        assert line(out, name) == [f"{found['tasks']['STS-B']['score']:.2f}", "-"]
    assert len({scores(path)["STS-B"] for path in folder.iterdir()}) == 4
    assert len(encoded) == 2 * len(set(encoded)), "both poolings share one pass"


def test_auto_uses_the_stored_pooling(run, bert, tmp_path):
    code, _, err = run(pooler="auto", tasks="STS-B")
    assert code == 2 and f"error: --pooler is auto, but the pooling of {bert} is unknown" in err
    folder = shutil.copytree(bert, tmp_path / "ours")
    config = read(folder / "config.json")
    (folder / "config.json").write_text(json.dumps(config | {"informin": {"pooling": "cls"}}))
    code, out, _ = run(model_name=folder, pooler=None, tasks="STS-B", output=tmp_path / "out")
    assert code == 0 and "ours, cls" in out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["ours-cls.json"]


@pytest.mark.parametrize("several", [dict(pooler=["cls", "mean"]), dict(model_name=["one", "two"])])
def test_one_output_file_for_several_rows_is_an_error(run, tmp_path, several, encoded):
    code, _, err = run(output=tmp_path / "a.json", **several)
    assert code == 2 and err.endswith("a.json, a single file, and there are 2 rows of scores. Give a folder.\n")
    assert encoded == [] and list(tmp_path.iterdir()) == []


def test_two_models_with_the_same_folder_name_are_an_error(run, tmp_path):
    code, _, err = run(output=tmp_path / "out", model_name=["a/last", "b/last"])
    message = f"--output is {tmp_path / 'out'}, but two models have the same folder name (last, last). Rename one."
    assert (code, err) == (2, f"error: {message}\n")


def test_split_and_whitening_have_separate_files(run, tmp_path):
    for changes in ({}, {"split": "dev"}, {"whitening": 4}, {"whitening": 4, "split": "dev"}):
        assert run(output=tmp_path, tasks="STS-B", **changes)[0] == 0
    assert run("--whitening", output=tmp_path, tasks="SICK-R")[0] == 0
    names = ("", "-dev", "-whitening", "-whitening4", "-whitening4-dev")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"tiny-bert-cls{name}.json" for name in names)


# Comparing


def test_compare_with_one_file(run, bert, tmp_path):
    run(output=tmp_path / "base.json", tasks=["STS-B", "MR"])
    other = another(bert, tmp_path / "other")
    options = dict(model_name=other, pooler=["cls", "mean"], tasks=["STS-B", "MR"])
    code, out, _ = run(compare=tmp_path / "base.json", output=tmp_path / "out", **options)
    base = scores(tmp_path / "base.json")
    assert code == 0
    assert line(out, "tiny-bert, cls") == [f"{base['STS-B']:.2f}", "-"]
    for pooler in ("cls", "mean"):
        gain = scores(tmp_path / "out" / f"other-{pooler}.json")["STS-B"] - base["STS-B"]
        assert abs(gain) > 0.1 and line(out, f"other, {pooler} - tiny-bert, cls") == [f"{gain:+.2f}", "-"]


def test_compare_seeds_with_folder(run, bert, tmp_path):
    """Rows are compared in order, then mean and standard deviation (n - 1) of both sides and of the differences."""
    seeds = [another(bert, tmp_path / f"seed{i}", by=0.05 * i) for i in (1, 2, 3)]
    run(model_name=seeds, tasks="STS-B", output=tmp_path / "base")
    code, out, _ = run("--seeds", model_name=seeds, pooler="mean", tasks="STS-B", compare=tmp_path / "base")
    assert code == 0
    names = (r"seed\d, cls", r"seed\d, mean", r"seed\d, mean - seed\d, cls")
    tables = [[float(x) for x in re.findall(rf"^{name}  +([-+\d.]+)", out, re.MULTILINE)] for name in names]
    base, own, gains = map(np.array, tables)
    np.testing.assert_allclose(
        base, [scores(tmp_path / "base" / f"seed{i}-cls.json")["STS-B"] for i in (1, 2, 3)], atol=0.006
    )
    np.testing.assert_allclose(gains, own - base, atol=0.016)
    found = re.findall(r"^mean ± sd of these 3 +([-+\d.]+) ± ([\d.]+)", out, re.MULTILINE)
    assert len(found) == 3
    for (mean, spread), values in zip(found, (base, own, gains)):
        assert (float(mean), float(spread)) == (
            pytest.approx(values.mean(), abs=0.02),
            pytest.approx(values.std(ddof=1), abs=0.02),
        )


def test_compare_with_another_split_is_an_error(run, tmp_path):
    run(output=tmp_path / "dev.json", tasks="STS-B", split="dev")
    code, _, err = run(compare=tmp_path / "dev.json", tasks="STS-B")
    assert code == 2 and re.search(r"--compare \S+ was scored on the dev split; expected the test split", err)


def test_compare_sorts_files_by_number(run, bert, tmp_path):
    """seed10 follows seed2."""
    seeds = [another(bert, tmp_path / f"seed{i}", by=0.05 * i) for i in (2, 10)]
    run(model_name=seeds, tasks="STS-B", output=tmp_path / "base")
    _, out, _ = run(model_name=seeds, tasks="STS-B", compare=tmp_path / "base")
    for i in (2, 10):
        assert line(out, f"seed{i}, cls - seed{i}, cls") == ["+0.00", "-"]


def test_missing_last_model_is_found_before_the_first_is_scored(run, bert, encoded):
    code, out, err = run(model_name=[bert, "/no/model"], tasks="STS-B")
    assert (code, out, encoded) == (2, "", []) and "--model_name /no/model: there is no such folder" in err


def test_mean_over_seeds(run, bert, tmp_path):
    models = [bert, another(bert, tmp_path / "seed2")]
    _, out, _ = run("--seeds", model_name=models, tasks="STS-B", output=tmp_path / "out")
    values = [scores(tmp_path / "out" / f"{model.name}-cls.json")["STS-B"] for model in models]
    assert line(out, "mean ± sd of these 2") == [
        f"{np.mean(values):.2f}",
        "±",
        f"{np.std(values, ddof=1):.2f}",
        "-",
    ]
    assert "mean ± sd" not in run(model_name=models, tasks="STS-B")[1]


@pytest.mark.parametrize(
    "files, message",
    [
        (None, "PATH cannot be read: "),
        (0, "PATH contains no .json file; expected a folder"),
        (2, "--compare has 2 results; expected 1, or one for each row (3)."),
    ],
)
def test_unusable_results_to_compare_are_rejected(run, tmp_path, files, message, encoded):
    folder = tmp_path / "other"
    if files is not None:
        folder.mkdir()
        for i in range(files):
            identity = dict.fromkeys(IDENTITY, "") | {"normalized": False, "whitening": None, "max_length": 64}
            save_results(folder / f"{i}.json", new_results("model", identity, {}))
    code, out, err = run(compare=folder, pooler=["cls", "mean", "last2"])
    assert (code, out, encoded) == (2, "", []) and err.startswith(f"error: {message.replace('PATH', str(folder))}")


# Formats


def test_format_json(run, tmp_path):
    code, out, _ = run(format="json", output=tmp_path, pooler=["cls", "mean"], tasks=["STS-B", "TREC"])
    assert code == 0
    assert json.loads(out) == [read(tmp_path / f"tiny-bert-{pooler}.json") for pooler in ("cls", "mean")]


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_formats(run, tmp_path, form):
    _, out, _ = run(format=form, output=tmp_path / "a.json", tasks=["STS-B", "MR"], max_length=4)
    value = f"{scores(tmp_path / 'a.json')['STS-B']:.2f}"
    note = re.search(r"tiny-bert, cls: \d+ sentences were truncated to 4 tokens\.$", out, re.MULTILINE)[0]
    assert ("Seconds" in out) == (form == "text")
    if form == "text":
        assert line(out, "tiny-bert, cls") == [value, "-"] and out.endswith(f"\n\n{note}\n")
    elif form == "markdown":
        assert f"| tiny-bert, cls | {value} |   - |" in out and out.endswith(f"|\n\n{note}\n")
    else:
        assert f"\ntiny-bert, cls & {value} & - \\\\\n" in out and out.endswith(f"\\end{{tabular}}\n% {note}\n")
        assert out.count("\\begin{tabular}{lrr}") == 2
