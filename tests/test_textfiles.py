"""Reading files: what a line is, which column is read, and errors that name file and line."""

import gzip
import json
import logging
import lzma
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from informin import textfiles, textlines
from informin.jsonfiles import ONE_OBJECT
from informin.textfiles import can_split, read_part, read_sentences, require_file, table_column
from tests.conftest import raises_usage

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
WORDY = "".join(f"line {i} {random.Random(i).getrandbits(80):x}\n" for i in range(5000))


@pytest.fixture
def write(tmp_path):
    """Return a function that writes text, bytes, JSON records (a list) or Parquet columns (a dict)."""

    def write(name, content):
        path = tmp_path / name
        if isinstance(content, dict):
            pq.write_table(pa.table(content), path, row_group_size=2)
            return path
        if isinstance(content, list):
            content = "\n".join(map(json.dumps, content))
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("a.txt", WORDY, WORDY.splitlines()),
        ("a.csv", f"text\n{WORDY}", WORDY.splitlines()),
        ("A.CSV", "text,n\none,1\n", ["one"]),
        ("a.txt", "\n\nlast", ["", "", "last"]),
        ("a.txt", "", []),
    ],
    ids=["text", "table", "upper case", "blank lines", "empty"],
)
def test_compression_does_not_change_the_sentences(write, suffix, name, text, expected):
    suffix, data = suffix.upper() if name.isupper() else suffix, COMPRESS[suffix](text.encode())
    assert list(read_sentences(write(name + suffix, data), None)) == expected


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_concatenated_compressed_files_are_read_completely(write, suffix):
    data = COMPRESS[suffix](b"one\n") + COMPRESS[suffix](b"two\n")
    assert list(read_sentences(write("a.txt" + suffix, data), None)) == ["one", "two"]


@pytest.mark.parametrize(
    "content, expected",
    [
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"one\n\n two \nthree", ["one", "", " two ", "three"]),
        (b"\xef\xbb\xbfone\ntwo\n", ["one", "two"]),
        ("one\n\ufefftwo\nth\ufeffree\n", ["one", "two", "th\ufeffree"]),  # as in concatenated files
        ("a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh\nnext\n", ["a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh", "next"]),
    ],
    ids=["CRLF", "no last line end", "BOM", "BOM inside", "other separators"],
)
def test_lines_of_text(write, content, expected):
    path = write("a.txt", content)
    assert list(read_sentences(path, None)) == expected
    for parts in range(1, 40):  # up to one part per byte, and more
        assert [line for part in range(parts) for line in read_part(path, part, parts)] == expected


OLD_ENDS = "red stone\rblue lake\r\rold bread\r"
WIDE = ["utf-16", "utf-32"]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("end", ["", "\r"])
def test_carriage_returns_end_the_lines_of_a_file_without_other_line_ends(write, suffix, end):
    path = write("a.txt" + suffix, COMPRESS[suffix]((OLD_ENDS[:-1] + end).encode()))
    assert list(read_sentences(path, None)) == ["red stone", "blue lake", "", "old bread"]


def test_error_names_the_line_that_a_carriage_return_ends(write):
    with raises_usage(found="line 2: not UTF-8 (byte 0xef at column 3)"):
        list(read_sentences(write("a.txt", b"one\rna\xefve\r"), None))


def test_one_warning_counts_lines_with_a_carriage_return_inside(write, caplog):
    path = write("a.txt", "one\na\rb\nc\rd\n")
    assert list(read_sentences(path, None)) == ["one", "a\rb", "c\rd"]
    assert caplog.messages[0].startswith(f"{path}: 2 lines with a carriage return inside, the first is line 2.")
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("encoding", WIDE)
@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("a.txt", "é\r\nzwei\n", ["é", "zwei"]),
        ("a.txt", "é\rzwei\r", ["é", "zwei"]),
        ("a.txt", "", []),
        ("a.tsv", "text\tn\r\nü\t1\r\n", ["ü"]),  # Unicode text of Excel
        ("a.csv", 'text\n"one\ntwo"\n', ["one\ntwo"]),
        ("a.jsonl", '{"text": "é"}\n', ["é"]),
        ("a.json", '["é", "x"]', ["é", "x"]),
    ],
)
def test_utf16_with_a_byte_order_mark_is_read(write, encoding, name, text, expected):
    assert list(read_sentences(write(name, text.encode(encoding)), None)) == expected


