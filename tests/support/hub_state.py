"""What tests/support/hub_server.py stores: files, commits, repositories and tokens, with the Hub's rules for them."""

import base64
import codecs
import hashlib
from dataclasses import dataclass, field
from datetime import datetime, timezone

import yaml
from huggingface_hub import ModelCardData
from huggingface_hub.repocard import REGEX_YAML_BLOCK

LFS_SUFFIXES = (".safetensors", ".onnx", ".bin")
LFS_SIZE = 10_000_000  # bytes; anything larger is LFS
GITATTRIBUTES = "".join(f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LFS_SUFFIXES).encode()


class HubError(Exception):
    """A refusal. The client chooses its exception by `code`, the X-Error-Code header, or else by the status."""

    def __init__(self, status: int, message: str, code: str | None = None, headers: dict | None = None, **content):
        super().__init__(message)
        self.status, self.content = status, {"error": message} | content
        line = message.encode("ascii", "replace").decode()
        self.headers = {"X-Error-Message": line} | ({"X-Error-Code": code} if code else {}) | (headers or {})


class Blob:
    """The bytes of a file, and the hashes that identify it on the Hub."""

    def __init__(self, content: bytes, lfs: bool):
        self.content, self.lfs = content, lfs
        sha256, size = hashlib.sha256(content).hexdigest(), len(content)
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
        stored = pointer if lfs else content
        self.git = hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()
        self.etag = sha256 if lfs else self.git
        self.info = {"size": size}
        if lfs:
            self.info["lfs"] = {"oid": sha256, "sha256": sha256, "size": size, "pointerSize": len(pointer)}


@dataclass
class Commit:
    sha: str
    parent: str | None
    author: str
    title: str
    message: str
    files: dict[str, Blob]
    changed: list[str]  # paths that are new, different or removed
    date: str = field(default_factory=lambda: datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z"))


@dataclass
class Repo:
    kind: str  # model or dataset
    name: str
    creator: str
    private: bool
    branches: dict[str, str] = field(default_factory=dict)
    pulls: list[str] = field(default_factory=list)  # branches of pull requests
    history: dict[str, Commit] = field(default_factory=dict)
    lfs: dict[str, bytes] = field(default_factory=dict)  # by sha256

    def at(self, revision: str) -> Commit:
        """Return the commit of a branch or a full SHA."""
        sha = self.branches.get(revision, revision)
        if sha not in self.history:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.history[sha]

    def log(self, revision: str) -> list[Commit]:
        """Return the commits, newest first."""
        commits = [self.at(revision)]
        while commits[-1].parent is not None:
            commits.append(self.history[commits[-1].parent])
        return commits

    def append(self, branch: str, files: dict[str, Blob], author: str, title: str, message: str = "") -> str:
        """Add a commit with exactly these files to the branch."""
        parent = self.branches.get(branch)
        before = {(path, blob.etag) for path, blob in self.history[parent].files.items()} if parent else set()
        after = {(path, blob.etag) for path, blob in files.items()}
        sha = hashlib.sha1(repr((parent, sorted(after), author, title, len(self.history))).encode()).hexdigest()
        changed = sorted({path for path, _ in before ^ after})
        self.lfs |= {blob.etag: blob.content for blob in files.values() if blob.lfs}
        self.history[sha] = Commit(sha, parent, author, title, message, dict(files), changed)
        self.branches[branch] = sha
        return sha


@dataclass
class Token:
    user: str
    role: str
    orgs: dict[str, str]
    scopes: tuple[str, ...]  # namespaces and repositories that a fineGrained token covers

    def rank(self, name: str) -> str | None:
        """Return the user's role in the namespace of a repository; None outside it and outside the token's scopes."""
        namespace = name.split("/")[0]
        if self.role == "fineGrained" and not {namespace, name} & set(self.scopes):
            return None
        return "admin" if namespace == self.user else self.orgs.get(namespace)

    def may_write(self, name: str, creator: str) -> bool:
        rank = self.rank(name)
        return self.role != "read" and (rank in ("admin", "write") or (rank == "contributor" and creator == self.user))


def apply(key: str, value: dict, files: dict[str, Blob], uploads: dict[str, bytes]) -> None:
    """Apply one operation of a commit to `files`."""
    path = value["path"]
    if key == "file":
        files[path] = Blob(base64.b64decode(value["content"]), lfs=False)
    elif key == "lfsFile":
        if value["oid"] not in uploads:
            raise HubError(400, f"Your push was rejected: {path} is an LFS pointer to a file that does not exist")
        files[path] = Blob(uploads[value["oid"]], lfs=True)
    else:  # deletedFile, deletedFolder
        is_folder = key == "deletedFolder"  # its path ends with /
        removed = [name for name in files if (name.startswith(path) if is_folder else name == path)]
        if not removed:
            raise HubError(404, "A file with this name doesn't exist", "EntryNotFound")
        for name in removed:
            del files[name]


def is_lfs(path: str, size: int, sample: bytes) -> bool:
    """Return whether the Hub stores a file in LFS; `sample` is its first 512 bytes."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)  # the sample may end within a character
    except UnicodeDecodeError:
        return True
    return size > LFS_SIZE or path.endswith(LFS_SUFFIXES)


def read_card(content: bytes) -> tuple[dict, str | None]:
    """Return the metadata of a README.md, and what is wrong with it. The Hub itself checks more."""
    block = REGEX_YAML_BLOCK.search(content.decode(errors="replace"))
    try:
        card = (yaml.safe_load(block[2]) or {}) if block else {}
        ModelCardData(**card)
    except (TypeError, ValueError, yaml.YAMLError) as error:
        return {}, "Invalid metadata: " + " ".join(str(error).split())
    return card, None if isinstance(card.get("license", ""), str) else '"license" must be a string'


def space_error(card: dict, files: dict[str, Blob]) -> str | None:
    """Return why a Space with this metadata could not be built."""
    if card.get("sdk") not in ("gradio", "docker", "static"):
        return "Missing configuration in README: sdk"
    if len(card.get("short_description", "")) > 60:
        return "short_description is longer than 60 characters"
    if card["sdk"] == "gradio" and card.get("app_file", "app.py") not in files:
        return f"{card.get('app_file', 'app.py')} does not exist"
    return None
