"""The commands of the core: embed, eval, export and push for finished models, and check.

The signature and the docstring of a function are the options of its command and their help. A function imports what
does the work when it is called, so that its help and a wrong option need no torch.
"""

import logging
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

from cyclopts import Parameter

from informin.cli.options import (
    Flag,
    Location,
    ModelOptions,
    OptionalTexts,
    Overwrite,
    PooledModelOptions,
    Texts,
    changed_options,
    refuse_given,
)
from informin.cli.program import after_signal, processes
from informin.errors import UsageError, one_line

if TYPE_CHECKING:
    from informin.frozen.rankings import SearchRankings
    from informin.publishing.push import Destination

logger = logging.getLogger(__name__)


@after_signal("Run the same command again to resume.")
def embed_command(
    *,
    model_name: Location,
    texts: Texts,
    output: Location,
    overwrite: Overwrite = False,
    side: Literal["query", "document"] | None = None,
    shard: str | None = None,
    model: PooledModelOptions = PooledModelOptions(),
) -> None:
    """Embed texts into a .npy file. Run an interrupted command again to resume.

    Args:
        model_name: Hub id or local folder.
        output: File to write, FILE.npy: (texts, dimensions) float32.
        overwrite: Replace an existing output of embed for other texts or another model.
        side: Embed the texts as search queries or documents, with the model's prompt or route for them.
        shard: Embed only one of several contiguous shards of the texts, such as 1/8, 2/8, ..., 8/8. Use a separate
            output for each.
    """
    from informin.texts import as_shard, read_shard, read_texts

    chosen = None if shard is None else as_shard(shard)
    from informin.hub import raise_if_not_found

    raise_if_not_found(model_name, model.revision)
    from informin.errors import counted
    from informin.model.embedding import embed

    with processes():
        files = (texts.train_file, texts.text_column)
        found = read_shard(*files, chosen) if chosen else list(read_texts(*files))
        if not found:
            raise UsageError("contains no text that is not blank", option="train_file")
        vectors = embed(model_name, found, output, side=side, overwrite=overwrite, **vars(model))
        print(f"{output}: {counted(len(vectors), 'text')}, {vectors.shape[1]} dimensions, float32")


