"""Push an exported folder, or the folder of a Space, to the Hub.

`prepare` checks before training that a push can succeed. A push is one commit with all files, and a second one that
puts the SHA of the first into the examples of the model card.
"""

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from huggingface_hub import CommitInfo, HfApi, get_token
from huggingface_hub.errors import HFValidationError, HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id
from transformers.trainer import TRAINER_STATE_NAME

from informin.errors import PushError, UsageError, error_line
from informin.files import MANIFEST, read_json, sha256, write_json, write_manifest
from informin.models.st_module import HEADS_FILE, TRAINED_FILE
from informin.publishing.card import CARD, is_edited, write_card
from informin.publishing.export import export_checkpoint
from informin.publishing.fitted_card import is_adapter_card
from informin.publishing.origin import remove_origins
from informin.publishing.published import PATTERNS, check_export, published_files, refuse_linked_files
from informin.publishing.record import TRAINING, load_record
from informin.temporary import TemporaryFolder

logger = logging.getLogger(__name__)

CREATION = "initial commit"  # title of the commit that the Hub makes for whoever creates a repository
PUSH_FIRST = "Push the model first, without `update_card`."
NAMES = "Use NAME, or USER/NAME with your user name or organization."
PUSH_AGAIN = "Fix the problem and push again."
RETRIED = (408, 429, 500, 502, 503, 504)  # statuses after which the same request may succeed
MODEL, SPACE = "model", "space"  # kinds of repositories
SPACE_TAG = "informin-cl-search"  # in the metadata of the Spaces that `informin push` writes
# What a push deletes from the repository if the folder does not have it. Earlier versions published report.json, which
# contains sentences.
REPLACED = [*PATTERNS, "report.json"]
# Files of a checkpoint that are uploaded in addition to those of an export, if the user asks for checkpoints: the state
# of the trainer, and weights in the folders of FSDP and DeepSpeed.
STATE = re.compile(
    rf"{MANIFEST}|{TRAINER_STATE_NAME}|{HEADS_FILE}|{TRAINED_FILE}|optimizer\.(pt|bin)|scheduler\.pt|scaler\.pt|"
    r"rng_state(_\d+)?\.pth|(optimizer|pytorch_model_fsdp)_\d+/(__\d+_\d+\.distcp|\.metadata)|latest|"
    r"global_step\d+/(bf16_|fp16_)?(zero_pp_rank_\d+_)?mp_rank_\d+_(model|optim)_states\.pt"
)
TOKEN_HELP = "Create a token with write access in your Hub settings, then run `hf auth login` or set HF_TOKEN."


@dataclass(frozen=True)
class Destination:
    """A repository that `prepare` has checked.

    Attributes:
        api: Client. Its token is None to use the stored login.
        repo: USER/NAME.
        branch: None for main.
        overwrite: The user allows overwriting files of others.
        kind: model or space.
    """

    api: HfApi
    repo: str
    branch: str | None = None
    overwrite: bool = False
    kind: str = MODEL

    @property
    def url(self) -> str:
        return f"{self.api.endpoint}/{'spaces/' if self.kind == SPACE else ''}{self.repo}"


def prepare(
    repo: str,
    private: bool | None = None,
    token: str | None = None,
    branch: str | None = None,
    overwrite: bool = False,
    folder: str | Path | None = None,
    create: bool = True,
    kind: str = MODEL,
) -> Destination:
    """Check that a push can succeed, and create the repository if it does not exist.

    Args:
        repo: USER/NAME, or NAME for a repository of the token's owner.
        private: Whether a new repository is private; True also requires it of an existing one.
        token: Hub token; None to use the stored login.
        branch: An existing branch; None for main.
        overwrite: Allow overwriting files that this user did not upload with InforMin-CL.
        folder: The folder to push, if it exists already.
        create: Allow creating the repository.
        kind: model or space.

    Raises:
        UsageError: The token is missing or lacks write access, the name is not valid, the repository belongs to someone
            else, has other files or is public although `private` is set, or there is no connection to the Hub.
    """
    if not (token or get_token()):
        raise UsageError("No Hub token was found", fix=TOKEN_HELP)
    refuse_bad_name(repo)
    api = HfApi(token=token)
    with _as_usage_errors(repo):
        user = api.whoami()
        access = user["auth"].get("accessToken") or {}  # empty after a login in the browser
        if access.get("role") == "read":
            raise UsageError(f"The token of {user['name']} is read-only", fix=TOKEN_HELP)
        repo = repo if "/" in repo else f"{user['name']}/{repo}"
        if not api.repo_exists(repo, repo_type=kind):
            if branch:
                raise UsageError(f"{repo} does not exist, so it has no branch {branch}", fix="Push to main first.")
            if not create:
                raise UsageError(f"{repo} does not exist", fix=PUSH_FIRST)
            sdk = "gradio" if kind == SPACE else None
            api.create_repo(repo, repo_type=kind, private=private, space_sdk=sdk)
            url = Destination(api, repo, kind=kind).url
            logger.info(f"Created the {'private ' if private else ''}repository {url}")
        api.auth_check(repo, repo_type=kind, write=True)
        info = api.repo_info(repo, repo_type=kind, revision=branch)
        if private and not info.private:
            raise UsageError(f"{repo} is public", needed="a private repository", fix="Choose another name.")
        if not overwrite:
            _refuse_foreign_files(api, info, user["name"], branch, folder, kind)
    return Destination(api, repo, branch, overwrite, kind)


