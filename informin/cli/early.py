"""Check the files and columns on a command line before torch is imported, which takes seconds."""

import argparse
import logging
import sys
from collections import deque
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NoReturn

from informin import program
from informin.errors import UsageError
from informin.evaluation.table_files import rows_by_column
from informin.inputfiles import find_files, require_vectors
from informin.textfiles import FIRST_ROWS, read_sentences, require_file, split_columns

# The option that names files of texts, by command.
TEXTS = dict.fromkeys(("train", "fit", "embed", "compare", "upgrade", "search"), "train_file") | {"eval": "labels"}
COLUMNS = ("text_column", "label_column")


class _Unparsed(Exception):
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Unparsed


def check_files(command: str, argv: list[str]) -> None:
    """Print what is wrong with a file or column, and exit. The command itself reports everything else.

    Only the first 1,000 rows are read. Options in a file, which `informin train` reads, are not known here.

    Args:
        command: Name of the subcommand.
        argv: Its arguments.
    """
    option = TEXTS.get(command)
    if option is None or any(word.startswith(("--config", "--recipe")) for word in argv if command == "train"):
        return
    parser = _Parser(add_help=False, allow_abbrev=False)
    number = None if command == "search" else "+"  # a model may follow the file of a search
    parser.add_argument(f"--{option}", f"--{option.replace('_', '-')}", default=[], nargs=number)
    if command == "fit":
        parser.add_argument("--embeddings")
    for column in COLUMNS:
        parser.add_argument(f"--{column}", f"--{column.replace('_', '-')}")
    logging.disable()  # the command logs its warnings when it reads the files
    try:
        with suppress(_Unparsed, OSError):
            given = vars(parser.parse_known_args(argv)[0])
            if command == "eval":
                text, label = given["text_column"] or "text", given["label_column"] or "label"
                for name in given[option]:
                    next(rows_by_column(Path(name), option, (), may_be_empty=(*split_columns(text), label)), None)
            else:
                _check_texts(given)
            if given.get("embeddings"):
                require_vectors(Path(given["embeddings"]))
    except UsageError as error:
        program.say(f"error: {program.with_flags(str(error), [option, *COLUMNS, 'embeddings'])}")
        sys.exit(error.exit_code)
    finally:
        logging.disable(logging.NOTSET)


def _check_texts(given: dict) -> None:
    files = given["train_file"]
    for path in find_files([files] if isinstance(files, str) else files):
        require_file("`train_file`", path)
        deque(islice(read_sentences(path, given["text_column"]), FIRST_ROWS), maxlen=0)
