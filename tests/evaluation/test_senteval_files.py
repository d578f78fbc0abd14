"""SentEval's data from a folder, the environment or the Hub, and untrusted archives."""

import gzip
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from informin.evaluation import load_stsb_dev, senteval_files
from informin.evaluation.senteval import STSB_DEV
from informin.evaluation.senteval_files import senteval_folder, unpack
from tests.conftest import raises_usage
from tests.senteval_data import stsb_dev


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
def no_hub(tmp_path, monkeypatch):
    """An empty Hub cache (the tests are offline), and no SentEval folder in the environment."""
    monkeypatch.setattr(senteval_files.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(senteval_files.constants, "HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SENTEVAL_DATA", raising=False)


@pytest.fixture
def hub_archive(tmp_path, monkeypatch, no_hub):
    """A Hub with senteval.tar."""
    path = make_tar(tmp_path / "senteval.tar", {f"data/downstream/{STSB_DEV}": stsb_dev("hub")})
    monkeypatch.setattr(senteval_files, "hf_hub_download", lambda *args, **kwargs: str(path))
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
    monkeypatch.setattr(senteval_files, "unpack", lambda *paths: unpacked.append(paths) or unpack(*paths))
    assert senteval_folder(None) == senteval_folder(None)
    assert len(unpacked) == 1


def test_archive_without_stsb_is_rejected(hub_archive):
    make_tar(hub_archive, {"data/downstream/else.csv": b""})
    with raises_usage(found=f"senteval.tar does not contain {STSB_DEV}", fix="Delete it"):
        senteval_folder(None)


def test_error_without_the_hub_says_what_to_give(no_hub):
    found = "senteval.tar cannot be downloaded from the Hub data set princeton-nlp/datasets-for-simcse: it is not in"
    fix = "Without the Hub, give `senteval_dir` FOLDER (SentEval's data/downstream), or set SENTEVAL_DATA to it."
    with raises_usage(found=found, fix=fix):
        senteval_folder(None)
    with raises_usage(found=found, fix="Without the Hub, give up."):
        senteval_folder(None, "up")


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_unpack(tmp_path, mode):
    archive = make_tar(tmp_path / "a.tar", {"a/b.txt": b"hello", "c.txt": b"there"}, mode)
    unpack(archive, tmp_path / "deep/folder")
    assert (tmp_path / "deep/folder/a/b.txt").read_text() == "hello"
    assert os.listdir(tmp_path / "deep") == ["folder"]
    assert sorted(os.listdir(tmp_path / "deep/folder")) == ["a", "c.txt"]


@pytest.mark.parametrize(("umask", "folder", "file"), [(0o077, 0o700, 0o600), (0o022, 0o755, 0o644)])
def test_unpacked_files_follow_the_umask(tmp_path, umask, folder, file):
    archive = make_tar(tmp_path / "a.tar", {"a/b.txt": b"hello"})
    before = os.umask(umask)
    try:
        unpack(archive, tmp_path / "folder")
    finally:
        os.umask(before)
    modes = {name: (tmp_path / "folder" / name).stat().st_mode & 0o777 for name in ("", "a", "a/b.txt")}
    assert modes == {"": folder, "a": folder, "a/b.txt": file}


@pytest.mark.parametrize(
    "members",
    [{"../evil": b"x"}, {"a/../../evil": b"x"}, {"link": "/etc"}, {"link": "..", "link/evil": b"x"}, {"link": "fine"}],
    ids=["parent", "parent of a member", "absolute link", "link to the parent", "link inside"],
)
def test_archive_with_members_outside_is_rejected(tmp_path, members):
    archive = make_tar(tmp_path / "a.tar", {"fine": b"x", **members})
    with raises_usage(found="a.tar cannot be unpacked (", fix="Delete it and try again"):
        unpack(archive, tmp_path / "in/folder")
    assert os.listdir(tmp_path / "in") == []


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize(
    "most, message",
    [
        (("MOST_BYTES", 2**20), "0.0 GiB in 2 members; the limit is 0.0 GiB in 100,000 members"),
        (("MOST_MEMBERS", 2), "0.0 GiB in 3 members; the limit is 4.0 GiB in 2 members"),
    ],
)
def test_large_archive_is_rejected_before_unpacking(tmp_path, monkeypatch, mode, most, message):
    monkeypatch.setattr(senteval_files, *most)
    monkeypatch.setattr(tarfile.TarFile, "extractfile", lambda *args, **kwargs: pytest.fail("it was unpacked"))
    archive = make_tar(tmp_path / "a.tar", {"a": bytes(2**19), "b": bytes(2**20), "c": b""}, mode)
    with raises_usage(found=f"{archive} cannot be unpacked ({message})", fix="Delete it"):
        unpack(archive, tmp_path / "in/folder")
    assert os.listdir(tmp_path / "in") == []


@pytest.mark.parametrize(
    "kind, message",
    [
        (tarfile.REGTYPE, "1,024.0 GiB in 1 member; "),
        (tarfile.GNUTYPE_LONGNAME, "more than 4.0 GiB)"),
        (tarfile.GNUTYPE_SPARSE, "more than 4.0 GiB)"),
    ],
)
def test_archive_bomb_is_rejected(tmp_path, kind, message):
    """A header announces a terabyte of data, name or sparse blocks."""
    header = tarfile.TarInfo("a")
    header.size, header.type = 2**40, kind
    (tmp_path / "a.tar").write_bytes(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(2**20)))
    with raises_usage(found=f"a.tar cannot be unpacked ({message}"):
        unpack(tmp_path / "a.tar", tmp_path / "in/folder")


def test_full_disk_is_not_reported_as_damage(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "extractfile", full)
    archive = make_tar(tmp_path / "a.tar", {"a": b"x"})
    with raises_usage(found=f"a.tar cannot be unpacked in {tmp_path / 'in'} ([Errno 28] No space", fix="free space"):
        unpack(archive, tmp_path / "in/folder")
    assert os.listdir(tmp_path / "in") == []


def test_absolute_member_stays_inside(tmp_path):
    evil = tmp_path / "evil"
    unpack(make_tar(tmp_path / "a.tar", {str(evil): b"x"}), tmp_path / "in/folder")
    assert not evil.exists()
    assert (tmp_path / "in/folder" / evil.relative_to("/")).read_text() == "x"


@pytest.mark.parametrize(
    "mode, damage",
    [
        ("w", lambda archive: archive[: len(archive) // 2]),
        ("w:gz", lambda archive: archive[: len(archive) // 2]),
        ("w", lambda archive: json.dumps("no archive").encode() * 100),
        ("w", lambda archive: b""),
    ],
    ids=["half", "half of a .gz", "something else", "empty"],
)
def test_damaged_archive_leaves_no_files(tmp_path, mode, damage):
    archive = make_tar(tmp_path / "a.tar", {"fine": b"x", "large": os.urandom(30_000)}, mode)
    archive.write_bytes(damage(archive.read_bytes()))
    with raises_usage(found=f"{archive} cannot be unpacked ("):
        unpack(archive, tmp_path / "in/folder")
    assert os.listdir(tmp_path / "in") == []