def eval_command(
    *,
    model_name: list[Location] | None = None,
    report: list[Location] | None = None,
    tasks: list[str] | None = None,
    senteval_dir: Location | None = None,
    split: Literal["test", "dev"] = "test",
    labels: list[Location] | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    retrieval: list[Location] | None = None,
    bm25: Flag = False,
    language: str | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    whitening: Annotated[list[int] | None, Parameter(consume_multiple=(0, 1))] = None,
    pooler: list[str] | None = None,
    model: ModelOptions = ModelOptions(),
    output: Location | None = None,
    format: Literal["text", "markdown", "latex", "json"] = "text",
    compare: list[Location] | None = None,
    seeds: Flag = False,
) -> int:
    """Score models on STS and transfer tasks, labeled texts or retrieval.

    Args:
        model_name: Hub ids or folders, one row each.
        report: Print the tables of these results files or folders without scoring. --output FOLDER also writes them to
            FOLDER/table.md, with the results.
        tasks: all (default if no files are given), sts, transfer, or names such as STS12, STSB, MR, TREC.
        senteval_dir: SentEval's data/downstream. Default: $SENTEVAL_DATA, or senteval.tar from the Hub.
        split: dev: STS-B, SICK-R, transfer validation accuracy.
        labels: Labeled files, one task each: TSV, CSV or JSONL with columns text and label. Rows without a text or a
            label are skipped. Reports V-measure, nearest neighbors and 8-shot accuracy.
        text_column: Column of --labels with the texts, or several to join, such as subject,body. Default: text.
        label_column: Column of --labels with the labels. Default: label.
        retrieval: Test collections: folders in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/test.tsv) or with
            corpus.tsv, queries.tsv and qrels.tsv. Or files (TSV, CSV, JSONL) with columns query, document and
            optionally relevance (or score) and negative, one task each.
        bm25: With --retrieval: also the rank fusion of BM25 and each model.
        language: Language of BM25 in --retrieval: english or en, german or de, ...; `other` for neither stems nor stop
            words. Default: english.
        query_prompt: Prompt for queries of --retrieval. Default: --prompt, or the model's prompt for queries.
        document_prompt: Prompt for documents. Default: --prompt, or the model's prompt for documents.
        whitening: Whiten the embeddings of each task and keep this number of dimensions. Without a number: all.
        pooler: auto (as the model specifies), cls, mean, last, first_last, embeddings_last, last2 or mlp; one row each.
            Default: auto.
        output: Save results here and resume from them: FILE.json for one row, a folder for several.
        format: Format of the printed tables.
        compare: Results files or folders to subtract: one for all rows, or one per row.
        seeds: Treat the models as seeds of one recipe: adds mean ± sd.
    """
    if bool(model_name) == bool(report):
        found = "are given together" if report else "is missing"
        raise UsageError(f"{found}: give either `model_name` or `report`", option="model_name")
    if format == "json" and (compare or seeds):
        found = f"is json, which cannot show {'differences' if compare else 'means'}"
        raise UsageError(found, option="format", needed="text, markdown or latex")
    of_labels = {"text_column": text_column, "label_column": label_column}
    of_retrieval = {
        "bm25": bm25,
        "language": language,
        "query_prompt": query_prompt,
        "document_prompt": document_prompt,
    }
    data = {"tasks": tasks, "senteval_dir": senteval_dir, "labels": labels, "retrieval": retrieval}
    if report:
        others = {"whitening": whitening, "pooler": pooler, **changed_options(model)}
        refuse_given(data | of_labels | of_retrieval | others, "has no effect with `report`")
        print_report(report, compare or [], format, seeds, output)
        return 0
    if not labels:
        refuse_given(of_labels, "needs `labels`")
    if not retrieval:
        refuse_given(of_retrieval, "needs `retrieval`")
    finished = f"Finished tasks are in {output}. Run the same command again to resume."
    with after_signal(finished if output else "Nothing was saved."):
        from informin.hub import raise_if_not_found

        for name in model_name or []:
            raise_if_not_found(name, model.revision)
        rankings = search_rankings(bm25, language) if retrieval else None
        from informin.evaluation.evaluate import evaluate

        with processes():
            result = evaluate(
                model_name or [],
                tasks=tasks or (),
                labels=labels or (),
                text_column=text_column,
                label_column=label_column,
                retrieval=retrieval or (),
                rankings=rankings,
                query_prompt=query_prompt,
                document_prompt=document_prompt,
                senteval_dir=senteval_dir,
                split=split,
                whitening=whitening if whitening is None else [*whitening, float("inf")][0],
                pooler=pooler or ["auto"],
                output=output,
                compare=compare or (),
                **vars(model),
            )
            print(result.table(format, seeds=seeds))
    return int(any(score is None for row in result.scores.values() for score in row.values()))


def search_rankings(bm25: bool, language: str | None) -> "SearchRankings | None":
    """Return the rankings of an index; None without the extra `search`, unless an option needs it."""
    from informin.errors import missing_packages, raise_if_missing

    if bm25 or language not in (None, "english"):
        raise_if_missing("search", option="bm25" if bm25 else "language")
    if missing := missing_packages("search"):
        logger.warning(f"Retrieval is scored without BM25, because {missing[0]} is not installed (extra `search`).")
        return None
    from informin.frozen.rankings import SearchRankings

    return SearchRankings(language or "english", bm25)


def print_report(paths: list[str], compare: list[str], format: str, seeds: bool, output: str | None) -> None:
    """Print the tables of saved results, and save them in a folder."""
    from informin.evaluation.evaluate import Evaluation
    from informin.evaluation.results import load_rows, results_files
    from informin.evaluation.table import check_one_table, load_others

    if output and Path(output).resolve() in (file.resolve().parent for path in paths for file in results_files(path)):
        found = f"is {output}, which has the results, and a copy beside them would count twice"
        raise UsageError(found, option="output", needed="another folder")
    rows = load_rows(paths)
    saved = Evaluation(rows, load_others(compare, len(rows), rows[0].split))
    check_one_table(rows, "report")
    check_one_table([*rows, *saved.others], "compare")
    print(saved.table(format, seeds=seeds))
    if output:
        saved.save(output, seeds=seeds)