def refuse_bad_name(repo: str) -> None:
    """Raise UsageError if no repository can have this name. It must not get into a model card either."""
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UsageError(f"{repo!r} is not a valid repository name: {error_line(error)}", fix=NAMES) from None


def push_folder(folder: str | Path, to: Destination, message: str = "Upload model") -> str:
    """Upload an exported folder and return the URL of the model page.

    Raises:
        UsageError: The folder is not an export, or its weights are NaN or infinite.
        PushError: The upload failed. The error says how to finish it.
    """
    check_export(folder)
    if not write_card(folder, to.repo):
        logger.info(f"{folder}/{CARD} was edited by hand and is uploaded unchanged.")
    with _as_push_errors(_finish(folder, to), to):
        commit = _upload_model(to, folder, message)
        if write_card(folder, to.repo, commit.oid):
            _upload(to, folder, "Model card: pin the commit that holds the weights", allow_patterns=[CARD])
    return to.url


def push_space(folder: str | Path, to: Destination, finish: dict[str, str | bool]) -> str:
    """Upload the folder of a Space in one commit and return its URL.

    Args:
        folder: A folder that holds nothing but the Space.
        to: Destination of kind space.
        finish: Options that finish the push, if it fails.

    Raises:
        PushError: The upload failed.
    """
    with _as_push_errors(finish, to):
        _upload(to, folder, "Upload search page", delete_patterns=["informin/*"])  # modules that are gone
    return to.url


def push_card(folder: str | Path, to: Destination) -> str:
    """Upload only the card and the results of an exported folder, and return the URL of the model page.

    Raises:
        UsageError: The repository has other weights than the folder.
        PushError: The upload failed.
    """
    check_export(folder)
    folder = Path(folder)
    with _as_push_errors(_finish(folder, to) | {"update_card": True}, to):
        info = to.api.model_info(to.repo, revision=to.branch, files_metadata=True)
        held = {sibling.rfilename: sibling.lfs for sibling in info.siblings or ()}
        weights = [path.as_posix() for path in published_files(folder) if path.suffix == ".safetensors"]
        if any((lfs := held.get(name)) is None or lfs.sha256 != sha256(folder / name) for name in weights):
            raise UsageError(
                f"{to.repo} does not have the weights of {folder}, which the card describes", fix=PUSH_FIRST
            )
        write_card(folder, to.repo, info.sha)
        names = [escape(path.as_posix()) for path in card_files(folder)]
        _upload(to, folder, "Update model card and results", allow_patterns=names)
    return to.url


def card_files(folder: str | Path) -> list[Path]:
    """Return the published files that new results change, relative to the folder."""
    return [path for path in published_files(folder) if path.name == CARD or path.parts[0] == "results"]


def push_in_background(checkpoint: str, to: Destination, message: str, state_as: str | None) -> Future:
    """Export a checkpoint of a running training and upload it. A failure is logged, and training continues.

    Args:
        checkpoint: Checkpoint folder, which may be deleted after this call.
        to: Destination.
        message: Title of the commit.
        state_as: Folder in the repository for the checkpoint itself, with optimizer state; None to leave it out.
    """
    staging = TemporaryFolder()
    exported, state = Path(staging.name, "export"), Path(staging.name, "checkpoint")

    def upload():
        with staging, _logged(checkpoint, to):
            _upload_model(to, exported, message)
            if state_as:
                _upload(to, state, f"{message}, checkpoint", path_in_repo=state_as)

    with _logged(checkpoint, to):
        refuse_linked_files(checkpoint, ["*"])
        export_checkpoint(checkpoint, exported)
        write_card(exported, to.repo)
        if state_as:
            _copy_checkpoint(Path(checkpoint), state)
        return to.api.run_as_future(upload)
    return to.api.run_as_future(staging.cleanup)


def _copy_checkpoint(checkpoint: Path, folder: Path) -> None:
    """Copy the files of a checkpoint, since Trainer may delete it before the upload ends, without local paths."""
    inside = (path.relative_to(checkpoint) for path in checkpoint.rglob("*") if path.is_file())
    for path in {*published_files(checkpoint), *(path for path in inside if STATE.fullmatch(path.as_posix()))}:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(checkpoint / path, folder / path)
        except OSError:  # another file system
            shutil.copyfile(checkpoint / path, folder / path)
    remove_origins(folder, load_record(folder))  # replaces links, which leaves the originals unchanged
    path = folder / TRAINER_STATE_NAME
    state = read_json(path)
    if state["best_model_checkpoint"]:
        state["best_model_checkpoint"] = Path(state["best_model_checkpoint"]).name
    write_json(path, state, indent=2, allow_nan=True)
    write_manifest(folder)


