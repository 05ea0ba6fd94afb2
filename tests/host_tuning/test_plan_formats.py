"""Each rendering of a plan, read back by what consumes it: the tool itself, or our own reader."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.finding import Kind, Setting
from checks.framework.root import Root
from checks.host_snapshot.secrets import is_secret
from checks.hugetlb.boot import (
    PoolWriter,
    pages_after_boot,
    parse_command_line,
    parse_sysctl,
    read_pool_writers,
)
from checks.limits.runtimes import Limit, read_runtime_limits
from checks.run_checks.facts import Facts
from preflight.base.envelope import envelope
from preflight.base.shell import is_hidden
from preflight.host_tuning.commands import (
    CONTAINERD,
    NOT_OF_A_CONTAINER,
    SYSCTL_FILE,
    UNIT_FILE,
    drop_in,
)
from preflight.host_tuning.dialects import FORMATS, ArtefactNames, missing, render
from preflight.host_tuning.plan import plan, plan_object
from preflight.host_tuning.records import Plan, PoolTarget
from preflight.launches.compose import read_compose
from preflight.launches.container import ContainerSettings, Mount
from preflight.launches.env_files import read_env_file
from preflight.launches.kubernetes import read_kubernetes
from preflight.launches.shell_script import read_argv
from tests.builders.examples import fewer
from tests.builders.plans import (
    anywhere,
    environment_plan,
    facts_on,
    finding,
    launch,
    of_settings,
    on_nodes,
    plain_facts,
    rank,
)
from tests.builders.synthetic import GIB, MIB
from tests.paths import ROOT
from tests.tables import each_row
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/report/schemas/plan-v1.schema.json").read_text())
MEMLOCK = Setting(Kind.ULIMIT, "memlock", "unlimited", "8388608")
UNIT = Setting(Kind.ULIMIT, "memlock", "unlimited", "8388608", unit="containerd.service")
FILES = Setting(Kind.ULIMIT, "nofile", "65535", "1024")


def text(found: Plan, name: str, **names: str) -> str:
    assert not missing(found, name)
    return render(found, name, ArtefactNames(**names)).text


def notes(found: Plan, name: str) -> str:
    return "\n".join(render(found, name, ArtefactNames()).notes)


def run(
    words: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **(environment or {})}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=env, timeout=120)


def needs_tool(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"no {name} here")


@pytest.fixture(scope="module")
def rdma_plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Two ranks on two nodes, 8 NICs, and something wrong of each kind that is rendered."""
    settings = (
        MEMLOCK,
        UNIT,
        FILES,
        Setting(Kind.SYSCTL, "net.ipv4.ip_local_reserved_ports", "9003,50051", ""),
        Setting(Kind.ENVIRONMENT, "MC_MTU", "1024", "4096"),
        Setting(Kind.ENVIRONMENT, "MC_GID_INDEX", "", "9"),
        Setting(Kind.SECURITY, "seccomp", "unconfined"),
    )
    needs = launch(on_nodes(10, 20), rank(0), rank(1))
    facts = facts_on(tmp_path_factory.mktemp("host"))
    return plan(needs, facts, [finding(setting) for setting in settings])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return plain_facts(tmp_path_factory.mktemp("plain"))


# Huge pages ------------------------------------------------------------------------------------

TARGETS = st.dictionaries(
    st.sampled_from([2 * MIB, 512 * MIB, GIB]),
    st.dictionaries(st.integers(0, 3), st.integers(1, 1 << 20), min_size=1)
    | st.integers(1, 1 << 20).map(lambda pages: {None: pages}),
    min_size=1,
)


def with_pools(
    found: Plan, targets: Mapping[int, Mapping[int | None, int]], nodes: tuple[int, ...] = (0, 1)
) -> Plan:
    pools = tuple(
        PoolTarget(size, node, pages, 0)
        for size in sorted(targets)
        for node, pages in sorted(targets[size].items(), key=str)
    )
    return found._replace(
        pools=pools, default_page_bytes=2 * MIB, writers=(), settings=(), pool_nodes=nodes
    )


def as_targets(writers: Sequence[PoolWriter]) -> dict[tuple[int | None, int | None], int | None]:
    return {(w.page_size_bytes, w.node): w.pages for w in writers if w.pages is not None}


@given(targets=TARGETS)
def test_the_boot_line_reads_back_as_the_pools(targets: Any, rdma_plan: Plan) -> None:
    found = with_pools(rdma_plan, targets)
    read = as_targets(parse_command_line(text(found, "cmdline"), "kernel command line"))
    assert read == {(pool.page_bytes, pool.node): pool.pages for pool in found.pools}