@after_signal("Nothing was written.")
def export_command(
    *,
    model_name: Location,
    output_dir: Location,
    overwrite: Overwrite = False,
    dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    onnx: Flag = False,
    int8: Flag = False,
    trust_remote_code: Flag = False,
) -> None:
    """Export a checkpoint as a folder to use or publish; optionally ONNX.

    Args:
        model_name: Folder checkpoint-N, an exported folder, or the Hub id of a SentenceTransformer.
        output_dir: Folder to write.
        overwrite: Replace an existing exported folder, if it holds nothing else.
        dtype: Data type of the weights.
        onnx: Also write onnx/model.onnx, in float32. Needs the extra onnx.
        int8: With --onnx: also write onnx/model_quantized.onnx.
        trust_remote_code: Run code from the model's repository, if it needs any.
    """
    from informin.errors import raise_if_missing
    from informin.files import new_folder, raise_if_used

    if onnx:
        raise_if_missing("onnx", option="onnx")
    else:
        refuse_given({"int8": int8}, "needs `onnx`")
    replaces = has_modules if overwrite else None
    raise_if_used(output_dir, "output_dir", replaces=replaces)
    from informin.publishing.card import CARD, write_card
    from informin.publishing.export import export_checkpoint, published_files, raise_if_foreign_files
    from informin.publishing.onnx import advice_for_clients, export_onnx, quantize_onnx

    if overwrite:
        raise_if_foreign_files(output_dir)
    with new_folder(output_dir, "output_dir", replaces=replaces) as folder:
        export_checkpoint(model_name, folder, dtype, trust_remote_code)
        if onnx:
            export_onnx(folder, trust_remote_code)
        if int8:
            quantize_onnx(folder)
        if (folder / CARD).is_file():
            write_card(folder)  # with the files that were added
    for path in published_files(output_dir):
        print(path.as_posix())
    if onnx:
        print(advice_for_clients(output_dir))


def has_modules(folder: Path) -> bool:
    """Return whether a folder looks like an export, before the imports that examining its files takes."""
    return (folder / "modules.json").is_file()


def push_command(
    *,
    model_name: Location,
    hub_model_id: str,
    private: Flag = False,
    revision: str | None = None,
    create_pr: Flag = False,
    commit_message: str = "Upload model",
    results: list[Location] | None = None,
    trust_remote_code: Flag = False,
    space: str | None = None,
    dry_run: Flag = False,
    overwrite: Flag = False,
) -> None:
    """Publish an exported folder on the Hub.

    Args:
        model_name: Exported folder: the output of train, fit, distill or export.
        hub_model_id: Repository USER/REPO, or REPO in your own account. It is created if it does not exist.
        private: Create a private repository; an existing public one is rejected.
        revision: Push to this existing branch instead of main.
        create_pr: Open a pull request instead, even in a repository that you cannot write to.
        commit_message: Title of the commit.
        results: Results of `informin eval` to add to the model card: files or folders, of this model, of its source
            model, and of the same run with other seeds.
        trust_remote_code: With --results: run the model's own code to load it.
        space: Also publish a Space with this name, in which visitors can compare sentences. Needs the extra demo and a
            public model without remote code.
        dry_run: Print the model card and the files. Nothing is written or uploaded.
        overwrite: Overwrite files that you did not upload with InforMin-CL.
    """
    if not results:
        refuse_given({"trust_remote_code": trust_remote_code}, "needs `results`")
    from informin.errors import PushError, raise_if_missing
    from informin.publishing.card import CARD, write_card
    from informin.publishing.export import check_export, preview
    from informin.publishing.push import check_name, prepare, push_folder
    from informin.publishing.scores import add_results

    check_export(model_name)
    check_name(hub_model_id, "hub_model_id")
    if space:
        check_name(space, "space")
        raise_if_missing("demo", option="space")
        check_page(model_name, private, create_pr)
    if dry_run:
        with preview(model_name) as copy:
            if results:
                add_results(model_name, results, trust_remote_code=trust_remote_code, to=copy)
            write_card(copy, hub_model_id)
            print((copy / CARD).read_text(encoding="utf-8", errors="replace"))  # edited by hand, in any encoding
            print_files(model_name, copy)
        print(f"Nothing was uploaded to {hub_model_id}.")
        return
    if results:
        add_results(model_name, results, trust_remote_code=trust_remote_code)
    to = prepare(
        hub_model_id, private or None, revision=revision, overwrite=overwrite, folder=model_name, create_pr=create_pr
    )
    if space and to.api.model_info(to.repo).private:  # an earlier push made it so
        raise_no_page(f"{to.repo} is private, and the page has no login")
    print_files(model_name, Path(model_name))
    try:
        print(f"The model is at {push_folder(model_name, to, commit_message)}")
    except PushError as error:
        others = {"private": private, "space": space}
        error.finish |= {name: value for name, value in others.items() if value}
        raise
    if space:
        publish_space(space, model_name, to)


