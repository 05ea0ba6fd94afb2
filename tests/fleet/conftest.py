"""A farm of nodes over one ssh server, for the tests that need one."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from os.path import relpath
from pathlib import Path

import pytest

from checks.framework.root import CALLS_FILE
from tests.builders.synthetic import SyntheticHost, gpu_host, tree_of
from tests.fleet.sshd_farm import (
    AS_ASKED,
    OLD_PYTHON,
    Farm,
    Login,
    address_of,
    farm,
    python_on,
    silent_listener,
    tool_on,
    why_not,
)

MASTER = ("10.0.0.100", 50051)
LAUNCH = """\
export MOONCAKE_MASTER=10.0.0.100:50051
export MOONCAKE_PROTOCOL=rdma
export MC_ENABLE_DEST_DEVICE_AFFINITY=1
export MOONCAKE_DEVICE=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7
export MOONCAKE_GLOBAL_SEGMENT_SIZE=64gb
export MOONCAKE_TE_META_DATA_SERVER=P2PHANDSHAKE
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 8 --page-size 64 \\
  --enable-hierarchical-cache --hicache-size 32 --hicache-storage-backend mooncake --port 30000
"""

HEALTHY = range(1, 10)
CARRIED, NOISY, LOW_MEMLOCK, PORT_DOWN, CUT_OFF, HANGING, REFUSING = range(10, 17)
UNKNOWN_KEY, SILENT, OLD, GARBAGE, ENDS, BUSY, BUSIER, GATEWAY = range(17, 25)

# Noise of a login shell: before, between and after, and something that looks like an answer.
NOISE = """\
echo "*** authorised use only ***"; echo '{"schema": "motd"}'
sh -c "$SSH_ORIGINAL_COMMAND"
code=$?
echo "see you"; printf 'no line feed at the end'
exit $code"""
# A program that works for longer than anybody waits, with a process of its own.
FOREVER = """\
#!/bin/sh
sleep 1000 &
echo $$ $! > {place}.part && mv {place}.part {place}
wait"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if reason and item.get_closest_marker("fleet"):
            item.add_marker(pytest.mark.skip(reason=reason))


def node_host(number: int) -> SyntheticHost:
    """A node of the fleet: like its neighbours but for its addresses."""
    host = gpu_host()
    nics = [nic._replace(ipv4=f"10.{nic.number}.0.{number}") for nic in host.nics]
    return replace(host, nics=nics, services={MASTER: "master"})


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """gpu001-016 as the constants above say, and more that are broken in yet other ways."""
    folder = tmp_path_factory.mktemp("farm")
    trees = {
        number: packed_host(folder / f"tree-{number}.tar", host)
        for number, host in {
            **{number: node_host(number) for number in (*HEALTHY, CARRIED, NOISY, CUT_OFF)},
            LOW_MEMLOCK: replace(
                node_host(LOW_MEMLOCK), uid=1000, capabilities=0, memlock=("8388608", "8388608")
            ),
            PORT_DOWN: _with_port_down(node_host(PORT_DOWN)),
        }.items()
    }
    tools = {number: {"mooncake-preflight": tool_on(tree)} for number, tree in trees.items()}
    logins = {number: Login(programs) for number, programs in tools.items()}
    logins[CARRIED] = Login({"python3": python_on(trees[CARRIED])})
    logins[NOISY] = Login(tools[NOISY], NOISE)
    logins[CUT_OFF] = Login(tools[CUT_OFF], 'sh -c "$SSH_ORIGINAL_COMMAND" | head -c 2000')
    logins[UNKNOWN_KEY] = Login(tools[1], known=False)
    logins[SILENT] = Login({}, "cat >/dev/null & exit 0")
    logins[OLD] = Login({"python3": OLD_PYTHON})
    logins[GARBAGE] = Login(
        {"mooncake-preflight": _prints('{"schema":"mooncake-preflight/check/v1"{')}
    )
    logins[ENDS] = Login({"mooncake-preflight": "#!/bin/sh\necho no such device >&2\nexit 70\n"})
    logins[GATEWAY] = Login({}, f'echo "$SSH_ORIGINAL_COMMAND" >{folder}/gateway\n{AS_ASKED}')
    for number in (BUSY, BUSIER):
        place = folder / f"pids-{number}"
        logins[number] = Login({"mooncake-preflight": FOREVER.format(place=place)})
    with (
        farm(folder, logins, (HANGING, REFUSING)) as made,
        silent_listener(address_of(HANGING), made.port),
    ):
        yield made


def packed_host(path: Path, host: SyntheticHost) -> Path:
    """As ``build_host``, in one file: thousands of small ones take longer than all the tests."""
    tree = tree_of(host)
    contents = {**tree.files, f"/{CALLS_FILE}": json.dumps(tree.calls)}
    with tarfile.open(path, "w") as tar:
        for name, text in contents.items():
            member = tarfile.TarInfo(name.lstrip("/"))
            content = f"{text}\n".encode() if text and not text.endswith("\n") else text.encode()
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, target in tree.links.items():
            member = tarfile.TarInfo(name.lstrip("/"))
            member.type, member.linkname = tarfile.SYMTYPE, relpath(target, Path(name).parent)
            tar.addfile(member)
    return path


def _with_port_down(host: SyntheticHost) -> SyntheticHost:
    first, *rest = host.nics
    return replace(
        host, nics=[first._replace(state="1: DOWN", physical_state="3: Disabled"), *rest]
    )


def _prints(line: str) -> str:
    return f"#!/bin/sh\necho '{line}'\n"


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("launch") / "launch.sh"
    path.write_text(LAUNCH)
    return path
