"""The wheel: its contents, and its command outside the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

from informin import __version__
from tests.conftest import ROOT

DATA = (
    "*.py",
    "*.pyi",
    "py.typed",
    "general_sentences.txt",
    "cli/train_help.tsv",
    "recipes/*.yaml",
    "*.md",
    "*.css",
    "*.html",
    "citations/*.bib",
)


def sources() -> list[Path]:
    """Return the files of a clean clone plus those not committed yet, relative to the checkout."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words, "--no-deps", "--no-index"]
    # With the checkout on the path, pip would find the .egg-info of an editable installation, and install nothing.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, check=True, capture_output=True, cwd=tempfile.gettempdir(), env=env)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel without network access; setuptools is installed because torch needs it."""
    folder = tmp_path_factory.mktemp("wheel")
    for path in sources():
        if path.parts[0] in ("informin", "experiments") or len(path.parts) == 1:
            (folder / "clone" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, folder / "clone" / path)
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(folder / "clone"))
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_contains_only_the_package(wheel):
    """Modules, recipes, card template, citations and general sentences; three names at the top level."""
    expected = {path for path in sources() if path.parts[0] == "informin" and any(map(path.match, DATA))}
    expected |= {Path("modeling_informin.py"), Path("trainer_informin.py")}
    with zipfile.ZipFile(wheel) as archive:
        held = {Path(name) for name in archive.namelist()}
        (entry_points,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        scripts = ConfigParser()
        scripts.read_string(archive.read(entry_points).decode())
    assert {path for path in held if path.parts[0] != f"informin_cl-{__version__}.dist-info"} == expected
    assert dict(scripts["console_scripts"]) == {"informin": "informin.cli:main"}


def test_its_command_runs_outside_the_checkout(wheel, tmp_path):
    venv.create(tmp_path / "environment")
    paths = sysconfig.get_paths(vars=dict.fromkeys(("base", "platbase"), str(tmp_path / "environment")))
    pip("--python", str(Path(paths["scripts"], "python")), "install", str(wheel))
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(paths["purelib"], "dependencies.pth").write_text("\n".join(packages))
    command = [str(Path(paths["scripts"], "informin")), "eval", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.lower().startswith("usage: informin eval"), done.stderr
