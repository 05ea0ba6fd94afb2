"""Each pod, service and container has ports and files of its own."""

from __future__ import annotations

import pytest

from checks.framework.unknown import Unknown
from preflight.launches.launch_files import read_text
from preflight.processes.containers import host_path, network_of
from preflight.processes.ports import ports
from preflight.processes.processes import LaunchProcess, understand
from preflight.processes.services import services
from tests.tables import each_row

POD = """\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  template:
    spec:
      hostNetwork: {host}
      volumes:
        - {{name: models, hostPath: {{path: /srv/models}}}}
        - {{name: claim, persistentVolumeClaim: {{claimName: x}}}}
      containers:
        - name: a
          image: i
          command: [mooncake_master]
          volumeMounts:
            - {{name: models, mountPath: /models}}
            - {{name: claim, mountPath: /models/cache}}
        - {{name: b, image: i, command: [mooncake_client]}}
"""


def read(text: str, name: str = "launch.sh") -> tuple[LaunchProcess, ...]:
    return understand(read_text(text, name, {}).commands, lambda path: Unknown(path))


def networks(text: str, name: str = "launch.sh") -> list[str]:
    return [network_of(process.command) for process in read(text, name)]


@each_row(
    ("text", "name", "found"),
    [
        ("mooncake_master", "a.sh", [""]),
        ("numactl --membind=0 mooncake_master", "a.sh", [""]),
        ("docker run --net host i mooncake_master", "a.sh", [""]),
        ("docker run i mooncake_master", "a.sh", ["the container of a.sh:1"]),
        (
            "docker run i mooncake_master\ndocker run i mooncake_master",
            "a.sh",
            ["the container of a.sh:1", "the container of a.sh:2"],
        ),
        ("ssh h mooncake_master", "a.sh", ["where a.sh:1 runs"]),
        (POD.format(name="p", host="false"), "a.yaml", ["Deployment/p", "Deployment/p"]),
        (POD.format(name="p", host="true"), "a.yaml", ["", ""]),
        (
            "services:\n  a: {image: i, command: mooncake_master}\n"
            "  b: {image: i, command: mooncake_client, network_mode: host}\n"
            "  c: {image: i, command: mooncake_client, network_mode: 'service:a'}\n",
            "compose.yml",
            ["a", "", "a"],
        ),
    ],
)
def test_which_network_a_port_is_bound_in(text: str, name: str, found: list[str]) -> None:
    assert networks(text, name) == found
    for process in read(text, name):
        assert {port.network for port in ports(process)} == {network_of(process.command)}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/models/Qwen3-8B/config.json", "/srv/models/Qwen3-8B/config.json"),
        ("/models", "/srv/models"),
        ("/modelstore/x", None),  # in the image
        ("/models/cache/x", None),  # a claim, whose place is not known
        ("/etc/mooncake.json", None),
    ],
)
def test_where_a_file_of_a_container_lies(path: str, found: str | None) -> None:
    process = read(POD.format(name="p", host="false"), "a.yaml")[0]
    where = host_path(process.command, path)
    assert where == found if found is not None else isinstance(where, Unknown)


def test_a_file_of_the_host_stays_where_it_is() -> None:
    (process,) = read("nohup mooncake_master")
    assert host_path(process.command, "/models/x") == "/models/x"
    (elsewhere,) = read("ssh h mooncake_master")
    assert isinstance(host_path(elsewhere.command, "/models/x"), Unknown)


def test_a_tilde_inside_a_word_names_no_home() -> None:
    """Bash hands on --config=~/m.json as it is written, so it is not the file that it wrote."""
    writes = "cat > ~/m.json <<'EOF'\n{}\nEOF\n"
    reading = read_text(
        writes + "python -m mooncake.mooncake_store_service --config=~/m.json", "a.sh", {}
    )
    opened: list[str] = []

    def read_file(name: str) -> str | Unknown:
        opened.append(name)
        return "{}"

    (service,) = (one for one in understand(reading.commands, read_file) if one.store)
    assert service.store is not None
    assert isinstance(service.store.client, Unknown)
    assert service.store.client.advice == "write $HOME/m.json in the launch"
    assert opened == []


@each_row(
    ("text", "turns"),
    [
        ("mooncake_master & mooncake_client & kill $!\nmooncake_client &", [0, 0, 1]),
        ("mooncake_master & kill -0 $!\nmooncake_client &", [0, 0]),
        ("docker run -d i mooncake_master\ndocker rm -f i\nmooncake_client &", [0, 1]),
        ("f() { pkill x; }\nmooncake_master & f\nbash -c 'mooncake_client &'", [0, 1]),
        ("mooncake_master & if ! curl x; then kill $!; exit 1; fi; mooncake_client &", [0, 0]),
        ('mooncake_master & P=$!; if [ -n "$P" ]; then kill $P; fi; mooncake_client &', [0, 1]),
        ("for i in 1 2; do mooncake_master & kill $!; done", [0, 1]),
        ("mooncake_master & mooncake_client & wait", [0, 0]),
    ],
)
def test_what_the_script_has_ended(text: str, turns: list[int]) -> None:
    found = [process.command.turn for process in read(text) if process.kind.name != "OTHER"]
    assert found == turns


def test_names_are_looked_up_where_the_process_runs() -> None:
    text = (
        "services:\n  master: {image: i, command: mooncake_master}\n"
        "  near: {image: i, command: mooncake_client --master_server_address=master:50051}\n"
        "  far: {image: i, command: mooncake_client --master_server_address=elsewhere:50051}\n"
        "  away: {image: i, command: mooncake_client --master_server_address=10.0.0.9:50051}\n"
        "  host: {image: i, network_mode: host, "
        "command: mooncake_client --master_server_address=elsewhere:50052}\n"
    )
    found = [service for service in services(read(text, "c.yml")) if service.kind == "master"]
    assert [service.host for service in found if isinstance(service.host, str)] == [
        "10.0.0.9",
        "elsewhere",
    ]
    (open_one,) = [service for service in found if isinstance(service.host, Unknown)]
    assert open_one.name == "elsewhere"
    assert open_one.host.advice.startswith("run this check inside the container")  # type: ignore[union-attr]
