"""A hub on this machine that speaks what Hugging Face's and ModelScope's speak, over real HTTP."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

REPO = "voices/tiny"
TOKEN = "hf_secretTokenOfTheTest"


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub:
    """`files` of one repository; `commit` is what its branches are at."""

    def __init__(self) -> None:
        self.files = {
            "cosyvoice2.yaml": b"sample_rate: 24000\n",
            "llm.pt": bytes(range(256)) * 4000,
            "sub/vocab.json": b"{}",
            "flow.decoder.estimator.fp32.onnx": b"never read by a worker",
        }
        self.commit = "1" * 40
        self.private = False
        self.corrupt: set[str] = set()
        self.cut_after: dict[str, int] = {}
        """Path -> bytes after which the connection breaks, each time."""
        self.asked: list[tuple[str, str]] = []
        """(path, Range) of every download."""
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        path, query = unquote(url.path), parse_qs(url.query)
        if self.private and request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._send(request, 401, b"{}", {"X-Error-Code": "RepoNotFound"})
        if path.startswith(f"/api/models/{REPO}"):
            revision = path.removeprefix(f"/api/models/{REPO}").removeprefix("/revision/") or "main"
            if revision not in ("main", self.commit):
                return self._send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return self._send(request, 200, json.dumps(self._huggingface()).encode())
        if path.startswith(f"/{REPO}/resolve/"):
            commit, _, name = path.removeprefix(f"/{REPO}/resolve/").partition("/")
            return self._download(request, name) if commit == self.commit else self._send(request, 404, b"")
        if path == f"/api/v1/models/{REPO}/repo/files":
            return self._send(request, 200, json.dumps(self._modelscope()).encode())
        if path == f"/api/v1/models/{REPO}/repo" and query["Revision"] == [self.commit]:
            return self._download(request, query["FilePath"][0])
        return self._send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _huggingface(self) -> dict[str, Any]:
        siblings = []
        for name, content in self.files.items():
            sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_sha1(content)}
            if name.endswith((".pt", ".onnx")):
                digest = hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(sibling)
        return {"id": REPO, "sha": self.commit, "siblings": siblings}

    def _modelscope(self) -> dict[str, Any]:
        files = [{"Path": "sub", "Type": "tree", "Size": 0, "Revision": self.commit}]
        for name, content in self.files.items():
            digest = hashlib.sha256(content).hexdigest()
            revision = self.commit if name == "llm.pt" else "0" * 40
            files.append({"Path": name, "Type": "blob", "Size": len(content), "Sha256": digest, "Revision": revision})
        data = {"Files": files, "LatestCommitter": {"ShortId": self.commit[:8]}}
        return {"Code": 200, "Success": True, "Data": data}

    def _download(self, request: http.server.BaseHTTPRequestHandler, name: str) -> None:
        content = self.files[name]
        if name in self.corrupt:
            content = content[:-1] + b"?"
        wanted = request.headers.get("Range", "")
        self.asked.append((name, wanted))
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if wanted else {}
        self._send(request, 206 if wanted else 200, content[start:], headers, self.cut_after.get(name))

    def _send(
        self,
        request: http.server.BaseHTTPRequestHandler,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        cut_after: int | None = None,
    ) -> None:
        request.send_response(status)
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[:cut_after])
        if cut_after is not None and cut_after < len(body):
            request.close_connection = True
