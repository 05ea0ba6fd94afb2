"""Hosts that are network namespaces of this machine: a link, an address and an ssh server each.

Between them packets take a real way, over a bridge, that ``tc`` can slow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.fleet.sshd_farm import PRIVILEGE_FOLDER, executable, server
from tests.fleet.sshd_farm import why_not as why_no_ssh

PORT = 22
# RFC 2544: for tests of networks, so no route of this machine is hidden.
NETWORK = "198.18.77"


class Hosts(NamedTuple):
    """config: for ssh -F. namespaces: of each host, by its name for ssh."""

    config: Path
    namespaces: Mapping[str, str]

    def ssh(self, host: str) -> list[str]:
        return ["ssh", "-F", str(self.config), host]

    def address(self, host: str) -> str:
        return f"{NETWORK}.{1 + list(self.namespaces).index(host)}"

    @contextmanager
    def slow(self, host: str, rate: str) -> Iterator[None]:
        """Let out no more than ``rate``, as tc writes it, of one host's link."""
        namespace = self.namespaces[host]
        shape = ("root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
        _run("tc", "-n", namespace, "qdisc", "add", "dev", "eth0", *shape)
        try:
            yield
        finally:
            _run("tc", "-n", namespace, "qdisc", "del", "dev", "eth0", "root")


def why_not() -> str | None:
    """Return why no namespace can be made here, or None."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    if not all(map(shutil.which, ("ip", "tc", "nsenter"))):
        return "needs ip, tc and nsenter (apt-get install iproute2 util-linux)"
    return why_no_ssh()


@contextmanager
def hosts(folder: Path, programs: Mapping[str, str]) -> Iterator[Hosts]:
    """Run hosts. programs: name of the host -> its mooncake-preflight, a script."""
    for key in ("host", "user"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    PRIVILEGE_FOLDER.mkdir(exist_ok=True)
    bridge = f"pf{os.getpid()}"
    made = Hosts(folder / "ssh_config", {name: f"{bridge}-{name}" for name in programs})
    made.config.write_text(
        "".join(f"Host {name}\n HostName {made.address(name)}\n" for name in programs)
        + f"Host *\n Port {PORT}\n IdentityFile {folder}/user\n IdentitiesOnly yes\n"
        " StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
    )
    with ExitStack() as stack:
        _run("ip", "link", "add", bridge, "type", "bridge")
        stack.callback(_run, "ip", "link", "del", bridge)
        _run("ip", "addr", "add", f"{NETWORK}.254/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for number, (name, namespace) in enumerate(made.namespaces.items()):
            _run("ip", "netns", "add", namespace)
            stack.callback(_run, "ip", "netns", "del", namespace)
            link, address = f"{bridge}.{number}", made.address(name)
            peer = ("peer", "name", "eth0", "netns", namespace)
            _run("ip", "link", "add", link, "master", bridge, "type", "veth", *peer)
            _run("ip", "link", "set", link, "up")
            _run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", namespace, "link", "set", device, "up")
            _run("ip", "-n", namespace, "route", "add", "default", "via", f"{NETWORK}.254")
            (folder / name).mkdir()
            executable(folder / name / "mooncake-preflight", programs[name])
            lines = [
                f"HostKey {folder}/host",
                f"AuthorizedKeysFile {folder}/user.pub",
                f"ListenAddress {address}:{PORT}",
                f"SetEnv PATH={folder / name}:/usr/bin:/bin",
            ]
            inside = ("nsenter", f"--net=/run/netns/{namespace}")
            stack.enter_context(server(folder / name / "sshd", lines, address, PORT, *inside))
        yield made


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
