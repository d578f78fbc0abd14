"""From an exported folder to the Hub.

`prepare` finds out, before any training, whether a push can work. One commit then holds the whole folder; a second one
puts the first one's SHA into the examples of the model card.
"""

import logging
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, ModelInfo, get_token
from huggingface_hub.errors import HFValidationError, HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_NAME

from informin.errors import PushError, UsageError, error_line
from informin.files import read_json, sha256, write_json, write_manifest
from informin.publishing.card import CARD, is_edited, write_card
from informin.publishing.export import export_checkpoint
from informin.publishing.published import PUBLISHED, check_export, published_files, refuse_links
from informin.temporary import TemporaryFolder

logger = logging.getLogger(__name__)

CREATION = "initial commit"  # the Hub's, in the name of whoever created the repository
PUSH_FIRST = "Push the model first, without `update_card`."
NAMES = "Use NAME, or USER/NAME with your user name or organization."
RETRIED = (408, 429, 500, 502, 503, 504)  # statuses that may be gone when the request is sent again
TOKEN_HELP = "Create a token with write access in your Hub settings, then run `hf auth login` or set HF_TOKEN."


@dataclass(frozen=True)
class Destination:
    """A repository that can be pushed to, from `prepare`.

    Attributes:
        api: knows the token; None in it stands for the one that is logged in.
        repo: user or organization, slash, name.
        branch: None for main.
        overwrite: consent was given to write over files of others.
    """

    api: HfApi
    repo: str
    branch: str | None = None
    overwrite: bool = False

    @property
    def url(self) -> str:
        return f"{self.api.endpoint}/{self.repo}"


def prepare(
    repo: str,
    private: bool | None = None,
    token: str | None = None,
    branch: str | None = None,
    overwrite: bool = False,
    folder: str | Path | None = None,
    create: bool = True,
) -> Destination:
    """Makes sure that a push can work, and creates the repository where there is none.

    Args:
        repo: user/name, or a name alone for the token's owner.
        private: whether the repository is to be private; None to take it as it is.
        overwrite: consent to write over files that were not put there by this project and this user.
        folder: what will be pushed, where it exists already.
        create: whether the repository may be created.

    Raises:
        UsageError: no token, or one that may not write; a name that the Hub refuses; a repository of somebody else,
            with other files, or public where private was asked for; or the Hub cannot be reached.
    """
    if not (token or get_token()):
        raise UsageError("No Hub token was found", fix=TOKEN_HELP)
    refuse_bad_name(repo)
    api = HfApi(token=token)
    with _refusals(repo):
        user = api.whoami()
        access = user["auth"].get("accessToken") or {}  # none after a login through the browser
        if access.get("role") == "read":
            raise UsageError(f"The token of {user['name']} is read-only", fix=TOKEN_HELP)
        repo = repo if "/" in repo else f"{user['name']}/{repo}"
        if not api.repo_exists(repo):
            if branch:
                raise UsageError(f"{repo} does not exist, so it has no branch {branch}", fix="Push to main first.")
            if not create:
                raise UsageError(f"{repo} does not exist", fix=PUSH_FIRST)
            api.create_repo(repo, private=private)
            logger.info(f"Created the {'private ' if private else ''}repository {api.endpoint}/{repo}")
        api.auth_check(repo, write=True)
        info = api.model_info(repo, revision=branch)
        if private and not info.private:
            raise UsageError(f"{repo} is public", needed="a private repository", fix="Choose another name.")
        if not overwrite:
            _refuse_foreign_files(api, info, user["name"], branch, folder)
    return Destination(api, repo, branch, overwrite)


def refuse_bad_name(repo: str) -> None:
    """UsageError for what no repository can be called, which must not get into a card either."""
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UsageError(f"{repo!r} is not a valid repository name: {error_line(error)}", fix=NAMES) from None


def push_folder(folder: str | Path, to: Destination, message: str = "Upload model") -> str:
    """Uploads an exported folder. Returns the page's address.

    Raises:
        UsageError: the folder is no export, or its weights are no finite numbers.
        PushError: the upload failed; it says how to finish it.
    """
    check_export(folder)
    if not write_card(folder, to.repo):
        logger.info(f"{folder}/{CARD} was edited by hand, and goes up as it is.")
    with _failures(folder, to):
        commit = _upload_model(to, folder, message)
        if write_card(folder, to.repo, commit.oid):
            _upload(to, folder, "Model card: pin the commit that holds the weights", allow_patterns=[CARD])
    return to.url


def push_card(folder: str | Path, to: Destination) -> str:
    """Uploads the card and the results of an exported folder, no weights. Returns the page's address.

    Raises:
        UsageError: the repository holds other weights than the folder.
        PushError: the upload failed.
    """
    check_export(folder)
    folder = Path(folder)
    with _failures(folder, to, update_card=True):
        info = to.api.model_info(to.repo, revision=to.branch, files_metadata=True)
        held = {sibling.rfilename: sibling.lfs for sibling in info.siblings}.get(SAFE_WEIGHTS_NAME)
        if held is None or held.sha256 != sha256(folder / SAFE_WEIGHTS_NAME):
            raise UsageError(
                f"{to.repo} does not have the weights of {folder}, which the card describes", fix=PUSH_FIRST
            )
        write_card(folder, to.repo, info.sha)
        names = [path.as_posix() for path in card_files(folder)]
        _upload(to, folder, "Update model card and results", allow_patterns=names)
    return to.url