def check_page(model: str, private: bool, create_pr: bool) -> None:
    """Raise UsageError if a page could not load a model: it reads a branch, without a login and without remote code."""
    from informin.model.open import code_of, modules_of

    if private:
        raise_no_page("`private` is set, and the page has no login")
    if create_pr:
        raise_no_page("`create_pr` is set, and the page reads the model from a branch")
    classes = [kind for _, kind in modules_of(model) if not kind.startswith("sentence_transformers.")]
    if code := code_of(model) or next(iter(classes), None):
        raise_no_page(f"the model needs its own code ({code}), which the page does not run")


def raise_no_page(reason: str) -> NoReturn:
    """Raise UsageError for the option `space`."""
    raise UsageError(f"is set, but {reason}", option="space", fix="Push the model without `space`.")


def publish_space(space: str, model: str, to: "Destination") -> None:
    """Upload the page of a model, a folder that was pushed to a destination."""
    from informin.frozen.space import write_space
    from informin.model.open import adapter_configs
    from informin.publishing.push import push_space

    with TemporaryDirectory() as folder:
        write_space(folder, to.repo, to.revision, low_rank=bool(adapter_configs(model)))
        print(f"The page is at {push_space(folder, space, overwrite=to.overwrite)}")


def print_files(folder: str, source: Path) -> None:
    """Print the files to upload, with their sizes in `source`, the folder or its preview, and what stays here."""
    from informin.publishing.export import published_files

    files = published_files(source)
    for path in files:
        print(f"{(source / path).stat().st_size:>13,}  {one_line(path.as_posix())}")
    uploaded = {path.parts[0] for path in files}
    if others := sorted(one_line(path.name) for path in Path(folder).iterdir() if path.name not in uploaded):
        print(f"Not uploaded: {', '.join(others)}")


def check_command(
    *,
    model_name: Location | None = None,
    texts: OptionalTexts = OptionalTexts(),
    device: Literal["cpu", "cuda"] | None = None,
    bf16: Flag = False,
    objectives: list[str] | None = None,
    skip_speed: Flag = False,
    output: Location | None = None,
) -> int:
    """Check this machine: equality of the fast paths, GPU tests, and speed compared with sentence-transformers.

    Exit code 1 if a fast path differs from the plain one.

    Args:
        model_name: Model to measure, a Hub id or a folder. Default: one of the size of all-MiniLM-L6-v2 with random
            weights.
        device: cpu or cuda. Default: a GPU if there is one.
        bf16: Also use bfloat16. Default: only if the processor or the GPU supports it.
        objectives: Objectives to compare. Default: all.
        skip_speed: Do not measure speed.
        output: Also write everything to this JSON file.
    """
    of_speed = {"model_name": model_name, "train_file": texts.train_file, "text_column": texts.text_column}
    if skip_speed:
        refuse_given(of_speed, "has no effect with `skip_speed`")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # one GPU: transformers would train on all
    from informin.hub import raise_if_not_found

    if model_name:
        raise_if_not_found(model_name)
    import torch

    from informin.check.equality import OBJECTIVES
    from informin.check.report import check
    from informin.files import write_json
    from informin.model.open import raise_if_no_device
    from informin.options import check_value
    from informin.texts import read_texts
    from informin.training.arguments import has_bf16

    if output and os.path.lexists(output):
        raise UsageError(f"{output} exists", option="output", fix="Use another file.")
    for name in objectives or ():
        check_value(name in OBJECTIVES, "objectives", name, f"some of: {', '.join(OBJECTIVES)}")
    raise_if_no_device(device)
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    found = check(
        chosen,
        bf16=bf16 or has_bf16(chosen == "cpu"),
        objectives=objectives or OBJECTIVES,
        skip_speed=skip_speed,
        model_name=model_name,
        texts=list(read_texts(texts.train_file, texts.text_column)) if texts.train_file else None,
    )
    print(found.table())
    if output:
        write_json(output, found.record())
    return int(not found.passed)