@given(targets=TARGETS)
def test_the_unit_reads_back_as_the_pools(
    targets: Any, rdma_plan: Plan, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """So that hugetlb.after-reboot passes once it is installed."""
    found = with_pools(rdma_plan, targets)
    root = tmp_path_factory.mktemp("unit")
    place = root / UNIT_FILE.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text(text(found, "sysfs"))
    read = as_targets(read_pool_writers(Root(str(root)), ()))
    assert read == {(pool.page_bytes, pool.node): pool.pages for pool in found.pools}


def test_what_the_unit_sets_for_another_launch_stays(rdma_plan: Plan) -> None:
    earlier = (
        PoolWriter(UNIT_FILE, 2 * MIB, 0, 999),
        PoolWriter(UNIT_FILE, 2 * MIB, 1, 1),
        PoolWriter(UNIT_FILE, GIB, 1, 4),
        PoolWriter("/etc/systemd/system/mine.service", 2 * MIB, 0, 5000),
    )
    found = with_pools(rdma_plan, {2 * MIB: {0: 10, 1: 20}})._replace(writers=earlier)
    counts = re.findall(
        r"node(\d)/hugepages/hugepages-(\d+)kB.*\|\| echo (\d+)", text(found, "sysfs")
    )
    assert counts == [("0", "2048", "999"), ("1", "2048", "20"), ("1", "1048576", "4")]


@given(pages=st.integers(1, 1 << 30), even=st.booleans())
def test_the_drop_in_reads_back_as_the_whole_pool(pages: int, even: bool, rdma_plan: Plan) -> None:
    spots: dict[int | None, int] = {0: pages, 1: pages} if even else {None: pages}
    found = with_pools(rdma_plan, {2 * MIB: spots})
    writers = tuple(parse_sysctl(text(found, "sysctl"), SYSCTL_FILE))
    wanted = sum(spots.values())
    assert pages_after_boot(writers, 2 * MIB, 2 * MIB) == (wanted, SYSCTL_FILE)


def test_other_page_sizes_are_named_where_sysctl_cannot_set_them(rdma_plan: Plan) -> None:
    found = with_pools(rdma_plan, {GIB: {None: 4}})
    assert text(found, "sysctl") == ""
    assert "1 GiB pages" in notes(found, "sysctl")


@pytest.mark.parametrize(
    ("writer", "note"),
    [
        (PoolWriter("/etc/sysctl.d/99-mine.conf", None, None, 5), "99-mine.conf wins over"),
        (PoolWriter("/etc/sysctl.conf", None, None, 5), "sysctl.conf wins over"),
        (PoolWriter("/usr/lib/tuned/x/tuned.conf", None, None, 5), "tuned.conf wins over"),
        (PoolWriter("/etc/systemd/system/a.service", 2 * MIB, None, None), "by a script"),
        # These come first, are ours, are larger, or are about another pool.
        (PoolWriter("/etc/sysctl.d/10-a.conf", None, None, 5), ""),
        (PoolWriter("kernel command line", None, None, 5), ""),
        (PoolWriter(SYSCTL_FILE, None, None, 5), ""),
        (PoolWriter("/etc/sysctl.d/99-mine.conf", None, None, 500), ""),
        (PoolWriter("/etc/systemd/system/a.service", GIB, None, 5), ""),
    ],
)
def test_who_wins_over_the_drop_in_is_said(writer: PoolWriter, note: str, rdma_plan: Plan) -> None:
    found = with_pools(rdma_plan, {2 * MIB: {None: 100}})._replace(writers=(writer,))
    said = [line for line in notes(found, "sysctl").splitlines() if not line.startswith("write ")]
    assert (note in said[0]) if note else not said


OTHERS = PoolWriter("/etc/sysctl.d/10-db.conf", None, None, 4096)
LINE = PoolWriter("kernel command line", 2 * MIB, None, 4096)
# A file that wins over ours sets less today; ours is not to be made smaller.
OURS = (
    PoolWriter(SYSCTL_FILE, None, None, 1200),
    PoolWriter("/etc/sysctl.d/99-mine.conf", None, None, 20),
)


@each_row(
    ("writers", "reserved", "name", "wanted"),
    [
        ((OTHERS,), {}, "sysctl", "vm.nr_hugepages = 4096"),
        ((LINE,), {}, "cmdline", "hugepages=4096"),
        (OURS, {}, "sysctl", "vm.nr_hugepages = 1200"),
        # Reserved by hand, in no file.
        ((), {None: 6000}, "sysctl", "vm.nr_hugepages = 6000"),
        ((), {None: 6000}, "cmdline", "hugepages=6000"),
        ((), {0: 6000}, "cmdline", "hugepages=0:6000,1:100"),
    ],
)
def test_what_others_reserved_is_not_lowered(
    writers: tuple[PoolWriter, ...],
    reserved: dict[int | None, int],
    name: str,
    wanted: str,
    rdma_plan: Plan,
) -> None:
    pages: dict[int | None, int] = {0: 100, 1: 100} if 0 in reserved else {None: 100}
    found = with_pools(rdma_plan, {2 * MIB: pages})._replace(writers=writers)
    pools = tuple(p._replace(now_pages=reserved.get(p.node, 0)) for p in found.pools)
    assert wanted in text(found._replace(pools=pools), name)


def test_the_boot_line_keeps_what_it_has_of_other_sizes_and_nodes(rdma_plan: Plan) -> None:
    line = "hugepagesz=1G hugepages=16 hugepagesz=2M hugepages=0:1200,1:5"
    writers = parse_command_line(line, "kernel command line")
    found = with_pools(rdma_plan, {2 * MIB: {0: 40, 1: 60}})._replace(writers=writers)
    wanted = "default_hugepagesz=2M hugepagesz=1G hugepages=16 hugepagesz=2M hugepages=0:1200,1:60"
    assert text(found, "cmdline") == wanted
    # A plan for 1 GiB pages must not move Mooncake's arena to them.
    found = with_pools(rdma_plan, {GIB: {None: 4}})
    assert text(found, "cmdline") == "default_hugepagesz=2M hugepagesz=1G hugepages=4"


def test_a_kernel_that_does_not_read_nodes_at_boot_is_said(rdma_plan: Plan) -> None:
    for kernel, warned in (((5, 15), True), ((5, 16), False)):
        assert ("before 5.16" in notes(rdma_plan._replace(kernel=kernel), "cmdline")) is warned


@pytest.mark.slow
@needs_tool("sysctl")
def test_sysctl_itself_reads_the_drop_in(tmp_path: Path) -> None:
    if "--dry-run" not in run(["sysctl", "--help"]).stdout:
        pytest.skip("this sysctl has no --dry-run")
    reserved = Setting(Kind.SYSCTL, "net.ipv4.ip_local_reserved_ports", "9003,50051", "")
    facts = plain_facts(tmp_path / "host", files={"/proc/sys/vm/max_map_count": "65530"})
    found = plan(launch(anywhere(7)), facts, [finding(reserved)])
    place = tmp_path / "90.conf"
    place.write_text(text(found, "sysctl") + "\n")
    done = run(["sysctl", "--dry-run", "-p", str(place)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "vm.nr_hugepages = 7",
        "net.ipv4.ip_local_reserved_ports = 9003,50051",
        "vm.max_map_count = 262144",
    ]


@pytest.mark.slow
@needs_tool("systemd-analyze")
def test_systemd_itself_accepts_the_units(rdma_plan: Plan, tmp_path: Path) -> None:
    unit = tmp_path / "mooncake-hugepages.service"
    unit.write_text(text(rdma_plan, "sysfs") + "\n")
    service = tmp_path / "containerd.service"
    service.write_text("[Service]\nExecStart=/bin/true\n")
    for name in ("systemd", "containerd"):
        drop_in = tmp_path / "containerd.service.d" / f"{name}.conf"
        drop_in.parent.mkdir(exist_ok=True)
        drop_in.write_text(text(rdma_plan, name) + "\n")
    for file in (unit, service):
        # Without this, units of the machine that runs the test are verified too.
        done = run(["systemd-analyze", "verify", "--recursive-errors=no", "--man=no", str(file)])
        ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
        assert (done.returncode, ours) == (0, [])


@pytest.mark.slow
def test_what_the_unit_runs_raises_and_never_lowers(rdma_plan: Plan, tmp_path: Path) -> None:
    """Its commands, as the shell gets them, on plain files."""
    files = {pool.file: pool.pages for pool in rdma_plan.pools}
    unit = text(rdma_plan, "sysfs")

    def words_of(line: str) -> list[str]:
        return shlex.split(line.replace("$$", "$").replace("/sys/", f"{tmp_path}/sys/"))

    for before in (5, 999):
        for file in files:
            place = tmp_path / file.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(f"{before}\n")
        for line in re.findall(r"^Exec\w+=(.*)$", unit, re.MULTILINE):
            assert run(words_of(line)).returncode == 0
        read = [int((tmp_path / file.lstrip("/")).read_text()) for file in files]
        assert read == [max(before, pages) for pages in files.values()]
    # Fewer pages than asked for make the unit fail, so that systemctl shows it.
    check = next(line for line in unit.splitlines() if line.startswith("ExecStartPost"))
    first = tmp_path / next(iter(files)).lstrip("/")
    first.write_text("9\n")
    assert run(words_of(check.partition("=")[2])).returncode != 0


# Limits ----------------------------------------------------------------------------------------


def test_containerds_drop_in_reads_back_as_unlimited(rdma_plan: Plan, tmp_path: Path) -> None:
    place = tmp_path / drop_in(CONTAINERD).lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text(text(rdma_plan, "containerd"))
    unit = read_runtime_limits(Root(str(tmp_path)), {}).unit("containerd")
    assert unit is not None
    assert unit.configured == Limit(None, None)
    assert "containerd.service" in notes(rdma_plan, "systemd")


def test_a_containers_limit_that_is_not_known_lowers_none_of_the_hosts(tmp_path: Path) -> None:
    """Its daemon and logins may have more than 65535; an unlimited one lowers nothing."""
    files = FILES._replace(now="", described_by="docker")
    found = of_settings(tmp_path, files, MEMLOCK._replace(now="", described_by="docker"))
    assert "nofile=65535" in text(found, "docker")
    for name in ("limits", "systemd", "containerd", "ansible"):
        written = text(found, name).lower()
        assert "nofile" not in written
        assert "memlock" in written


SIZES = tuple(Setting(Kind.ULIMIT, name, "unlimited", "9") for name in ("as", "data", "fsize"))


def test_limits_of_sizes_in_every_dialect(tmp_path: Path) -> None:
    """Docker and Podman have no --ulimit as: it is named, and never written as an option."""
    none = of_settings(tmp_path / "none")
    assert [text(none, name) for name in ("limits", "systemd", "containerd")] == ["", "", ""]
    found = of_settings(tmp_path, *SIZES, MEMLOCK)
    for name in ("systemd", "containerd"):
        rows = text(found, name).splitlines()
        assert {"LimitAS=infinity", "LimitDATA=infinity", "LimitFSIZE=infinity"} < set(rows)
    assert "*    - as      unlimited" in text(found, "limits")
    finite = of_settings(tmp_path / "kib", SIZES[1]._replace(wanted="4097"))
    assert "root - data    5" in text(finite, "limits")
    options = text(found, "docker")
    assert [f"{name}=-1:-1" in options for name in ("as", "data", "fsize")] == [False, True, True]
    service = yaml.safe_load(text(found, "compose"))["services"]["sglang"]
    assert set(service["ulimits"]) == {"memlock", "data", "fsize"}
    for name in ("docker", "compose"):
        assert "no container engine knows --ulimit as" in notes(found, name)
    for name in ("as", "data", "fsize", "memlock"):
        assert f"{name} has no field in Kubernetes" in notes(found, "k8s")


@pytest.mark.slow
@needs_tool("docker")
@pytest.mark.parametrize("name", ["as", "data", "fsize", "memlock"])
def test_docker_itself_knows_the_limits_that_are_written_for_it(name: str, tmp_path: Path) -> None:
    """Without a daemon: its command line is read first."""
    command = ["docker", "run", f"--ulimit={name}=-1:-1", "image"]
    refused = (
        "invalid ulimit type" in run(command, {"DOCKER_HOST": f"unix://{tmp_path}/none"}).stderr
    )
    assert refused is (name in NOT_OF_A_CONTAINER)


# Containers ------------------------------------------------------------------------------------

ENVIRONMENT = {"MC_MTU": "1024", "MC_STORE_USE_HUGEPAGE": "1", "MOONCAKE_MASTER": "10.0.0.1:50051"}
DEVICES = ("/dev/infiniband/rdma_cm", *(f"/dev/infiniband/uverbs{n}" for n in range(8)))


def command_of(options: str) -> Any:
    words = shlex.split(f"docker run {options} image python3 -m sglang.launch_server")
    (command,) = read_argv(words, {}).commands
    return command


def shared(settings: ContainerSettings | None) -> ContainerSettings:
    """What all dialects of a container must say alike."""
    assert settings is not None
    return ContainerSettings(
        network=settings.network,
        shm_size_bytes=settings.shm_size_bytes,
        ulimits=settings.ulimits,
        devices=settings.devices,
        cap_add=settings.cap_add,
        security_opt=tuple(text.replace(":", "=") for text in settings.security_opt),
    )


WANTED = ContainerSettings(
    network="host",
    shm_size_bytes=GIB,
    ulimits={"memlock": (-1, -1), "nofile": (65535, 65535)},
    devices=DEVICES,
    cap_add=("IPC_LOCK", "SYS_NICE"),
    security_opt=("seccomp=unconfined",),
)


def test_docker_options_read_back_as_the_plan(rdma_plan: Plan) -> None:
    command = command_of(text(rdma_plan, "docker").replace("\\\n", ""))
    assert shared(command.container) == WANTED
    assert {n: w.text for n, w in command.environment.items()} == ENVIRONMENT
    assert "MC_GID_INDEX must not be set" in notes(rdma_plan, "docker")


def test_compose_reads_back_as_the_plan(rdma_plan: Plan) -> None:
    merged = yaml.safe_load(text(rdma_plan, "compose", service="server"))
    merged["services"]["server"] |= {"image": "i", "command": "python3 -m sglang.launch_server"}
    (command,) = read_compose(yaml.safe_dump(merged), "compose.yaml", {}).commands
    assert shared(command.container) == WANTED
    assert {n: w.text for n, w in command.environment.items()} == ENVIRONMENT


def test_a_pod_patch_reads_back_as_the_plan(rdma_plan: Plan) -> None:
    patch = yaml.safe_load(text(rdma_plan, "k8s"))
    (container,) = patch["spec"]["containers"]
    assert {"name": "MC_GID_INDEX", "$patch": "delete"} in container["env"]
    container["env"] = [row for row in container["env"] if "$patch" not in row]
    container |= {"image": "i", "command": ["python3", "-m", "sglang.launch_server"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, **patch}
    (command,) = read_kubernetes(yaml.safe_dump(pod), "pod.yaml").commands
    settings = command.container
    assert settings is not None
    assert settings.network == "host"
    assert settings.cap_add == ("IPC_LOCK", "SYS_NICE")
    assert settings.hugepages_bytes == {"2Mi": 60 * MIB}
    assert settings.memory_bytes == 23 * GIB  # 22 GiB, and 1 GiB of /dev/shm
    assert settings.resources["rdma/hca"] == "1"
    assert settings.mount_at("/dev/shm") == Mount("/dev/shm", "tmpfs", "", False, GIB)
    assert {n: w.text for n, w in command.environment.items()} == ENVIRONMENT
    resources = container["resources"]
    assert resources["requests"] == resources["limits"]
    for said in ("memlock has no field", "rdma/hca", "raise it to what you have measured"):
        assert said in notes(rdma_plan, "k8s")
    patch = text(rdma_plan, "k8s", service="engine", rdma_resource="aliyun/erdma")
    (container,) = yaml.safe_load(patch)["spec"]["containers"]
    assert container["name"] == "engine"
    assert container["resources"]["limits"]["aliyun/erdma"] == "1"


def test_a_pods_gpus_count_from_zero_so_the_hosts_numbers_are_taken_out(plain: Facts) -> None:
    found = environment_plan(plain, {"CUDA_VISIBLE_DEVICES": "4,5"})
    (container,) = yaml.safe_load(text(found, "k8s"))["spec"]["containers"]
    assert container["env"] == [{"name": "CUDA_VISIBLE_DEVICES", "$patch": "delete"}]
    assert "--env CUDA_VISIBLE_DEVICES=4,5" in text(found, "docker")


class Daemon(BaseHTTPRequestHandler):
    """As much of a Docker daemon as ``docker run`` asks before it creates a container."""

    created: ClassVar[list[dict[str, Any]]] = []

    def do_HEAD(self) -> None:
        self._answer(200, b"")

    def do_GET(self) -> None:
        self._answer(200, b"OK" if self.path == "/_ping" else b"{}")

    def do_POST(self) -> None:
        self.created.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(500, b'{"message": "seen"}')

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        for name, value in (("Api-Version", "1.43"), ("Ostype", "linux")):
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.slow
@needs_tool("docker")
def test_docker_itself_asks_its_daemon_for_what_the_plan_says(rdma_plan: Plan) -> None:
    options = shlex.split(text(rdma_plan, "docker").replace("\\\n", ""))
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/docker.sock"
        with socketserver.ThreadingUnixStreamServer(place, Daemon) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                host = {"DOCKER_HOST": f"unix://{place}"}
                done = run(["docker", "run", *options, "image", "true"], host)
            finally:
                server.shutdown()
                thread.join()
    assert "seen" in done.stderr, done.stderr
    asked = Daemon.created[-1]
    assert sorted(asked["Env"]) == sorted(f"{name}={value}" for name, value in ENVIRONMENT.items())
    host_config = asked["HostConfig"]
    assert host_config["NetworkMode"] == "host"
    assert host_config["ShmSize"] == GIB
    added = [name.removeprefix("CAP_") for name in host_config["CapAdd"]]
    assert added == ["IPC_LOCK", "SYS_NICE"]
    assert host_config["SecurityOpt"] == ["seccomp=unconfined"]
    assert {row["Name"]: (row["Soft"], row["Hard"]) for row in host_config["Ulimits"]} == {
        "memlock": (-1, -1),
        "nofile": (65535, 65535),
    }
    assert tuple(row["PathOnHost"] for row in host_config["Devices"]) == DEVICES
    (gpus,) = host_config["DeviceRequests"]
    assert (gpus["Count"], gpus["Capabilities"]) == (-1, [["gpu"]])


def compose_command() -> list[str] | None:
    if shutil.which("docker") and not run(["docker", "compose", "version"]).returncode:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


@pytest.mark.slow
def test_compose_itself_takes_the_file_and_its_values(tmp_path: Path) -> None:
    tool = compose_command()
    if tool is None:
        pytest.skip("no docker compose here")
    values = {"MC_A": "a$b ${HOME} $$", "MC_B": "", "MC_C": "yes", "MC_D": "1.0"}
    process = rank(environment={name: value for name, value in values.items() if value})
    needs = launch(anywhere(10), process)
    found = plan(needs, facts_on(tmp_path / "host"), [finding(MEMLOCK)])
    base = tmp_path / "compose.yaml"
    base.write_text("version: '3.8'\nservices: {sglang: {image: i}}\n")
    more = tmp_path / "more.yaml"
    more.write_text("version: '3.8'\n" + text(found, "compose") + "\n")
    done = run([*tool, "-f", str(base), "-f", str(more), "config"])
    assert done.returncode == 0, done.stderr
    service = yaml.safe_load(done.stdout)["services"]["sglang"]
    # ``config`` prints a file again, so dollar signs are doubled in it as well.
    shown = {name: str(value).replace("$$", "$") for name, value in service["environment"].items()}
    assert shown == {name: value for name, value in values.items() if value}
    assert service["image"] == "i"
    assert service["ulimits"]["memlock"] in (-1, {"soft": -1, "hard": -1})
    assert service["network_mode"] == "host"
    assert len(service["devices"]) == 9


def leaves(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    """Every scalar, by its way there; members of lists by their name where they have one."""
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = (
            (item.get("name", at) if isinstance(item, dict) else at, item)
            for at, item in enumerate(value)
        )  # type: ignore[assignment]
    else:
        return {path: value}
    found: dict[tuple[Any, ...], Any] = {}
    for key, item in pairs:
        found |= leaves(item, (*path, key))
    return found


@pytest.mark.slow
@needs_tool("kubectl")
def test_kubernetes_own_types_take_the_whole_patch(rdma_plan: Plan, tmp_path: Path) -> None:
    """kubectl merges it into a Pod and drops what a Pod does not have: so nothing may be gone."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {
            "containers": [
                {"name": "other", "image": "o"},
                {
                    "name": "sglang",
                    "image": "i",
                    "env": [{"name": "MC_GID_INDEX", "value": "9"}, {"name": "A", "value": "b"}],
                },
            ]
        },
    }
    place, patch = tmp_path / "pod.yaml", tmp_path / "patch.yaml"
    place.write_text(yaml.safe_dump(pod))
    patch.write_text(text(rdma_plan, "k8s") + "\n")
    words = ["kubectl", "patch", "--local", "--type", "strategic", "-o", "yaml"]
    done = run([*words, "-f", str(place), "--patch-file", str(patch)])
    assert done.returncode == 0, done.stderr
    merged = leaves(yaml.safe_load(done.stdout))
    asked = leaves(yaml.safe_load(patch.read_text()))
    gone = {
        path: value
        for path, value in asked.items()
        if merged.get(path) != value and "MC_GID_INDEX" not in path
    }
    assert gone == {}
    in_env = {path[4] for path in merged if path[:4] == ("spec", "containers", "sglang", "env")}
    assert in_env == {*ENVIRONMENT, "A"}
    assert merged["spec", "containers", "other", "image"] == "o"


# Environment -----------------------------------------------------------------------------------

VARIABLES = st.dictionaries(
    st.from_regex(r"MC_[A-Z]{1,8}", fullmatch=True).filter(lambda name: not is_secret(name)),
    st.text(
        st.characters(exclude_characters="\0\r", categories=("L", "N", "P", "S", "Z", "Cc")),
        min_size=1,
    ),
    max_size=4,
)


@given(variables=VARIABLES)
def test_an_env_file_reads_back_as_docker_reads_it(variables: dict[str, str], plain: Facts) -> None:
    found = environment_plan(plain, variables)
    read, _ = read_env_file(text(found, "env"), "prod.env", {})
    whole = {name: value for name, value in variables.items() if not any(map(is_hidden, value))}
    assert {name: word.text for name, word in read.items()} == whole
    for name in variables.keys() - whole.keys():
        assert f"{name} is left out" in notes(found, "env")


@pytest.mark.slow
@fewer(2)  # each starts two shells
@given(variables=VARIABLES)
def test_a_shell_that_reads_the_exports_has_the_variables(
    variables: dict[str, str], plain: Facts, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("shell")
    found = environment_plan(plain, variables)
    file = folder / "exports.sh"
    file.write_text(text(found, "shell"))
    assert run(["sh", "-n", str(file)]).returncode == 0
    script = f". {file}; env -0"
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True, env={})
    pairs = dict(row.split("=", 1) for row in done.stdout.decode().split("\0") if "=" in row)
    assert {name: pairs.get(name) for name in variables} == variables


def test_what_is_not_to_be_set_is_unset(rdma_plan: Plan) -> None:
    assert "unset MC_GID_INDEX" in text(rdma_plan, "shell").splitlines()
    assert "MC_GID_INDEX" not in text(rdma_plan, "env")
    assert "MC_GID_INDEX must not be set" in notes(rdma_plan, "env")


# All of them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("text", "json")])
def test_a_format_is_refused_for_what_it_needs_and_does_not_know(name: str, tmp_path: Path) -> None:
    from checks.framework.unknown import Unknown

    needs = launch({}, rank())._replace(usages=Unknown("MODEL is not set"))
    found = plan(needs, plain_facts(tmp_path), [])
    assert bool(missing(found, name)) == ("pages" in FORMATS[name].topics)
    assert ("pages" in FORMATS[name].topics) == (bool(FORMATS[name].takes_pages) or name == "k8s")


def test_the_object_is_as_its_schema_says(rdma_plan: Plan) -> None:
    found = plan_object(rdma_plan)
    valid(envelope("plan", 0, found, word="known", command="plan"), SCHEMA)
    assert found["changes"] == sum(setting.change for setting in rdma_plan.settings)
    assert {row["name"] for row in found["settings"]} == {
        s.setting.label for s in rdma_plan.settings
    }


WORDS = ("a b", "$HOME", "${X}", "$(touch P1)", "$$", "a'b", 'a"b', "a\\b", "- x", "&a", "a #b")


@pytest.mark.parametrize("value", WORDS)
def test_every_value_of_a_container_reads_back_word_for_word(value: str, tmp_path: Path) -> None:
    """As the shell, YAML and Compose's own filling in of variables leave them."""
    kinds = (Kind.CAPABILITY, Kind.SECURITY)
    settings = [Setting(Kind.DEVICE, f"/dev/{value}", f"/dev/{value}")]
    settings += [Setting(kind, value, value) for kind in kinds]
    found = of_settings(tmp_path, *settings, Setting(Kind.ENVIRONMENT, "MC_X", value))
    (service,) = yaml.safe_load(render(found, "compose", ArtefactNames()).text)["services"].values()
    single = re.compile(r"(?<!\$)(?:\$\$)*\$(?!\$)")
    told = [*service["cap_add"], *service["security_opt"], *service["devices"]]
    told += service["environment"].values()
    assert [one for one in told if single.search(one)] == []
    assert [one.replace("$$", "$") for one in told] == [
        value,
        f"{value}:{value}",
        f"/dev/{value}:/dev/{value}",
        value,
    ]
    options = shlex.split(render(found, "docker", ArtefactNames()).text.replace(" \\\n", " "))
    assert f"/dev/{value}" in options
    assert f"MC_X={value}" in options
    patch = yaml.safe_load(render(found, "k8s", ArtefactNames()).text)
    (variable,) = patch["spec"]["containers"][0]["env"]
    assert variable["value"].replace("$$", "$") == value
    assert single.search(variable["value"]) is None


def test_a_device_that_docker_would_take_for_two_is_left_out_and_said(tmp_path: Path) -> None:
    found = of_settings(tmp_path, Setting(Kind.DEVICE, "/dev/a:b", "/dev/a:b"))
    for name in ("docker", "compose"):
        assert "/dev/a:b" not in text(found, name)
        assert "/dev/a:b" in notes(found, name)


def test_a_variable_that_the_launch_sets_to_nothing_stays_set(plain: Facts) -> None:
    """MC_STORE_USE_HUGEPAGE counts where it is there at all, whatever it says."""
    found = environment_plan(plain, {"MC_STORE_USE_HUGEPAGE": ""})
    for name, said in (
        ("env", "\nMC_STORE_USE_HUGEPAGE="),
        ("shell", "\nexport MC_STORE_USE_HUGEPAGE=''"),
        ("docker", "--env MC_STORE_USE_HUGEPAGE="),
    ):
        assert said in render(found, name, ArtefactNames()).text
    patch = yaml.safe_load(render(found, "k8s", ArtefactNames()).text)
    assert patch["spec"]["containers"][0]["env"] == [{"name": "MC_STORE_USE_HUGEPAGE", "value": ""}]


HOSTILE = "{{ lookup('pipe', 'touch P1') }}"


class Loader(yaml.SafeLoader):
    """Knows Ansible's tag for a text that is no template."""


Loader.add_constructor("!unsafe", lambda loader, node: ("unsafe", node.value))


def tasks(found: Plan) -> list[dict[str, Any]]:
    (play,) = yaml.load(render(found, "ansible", ArtefactNames()).text, Loader)
    assert (play["hosts"], play["become"]) == ("all", True)
    listed: list[dict[str, Any]] = play["tasks"]
    return listed


def options(found: Plan, module: str) -> list[dict[str, Any]]:
    return [task[module] for task in tasks(found) if module in task]


def test_kernel_settings_and_limits_are_set_and_kept(tmp_path: Path) -> None:
    memlock = Setting(Kind.ULIMIT, "memlock", "8388609", "65536")
    unit = Setting(Kind.ULIMIT, "memlock", "unlimited", unit=CONTAINERD)
    module = Setting(Kind.MODULE, "ib_uverbs", "")
    facts = plain_facts(tmp_path, files={"/proc/sys/vm/max_map_count": "65530"})
    wanted = [finding(setting) for setting in (memlock, unit, module)]
    found = plan(launch(anywhere(7)), facts, wanted)
    sysctls = options(found, "ansible.posix.sysctl")
    assert {each["name"]: each["value"] for each in sysctls} == {
        "vm.nr_hugepages": "7",
        "vm.max_map_count": "262144",
    }
    assert {each["sysctl_file"] for each in sysctls} == {SYSCTL_FILE}
    rows = options(found, "community.general.pam_limits")
    # limits.conf counts in KiB; the launch's registered memory wants all of it.
    assert [(row["domain"], row["limit_item"], row["value"]) for row in rows] == [
        ("*", "memlock", "unlimited"),
        ("root", "memlock", "unlimited"),
    ]
    (written,) = options(found, "ansible.builtin.copy")
    assert written["dest"] == drop_in(CONTAINERD)
    assert "LimitMEMLOCK=infinity" in written["content"]
    (loaded,) = options(found, "community.general.modprobe")
    assert loaded == {"name": "ib_uverbs", "params": "", "persistent": "present"}


def test_pools_that_sysctl_cannot_set_have_the_unit(tmp_path: Path) -> None:
    found = plan(launch(on_nodes(10, 20)), facts_on(tmp_path), [])
    assert [each["name"] for each in options(found, "ansible.posix.sysctl")] == ["vm.max_map_count"]
    (written,) = options(found, "ansible.builtin.copy")
    assert written["dest"] == UNIT_FILE
    assert written["content"] == render(found, "sysfs", ArtefactNames()).text + "\n"
    (started,) = options(found, "ansible.builtin.systemd_service")
    assert (started["enabled"], started["daemon_reload"]) == (True, True)


def test_no_text_is_a_template(tmp_path: Path) -> None:
    """Ansible fills in {{ ... }}, which may run what stands there."""
    setting = Setting(Kind.SYSCTL, "kernel.core_pattern", HOSTILE)
    found = of_settings(tmp_path, setting)
    values = [each["value"] for each in options(found, "ansible.posix.sysctl")]
    assert ("unsafe", HOSTILE) in values


PLAYBOOK = shutil.which("ansible-playbook") or os.environ.get("ANSIBLE_PLAYBOOK")
MODULES = ("ansible/posix/sysctl", "community/general/pam_limits", "community/general/modprobe")


@pytest.mark.skipif(not PLAYBOOK, reason="no ansible-playbook here")
def test_ansible_itself_takes_it(tmp_path: Path) -> None:
    """The collections stand in as empty modules: it is the playbook that is looked at."""
    for module in MODULES:
        space, name, file = module.split("/")
        folder = tmp_path / "ansible_collections" / space / name / "plugins/modules"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{file}.py").write_text("")
    unit = Setting(Kind.ULIMIT, "memlock", "unlimited", unit=CONTAINERD)
    settings = (unit, Setting(Kind.SYSCTL, "kernel.core_pattern", HOSTILE))
    facts = facts_on(tmp_path / "host")
    found = plan(launch(on_nodes(10, 20)), facts, [finding(setting) for setting in settings])
    place = tmp_path / "play.yaml"
    place.write_text(render(found, "ansible", ArtefactNames()).text + "\n")
    done = subprocess.run(
        [str(PLAYBOOK), "--syntax-check", "-i", "localhost,", str(place)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(tmp_path), "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
