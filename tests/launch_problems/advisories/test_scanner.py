"""pip-audit reads the zip of ``advisories --osv-zip``, asked for as it asks api.osv.dev."""

import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from preflight.cli.main import run

NON_CUDA = "mooncake-transfer-engine-non-cuda"
# What is installed, and which records are of it: the wheel that needs CUDA's runtime, and Go.
FOUND = {
    f"{NON_CUDA}==0.3.11.post1": {"x_MP-2026-0027"},
    f"{NON_CUDA}==0.3.12": {"x_MP-2026-0002"},
    f"{NON_CUDA}==0.3.13.post1": set(),
    "mooncake-transfer-engine==0.3.8": {"x_MP-2026-0027"},
}


def affects(record: Mapping[str, Any], package: Mapping[str, str], version: str) -> bool:
    """OSV's own evaluation of a version: https://ossf.github.io/osv-schema/#evaluation."""
    for affected in record["affected"]:
        events = [event for each in affected["ranges"] for event in each["events"]]
        if affected["package"] != package:
            continue
        vulnerable = False
        for event in events:
            ((kind, text),) = event.items()
            first = Version("0a0.dev0") if text == "0" else Version(text)
            if kind == "introduced" and Version(version) >= first:
                vulnerable = True
            if kind == "fixed" and Version(version) >= first:
                vulnerable = False
            if kind == "last_affected" and Version(version) > first:
                vulnerable = False
        if vulnerable:
            return True
    return False


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
    """The database behind a URL."""
    file = tmp_path / "all.zip"
    assert run(["explain", "--advisories", "--osv-zip", str(file)]) == 0
    with zipfile.ZipFile(file) as made:
        records = [json.loads(made.read(name)) for name in made.namelist()]

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            hits = [one for one in records if affects(one, asked["package"], asked["version"])]
            body = json.dumps({"vulns": hits} if hits else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/query"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("installed", FOUND)
def test_pip_audit_finds_what_is_bad_by_itself(
    installed: str, service: str, tmp_path: Path
) -> None:
    pytest.importorskip("pip_audit", reason="pip install pip-audit")
    (tmp_path / "requirements.txt").write_text(f"{installed}\n")
    words = "-r requirements.txt --no-deps --disable-pip --format json --progress-spinner off"
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", *words.split(), "-s", "osv", "--osv-url", service],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == int(bool(FOUND[installed])), done.stderr
    (row,) = json.loads(done.stdout)["dependencies"]
    assert f"{row['name']}=={row['version']}" == installed
    assert {one["id"] for one in row["vulns"]} == FOUND[installed]
    for one in row["vulns"]:
        assert one["description"]
