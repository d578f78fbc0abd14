import re

import pytest
from huggingface_hub import HfApi

from informin.errors import PushError
from informin.publishing.push import prepare, push_folder, push_space
from tests.conftest import raises_usage
from tests.publishing.helpers import PUBLISHED, contents, results_of

REPO = "alice/m"
SPACE_CARD = b"---\nsdk: gradio\napp_file: app.py\ntags:\n- informin-cl-search\n---\nA Space.\n"


def remote(hub, repo: str = REPO, **where) -> dict[str, bytes]:
    return {name: content for name, content in hub.files(repo, **where).items() if name != ".gitattributes"}


def test_a_push_uploads_the_published_files(logged_in, folder):
    (folder / "report.json").write_text("sentences")
    url = push_folder(folder, prepare(REPO))
    assert url == f"{logged_in.url}/{REPO}"
    files = remote(logged_in)
    assert set(files) == PUBLISHED
    assert files == {name: content for name, content in contents(folder).items() if name in PUBLISHED}


def test_the_card_pins_the_commit_with_the_weights(logged_in, folder):
    push_folder(folder, prepare(REPO))
    pinned, *others = set(re.findall(r'revision="(\w{40})"', remote(logged_in)["README.md"].decode()))
    assert not others
    weights = (folder / "model.safetensors").read_bytes()
    assert HfApi().hf_hub_download(REPO, "model.safetensors", revision=pinned)
    assert remote(logged_in)["model.safetensors"] == weights


def test_a_second_push_deletes_what_the_folder_lacks(logged_in, folder):
    results_of(folder, folder / "results/model.json", model="this model")
    push_folder(folder, prepare(REPO))
    (folder / "results/model.json").unlink()
    push_folder(folder, prepare(REPO))
    assert set(remote(logged_in)) == PUBLISHED


def test_an_edited_card_is_uploaded_unchanged(logged_in, folder):
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    push_folder(folder, prepare(REPO))
    assert remote(logged_in)["README.md"] == b"---\nlicense: mit\n---\n# Mine\n"
    push_folder(folder, prepare(REPO, folder=folder))


def test_a_name_alone_belongs_to_the_user(logged_in):
    assert prepare("m").repo == REPO


def test_a_private_repository(logged_in):
    prepare(REPO, private=True)
    assert HfApi().repo_info(REPO).private
    prepare(REPO, private=True)
    prepare("alice/public")
    with raises_usage("private"):
        prepare("alice/public", private=True)


def test_without_a_token_nothing_is_created(logged_in, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with raises_usage(fix="hf auth login"):
        prepare(REPO)
    assert not logged_in.repos


def test_a_token_without_write_access(logged_in):
    logged_in.add_user("bob", token="hf_bob", role="read")
    with raises_usage(found="read-only"):
        prepare("bob/m", token="hf_bob")
    assert not logged_in.repos


@pytest.mark.parametrize("repo", ["readers/m", "someone/m", "not a name/x"])
def test_a_repository_that_cannot_be_written(logged_in, repo):
    with pytest.raises((OSError, ValueError)):
        prepare(repo)
    assert not logged_in.repos


@pytest.mark.parametrize(
    "files", [{"config.json": b"{}"}, {"README.md": b"# Other\n"}, {"README.md": b"x", "model.safetensors": b"x"}]
)
def test_files_of_others_are_not_overwritten(logged_in, files):
    logged_in.add_repo(REPO, files, author="alice")
    with raises_usage("overwrite"):
        prepare(REPO)
    assert prepare(REPO, overwrite=True).overwrite


def test_commits_of_others_are_not_overwritten(logged_in, folder):
    logged_in.add_repo("team/m", {"training.json": b"{}"}, author="someone")
    with raises_usage("overwrite", found="someone"):
        prepare("team/m")


def test_a_card_edited_on_the_hub_is_not_overwritten(logged_in, folder):
    push_folder(folder, prepare(REPO))
    HfApi().upload_file(path_or_fileobj=b"# Mine\n", path_in_repo="README.md", repo_id=REPO)
    with raises_usage("overwrite", found="README.md"):
        prepare(REPO, folder=folder)


def test_a_failed_push_says_how_to_finish(logged_in, folder, monkeypatch):
    to = prepare(REPO, overwrite=True)

    def fail(*_args, **_options):
        raise RuntimeError("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(HfApi, "upload_folder", fail)
        with pytest.raises(PushError) as info:
            push_folder(folder, to, "Release 1")
    options = {"model_name": str(folder), "hub_model_id": REPO, "overwrite": True, "commit_message": "Release 1"}
    assert info.value.finish == options
    assert "the connection was lost" in str(info.value)
    push_folder(folder, to)
    assert set(remote(logged_in)) == PUBLISHED


def test_a_pull_request_changes_nothing_else(logged_in, folder):
    before = logged_in.add_repo("team/theirs", {"README.md": b"# Theirs\n"}, author="someone")
    url = push_folder(folder, prepare("team/theirs", create_pr=True), "Better weights")
    assert url == f"{logged_in.url}/team/theirs/discussions/1"
    assert HfApi().repo_info("team/theirs").sha == before
    assert PUBLISHED <= set(remote(logged_in, "team/theirs", revision="refs/pr/1"))
    _, upload, *_ = HfApi().list_repo_commits("team/theirs", revision="refs/pr/1")
    assert (upload.title, upload.authors) == ("Better weights", ["alice"])
    pinned = re.findall(
        r'revision="(\w{40})"', remote(logged_in, "team/theirs", revision="refs/pr/1")["README.md"].decode()
    )
    assert set(pinned) == {upload.commit_id}


def test_a_branch(logged_in, folder):
    prepare(REPO)
    HfApi().create_branch(REPO, branch="next")
    push_folder(folder, prepare(REPO, revision="next"))
    assert set(remote(logged_in, revision="next")) == PUBLISHED
    assert not remote(logged_in)


def test_a_space(logged_in, tmp_path):
    page = tmp_path / "page"
    page.mkdir()
    (page / "informin").mkdir()
    (page / "README.md").write_bytes(SPACE_CARD)
    (page / "app.py").write_text("import a\n")
    (page / "informin" / "a.py").write_text("a = 1\n")
    assert push_space(page, "search").endswith("/spaces/alice/search")
    (page / "informin" / "a.py").unlink()
    (page / "informin" / "b.py").write_text("b = 1\n")
    push_space(page, "search")
    api = HfApi()
    files = set(api.list_repo_files("alice/search", repo_type="space"))
    assert files - {".gitattributes"} == {"README.md", "app.py", "informin/b.py"}


def test_a_space_of_others_is_not_overwritten(logged_in, tmp_path):
    page = tmp_path / "page"
    page.mkdir()
    api = HfApi()
    api.create_repo("alice/search", repo_type="space", space_sdk="gradio")
    api.upload_file(path_or_fileobj=b"x", path_in_repo="app.py", repo_id="alice/search", repo_type="space")
    (page / "README.md").write_bytes(SPACE_CARD)
    with raises_usage("overwrite"):
        push_space(page, "search")