@pytest.mark.parametrize("data", [b"\xff\xfea\0\n\0\0\xd8\n\0", b"\xff\xfea"], ids=["half of a pair", "odd"])
def test_error_says_that_a_file_is_not_the_utf16_it_announces(write, data):
    with raises_usage(found="line 1: not UTF-16", fix="Save the file as UTF-8."):
        list(read_sentences(write("a.txt", data), None))


@pytest.mark.parametrize("text, fits", [("one\ntwo\n", True), ("", True), ("one\r\ntwo", True), (OLD_ENDS, False)])
def test_files_with_other_line_ends_or_encodings_are_not_split(write, text, fits):
    assert can_split(write("a.txt", text)) is fits
    assert can_split(write("a.txt", text.encode("utf-16"))) is False


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl"])
def test_file_that_becomes_shorter_while_it_is_read_is_rejected(write, name):
    row = '{"text": "one"}\n' if name == "a.jsonl" else "text\n"
    path = write(name, row * 100_000)
    rows = read_sentences(path, None)
    next(rows)
    os.truncate(path, len(row) * 50_000)
    with raises_usage(found=f"{path} became shorter while it was read, after line 50000", fix="run the command again"):
        list(rows)


def test_part_of_a_file_that_became_shorter_is_rejected(write):
    path = write("a.txt", "one\n" * 100_000)
    rows = read_part(path, 0, 1)
    next(rows)
    os.truncate(path, 100_000)
    with raises_usage(found="became shorter while it was read"):
        list(rows)


def test_part_contains_lines_that_begin_in_it(write):
    path = write("a.txt", b"0123456\n89\nbc\nef")
    assert [list(read_part(path, part, 4)) for part in range(4)] == [["0123456"], [], ["89", "bc"], ["ef"]]


def test_error_names_a_long_line_in_a_part(write, monkeypatch):
    monkeypatch.setattr(textfiles, "MOST_CHARACTERS", 10)
    path = write("a.txt", "one\n" * 20 + "a" * 11 + "\n" + "two\n" * 20)
    with raises_usage(found="line 21: found a text of 11 characters that begins with 'aaaaaaaaaaa'", fix="Split"):
        [line for part in range(4) for line in read_part(path, part, 4)]


@pytest.mark.parametrize("bad", [b"na\xefve\n", b"a\0b\n"])
def test_errors_in_a_part_name_the_line_in_the_file(write, bad):
    path = write("a.txt", b"fine\n" * 20 + bad + b"fine\n" * 20)
    assert list(read_part(path, 0, 4)) == ["fine"] * 11
    with raises_usage(found="line 21"):
        list(read_part(path, 1, 4))


@pytest.mark.parametrize("head, line", [(b"", 1), (b"\xef\xbb\xbf", 1), (b"fine\n\n", 3)])
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl", "a.txt.gz"])
def test_error_names_the_line_with_invalid_utf8(write, name, head, line):
    content = "naïve\n".encode("latin1")
    if name == "a.jsonl":
        head = head.replace(b"fine", b'{"text": "fine"}')
    path = write(name, COMPRESS[".gz" if name.endswith("gz") else ""](head + content))
    with raises_usage(found=f"{path}, line {line}: not UTF-8 (byte 0xef at column 3)", fix="with iconv -f latin1"):
        list(read_sentences(path, None))


@pytest.mark.parametrize("content", [b"text\nmore\0\n", b"\1\0\0\0\n", "text\n\n".encode("utf-16-le")])
def test_binary_files_are_rejected(write, content):
    path = write("a.txt", content)
    with raises_usage(found=f"{path} is a binary file (line ", needed="text", fix="must end in .gz, .xz, .zst"):
        list(read_sentences(path, None))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:10] + b"\xff" * 4 + data[14:],
        lambda data: data[:-4] + bytes(4),
        lambda data: b"plain\n",
    ],
    ids=["half", "wrong bytes", "wrong checksum", "plain text"],
)
@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_error_names_the_damaged_compressed_file(write, suffix, damage):
    path = write("a.txt" + suffix, damage(COMPRESS[suffix](WORDY.encode())))
    with raises_usage(found=f"{path} is damaged or not a {suffix} file, after line ", fix="the file again"):
        list(read_sentences(path, None))


