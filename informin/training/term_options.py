"""The options of built-in terms and views as a dataclass, a base class of `InforMinTrainingArguments`.

The fields are generated from the terms, so each option is declared only once. Editors and type checkers read them from
term_options.pyi, which `python -m tools.help_texts` writes.
"""

from dataclasses import make_dataclass

from informin.training.term_fields import option_kinds, term_fields

TermOptions = make_dataclass(
    "TermOptions",
    term_fields(option_kinds()),
    repr=False,
    namespace={"__module__": __name__, "__doc__": "Options of the terms and views in this package."},
)