def card_files(folder: str | Path) -> list[Path]:
    """The published files that change with new results, relative to the folder."""
    return [path for path in published_files(folder) if path.name == CARD or path.parts[0] == "results"]


def push_in_background(checkpoint: str, to: Destination, message: str, state_as: str | None) -> Future:
    """Uploads a checkpoint of a running training, exported. A failure is logged: training goes on.

    Args:
        state_as: the repository's folder for the checkpoint itself, optimizer state included; None to leave it out.
    """
    staging = TemporaryFolder()
    exported, state = Path(staging.name, "export"), Path(staging.name, "checkpoint")

    def upload():
        with staging, _failures_logged(checkpoint, to):
            _upload_model(to, exported, message)
            if state_as:
                _upload(to, state, f"{message}, checkpoint", path_in_repo=state_as)

    with _failures_logged(checkpoint, to):
        refuse_links(checkpoint, ["*"])
        export_checkpoint(checkpoint, exported)
        write_card(exported, to.repo)
        if state_as:
            _copy_checkpoint(Path(checkpoint), state)
        return to.api.run_as_future(upload)
    return to.api.run_as_future(staging.cleanup)


def _copy_checkpoint(checkpoint: Path, folder: Path) -> None:
    """What lies still while it is uploaded: the Trainer may delete the checkpoint before. No path of this machine."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:  # another file system
            shutil.copyfile(source, target)

    shutil.copytree(checkpoint, folder, copy_function=link)
    path = folder / TRAINER_STATE_NAME
    state = read_json(path)
    if state["best_model_checkpoint"]:
        state["best_model_checkpoint"] = Path(state["best_model_checkpoint"]).name
    write_json(path, state, indent=2, allow_nan=True)  # a new file: the one that it was a link to is as it was
    write_manifest(folder)


def _upload_model(to: Destination, folder: str | Path, message: str):
    """One commit of what is published; what the repository has of that, and the folder has not, is removed in it."""
    names = [path.as_posix() for path in published_files(folder)]
    return _upload(to, folder, message, allow_patterns=names, delete_patterns=list(PUBLISHED))


def _upload(to: Destination, folder: str | Path, message: str, **options):
    return to.api.upload_folder(
        repo_id=to.repo, revision=to.branch, folder_path=folder, commit_message=message, **options
    )


def _refuse_foreign_files(api: HfApi, info: ModelInfo, user: str, branch: str | None, folder) -> None:
    """A repository may hold nothing, or what this user pushed with this project."""
    held = [sibling.rfilename for sibling in info.siblings if sibling.rfilename != ".gitattributes"]
    if not held:
        return

    def fetched(name: str) -> Path:
        return Path(api.hf_hub_download(info.id, name, revision=info.sha))

    commits = api.list_repo_commits(info.id, revision=branch)
    authors = {author for commit in commits if commit.title != CREATION for author in commit.authors}
    try:
        ours = "config.json" in held and "informin" in read_json(fetched("config.json"))
    except UsageError:
        ours = False
    if not ours:
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


@contextmanager
def _refusals(repo: str) -> Iterator[None]:
    """The Hub's answers to `prepare` as errors of use."""
    try:
        yield
    except (HTTPError, OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
        reason, fix = _reason(error, repo)
        raise UsageError(f"Cannot push to {repo}: {reason}", fix=fix) from None


@contextmanager
def _failures(folder: str | Path, to: Destination, update_card: bool = False) -> Iterator[None]:
    """Whatever goes wrong in an upload, the model is safe and the user is told how to finish."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # the client raises OSError, ValueError, RuntimeError and its transport's own
        reason, fix = _reason(error, to.repo)
        options = {"branch": to.branch, "overwrite": to.overwrite, "update_card": update_card}
        raise PushError(
            f"The push to {to.repo} failed: {reason}. {fix} The model is saved in {folder}."
            f"{' Set HF_TOKEN to the same token.' if to.api.token else ''}",
            finish={"folder": str(folder), "repo": to.repo} | {name: value for name, value in options.items() if value},
        ) from error


@contextmanager
def _failures_logged(checkpoint: str, to: Destination) -> Iterator[None]:
    """For what goes on beside the training."""
    try:
        yield
    except Exception as error:  # nobody waits for the upload: whatever it was is said here
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
        return (
            f"the Hub answered {status}: {message}",
            "Try again later." if status in RETRIED else "Fix the problem and push again.",
        )
    if not isinstance(error, HTTPError):
        return f"{message} ({type(error).__name__})", "Fix the problem and push again."
    return f"no connection to the Hub ({type(error).__name__}: {message})", "Check your network and try again."
