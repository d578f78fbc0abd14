"""A small Hub on 127.0.0.1: enough of the HuggingFace Hub's HTTP protocol for the real client to create, push and pull.

    with HubServer() as hub:
        hub.add_user("alice", token="hf_alice", role="write", orgs={"team": "write"})
        hub.add_repo("org/tiny", {"config.json": b"{}"}, author="someone")
        ...  # the client, with HF_ENDPOINT=hub.url, HF_TOKEN=hf_alice and HF_HUB_DISABLE_XET=1
        assert "model.safetensors" in hub.files("alice/m")

By hand: python -m tests.support.hub_server --port 8123 --user alice:hf_alice

It keeps real bytes in memory: regular files under git's hash, LFS files under a sha256 that it computes itself.
Spaces are repositories with files; nothing starts them.
Not here: Xet, multipart uploads, pull requests, gated repositories, tags, git.

How often an injected failure must happen until the user sees it (huggingface_hub 2.4):
* whoami, create_repo, repo_info, auth_check, refs, branches, paths-info, validate-yaml, commit: once.
* preupload, LFS batch, LFS upload (PUT), LFS verify, tree, commits: 6 times, if it is 408, 429, 500, 502, 503, 504 or a
  lost connection; once otherwise. No variable shortens the waits of 1, 2, 4, 8 and 8 s. The Retry-After of the failures
  here makes them 1 s each; a cut connection carries none: replace `time` in huggingface_hub.utils._http.
* HEAD of a file: 7 times at those statuses (once if the file is in the cache, and then nobody sees it); a lost
  connection: once. GET of a file: 6 times at 408, 429 and lost connections, 1 s apart; 5xx: once.
"""

import argparse
import base64
import hashlib
import json
import re
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.hub_state import (
    GITATTRIBUTES,
    Blob,
    Commit,
    HubError,
    Repo,
    Token,
    apply,
    is_lfs,
    read_card,
    space_error,
)

NAME = re.compile(r"(?!.*(--|\.\.))(?!.*\.(git|ipynb)$)\w([\w.-]{0,94}\w)?", re.ASCII)
NAME_RULE = (
    "Only regular characters and '-', '_', '.' are accepted. '--' and '..' are forbidden. '-' and '.' cannot start or "
    'end the name. The name cannot end with ".git" or ".ipynb". Max length is 96.'
)
API = r"/api/(?P<kind>model|dataset|space)s/(?P<name>[^/]+(?:/[^/]+)??)"
WEB = r"/(?:(?P<kind>dataset|space)s/)?(?P<name>[^/]+(?:/[^/]+)??)"
REVISION = "/(?P<revision>[^/]+)"
ROUTES = [  # method, path, Handler's method; the first match is used
    ("GET", "/api/whoami-v2", "whoami"),
    ("POST", "/api/repos/create", "create"),
    ("POST", "/api/validate-yaml", "validate_yaml"),
    ("GET", f"{API}/auth-check", "may_read"),
    ("GET", f"{API}/auth-check/write", "may_write"),
    ("GET", f"{API}/revision{REVISION}", "info"),
    ("GET", f"{API}/tree{REVISION}(?:/(?P<path>.+))?", "tree"),
    ("POST", f"{API}/paths-info{REVISION}", "paths_info"),
    ("GET", f"{API}/commits{REVISION}", "commits"),
    ("GET", f"{API}/refs", "refs"),
    ("POST", f"{API}/branch/(?P<branch>[^/]+)", "create_branch"),
    ("POST", f"{API}/preupload{REVISION}", "preupload"),
    ("POST", f"{API}/commit{REVISION}", "commit"),
    ("GET", API, "info"),
    ("POST", rf"{WEB}\.git/info/lfs/objects/batch", "lfs_batch"),
    ("PUT", "/lfs-upload/(?P<ticket>[^/]+)/(?P<oid>[^/]+)", "lfs_upload"),
    ("POST", rf"{WEB}\.git/info/lfs/objects/verify", "lfs_verify"),
    ("HEAD", f"{WEB}/resolve{REVISION}/(?P<path>.+)", "resolve"),
    ("GET", f"{WEB}/resolve{REVISION}/(?P<path>.+)", "resolve"),
]
SDKS = ("gradio", "docker", "static")  # of Spaces
NEED_WRITE = {"may_write", "create_branch", "preupload", "commit"}  # LFS uploads of pull requests look like others


