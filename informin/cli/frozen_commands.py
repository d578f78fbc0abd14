"""The commands of what needs no training: fit, distill, duplicates, index and search. See `informin.cli.commands`."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from informin.cli.options import (
    Flag,
    Location,
    OptionalTexts,
    Overwrite,
    PooledModelOptions,
    Precision,
    Texts,
    changed_options,
    refuse_given,
)
from informin.cli.program import after_signal, processes
from informin.errors import UsageError

if TYPE_CHECKING:
    from informin.frozen.index import Index
    from informin.frozen.index_search import Hit
    from informin.frozen.near_duplicates import DuplicatesResult

OPTION_OF = {"ids": "id_column", "fields": "keep", "texts": "train_file"}  # by the argument of `Index.build`
SHOWN_GROUPS, SHOWN_MEMBERS = 20, 10  # of duplicates that are printed: groups, and texts of a group
EXCERPT = 600  # characters of a text that are printed
BOOLEANS = {"True": "true", "False": "false"}  # as hits show them, in JSON
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


@after_signal("Nothing was written.")
def fit_command(
    *,
    task: Literal["clustering", "search"],
    model_name: Location | None = None,
    texts: OptionalTexts = OptionalTexts(),
    embeddings: Location | None = None,
    output_dir: Location,
    overwrite: Overwrite = False,
    dimension: int | None = None,
    rotation: Literal["principal", "bits"] = "principal",
    seed: int = 0,
    model: PooledModelOptions = PooledModelOptions(),
) -> None:
    """Adapt a model or its embeddings to your texts in closed form, without training or labels.

    Args:
        task: What the embeddings are for. clustering: also labels and near-duplicates. search: for queries that
            resemble the texts.
        model_name: Hub id or local folder. The output is this model with the adapter.
        embeddings: Embeddings of the texts from any source: .npy, .parquet or .safetensors. Alone, the output is the
            adapter and the adapted documents.npy. With --model_name, they must be this model's, and are used instead of
            embedding the texts.
        output_dir: Folder to write.
        overwrite: Replace an existing output of fit or distill.
        dimension: Number of dimensions of the adapted vectors. Default: all.
        rotation: principal: the first numbers of a vector approximate it best, for vectors that are truncated later.
            bits: for binary quantization, one bit per number.
        seed: Seed of the sample of texts, if there are more than 50,000.
    """
    if model_name and not texts.train_file:
        raise UsageError("needs `train_file`", option="model_name")
    if not model_name and not embeddings:
        raise UsageError("is missing: give `model_name` and `train_file`, or `embeddings`", option="model_name")
    if not texts.train_file:
        refuse_given({"text_column": texts.text_column}, "needs `train_file`")
    if not model_name:
        refuse_given(changed_options(model), "needs `model_name`")
    from informin.files import only_writer, raise_if_used
    from informin.hub import raise_if_not_found
    from informin.model.records import FitRecord, has_adapter

    is_older = FitRecord.is_in if model_name else has_adapter
    raise_if_used(output_dir, "output_dir", replaces=is_older if overwrite else None)
    if model_name:
        raise_if_not_found(model_name, model.revision)
    from informin.distributed import first_only
    from informin.frozen.fit import fit
    from informin.texts import read_texts

    with processes(), first_only(only_writer(output_dir, "output_dir")):
        result = fit(
            model_name,
            list(read_texts(texts.train_file, texts.text_column)) if texts.train_file else None,
            task=task,
            embeddings=embeddings,
            dimension=dimension,
            rotation=rotation,
            seed=seed,
            **vars(model) if model_name else {},
        )
        result.save(output_dir, overwrite=overwrite)
        print(result)


@after_signal("Nothing was written.")
def distill_command(
    *,
    task: Literal["clustering", "search"],
    model_name: Location,
    texts: Texts,
    embeddings: Location | None = None,
    output_dir: Location,
    overwrite: Overwrite = False,
    model: PooledModelOptions = PooledModelOptions(),
) -> None:
    """Distill a model into a static model of your texts in seconds: a table of token vectors, without a transformer.

    Args:
        task: clustering: also for labels. search: the result contains words of your texts.
        model_name: Hub id or local folder.
        embeddings: Embeddings of the texts by this model, from `informin embed`. Default: embed the texts.
        output_dir: Folder to write.
        overwrite: Replace an existing output of fit or distill.
    """
    from informin.files import only_writer, raise_if_used
    from informin.hub import raise_if_not_found
    from informin.model.records import FitRecord

    raise_if_used(output_dir, "output_dir", replaces=FitRecord.is_in if overwrite else None)
    raise_if_not_found(model_name, model.revision)
    from informin.distributed import first_only
    from informin.frozen.distill import distill
    from informin.texts import read_texts

    with processes(), first_only(only_writer(output_dir, "output_dir")):
        found = list(read_texts(texts.train_file, texts.text_column))
        result = distill(model_name, found, task=task, embeddings=embeddings, **vars(model))
        result.save(output_dir, overwrite=overwrite)
        print(result)


@after_signal("Nothing was written.")
def duplicates_command(
    *,
    texts: Texts,
    model_name: Location | None = None,
    id_column: str | None = None,
    embeddings: Location | None = None,
    threshold: float | None = None,
    output: Location | None = None,
    overwrite: Overwrite = False,
    format: Literal["text", "json"] = "text",
    model: PooledModelOptions = PooledModelOptions(),
) -> None:
    """Find texts that repeat earlier ones, with typing errors or in another order or case.

    Args:
        model_name: Hub id or local folder.
        id_column: Column with your ids of the texts, which are shown.
        embeddings: Embeddings of the texts from any source: .npy, .parquet or .safetensors. With --model_name, they
            must be this model's, and are used instead of embedding the texts.
        threshold: Minimum cosine of duplicates, regardless of their words. Default: a cosine that unrelated texts
            rarely reach, and the same words up to typing errors and common words.
        output: Also write a table, FILE.csv, with one row per text. duplicate_of is empty for the texts to keep.
        overwrite: Replace an existing table of duplicates.
        format: text: the largest groups. json: all of them, with all of their texts.
    """
    if not model_name:
        if not embeddings:
            raise UsageError("is missing: give `model_name` or `embeddings`", option="model_name")
        refuse_given(changed_options(model), "needs `model_name`")
    from informin.hub import raise_if_not_found

    if model_name:
        raise_if_not_found(model_name, model.revision)
    from informin.frozen.index_entries import as_json
    from informin.frozen.near_duplicates import check_output, duplicates

    if output:
        check_output(output, overwrite)
        raise_if_read(output, texts.train_file)
    entries = read_entries(texts, id_column, None)
    options = vars(model) if model_name else {}
    result = duplicates(model_name, entries["texts"], threshold, embeddings=embeddings, **options)
    ids = as_json(entries.get("ids"), "id_column")
    if output:
        result.save(output, ids=ids, overwrite=overwrite)
    groups = duplicate_groups(result, ids)
    if format == "json":
        print_json(groups)
        return
    for group in groups[:SHOWN_GROUPS]:
        print_group(group)
    print(duplicates_summary(result))


def raise_if_read(output: str, train_file: Sequence[str]) -> None:
    """Raise UsageError if an existing table is in a folder of texts, which would then repeat those of the table."""
    path = Path(output).resolve()
    for read in train_file:
        if path.exists() and Path(read).resolve() in (path, *path.parents):
            found = f"is {output}, an existing table that would be read with the texts of {read}"
            raise UsageError(found, option="output", fix="Delete the table, or write it to another folder.")


def duplicate_groups(result: "DuplicatesResult", ids: Sequence[object] | None) -> list[list[dict[str, Any]]]:
    """Return the texts of each group, the kept one first, with their rows, ids and cosines."""
    cosine_of = {pair.row: round(pair.cosine, 4) for pair in result.pairs}
    return [
        [
            {"row": row}
            | ({} if ids is None else {"id": ids[row]})
            | ({"cosine": cosine_of[row]} if row in cosine_of else {})
            | {"text": result.texts[row]}
            for row in group
        ]
        for group in result.groups
    ]


def print_group(group: list[dict[str, Any]]) -> None:
    """Print the first texts of a group of duplicates, and a blank line."""
    for number, member in enumerate(group[:SHOWN_MEMBERS]):
        cosine = f"{member['cosine']:.3f}" if number else "kept "
        print(f"{cosine}  {excerpt(member['text'])}  [{origin_of(member['row'], member.get('id'))}]")
    if len(group) > SHOWN_MEMBERS:
        print(f"and {len(group) - SHOWN_MEMBERS:,} more")
    print()


def origin_of(row: int, name: object) -> str:
    """Return the row of a text and, if it has one, its id."""
    return f"row {row}" if name is None else f"row {row}, id {excerpt(str(name))}"


def duplicates_summary(result: "DuplicatesResult") -> str:
    """Return a line that says how many texts repeat others."""
    from informin.errors import counted

    groups = counted(len(result.groups), "group")
    lowest = "" if result.threshold is None else f"; cosines of {result.threshold:.3f} or more"
    return f"{len(result.pairs):,} of {counted(len(result.texts), 'text')} repeat an earlier one, in {groups}{lowest}"


@after_signal("Nothing was written.")
def index_command(
    *,
    model_name: Location,
    texts: Texts,
    id_column: str | None = None,
    keep: str | None = None,
    output_dir: Location,
    overwrite: Overwrite = False,
    language: str = "english",
    word_weight: float = 0.25,
    smooth: Flag = False,
    queries: Literal["model", "static"] = "model",
    document_prompt: str | None = None,
    query_prompt: str | None = None,
    rerank: Flag = False,
    model: PooledModelOptions = PooledModelOptions(),
) -> None:
    """Build an index of your texts for `informin search`.

    Args:
        model_name: Hub id or local folder, such as an output of fit.
        id_column: Column with your ids of the texts, which hits show.
        keep: More columns to show with each hit, such as title,url.
        output_dir: Folder to write.
        overwrite: Replace an existing index.
        language: Language of the texts, for stop words and stems: german or de, french or fr, ...; `other` uses
            neither.
        word_weight: Weight of BM25 relative to the vectors.
        smooth: Average each document vector with its nearest neighbors.
        queries: What embeds queries. static: token vectors fitted to the texts, so that search starts without the model
            and torch.
        document_prompt: Prompt prepended to every text. Default: --prompt, or the model's document prompt.
        query_prompt: Prompt prepended to every query. Default: --prompt, or the model's query prompt.
        rerank: Keep the token vectors of the texts, to rerank the first 50 hits of a search by late interaction.
    """
    from informin.hub import raise_if_not_found

    raise_if_not_found(model_name, model.revision)
    from informin.errors import counted
    from informin.files import only_writer
    from informin.frozen.index import Index
    from informin.frozen.index_files import raise_if_not_index

    with only_writer(output_dir, "output_dir"):
        raise_if_not_index(output_dir, overwrite)
        loading = dict(vars(model))
        prompt = loading.pop("prompt")
        try:
            built = Index.build(
                model_name,
                **read_entries(texts, id_column, keep),
                language=language,
                word_weight=word_weight,
                smooth=smooth,
                queries=queries,
                document_prompt=prompt if document_prompt is None else document_prompt,
                query_prompt=prompt if query_prompt is None else query_prompt,
                rerank=rerank,
                **loading,
            )
        except UsageError as error:
            option = OPTION_OF.get(error.option or "", error.option)
            raise UsageError(error.found, option=option, needed=error.needed, fix=error.fix) from None
        built.save(output_dir)
    print(f"{output_dir}: {counted(len(built), 'text')}, {built.vectors.shape[1]} dimensions")
    if built.threshold is not None:
        print(f"Above a cosine of {built.threshold:.3f}, expect at most about one unrelated text per query.")
    if not rerank:
        print(reranking_cost(built))
    code = " --trust_remote_code" if model.trust_remote_code else ""
    print(f'Search it: informin search --index {quote(output_dir)}{code} "your words"')


def read_entries(texts: Texts, id_column: str | None, keep: str | None) -> dict[str, Any]:
    """Return the texts, blank ones included, and their ids and fields if there are columns of them."""
    from informin.texts import read_documents, read_texts

    kept = [] if keep is None else [name.strip() for name in keep.split(",")]
    columns = {name: "keep" for name in kept}
    if id_column is not None:  # a table of pandas has a column without a name
        columns[id_column] = "id_column"
    if not columns:
        return {"texts": list(read_texts(texts.train_file, texts.text_column, keep_blank=True))}
    found = list(read_documents(texts.train_file, texts.text_column, columns))
    return {
        "texts": [text for text, _ in found],
        "ids": [None if id_column is None else values[id_column] for _, values in found],
        "fields": [{name: values[name] for name in kept} for _, values in found],
    }


def reranking_cost(index: "Index") -> str:
    """Return a sentence with the bytes that reranking would add."""
    from informin.frozen.index_model import token_vector_bytes

    size = token_vector_bytes(index.model, index.texts)
    if size is None:
        return "The model has no token vectors to rerank hits."
    megabytes = f"{size / 1e6:,.1f}" if size >= 1e5 else "less than 0.1"
    return f"Reranking the first 50 hits (--rerank) would add {megabytes} MB to the index."


def search_command(
    *query: str,
    index: Location,
    model_name: Location | None = None,
    precision: Precision = "auto",
    trust_remote_code: Flag = False,
    k: int | None = None,
    where: list[str] | None = None,
    format: Literal["text", "json"] | None = None,
    host: str | None = None,
    port: int | None = None,
) -> None:
    """Search an index that `informin index` wrote: print the hits of a query, or open a page in the browser.

    Args:
        query: What to search for, after `--` at the end if it begins with a dash. Default: open the search page, which
            needs the extra demo.
        index: Folder of the index.
        model_name: New path of the index's model, if the model has moved.
        precision: Precision of the encoder's weights. auto: the fastest one on the processor or GPU.
        trust_remote_code: Run code from the model's repository, if it needs any.
        k: Number of hits. Default: 10.
        where: NAME=VALUE: only texts with this value in a column of the index. With several values of a name, any of
            them.
        format: Format of the hits. Default: text.
        host: Address of the page. 0.0.0.0 lets other machines reach it. Default: 127.0.0.1.
        port: Port of the page. Default: the first free one from 7860.
    """
    if query:
        refuse_given({"host": host, "port": port}, "has no effect with a query")
    else:
        reason = "has no effect without a query, which goes before the options"  # --where takes all words after it
        refuse_given({"k": k, "where": where, "format": format}, reason)
    from informin.frozen.index import Index
    from informin.texts import is_blank

    words = " ".join(query)
    if query and is_blank(words):
        raise UsageError("The query is blank", fix="Give the words to search for.")
    opened = Index.load(index, model_name, trust_remote_code=trust_remote_code, precision=precision)
    if not query:
        from informin.frozen.search_page import serve

        serve(opened, host or "127.0.0.1", port)
        return
    hits = opened.search(words, 10 if k is None else k, where=parse_where(where) if where else None)
    if format == "json":
        print_json([asdict(hit) for hit in hits])
        return
    for rank, hit in enumerate(hits, start=1):
        print(shown(rank, hit))
    if not hits:
        print("No hits." if where is None else "No hits: no text of the index has these values of --where.")


def print_json(values: list) -> None:
    """Print a list as JSON, in ASCII if the output is not Unicode."""
    is_unicode = getattr(sys.stdout, "encoding", "utf-8").lower().startswith("utf")
    print(json.dumps(values, ensure_ascii=not is_unicode, indent=1))


def parse_where(words: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values that NAME=VALUE words allow, each as text and, if it is one, as a number or a boolean.

    Raises:
        UsageError: A word has no `=`.
    """
    allowed: dict[str, list[Any]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"is {word!r:.60}", option="where", needed="NAME=VALUE, such as product=svn")
        try:
            value = json.loads(BOOLEANS.get(text, text))
        except ValueError:
            value = text
        is_number = isinstance(value, int | float) and value - value == 0  # no field holds NaN or infinity
        allowed.setdefault(name, []).extend({text: None, value: None} if is_number else [text])
    return allowed


def shown(rank: int, hit: "Hit") -> str:
    """Return the lines that show a hit."""
    unrelated = "  (may be unrelated)" if hit.relevant is False else ""
    tokens = "" if hit.token_score is None else f"  tokens {hit.token_score:.3f}"
    parts = f"vectors {hit.vector_score:.3f}  words {hit.word_score:5.2f}{tokens}"
    scores = f"{rank:>3}  {hit.score:6.2f}  {parts}{unrelated}"
    lines = [scores, f"     {excerpt(hit.text)}  [{origin_of(hit.row, hit.id)}]"]
    lines += [f"     {excerpt(name)}: {excerpt(str(value))}" for name, value in hit.shown_fields.items()]
    return "\n".join(lines)


def excerpt(text: str) -> str:
    """Return the beginning of a text in one line, without control characters, which could change the terminal."""
    line = CONTROL.sub("\ufffd", " ".join(text.split()))
    if len(line) <= EXCERPT:
        return line
    return f"{line[:EXCERPT].rstrip()} ... ({len(text):,} characters)"
