"""SentEval's data from a folder, the environment or the Hub, and untrusted archives."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from informin.evaluation import senteval
from informin.evaluation.senteval import STSB_DEV, load_stsb_dev, senteval_folder, unpack
from tests.conftest import raises_usage
from tests.support.senteval_data import stsb_dev


def make_tar(path: Path, members: dict[str, bytes | str], mode="w"):
    """Write a tar file. Members are bytes for a file, or text for a symbolic link."""
    with tarfile.open(path, mode) as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
            else:
                member.size = len(content)
            tar.addfile(member, None if isinstance(content, str) else io.BytesIO(content))
    return path


@pytest.fixture
def hub_archive(tmp_path, monkeypatch):
    """A Hub with senteval.tar."""
    path = make_tar(tmp_path / "senteval.tar", {f"data/downstream/{STSB_DEV}": stsb_dev("hub")})
    monkeypatch.setattr(senteval, "hf_hub_download", lambda *args, **kwargs: str(path))
    return path


def test_precedence_of_senteval_folders(tmp_path, monkeypatch, hub_archive):
    """The given folder, then $SENTEVAL_DATA, then the Hub."""

    def source(given: str | None = None) -> str:
        return load_stsb_dev(senteval_folder(given)).sentences1[0]

    for name in ("folder", "environment"):
        path = tmp_path / name / STSB_DEV
        path.parent.mkdir(parents=True)
        path.write_bytes(stsb_dev(name))
    assert source() == "hub"
    monkeypatch.setenv("SENTEVAL_DATA", str(tmp_path / "environment"))
    assert source() == "environment"
    assert source(str(tmp_path / "folder")) == "folder"


def test_hub_archive_is_unpacked_once(monkeypatch, hub_archive):
    unpacked = []
    monkeypatch.setattr(senteval, "unpack", lambda *paths: unpacked.append(paths) or unpack(*paths))
    assert senteval_folder(None) == senteval_folder(None)
    assert len(unpacked) == 1


def test_a_process_that_waited_for_another_one_keeps_its_files(hub_archive, tmp_path):
    unpack(hub_archive, tmp_path / "folder")
    unpack(hub_archive, tmp_path / "folder")
    assert os.listdir(tmp_path / "folder") == ["data"]


def test_a_file_that_was_cut_off_is_an_error(tmp_path):
    path = tmp_path / STSB_DEV
    path.parent.mkdir(parents=True)
    for damaged in (stsb_dev("x")[:-30], stsb_dev("x")[:-30] + b"\xe9"):
        path.write_bytes(damaged)
        with raises_usage("senteval_dir", found="damaged"):
            load_stsb_dev(tmp_path)


def test_archive_without_stsb_is_rejected(hub_archive):
    make_tar(hub_archive, {"data/downstream/else.csv": b""})
    with raises_usage(found=f"senteval.tar does not contain {STSB_DEV}", fix="Delete it"):
        senteval_folder(None)


def test_error_without_the_hub_says_what_to_give():
    with raises_usage(found="senteval.tar cannot be downloaded", fix="`senteval_dir` FOLDER"):
        senteval_folder(None)
    with raises_usage(fix="Without the Hub, give up."):
        senteval_folder(None, "up")


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_unpack(tmp_path, mode):
    archive = make_tar(tmp_path / "a.tar", {"a/b.txt": b"hello", "c.txt": b"there"}, mode)
    unpack(archive, tmp_path / "deep/folder")
    assert (tmp_path / "deep/folder/a/b.txt").read_text() == "hello"
    assert (tmp_path / "deep/folder").is_dir()
    assert sorted(os.listdir(tmp_path / "deep/folder")) == ["a", "c.txt"]


@pytest.mark.parametrize(
    "members",
    [{"../evil": b"x"}, {"a/../../evil": b"x"}, {"link": "/etc"}, {"link": "..", "link/evil": b"x"}],
    ids=["parent", "parent of a member", "absolute link", "link to the parent"],
)
def test_archive_with_members_outside_is_rejected(tmp_path, members):
    archive = make_tar(tmp_path / "a.tar", {"fine": b"x", **members})
    with pytest.raises(tarfile.TarError):
        unpack(archive, tmp_path / "in/folder")
    assert not (tmp_path / "in/folder").exists() and not list(tmp_path.rglob("evil"))


def test_absolute_member_stays_inside(tmp_path):
    evil = tmp_path / "evil"
    unpack(make_tar(tmp_path / "a.tar", {str(evil): b"x"}), tmp_path / "in/folder")
    assert not evil.exists()
    assert (tmp_path / "in/folder" / evil.relative_to("/")).read_text() == "x"


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_damaged_archive_leaves_no_files(tmp_path, mode):
    archive = make_tar(tmp_path / "a.tar", {"fine": b"x", "large": os.urandom(30_000)}, mode)
    archive.write_bytes(archive.read_bytes()[:-20_000])
    with pytest.raises((tarfile.TarError, EOFError)):
        unpack(archive, tmp_path / "in/folder")
    assert not (tmp_path / "in/folder").exists()