NOT_UTF8 = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(bytes(4) + b"\1\0\0\0"), pa.py_buffer(b"\xff")])
COLUMN = dict(fix="Choose one with `text_column`, or rename it to text.")
SPLIT = dict(needed="up to 100,000 characters", fix="Split or shorten it.")
TABLE = 'id,text\n1,"He said ""yes"", and left."\n\n2,\n3,"one\ntwo"\n'
TABLE_SENTENCES = ['He said "yes", and left.', "", "", "one\ntwo"]


@pytest.mark.parametrize(
    "name, content, column, expected",
    [
        ("a.csv", TABLE, None, TABLE_SENTENCES),
        ("a.csv", "\ufeff" + TABLE.replace("id,text", "text,id"), "id", TABLE_SENTENCES),
        ("a.csv", "sentence\nfirst\nsecond\n", None, ["first", "second"]),
        ("a.csv", "\ufefftext,id\r\nfirst,1\r\n", None, ["first"]),
        ("a.csv", "text\n", None, []),
        ("a.csv", "\n\nid,text\n1,one\n\n2,two\n", None, ["one", "", "two"]),
        ("a.csv", "text,id\none,1,,\ntwo,2\n", None, ["one", "two"]),  # some programs end lines with empty fields
        ("a.csv", "Unnamed: 0,What was said?,text\n1,x,one\n", None, ["one"]),
        ("a.csv", "The dog runs.\none\n", "The dog runs.", ["one"]),
        ("a.tsv", "Full sentence\none\n", None, ["one"]),
        ("a.tsv", "id\ttext\n1\tone, two\n", None, ["one, two"]),
        ("a.tsv", "id\ttext\nx1\tone, two\n", "id", ["x1"]),
        ("a.jsonl", '{"text": "one\\ntwo", "n": 1}\n\n{"n": 2, "text": null}\r\n', None, ["one\ntwo", "", ""]),
        ("a.json", '\ufeff{"a": "é", "b": "x"}', "a", ["é"]),
        ("a.jsonl", '{"only": "one"}', None, ["one"]),
        ("a.jsonl", [{"id": 1}, {"text": "one"}, {"id": 2}, {"text": "two", "id": 3}], None, ["", "one", "", "two"]),
        ("a.jsonl", [{"n": 1}, {"n": 2, "x": "one"}], "x", ["", "one"]),
        ("a.parquet", {"text": pa.array(["one", None]).dictionary_encode()}, None, ["one", ""]),
        ("a.parquet", {"text": pa.array(["one", None], pa.string_view())}, None, ["one", ""]),
        ("a.parquet", {"text": [b"one", None, "é".encode()]}, None, ["one", "", "é"]),
        ("a.csv", "text,n\rone,1\rtwo,2\r", None, ["one", "two"]),
        ("a.tsv", "text\tn\rone\t1\rtwo\t2\r", None, ["one", "two"]),
        ("a.jsonl", '{"text": "one"}\r{"text": "two"}\r', None, ["one", "two"]),
        ("a.parquet", {"text": ["one", None, "two\nlines"], "n": [1, 2, 3]}, None, ["one", "", "two\nlines"]),
        ("a.parquet", {"text": [1, 2], "other.text": ["one", "two"]}, "other.text", ["one", "two"]),
        ("a.parquet", {"only": pa.array(["one"], pa.large_string())}, None, ["one"]),
    ],
)
def test_column_of_a_table(write, name, content, column, expected):
    assert list(read_sentences(write(name, content), column)) == expected


