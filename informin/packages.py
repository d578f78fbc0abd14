"""The optional packages, and the extras that install them."""

from importlib.util import find_spec

from informin.errors import UsageError

EXTRAS = {
    "search": ("faiss",),
    "demo": ("gradio",),
    "lora": ("peft",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
}


def is_installed(package: str) -> bool:
    """Return whether a package can be imported. A folder of this name beside the command is not the package."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def raise_if_missing(extra: str, *, option: str | None = None, what: str = "") -> None:
    """Raise UsageError if a package of an extra is not installed.

    Args:
        extra: One of `EXTRAS`.
        option: Option that needs it.
        what: What needs it, if it is not an option.
    """
    missing = [package for package in EXTRAS[extra] if not is_installed(package)]
    if missing:
        found = f"needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"
        fix = f"Install the extra `{extra}`, in a clone of the repository with: pip install -e '.[{extra}]'"
        raise UsageError(found if option else f"{what} {found}", option=option, fix=fix)
