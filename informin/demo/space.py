"""Write the search page of a model as a Space of the Hub.

The package is on no index, and the Hub installs a Space's requirements before it copies any other file. The Space
therefore carries the modules that the page imports next to app.py, and its requirements list what the package needs.
"""

import json
import platform
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from huggingface_hub import SpaceCardData

import informin
import modeling_informin
from informin.demo.page import require_gradio
from informin.errors import counted
from informin.labeled_sentences import LABEL, Sentences
from informin.publishing.card import CARD, stamped
from informin.publishing.hub import SPACE_TAG

# What the search page imports, besides gradio, which the Hub installs in the version that the card names.
REQUIREMENTS = (
    *("torch", "transformers", "accelerate", "huggingface_hub", "safetensors", "numpy", "scipy", "scikit-learn"),
    *("pyarrow", "psutil", "tqdm", "filelock"),
)
FOR_OTHER_MODELS = ("sentence-transformers", "peft")  # which a model may need; in the Space if they are installed here
UNPINNED = ("psutil",)  # the Hub installs a package that needs another version
CARD_TEMPLATE = Path(__file__).parent / "templates" / "space_card.md"
SENTENCES = "sentences.jsonl"
PACKAGES = ("adapters", "demo", "models", "evaluation", "guide", "objectives", "views")  # that the page imports
COPIED = (".py", ".css", ".js")
APP = '''"""The search page of {model}, written by `informin push`. Its code is in informin/."""

from pathlib import Path

from informin.demo.page import serve, space_page
from informin.demo.server import wait

MODELS = {models}

demo = space_page(MODELS, Path(__file__).with_name("{sentences}"))

if __name__ == "__main__":
    serve(demo, host=None)  # the address that the Hub sets
    wait()
'''


def write_space(folder: str | Path, title: str, models: Sequence[str], sentences: Sentences) -> None:
    """Write the files of a Space into a folder.

    Args:
        folder: An empty folder.
        title: Title of the Space.
        models: Hub ids: the model and, optionally, one to compare it with.
        sentences: What visitors can search. Only texts and labels are written.

    Raises:
        UsageError: gradio is not installed, so that its version is unknown.
    """
    folder, gradio = Path(folder), require_gradio()
    (folder / CARD).write_text(_card(title, models, sentences, gradio.__version__), encoding="utf-8")
    app = APP.format(model=models[0], models=json.dumps(list(models)), sentences=SENTENCES)
    (folder / "app.py").write_text(app, encoding="utf-8")
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in requirements()), encoding="utf-8")
    labels = sentences.labels or [""] * len(sentences.texts)
    lines = (
        json.dumps({"text": text} | ({LABEL: label} if sentences.labels else {}), ensure_ascii=False)
        for text, label in zip(sentences.texts, labels)
    )
    (folder / SENTENCES).write_text("\n".join(lines) + "\n", encoding="utf-8")
    copy_package(folder)


def requirements() -> list[str]:
    """Return the requirements in the versions that are installed here, without local parts such as +cpu."""
    names = [*REQUIREMENTS, *(name for name in FOR_OTHER_MODELS if find_spec(name.replace("-", "_")))]
    return [name if name in UNPINNED else f"{name}=={version(name).partition('+')[0]}" for name in names]


def copy_package(folder: Path) -> None:
    """Copy the modules that the page imports into a folder, so that a program in it can import them."""
    package = Path(informin.__file__).parent
    shutil.copyfile(modeling_informin.__file__, folder / "modeling_informin.py")
    paths = [*package.glob("*.py"), *(path for name in PACKAGES for path in (package / name).rglob("*"))]
    for path in (path for path in paths if path.suffix in COPIED):
        target = folder / "informin" / path.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _card(title: str, models: Sequence[str], sentences: Sentences, gradio: str) -> str:
    """Return README.md, with the metadata that tell the Hub how to start the Space."""
    metadata = SpaceCardData(
        title=title,
        emoji="🔎",
        colorFrom="blue",
        colorTo="green",
        sdk="gradio",
        sdk_version=gradio,
        python_version=".".join(platform.python_version_tuple()[:2]),
        app_file="app.py",
        models=list(models),
        tags=[SPACE_TAG],
    )
    page = CARD_TEMPLATE.read_text(encoding="utf-8").format(
        model=models[0],
        names=" ".join(models),
        sentences=counted(len(sentences.texts), "sentence"),
        version=informin.__version__,
    )
    return stamped(f"---\n{metadata.to_yaml()}\n---\n\n{page}".rstrip())