@pytest.mark.parametrize(
    "name, content, column, found, fields",
    [
        ("a.csv", "a,b\n1,2\n", None, " has no column 'text'; its columns are a, b", COLUMN),
        ("a.csv", ",Unnamed: 1\n1,2\n", None, " has no column 'text'; its columns are , Unnamed: 1", COLUMN),
        ("a.csv", f"text,{'b' * 41}\n1,2\n", "c", f" has no column 'c'; its columns are text, {'b' * 37}...", COLUMN),
        ("a.csv", 'text,"b\nb"\n1,2\n', "c", " has no column 'c'; its columns are text, b\\nb", COLUMN),
        ("a.tsv", "text\tb\n1\t2\n", "c", " has no column 'c'; its columns are text, b", COLUMN),
        ("a.csv", "text,text\n1,2\n", None, " has 2 columns 'text'", dict(needed="one", fix="Rename the others.")),
        (
            "a.csv",
            "n,text\n1,one\n2\n",
            None,
            ", line 3: found 1 field",
            dict(needed="2 or more, because column 'text'"),
        ),
        (
            "a.csv",
            'n,text\n1,"one\ntwo"\n2\n',
            None,
            ", line 4: found 1 field",
            dict(needed="2 or more, because column 'text'"),
        ),
        (
            "a.csv",
            "text\none\nYes, he did.\n",
            None,
            ", line 3: found 2 fields, but the header has 1",
            dict(fix="Put double quotes"),
        ),
        (
            "a.tsv",
            "id\ttext\n1\ta\tb\n",
            None,
            ", line 2: found 3 fields, but the header has 2",
            dict(fix="Remove the tab inside"),
        ),
        (
            "a.txt",
            "one\n" + "a" * 100_001,
            None,
            ", line 2: found a text of 100,001 characters that begins with 'aaaaa",
            SPLIT,
        ),
        (
            "a.csv",
            f"text\n{'a' * 100_001}\n",
            None,
            ", line 2: found a text of 100,001 characters that begins with 'aaaaa",
            SPLIT,
        ),
        (
            "a.jsonl",
            [{"text": "b" * 10**6}],
            None,
            ", line 1: found a text of 1,000,000 characters that begins with 'bbbbb",
            SPLIT,
        ),
        (
            "a.parquet",
            {"text": ["b" * 10**6]},
            None,
            ": found a text of 1,000,000 characters that begins with 'bbbbb",
            SPLIT,
        ),
        (
            "a.txt",
            "one\n" + "a" * 2**24 + "b\n",
            None,
            ", line 2: found more than 16,777,216 bytes",
            dict(fix="Split the line."),
        ),
        (
            "a.jsonl",
            '{"n": "' + "b" * 2**24 + '"}',
            None,
            ", line 1: found more than 16,777,216 bytes",
            dict(fix="Split the line."),
        ),
        (
            "a.csv",
            "text\none\rtwo\n",
            None,
            ", line 2: cannot read the row that begins here (a carriage return",
            dict(fix="Remove it."),
        ),
        (
            "a.tsv",
            f"text\n{'a' * 131073}\n",
            None,
            ", line 2: found a text of 131,073 characters",
            dict(fix="Split or shorten it."),
        ),
        ("a.jsonl", '{"text": ' + "1" * 5000, None, ", line 1: not JSON (", dict(needed=ONE_OBJECT)),
        ("a.jsonl", "[" * 100_000, None, ", line 1: not JSON (", dict(needed=ONE_OBJECT)),
        (
            "a.jsonl",
            [{}, {"a": "x", "b": "y"}, {"a": "z"}],
            None,
            ", line 2 has no column 'text'; its columns are a, b",
            COLUMN,
        ),
        (
            "a.jsonl",
            [*[{"id": "x"}] * 1000, {"id": "y", "text": "z"}],
            None,
            ", line 1001 has the columns id, text, and rows before it only id",
            dict(fix="`text_column`"),
        ),
        (
            "a.json",
            '{"text": {"0": "a"}}',
            None,
            ", line 1: the text column contains {'0': 'a'}",
            dict(fix="one row per"),
        ),
        ("a.jsonl", '{"text": "a"}\n{"text": "b"', None, ", line 2: not JSON (", dict(needed=ONE_OBJECT)),
        ("a.jsonl", '{"text": "a"}\n["b"]', None, """, line 2: found '["b"]'""", dict(needed=ONE_OBJECT)),
        ("a.jsonl", [{"text": "a"}, {"text": 5}], None, ", line 2: the text column contains 5", dict(needed="text")),
        ("a.parquet", {"a": ["x"], "b": ["y"]}, None, " has no column 'text'; its columns are a, b", COLUMN),
        (
            "a.parquet",
            {"text": NOT_UTF8},
            None,
            " is not a readable Parquet file ('utf-8' codec",
            dict(fix="the file again"),
        ),
        ("a.parquet", {"text": [1]}, None, ": the text column contains 1", dict(needed="text", fix="`text_column`")),
        ("a.parquet", "text\none\n", None, " is not a readable Parquet file (", dict(fix="the file again")),
    ],
)
def test_unreadable_tables_are_rejected(write, name, content, column, found, fields):
    path = write(name, content)
    with raises_usage(found=f"{path}{found}", **fields):
        list(read_sentences(path, column))


