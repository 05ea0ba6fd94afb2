"""Container runs as the real docker command line reads them: it is asked what it would create."""

from __future__ import annotations

import http.server
import json
import shlex
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from preflight.launches.container import ContainerSettings
from preflight.launches.container_run import container_run
from preflight.launches.source import Origin, SourceNote, Word
from preflight.launches.variables import environment_words

pytestmark = pytest.mark.skipif(
    shutil.which("docker") is None, reason="no docker command line to compare with"
)
CALLER = {"CALLER": "c"}
Created = Callable[[str], "dict[str, Any] | None"]


class _Daemon(http.server.BaseHTTPRequestHandler):
    """As much of a daemon as ``docker create`` talks to: it keeps what it is asked for."""

    protocol_version = "HTTP/1.1"
    asked: list[dict[str, Any]] = []  # noqa: RUF012  one daemon, one list

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        for name, value in {"Api-Version": "1.43", "Ostype": "linux"}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer(200, b"{}")

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "containers/create" in self.path:
            self.asked.append(json.loads(body))
        self.answer(201, b'{"Id": "i", "Warnings": []}')


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def get_request(self) -> tuple[Any, Any]:
        request, _ = super().get_request()
        return request, ("docker", 0)


@pytest.fixture(scope="module")
def created(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Created]:
    """What docker asks its daemon for; None where it refuses the words."""
    folder = tmp_path_factory.mktemp("d")
    server = _Server(str(folder / "s"), _Daemon)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    environment = {"HOME": str(folder), "DOCKER_HOST": f"unix://{folder}/s", **CALLER}

    def create(words: str) -> dict[str, Any] | None:
        _Daemon.asked.clear()
        subprocess.run(
            [str(shutil.which("docker")), "create", *shlex.split(words)],
            env=environment,
            capture_output=True,
            check=False,
            timeout=60,
        )
        return _Daemon.asked[0] if _Daemon.asked else None

    try:
        yield create
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ours(text: str) -> tuple[dict[str, Any], ContainerSettings, list[SourceNote]]:
    words = [Word(word, Origin("c")) for word in ("docker", "create", *shlex.split(text))]
    notes: list[SourceNote] = []
    run = container_run(words, 0, 1, environment_words(CALLER), notes)
    inner = {
        "environment": {name: word.text for name, word in run.environment.items()},
        "words": [word.text for word in run.argv if word.text],
    }
    return inner, run.settings, notes


def theirs(body: dict[str, Any]) -> dict[str, Any]:
    pairs = [text.partition("=") for text in body.get("Env") or []]
    words = [*(body["Entrypoint"] or []), *(body["Cmd"] or [])]
    return {
        "environment": {name: value for name, equals, value in pairs if equals},
        "words": [word for word in words if word],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "-e A=1 -eB=2 --env=C=x=y --env CALLER --env NOBODY -e=D=3 -e E= i x",
        "-ite A=1 --rm --name=n i x",
        "--shm-size=32g --memory 1.5gb i x",
        "--shm-size 64GiB -m512M i x",
        "--shm-size .5g -m +1g i x",
        "--shm-size 100 -m 16kB i x",
        "--ulimit memlock=-1 --ulimit nofile=1024:2048 --ulimit stack=9:-1 i x",
        "--ipc=host --network=host --privileged --user 0 i x",
        "--net name=host --privileged=false -u1:1 i x",
        "--net=none --privileged=T i x",
        "--cpuset-cpus 0-3 --cpuset-mems=0,1 i x",
        "--device /dev/infiniband/ --device=/dev/a:/dev/b:rwm i x",
        "--mount type=bind,src=/a,dst=/b,readonly --mount TYPE=Bind,SRC=/c,destination=/d i x",
        "--mount type=bind,source=/a,target=/b,ro=0 --mount '\"source=/v,w\",type=bind,dst=/x' i x",
        "--mount type=tmpfs,dst=/t,tmpfs-size=1g i x",
        "--entrypoint bash i -c 'x y'",
        "--entrypoint '' i x --shm-size 1g",
        "-- i x",
    ],
)
def test_what_docker_takes(words: str, created: Created) -> None:
    body = created(words)
    assert body is not None
    inner, settings, notes = ours(words)
    assert inner == theirs(body)
    host = body["HostConfig"]
    assert (settings.shm_size_bytes or 0) == host["ShmSize"]
    assert (settings.memory_bytes or 0) == host["Memory"]
    assert dict(settings.ulimits) == {
        limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in host["Ulimits"] or []
    }
    assert (settings.ipc or "") == host["IpcMode"]
    assert (settings.network or "default") == host["NetworkMode"]
    assert settings.privileged is host["Privileged"]
    assert (settings.user or "") == body["User"]
    assert (settings.cpuset_cpus or "") == host["CpusetCpus"]
    assert (settings.cpuset_mems or "") == host["CpusetMems"]
    assert list(settings.devices) == [device["PathOnHost"] for device in host["Devices"] or []]
    assert [(m.target, m.kind, m.source, m.read_only, m.size_bytes) for m in settings.mounts] == [
        (
            mount["Target"], mount["Type"], mount.get("Source", ""), mount.get("ReadOnly", False),
            mount.get("TmpfsOptions", {}).get("SizeBytes"),
        )
        for mount in host.get("Mounts") or []
    ]  # fmt: skip
    assert notes == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "--shm-size 64Gi i x", "-m 1ib i x", "--memory=big i x", "--ulimit memlock=unlimited i x",
        "--ulimit memlock=10:5 i x", "--ulimit memlock=-1:5 i x", "--ulimit lock=5 i x",
        "--ulimit memlock=1g i x",
    ],
)  # fmt: skip
def test_what_docker_refuses(words: str, created: Created) -> None:
    assert created(words) is None
    _, _, notes = ours(words)
    assert {note.id for note in notes} == {"container-refused"}