class HubServer:
    """Serves requests from a thread within its `with` block."""

    def __init__(self, port: int = 0):
        self.requests: list[tuple[str, str]] = []  # method and path with the query, in order
        self.failures: list[tuple[str, str, int, bool]] = []
        self.tokens: dict[str, Token] = {}
        self.repos: dict[tuple[str, str], Repo] = {}
        self.tickets: dict[str, Repo] = {}  # uploads have no token: anyone with the URL may use it
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", port), type("Bound", (Handler,), {"hub": self}))
        self.server.socket.listen(64)  # 5 by default: the threads of one download would wait for each other
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.server.shutdown()
        self.server.server_close()

    def add_user(self, name: str, token: str, role="write", orgs: dict[str, str] | None = None, scopes=()) -> None:
        """Add a user. `role` is read, write or fineGrained; `orgs` has read, contributor, write or admin for each."""
        self.tokens[token] = Token(name, role, orgs or {}, tuple(scopes))

    def add_repo(self, name: str, files: dict[str, bytes], kind="model", author="someone", private=False) -> str:
        """Add a repository with exactly these files in one commit, and return its SHA."""
        self.repos[kind, name] = Repo(kind, name, author, private)
        return self.commit(name, files, kind=kind, author=author, title="Add files")

    def commit(self, name: str, changes: dict[str, bytes | None], kind="model", author="someone", title="Edit") -> str:
        """Commit to main without the client, and return the SHA. None as content removes a file."""
        with self.lock:
            repo = self.repos[kind, name]
            files = dict(repo.at("main").files) if repo.history else {}
            for path, content in changes.items():
                if content is None:
                    del files[path]
                else:
                    files[path] = Blob(content, is_lfs(path, len(content), content[:512]))
            return repo.append("main", files, author, title)

    def files(self, name: str, revision="main", kind="model") -> dict[str, bytes]:
        return {path: blob.content for path, blob in self.repos[kind, name].at(revision).files.items()}

    def commits(self, name: str, revision="main", kind="model") -> list[Commit]:
        """Return the commits, newest first."""
        return self.repos[kind, name].log(revision)

    def fail(self, method: str, pattern: str, status: int = 500, *, cut: bool = False, times: int = 1) -> None:
        """Make the next matching requests of this method fail with this status, or cut their connection.

        A request with a body is cut in the middle of the body and changes nothing. Others are cut in the response.
        """
        self.failures += [(method, pattern, status, cut)] * times

    def next_failure(self, command: str, path: str) -> tuple[int | None, bool]:
        with self.lock:
            for i, (method, pattern, status, cut) in enumerate(self.failures):
                if method == command and re.search(pattern, path):
                    del self.failures[i]
                    return None if cut else status, cut
        return None, False


