"""Push exported folders and pages to the Hub, after checks that the push can succeed and destroys nothing of others."""

import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, HfApi, ModelInfo, SpaceInfo, get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from informin.errors import PushError, UsageError, error_line
from informin.model.records import FITTED, TRAINING
from informin.publishing.card import CARD, is_edited, write_card
from informin.publishing.export import REPLACED, check_export, published_files

logger = logging.getLogger(__name__)

CREATION = "initial commit"  # title of the commit that the Hub makes for whoever creates a repository
MODEL_REPOSITORY = "model"  # a kind of repository
SPACE = "space"  # another kind
MESSAGE = "Upload model"  # title of the commit
SPACE_TAG = "informin-cl-search"  # in the metadata of the Spaces of this project
TOKEN_HELP = "Create a token with write access in your Hub settings, then run `hf auth login` or set HF_TOKEN."


@dataclass(frozen=True)
class Destination:
    """A repository that `prepare` has checked.

    Attributes:
        api: Client. Its token is None to use the stored login.
        repo: USER/NAME.
        revision: Branch; None for main.
        kind: model or space.
        overwrite: The user allows overwriting files of others.
        create_pr: Open a pull request instead of changing the branch.
    """

    api: HfApi
    repo: str
    revision: str | None = None
    kind: str = MODEL_REPOSITORY
    overwrite: bool = False
    create_pr: bool = False

    @property
    def url(self) -> str:
        return f"{self.api.endpoint}/{'spaces/' if self.kind == SPACE else ''}{self.repo}"


def check_name(repo: str, option: str) -> None:
    """Raise UsageError if the Hub would refuse the name of a repository."""
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UsageError(f"is {repo}, which the Hub refuses", option=option, fix=error_line(error)) from None


def prepare(
    repo: str,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    overwrite: bool = False,
    folder: str | Path | None = None,
    kind: str = MODEL_REPOSITORY,
    create_pr: bool = False,
) -> Destination:
    """Check that a push can succeed, and create the repository if it does not exist.

    Args:
        repo: USER/NAME, or NAME for a repository of the token's owner.
        private: Whether a new repository is private; True also requires it of an existing one.
        token: Hub token; None to use the stored login.
        revision: An existing branch; None for main.
        overwrite: Allow overwriting files that this user did not upload with InforMin-CL.
        folder: The folder to push, if it exists already.
        kind: model or space.
        create_pr: Open a pull request in an existing repository, which needs no write access to it and changes none of
            its files.

    Raises:
        UsageError: The token is missing or lacks write access, or the repository has files of others or is public
            although `private` is set.
        OSError: The Hub refuses the name or the access, or cannot be reached.
    """
    if not (token or get_token()):
        raise UsageError("No Hub token was found", fix=TOKEN_HELP)
    api = HfApi(token=token)
    user = api.whoami()
    access = user["auth"].get("accessToken") or {}  # empty after a login in the browser
    if access.get("role") == "read":
        raise UsageError(f"The token of {user['name']} is read-only", fix=TOKEN_HELP)
    repo = repo if "/" in repo else f"{user['name']}/{repo}"
    if not create_pr:
        sdk = "gradio" if kind == SPACE else None
        api.create_repo(repo, repo_type=kind, private=private, space_sdk=sdk, exist_ok=True)
        api.auth_check(repo, repo_type=kind, write=True)
    info: Any = api.repo_info(repo, repo_type=kind, revision=revision)  # of a model or a Space
    if private and not info.private:
        raise UsageError(f"{repo} is public", option="private", fix="Choose another repository.")
    if not overwrite and not create_pr:
        _raise_if_foreign(api, info, user["name"], revision, folder, kind)
    return Destination(api, repo, revision, kind, overwrite, create_pr)


