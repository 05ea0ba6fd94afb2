"""Nodes of a fleet that are one OpenSSH server on loopback addresses, each in its own way.

127.0.1.N is ``gpuNNN``. What a login there gets is decided by the address that it came to: a folder
of programs that is all of its PATH beside the system's, and a command around what it asked for.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.paths import ROOT

SSHD = "/usr/sbin/sshd"
# Debian's and Alpine's sshd want it to exist.
PRIVILEGE_FOLDER = Path("/run/sshd")
PATIENCE_SECONDS = 60.0
# OpenSSH sshd.c: a server listens on no more addresses.
MAX_LISTEN_SOCKS = 16

# Runs this program as the node has it: on its own synthetic machine.
TOOL = """#!/bin/sh
command=$1
shift
export PYTHONPATH={root}
exec {python} -m preflight.cli.main "$command" --root {tree} "$@"
"""
# A Python that runs what is carried there, on the same machine.
PYTHON = """#!/bin/sh
code=$2 command=$3
shift 3
exec {python} -S -c "$code" "$command" --root {tree} "$@"
"""
OLD_PYTHON = """#!/bin/sh
echo 'mooncake-preflight: needs Python 3.10 or newer, this is 3.6.8' >&2
exit 1
"""
CLIENT = """Host *
 Port {port}
 IdentityFile {folder}/user
 IdentitiesOnly yes
 StrictHostKeyChecking yes
 UserKnownHostsFile {folder}/known
 GlobalKnownHostsFile /dev/null
"""
AS_ASKED = 'exec sh -c "$SSH_ORIGINAL_COMMAND"'


class Login(NamedTuple):
    """How one node answers. programs: name -> script, in front of the system's. around: the shell
    text that runs what was asked for, which is ``$SSH_ORIGINAL_COMMAND``."""

    programs: Mapping[str, str] = {}
    around: str = AS_ASKED
    known: bool = True


def tool_on(tree: Path) -> str:
    """The program, as it is installed on a node that is ``tree``."""
    return TOOL.format(root=ROOT, python=sys.executable, tree=tree)


def python_on(tree: Path) -> str:
    """A Python without the program and without any package: -S leaves all of them out."""
    return PYTHON.format(python=sys.executable, tree=tree)


class Farm(NamedTuple):
    """config: for ssh -F. folder: where the nodes' logins keep what they write."""

    folder: Path
    config: Path
    port: int

    @property
    def options(self) -> str:
        return f"--ssh-options=-F{self.config}"


def why_not() -> str | None:
    """Why no server can be run here, or None."""
    if not (os.environ.get("CI") or os.environ.get("MOONCAKE_PREFLIGHT_REAL")):
        return "starts ssh servers on loopback addresses: set MOONCAKE_PREFLIGHT_REAL=1"
    if not os.path.exists(SSHD) or shutil.which("ssh") is None:
        return "needs an ssh server (apt-get install openssh-server)"
    if sys.platform != "linux":
        return "needs the loopback addresses of Linux, 127.0.1.1 and on"
    return None


def address_of(number: int) -> str:
    return f"127.0.1.{number}"


def name_of(number: int) -> str:
    return f"gpu{number:03d}"


@contextmanager
def farm(folder: Path, logins: Mapping[int, Login], refusing: Iterable[int] = ()) -> Iterator[Farm]:
    """Run servers for these nodes; ``refusing`` have an address on which nothing listens."""
    with socket.create_server(("", 0)) as anywhere:  # free on every address
        port = int(anywhere.getsockname()[1])
    for kind in ("host", "user", "other"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / kind)]
        subprocess.run(keygen, check=True, capture_output=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    host_key, other_key = (
        " ".join((folder / f"{kind}.pub").read_text().split()[:2]) for kind in ("host", "other")
    )
    known = (
        f"{name_of(number)} {host_key if login.known else other_key}\n"
        for number, login in logins.items()
    )
    hosts = (
        f"Host {name_of(number)}\n HostName {address_of(number)}\n HostKeyAlias {name_of(number)}\n"
        for number in (*logins, *refusing)
    )
    (folder / "known").write_text("".join(known))
    (folder / "ssh_config").write_text("".join(hosts) + CLIENT.format(port=port, folder=folder))
    if os.geteuid() == 0:
        PRIVILEGE_FOLDER.mkdir(exist_ok=True)
    listed = list(logins.items())
    with ExitStack() as servers:
        for start in range(0, len(listed), MAX_LISTEN_SOCKS):
            some = dict(listed[start : start + MAX_LISTEN_SOCKS])
            servers.enter_context(_server(folder, start, some, port))
        yield Farm(folder, folder / "ssh_config", port)


def _server(
    folder: Path, place: int, logins: Mapping[int, Login], port: int
) -> AbstractContextManager[None]:
    lines = [
        f"HostKey {folder}/host",
        f"AuthorizedKeysFile {folder}/authorized",
        "MaxStartups 200",
        *(f"ListenAddress {address_of(number)}:{port}" for number in logins),
    ]
    for number, login in logins.items():
        lines += [
            f"Match LocalAddress {address_of(number)}",
            f" ForceCommand {_login_script(folder, number, login)}",
        ]
    return server(folder / f"sshd_config-{place}", lines, address_of(list(logins)[-1]), port)


@contextmanager
def server(
    config: Path, lines: Sequence[str], address: str, port: int, *before: str
) -> Iterator[None]:
    """Run a server behind the words ``before``; what it has to say is in CONFIG.log."""
    usual = ("PidFile none", "StrictModes no", "UsePAM no", "PasswordAuthentication no")
    config.write_text("\n".join([*usual, *lines, ""]))
    log = config.with_suffix(".log")
    with log.open("wb") as said:
        words = [*before, SSHD, "-D", "-e", "-f", str(config)]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=said)
        try:
            _await_server(process, address, port, log)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_SECONDS)


def _login_script(folder: Path, number: int, login: Login) -> Path:
    programs, temporary = folder / f"programs-{number}", folder / f"temporary-{number}"
    programs.mkdir()
    temporary.mkdir()
    for name, text in login.programs.items():
        executable(programs / name, text)
    path = f"PATH={programs}:/usr/bin:/bin TMPDIR={temporary}"
    return executable(folder / f"login-{number}", f"#!/bin/sh\nexport {path}\n{login.around}\n")


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def _await_server(process: subprocess.Popen[bytes], address: str, port: int, log: Path) -> None:
    def listens() -> bool:
        assert process.poll() is None, f"sshd does not listen:\n{log.read_text(errors='replace')}"
        with socket.socket() as one:
            return one.connect_ex((address, port)) == 0

    wait_for("sshd", listens)


def wait_for(what: str, done: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < until, f"still waiting for {what}"
        time.sleep(0.05)


@contextmanager
def silent_listener(address: str, port: int) -> Iterator[None]:
    """Accepts connections, as the kernel does of a server that hangs, and never says a word."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        server.listen(64)
        yield
