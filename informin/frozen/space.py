"""Write a Space of the Hub in which visitors compare sentences with a published model."""

import platform
import shutil
from importlib.metadata import version
from pathlib import Path

from huggingface_hub import SpaceCardData

import informin
from informin.files import write_json
from informin.frozen import page
from informin.publishing.push import SPACE_TAG
from informin.texts import GENERAL_SENTENCES

APP = Path(__file__).parent / "templates" / "app.py"
REQUIREMENTS = ("sentence-transformers", "transformers", "torch", "numpy")
LORA = {"peft": "peft>=0.20", "transformers": "transformers<5.24"}  # the extra: it need not be installed here
BODY = """# Sentences with {model}

A visitor types sentences and sees the most similar ones by [{model}](https://huggingface.co/{model}), among them and
among {count} general sentences. Written by InforMin-CL {version}.
"""


def write_space(folder: str | Path, model: str, revision: str | None = None, low_rank: bool = False) -> None:
    """Write the files of a Space. `informin.publishing.push.push_space` uploads them.

    Args:
        folder: An empty folder.
        model: Hub id of the model, which the Space downloads.
        revision: Branch, tag or commit of the model.
        low_rank: The model consists of low-rank matrices, which peft loads.
    """
    folder = Path(folder)
    count = len(GENERAL_SENTENCES.read_text(encoding="utf-8").splitlines())
    texts = {"model": model, "count": f"{count:,}", "version": informin.__version__}
    write_json(folder / "model.json", {"model": model, "revision": revision})
    shutil.copyfile(APP, folder / "app.py")
    shutil.copyfile(page.__file__, folder / "page.py")
    shutil.copyfile(page.STYLE, folder / "page.css")
    shutil.copyfile(GENERAL_SENTENCES, folder / "sentences.txt")
    lines = {name: f"{name}=={version(name).partition('+')[0]}" for name in REQUIREMENTS} | (LORA if low_rank else {})
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in lines.values()), encoding="utf-8")
    metadata = SpaceCardData(
        title=model.rpartition("/")[2],
        emoji="🔎",
        colorFrom="blue",
        colorTo="green",
        sdk="gradio",
        sdk_version=version("gradio"),
        python_version=".".join(platform.python_version_tuple()[:2]),
        app_file="app.py",
        models=[model],
        tags=[SPACE_TAG],
    )
    (folder / "README.md").write_text(f"---\n{metadata.to_yaml()}\n---\n\n{BODY.format(**texts)}", encoding="utf-8")
