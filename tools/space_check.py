"""Push a Space to a Hub on 127.0.0.1, and start it as the Hub would: in a new environment, from its own requirements.

    python -m tools.space_check FOLDER --sentences FILE [--compare FOLDER]

It installs several hundred megabytes. Exit code 0 if the page answers a query.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import httpx
from huggingface_hub import SpaceCard

from tests.hub_server import HubServer

TOKEN = "hf_space_check"
START = 600  # seconds that the Space may take to start


def main() -> int:
    """Push, download, install, start and query a Space. Returns 1 if the page does not answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="Exported model folder.")
    parser.add_argument("--sentences", required=True, metavar="FILE")
    parser.add_argument("--compare", metavar="FOLDER", help="Another exported folder, to compare with.")
    args = parser.parse_args()
    with HubServer() as hub, tempfile.TemporaryDirectory() as work:
        hub.add_user("me", token=TOKEN)
        online = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN}
        environment = os.environ | online | {"HF_HOME": f"{work}/home"}
        push(args, environment)
        space = Path(work, "app")
        for path, content in hub.files("me/space", kind="space").items():
            target = space / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        python = install(space, Path(work, "venv"))
        return 0 if start(python, space, environment) else 1


def push(args: argparse.Namespace, environment: dict[str, str]) -> None:
    """Run `informin push` for the model, its Space and the model to compare with."""
    command = [sys.executable, "-m", "informin", "push"]
    compare = []
    if args.compare:
        subprocess.run([*command, args.compare, "me/base"], env=environment, check=True)
        compare = ["--space_compare", "me/base"]
    space = ["--space", "me/space", "--space_sentences", args.sentences, *compare]
    subprocess.run([*command, args.folder, "me/model", *space], env=environment, check=True)


def install(space: Path, folder: Path) -> Path:
    """Create an environment with the Space's requirements and then Gradio, as the Hub does. Return its Python."""
    sdk = SpaceCard.load(space / "README.md").data.to_dict()
    print(f"Installing requirements.txt and gradio {sdk['sdk_version']}", flush=True)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    subprocess.run([*pip, "-r", "requirements.txt"], cwd=space, check=True)
    subprocess.run([*pip, f"gradio[oauth,mcp]=={sdk['sdk_version']}", "uvicorn>=0.14.0", "spaces"], check=True)
    subprocess.run([str(python), "-m", "pip", "check"], check=False)
    return python


def start(python: Path, space: Path, environment: dict[str, str]) -> bool:
    """Start app.py with the Hub's variables, and return whether it answers a query."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    keep = ("PATH", "HOME", "LANG", "HF_ENDPOINT", "HF_HUB_DISABLE_XET", "HF_HOME")  # and no token
    own = {name: environment[name] for name in keep if name in environment}
    own |= {"GRADIO_SERVER_NAME": "0.0.0.0", "GRADIO_SERVER_PORT": str(port), "GRADIO_NUM_PORTS": "1"}
    own |= {"SYSTEM": "spaces", "SPACE_ID": "me/space", "PYTHONUNBUFFERED": "1", "GRADIO_THEME": "huggingface"}
    process = subprocess.Popen([str(python), "app.py"], cwd=space, env=own)
    begin = time.monotonic()
    try:
        page = wait_for(f"http://127.0.0.1:{port}", process)
        if page is None:
            return False
        print(f"The page is up after {time.monotonic() - begin:.0f} s")
        return query(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(30)


def wait_for(url: str, process: subprocess.Popen) -> str | None:
    """Wait for the page and return it; None if the app ended."""
    end = time.monotonic() + START
    while process.poll() is None and time.monotonic() < end:
        try:
            return httpx.get(url).text
        except httpx.TransportError:
            time.sleep(1)
    return None


def query(url: str) -> bool:
    """Send a query as the page does, and print the first results."""
    with httpx.Client(base_url=f"{url}/gradio_api", timeout=60) as client:
        client.post("/queue/join", json=dict(data=["a boat on the river"], fn_index=0, session_hash="check"))
        events = client.get("/queue/data?session_hash=check").text.splitlines()
    done = [json.loads(line.removeprefix("data:")) for line in events if "process_completed" in line]
    html = done[0]["output"]["data"][0] if done and done[0]["success"] else ""
    found = re.findall(r'<p class="sentence" dir="auto">(.*?)</p>', html)
    print("\n".join(found[:3]))
    return len(found) > 0


if __name__ == "__main__":
    sys.exit(main())