def _upload_model(to: Destination, folder: str | Path, message: str) -> CommitInfo:
    """Upload the published files in one commit, which also deletes those that the folder no longer has."""
    names = [escape(path.as_posix()) for path in published_files(folder)]
    return _upload(to, folder, message, allow_patterns=names, delete_patterns=REPLACED)


def _upload(to: Destination, folder: str | Path, message: str, **options) -> CommitInfo:
    return to.api.upload_folder(
        repo_id=to.repo,
        repo_type=to.kind,
        revision=to.branch,
        folder_path=folder,
        commit_message=message,
        **options,
    )


def _refuse_foreign_files(api: HfApi, info, user: str, branch: str | None, folder, kind: str) -> None:
    """Raise UsageError if a repository contains anything that this user did not push with InforMin-CL."""
    held = [sibling.rfilename for sibling in info.siblings or () if sibling.rfilename != ".gitattributes"]
    if not held:
        return

    def fetched(name: str) -> Path:
        return Path(api.hf_hub_download(info.id, name, repo_type=kind, revision=info.sha))

    commits = api.list_repo_commits(info.id, repo_type=kind, revision=branch)
    authors = {author for commit in commits if commit.title != CREATION for author in commit.authors}
    if kind == SPACE and all(commit.title == CREATION for commit in commits):
        return  # the Hub puts a README.md into a new Space
    if not _is_ours(held, fetched, kind):
        problem = f"has files that InforMin-CL did not upload ({', '.join(held[:3])}, {len(held)} in total)"
    elif others := authors - {user}:
        problem = f"has commits by {', '.join(sorted(others))}"
    elif CARD in held and is_edited(fetched(CARD)) and not (folder and is_edited(Path(folder, CARD))):
        problem = f"has a {CARD} that was edited by hand"
    else:
        return
    raise UsageError(
        f"{info.id} {problem}",
        fix="Nothing was changed. Choose another repository, or set `overwrite` (in training: `hub_overwrite`).",
    )


def _is_ours(held: list[str], fetched: Callable[[str], Path], kind: str) -> bool:
    """Return whether InforMin-CL wrote the files of a repository.

    Args:
        held: Names of its files.
        fetched: Downloads a file.
        kind: model or space.
    """
    if kind == SPACE:
        return CARD in held and f"- {SPACE_TAG}\n" in fetched(CARD).read_text(encoding="utf-8", errors="replace")
    if CARD in held and is_adapter_card(fetched(CARD)):
        return True
    try:
        return any(name in held and "informin" in read_json(fetched(name)) for name in ("config.json", TRAINING))
    except UsageError:
        return False


@contextmanager
def _as_usage_errors(repo: str) -> Iterator[None]:
    """Raise the Hub's errors as UsageError."""
    try:
        yield
    except (HTTPError, OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
        reason, fix = _reason(error, repo)
        raise UsageError(f"Cannot push to {repo}: {reason}", fix=fix) from None


@contextmanager
def _as_push_errors(finish: dict[str, str | bool], to: Destination) -> Iterator[None]:
    """Raise any error of an upload as PushError, which says that the model is saved and how to finish the push."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # the client raises OSError, ValueError, RuntimeError and errors of its HTTP library
        reason, fix = _reason(error, to.repo)
        raise PushError(
            f"The push to {to.repo} failed: {reason}. {fix} The model is saved in {finish['folder']}."
            f"{' Set HF_TOKEN to the same token.' if to.api.token else ''}",
            finish=finish,
        ) from error


def _finish(folder: str | Path, to: Destination) -> dict[str, str | bool]:
    """Return the options that finish the push of a model."""
    finish: dict[str, str | bool] = {"folder": str(folder), "repo": to.repo}
    if to.branch:
        finish["branch"] = to.branch
    return finish | ({"overwrite": True} if to.overwrite else {})


@contextmanager
def _logged(checkpoint: str, to: Destination) -> Iterator[None]:
    """Log any error of an upload in the background."""
    try:
        yield
    except Exception as error:
        reason, _ = _reason(error, to.repo)
        logger.warning(f"The push of {Path(checkpoint).name} failed: {reason}. Training continues.")


def _reason(error: BaseException, repo: str) -> tuple[str, str]:
    """Return why a request failed, without a period, and what to do about it, as a sentence."""
    while not isinstance(error, HTTPError) and error.__cause__ is not None:
        error = error.__cause__  # the client wraps errors of single files
    status = getattr(getattr(error, "response", None), "status_code", None)
    message = error_line(getattr(error, "server_message", None) or error).rstrip(".")
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set", "Unset it."
    if status == 401:
        return "the token is unknown to the Hub or has expired (401)", TOKEN_HELP
    if status == 403:
        role = " In an organization, you also need a role with write access."
        return f"the token has no write access to {repo} (403: {message})", TOKEN_HELP + role
    if status is not None:
        return f"the Hub answered {status}: {message}", "Try again later." if status in RETRIED else PUSH_AGAIN
    if not isinstance(error, HTTPError):
        return f"{message} ({type(error).__name__})", PUSH_AGAIN
    return f"no connection to the Hub ({type(error).__name__}: {message})", "Check your network and try again."