@pytest.mark.parametrize(
    "name, first, found",
    [
        ("a.csv", "The dog runs.", "The dog runs."),
        ("a.csv", "the old dog", "the old dog"),
        ("a.csv", "Hello!", "Hello!"),
        ("a.csv", "猫が寝ています。", "猫が寝ています。"),
        ("a.csv", "id;text", "id;text"),
        ("a.csv", '"The dog runs, and so it goes on and on."', "The dog runs, and so it goes on and on."),
        ("a.csv", f"The dog runs, {'and ' * 20}stops.", f"The dog runs,  {'and ' * 9}..."),
        ("a.csv", "A fine film,1", "A fine film, 1"),
        ("a.tsv", "Yes, he did.", "Yes, he did."),
        ("a.tsv", "Yes.\tWhat is it?", "Yes., What is it?"),
    ],
)
@pytest.mark.parametrize("column", [None, "txet"])
def test_table_without_header_is_rejected(write, name, first, found, column):
    path = write(name, f"{first}\nThe cat.\n")
    table, delimiter = {".csv": ("CSV", "commas"), ".tsv": ("TSV", "tabs")}[path.suffix]
    expected = dict(
        found=f"{path}: the first line looks like sentences, not like column names (found {found})",
        needed=f"a {table} header, with fields separated by {delimiter}",
        fix="rename the file to .txt if each line is a sentence",
    )
    with raises_usage(**expected):
        list(read_sentences(path, column))


@pytest.mark.parametrize(
    "name, content, column",
    [("a.csv", "sentence\none\n", "sentence"), ("a.csv.gz", b"", None), ("a.txt", "a.b\n", None)],
)
def test_table_column_returns_the_column_to_read(write, name, content, column):
    assert table_column(write(name, gzip.compress(content) if name.endswith("gz") else content), None) == column


@pytest.mark.parametrize(
    "rows, line",
    [
        (["one", '"two', "three"], 3),
        (["one", '"two', "three", '"four"', "five"], 3),
        (["one", '"two" she said', "three"], 3),
        (["one", '"two"", said she"', "three", '"four'], 5),
        (['"one"', '"two\n2"', "three", '"four'], 6),
        (['"one', *["two"] * 50_000], 2),
    ],
    ids=["never closed", "closed by the next quote", "text after it", "doubled", "after rows of two lines", "long"],
)
def test_error_names_the_line_where_an_unclosed_quote_begins(write, rows, line):
    path = write("a.csv", "\n".join(["text", *rows]))
    with raises_usage(found=f"{path}, line {line}: cannot read the row that begins here (", fix="Close every quot"):
        list(read_sentences(path, None))


def test_one_warning_counts_multiline_rows(write, caplog):
    path = write("a.csv", 'text\none\n"two\n2"\nthree\n"four\n4\n4"\n')
    assert list(read_sentences(path, None)) == ["one", "two\n2", "three", "four\n4\n4"]
    expected = f"{path}: 2 rows of more than one line, the first from line 3. If this is not intended, look for"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.messages[0].startswith(expected)
    caplog.clear()
    assert list(read_sentences(write("b.csv", 'text\n"one"\n\n"a ""b"""\n'), None)) == ["one", "", 'a "b"']
    assert not caplog.messages


def test_folders_and_pipes_are_rejected(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    for name, found, fields in (
        ("pipe.txt", "is a pipe or a device", dict(needed="a file", fix="Save its content to a file.")),
        ("/dev/null", "is a pipe or a device", dict(needed="a file")),
        ("", "is a folder", dict(needed="a file")),
        ("absent", "does not exist", dict(fix="Check the path.")),
        ("a" * 300, "does not exist", dict(fix="Check the path.")),
    ):
        with raises_usage(found=f"--option: {tmp_path / name} {found}", **fields):
            require_file("--option", tmp_path / name)


@pytest.mark.parametrize("name", ["na\udcefve.txt", "\udcff"])
def test_names_that_are_not_utf8_are_rejected(tmp_path, name):
    with raises_usage(found="is not UTF-8", fix="Rename it"):
        require_file("--option", tmp_path / name)


def test_permission_error_is_not_reported_as_damage(write, monkeypatch):
    def forbid(path):
        raise PermissionError(13, "Permission denied")

    path = write("a.txt", "one\n")
    monkeypatch.setattr(textlines, "open_bytes", forbid)  # the super-user may read everything
    with raises_usage(found=f"{path} cannot be opened (Permission denied)", fix="permissions"):
        list(read_sentences(path, None))