class Handler(BaseHTTPRequestHandler):
    """Each method in ROUTES returns the content of its response, or status, content and headers."""

    hub: HubServer

    def do(self) -> None:
        self.hub.requests.append((self.command, self.path))
        status, self.cut = self.hub.next_failure(self.command, self.path)
        length = int(self.headers.get("Content-Length", 0))
        self.body = self.rfile.read(length // 2 if self.cut else length)
        if len(self.body) < length:  # cut here or by the client
            return
        try:
            if status is not None:
                raise HubError(status, HTTPStatus(status).phrase, headers={"Retry-After": "0"})
            answer = self.route()
            self.send(*(answer if isinstance(answer, tuple) else (200, answer, {})))
        except HubError as error:
            self.send(error.status, error.content, error.headers)

    do_GET = do_HEAD = do_POST = do_PUT = do

    def log_message(self, *_) -> None:
        pass

    def send(self, status: int, content: dict | list | bytes, headers: dict[str, str]) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        if self.cut and self.command == "HEAD":
            return
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if self.cut else body)

    def route(self):
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        self.token = self.read_token()
        for method, pattern, name in ROUTES:
            if method == self.command and (match := re.fullmatch(pattern, url.path)):
                given = {key: unquote(value) for key, value in match.groupdict().items() if value is not None}
                if "name" in given:
                    write = self.needs_write(name, given)
                    given["repo"] = self.find(given.pop("kind", "model"), given.pop("name"), write)
                return getattr(self, name)(**given)
        raise HubError(404, f"This server does not know {self.command} {url.path}")

    def needs_write(self, name: str, given: dict[str, str]) -> bool:
        """Return whether a request needs write access: anybody who may read a repository may open a pull request."""
        proposed = self.query.get("create_pr") or given.get("revision", "").startswith("refs/pr/")
        return name in NEED_WRITE and not proposed

    def read_token(self) -> Token | None:
        header = self.headers.get("Authorization")
        if header is not None and header.removeprefix("Bearer ") not in self.hub.tokens:
            raise HubError(401, "Invalid credentials in Authorization header")
        return None if header is None else self.hub.tokens[header.removeprefix("Bearer ")]

    def known(self) -> Token:
        if self.token is None:
            raise HubError(401, "Invalid username or password.")
        return self.token

    def find(self, kind: str, name: str, write: bool) -> Repo:
        repo = self.hub.repos.get((kind, name))
        if repo is None or (repo.private and (self.token is None or self.token.rank(name) is None)):
            if self.token is None:  # does not reveal whether it exists
                raise HubError(401, "Invalid username or password.", "RepoNotFound")
            raise HubError(404, "Repository not found", "RepoNotFound")
        if write and not self.known().may_write(name, repo.creator):
            raise HubError(403, "Authorization error.")
        return repo

    def url_of(self, repo: Repo) -> str:
        return f"{self.hub.url}/{'' if repo.kind == 'model' else f'{repo.kind}s/'}{repo.name}"

    # Reading

    def whoami(self):
        token = self.known()
        access = {"displayName": "test", "role": token.role, "createdAt": "2026-01-01T00:00:00.000Z"}
        if token.role == "fineGrained":
            kinds = {name: "model" if "/" in name else "org" if name in token.orgs else "user" for name in token.scopes}
            scoped = [
                {"entity": {"type": kind, "name": name}, "permissions": ["repo.content.read", "repo.write"]}
                for name, kind in kinds.items()
            ]
            access["fineGrained"] = {"canReadGatedRepos": False, "global": [], "scoped": scoped}
        orgs = [{"type": "org", "name": name, "roleInOrg": role} for name, role in token.orgs.items()]
        auth = {"type": "access_token", "accessToken": access}
        return {"type": "user", "name": token.user, "fullname": token.user, "orgs": orgs, "auth": auth}

    def may_read(self, repo):
        return {}

    may_write = may_read  # find() has checked

    def info(self, repo, revision="main"):
        commit = repo.at(revision)
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        if self.query.get("blobs"):
            for sibling in siblings:
                blob = commit.files[sibling["rfilename"]]
                sibling |= {"blobId": blob.git, **blob.info}
        card = commit.files.get("README.md")
        info = {"id": repo.name, "author": repo.name.split("/")[0], "sha": commit.sha, "lastModified": commit.date}
        info |= {"private": repo.private, "gated": False, "disabled": False, "siblings": siblings, "tags": []}
        return info | {"cardData": card and read_card(card.content)[0]}

    def entries(self, repo: Repo, revision: str) -> dict[str, dict]:
        """Files and folders by their path."""
        entries = {}
        for path, blob in sorted(repo.at(revision).files.items()):
            for slash in re.finditer("/", path):
                folder = path[: slash.start()]
                entries[folder] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder}
            entries[path] = {"type": "file", "oid": blob.git, "path": path, **blob.info}
        return entries

    def tree(self, repo, revision, path=None):
        entries = self.entries(repo, revision)
        if path is not None and path not in entries:
            raise HubError(404, f"{path} does not exist on {revision}", "EntryNotFound")
        prefix = f"{path}/" if path else ""
        below = {name.removeprefix(prefix): entry for name, entry in entries.items() if name.startswith(prefix)}
        return [entry for name, entry in below.items() if "/" not in name or self.query.get("recursive") == ["true"]]

    def paths_info(self, repo, revision):
        entries = self.entries(repo, revision)
        return [entries[path] for path in parse_qs(self.body.decode())["paths"] if path in entries]

    def commits(self, repo, revision):
        return [
            {"id": c.sha, "title": c.title, "message": c.message, "authors": [{"user": c.author}], "date": c.date}
            for c in repo.log(revision)
        ]

    def refs(self, repo):
        heads = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": sha} for n, sha in repo.branches.items()]
        return {"branches": heads, "converts": [], "tags": []}

    def resolve(self, repo, revision, path):
        commit = repo.at(revision)
        headers = {"X-Repo-Commit": commit.sha, "Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
        blob = commit.files.get(path)
        if blob is None:
            raise HubError(404, "Entry not found", "EntryNotFound", headers={"X-Repo-Commit": commit.sha})
        etag, size = f'"{blob.etag}"', len(blob.content)
        headers |= {"ETag": etag} | ({"X-Linked-Etag": etag, "X-Linked-Size": str(size)} if blob.lfs else {})
        part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if part is None:
            return 200, blob.content, headers
        start, end = int(part[1]), min(int(part[2] or size), size - 1)
        return 206, blob.content[start : end + 1], headers | {"Content-Range": f"bytes {start}-{end}/{size}"}

    # Writing

    def create(self):
        asked, token = json.loads(self.body), self.known()
        kind, namespace = asked.get("type", "model"), asked.get("organization") or token.user
        if not NAME.fullmatch(asked["name"]):
            raise HubError(400, NAME_RULE)
        repo = Repo(kind, f"{namespace}/{asked['name']}", token.user, asked.get("visibility") == "private")
        if not token.may_write(repo.name, token.user):
            raise HubError(403, f'You don\'t have the rights to create a {kind} under the namespace "{namespace}"')
        if (kind, repo.name) in self.hub.repos:
            raise HubError(409, f"You already created this {kind} repo", url=self.url_of(repo))
        files = {".gitattributes": GITATTRIBUTES}
        if kind == "space":
            if asked.get("sdk") not in SDKS:
                raise HubError(400, f'"sdk" must be one of {", ".join(SDKS)}')
            files["README.md"] = f"---\ntitle: {asked['name']}\nsdk: {asked['sdk']}\n---\n".encode()
        initial = {path: Blob(content, lfs=False) for path, content in files.items()}
        repo.append("main", initial, token.user, "initial commit")
        self.hub.repos[kind, repo.name] = repo
        return {"url": self.url_of(repo), "name": repo.name}

    def validate_yaml(self):
        card, error = read_card(json.loads(self.body)["content"].encode())
        if error:
            raise HubError(400, error, errors=[{"message": error}], warnings=[])
        return {"errors": [], "warnings": [] if card else [{"message": "empty or missing yaml metadata in repo card"}]}

    def create_branch(self, repo, branch):
        if branch in repo.branches:
            raise HubError(409, "Reference already exists")
        repo.branches[branch] = repo.at(json.loads(self.body).get("startingPoint", "main")).sha
        return {}

    def preupload(self, repo, revision):
        known, answers = repo.at(revision).files, []
        for file in json.loads(self.body)["files"]:
            lfs = is_lfs(file["path"], file["size"], base64.b64decode(file["sample"]))
            answers.append({"path": file["path"], "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False})
            if file["path"] in known:
                answers[-1]["oid"] = known[file["path"]].etag
        return {"files": answers}

    def lfs_batch(self, repo):
        objects = [{"oid": asked["oid"], "size": asked["size"]} for asked in json.loads(self.body)["objects"]]
        for entry in objects:
            if entry["oid"] not in repo.lfs:  # without actions, the client considers it uploaded
                ticket = secrets.token_hex(8)
                self.hub.tickets[ticket] = repo
                verify = f"{self.url_of(repo)}.git/info/lfs/objects/verify"
                upload = f"{self.hub.url}/lfs-upload/{ticket}/{entry['oid']}"
                entry["actions"] = {"upload": {"href": upload}, "verify": {"href": verify}}
        return {"transfer": "basic", "objects": objects}

    def lfs_upload(self, ticket, oid):
        if ticket not in self.hub.tickets:
            raise HubError(403, "This URL is not one that the batch answer gave")
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise HubError(400, "The content has another sha256 than announced")
        self.hub.tickets[ticket].lfs[oid] = self.body
        return {}

    def lfs_verify(self, repo):
        asked = json.loads(self.body)
        if len(repo.lfs.get(asked["oid"], b"")) != asked["size"]:
            raise HubError(404, "No upload of this sha256 and size")
        return {}

    def commit(self, repo, revision):
        header, *operations = [json.loads(line) for line in self.body.splitlines()]
        with self.hub.lock:  # everything or nothing
            head, parent = repo.at(revision), header["value"].get("parentCommit")
            if revision not in repo.branches:
                raise HubError(501, "This server takes commits to branches only")
            if proposed := self.query.get("create_pr"):
                repo.branches[f"refs/pr/{len(repo.pulls) + 1}"] = head.sha
                repo.pulls.append(revision := f"refs/pr/{len(repo.pulls) + 1}")
            if parent is not None and not head.sha.startswith(parent):
                raise HubError(412, "A commit has happened since. Please refresh and try again.")
            files = dict(head.files)
            for operation in operations:
                apply(operation["key"], operation["value"], files, repo.lfs)
            card = files.get("README.md")
            if card and card is not head.files.get("README.md"):
                metadata, error = read_card(card.content)
                if error := error or (repo.kind == "space" and space_error(metadata, files)):
                    raise HubError(400, error)
            title, message = header["value"]["summary"], header["value"]["description"]
            sha = repo.append(revision, files, self.token.user, title, message)
        pull = {"pullRequestUrl": f"{self.url_of(repo)}/discussions/{len(repo.pulls)}"} if proposed else {}
        return {"success": True, "commitOid": sha, "commitUrl": f"{self.url_of(repo)}/commit/{sha}"} | pull


def main() -> None:
    parser = argparse.ArgumentParser(description="A small Hub on 127.0.0.1, in memory, until Ctrl-C.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--user", action="append", default=[], metavar="NAME:TOKEN", help="may be given again")
    options = parser.parse_args()
    with HubServer(options.port) as hub:
        for user in options.user:
            hub.add_user(*user.split(":"))
        print(f"HF_ENDPOINT={hub.url} HF_HUB_DISABLE_XET=1", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
