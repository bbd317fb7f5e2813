"""``tutti push`` against a stand-in of the hub on loopback."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Hub(BaseHTTPRequestHandler):
    """What of the hub's HTTP API an upload takes. Large files go to its store by their hash."""

    files: dict[str, bytes]
    made: list[dict]
    store: dict[str, bytes]

    def log_message(self, *_: object) -> None:
        pass

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, content: object, code: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer({"id": "me/mood", "sha": "0" * 40, "siblings": [], "private": True})

    def do_PUT(self) -> None:
        self.store[self.path.rpartition("/")[2]] = self._body()
        self._answer({})

    def do_POST(self) -> None:
        body = self._body()
        if self.headers.get("Authorization") != "Bearer right":
            self._answer({"error": "no such token"}, 401)
        elif self.path == "/api/repos/create":
            self.made.append(json.loads(body))
            self._answer({"url": f"{self.server.address}/me/mood", "id": "me/mood"})
        elif "/preupload/" in self.path:
            names = [each["path"] for each in json.loads(body)["files"]]
            sizes = ["lfs" if name.endswith(".safetensors") else "regular" for name in names]
            modes = [
                {"path": name, "uploadMode": size, "shouldIgnore": False}
                for name, size in zip(names, sizes, strict=True)
            ]
            self._answer({"files": modes})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**each, "actions": {"upload": {"href": f"{self.server.address}/store/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            self._answer({"transfer": "basic", "objects": objects})
        else:
            for line in map(json.loads, body.decode().splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    self.files[value["path"]] = self.store[value["oid"]]
            address = f"{self.server.address}/me/mood/commit/{'1' * 40}"
            self._answer({"commitUrl": address, "commitOid": "1" * 40, "success": True})


@pytest.fixture
def hub():
    Hub.files, Hub.made, Hub.store = {}, [], {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "bundle" / "members").mkdir(parents=True)
    (tmp_path / "bundle" / "bundle.json").write_text("{}")
    (tmp_path / "bundle" / "members" / "model.safetensors").write_bytes(b"weights" * 1000)
    return tmp_path / "bundle"


def push(hub, folder, *, token: str = "right") -> subprocess.CompletedProcess:
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.address,
        "HF_TOKEN": token,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    command = [sys.executable, "-m", "tutti", "push", str(folder), "me/mood"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)


def test_a_folder_is_pushed_to_a_new_private_repository(hub, folder):
    done = push(hub, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"pushed to {hub.address}/me/mood/commit/" in done.stdout.replace("\n", "")
    assert {name: hashlib.sha256(content).hexdigest() for name, content in Hub.files.items()} == {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file()
    }
    assert Hub.made[0].get("visibility") == "private" or Hub.made[0]["private"] is True


def test_a_hub_that_refuses_is_told_in_a_sentence(hub, folder):
    done = push(hub, folder, token="wrong")
    assert done.returncode == 2
    assert "log in with `hf auth login`" in done.stderr
    assert not Hub.files
    hub.shutdown()


def test_a_folder_that_was_not_exported_is_not_pushed(hub, tmp_path):
    done = push(hub, tmp_path)
    assert done.returncode == 2
    assert "must be a folder that `tutti export` wrote" in done.stderr
    assert not Hub.made