def _raise_if_foreign(
    api: HfApi, info: ModelInfo | SpaceInfo, user: str, revision: str | None, folder: str | Path | None, kind: str
) -> None:
    """Raise UsageError if a repository contains anything that this user did not push with InforMin-CL."""
    commits = api.list_repo_commits(info.id, repo_type=kind, revision=revision)
    if all(commit.title == CREATION for commit in commits):
        return
    held = [sibling.rfilename for sibling in info.siblings or () if sibling.rfilename != ".gitattributes"]
    card = Path(api.hf_hub_download(info.id, CARD, repo_type=kind, revision=info.sha)) if CARD in held else None
    space = card is not None and f"- {SPACE_TAG}\n" in card.read_text(encoding="utf-8", errors="replace")
    others = {author for commit in commits if commit.title != CREATION for author in commit.authors} - {user}
    if held and not (space if kind == SPACE else {TRAINING, FITTED} & set(held)):
        problem = f"has files that InforMin-CL did not upload ({', '.join(held[:3])}, {len(held)} in total)"
    elif others:
        problem = f"has commits by {', '.join(sorted(others))}"
    elif kind == MODEL_REPOSITORY and card and is_edited(card) and not (folder and is_edited(Path(folder, CARD))):
        problem = f"has a {CARD} that was edited by hand"
    else:
        return
    raise UsageError(f"{info.id} {problem}", option="overwrite", fix="Choose another repository, or set `overwrite`.")


def push_folder(folder: str | Path, to: Destination, message: str = MESSAGE) -> str:
    """Upload an exported folder, and return the URL of the model page or of the pull request.

    Raises:
        UsageError: The folder is not an export, or its weights are NaN or infinite.
        PushError: The upload failed. The error says that the model is saved, and how to finish the push.
    """
    check_export(folder)
    if not write_card(folder, to.repo):
        logger.info(f"{folder}/{CARD} was edited by hand and is uploaded unchanged.")
    try:
        names = [path.as_posix() for path in published_files(folder)]
        commit = _upload(to, folder, message, names, REPLACED)
        if write_card(folder, to.repo, commit.oid):
            there = replace(to, revision=commit.pr_revision or to.revision, create_pr=False)
            _upload(there, folder, "Model card: pin the commit that holds the weights", [CARD])
    except Exception as error:  # the client raises OSError, ValueError, RuntimeError and errors of its HTTP library
        finish: dict[str, str | bool] = {"model_name": str(folder), "hub_model_id": to.repo}
        finish |= {name: value for name in ("revision", "create_pr", "overwrite") if (value := getattr(to, name))}
        finish |= {"commit_message": message} if message != MESSAGE else {}
        found = f"The push to {to.repo} failed: {error_line(error)}. The model is saved in {folder}."
        raise PushError(found, finish) from error
    return commit.pr_url or to.url


def push_checkpoint(export: Callable[[str], None], to: Destination | None, step: int) -> None:
    """Upload the model in training. Call it in every process. Optimizer states are not uploaded. A failure is logged.

    Args:
        export: Function that writes the exported model to a folder.
        to: The repository; None in processes that do not upload.
        step: The step of the checkpoint.
    """
    with tempfile.TemporaryDirectory() as folder:
        export(folder)
        if to is None:
            return
        try:
            push_folder(folder, to, f"Training in progress, step {step}")
        except PushError as error:
            logger.warning(f"checkpoint-{step} was not pushed: {error_line(error)}")


def push_space(folder: str | Path, repo: str, overwrite: bool = False) -> str:
    """Create a Space if needed, upload its folder in one commit, and return its URL.

    Args:
        folder: A folder that holds nothing but the Space.
        repo: USER/NAME, or NAME for a Space of the token's owner.
        overwrite: As in `prepare`.

    Raises:
        UsageError: As in `prepare`.
        OSError: The upload failed.
    """
    to = prepare(repo, overwrite=overwrite, kind=SPACE)
    names = [path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()]
    _upload(to, folder, "Upload search page", names, ["informin/*"])  # modules that are gone
    return to.url


def _upload(
    to: Destination, folder: str | Path, message: str, names: Sequence[str], deleted: Sequence[str] | None = None
) -> CommitInfo:
    """Upload files of a folder in one commit, which deletes what the repository has by these patterns besides them."""
    return to.api.upload_folder(
        repo_id=to.repo,
        repo_type=to.kind,
        revision=to.revision,
        create_pr=to.create_pr or None,
        folder_path=folder,
        commit_message=message,
        allow_patterns=[escape(name) for name in names],
        delete_patterns=list(deleted) if deleted else None,
    )
