"""Launches that are no script: systemd units, Dockerfiles, jobs of srt-slurm, templates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.framework.needs import LIMIT_NAMES
from checks.framework.unknown import Unknown
from preflight.launches.launch_files import read_source
from preflight.launches.source import Reading
from preflight.processes.processes import ProcessKind, understand
from preflight.processes.unread import unread, written_versions
from tests.builders.launched import argv, argvs, ids, written
from tests.tables import each_row


def read(tmp_path: Path, text: str, name: str, **files: str) -> Reading:
    for beside, content in files.items():
        (tmp_path / beside.replace("__", ".")).write_text(content)
    path = written(tmp_path, text, name)
    return read_source(str(path), {})


# What a job of srt-slurm starts beside its workers and its master.
BESIDE = {"nats-server", "etcd", "nginx", "dynamo.frontend", "sglang_router.launch_router"}


def of_workers(reading: Reading) -> Reading:
    """Return the workers of a job of srt-slurm, and its master."""
    return reading._replace(
        commands=tuple(
            command
            for command in reading.commands
            if BESIDE.isdisjoint(word.text.rpartition("/")[2] for word in command.words[:3])
        )
    )


UNIT = """\
# the store
[Unit]
Description=Mooncake
[Service]
Environment=MOONCAKE_PROTOCOL=rdma "OPTS=--port 50052 --a" 'NAME=x y'
EnvironmentFile=-store.env
LimitMEMLOCK=infinity
ExecStartPre=-/bin/mkdir -p /var/lib/x
ExecStart=
ExecStart=@/usr/bin/numactl numactl --membind=0 /usr/local/bin/mooncake_client $OPTS \\
    --global_segment_size=${SIZE} --name "${NAME}" --host=%H --p=100%% --cost $$5
[Install]
WantedBy=multi-user.target
"""


def test_a_systemd_unit(tmp_path: Path) -> None:
    reading = read(tmp_path, UNIT, "store.service", store__env='# a\nSIZE="80GB"\n')
    (command,) = reading.commands
    assert argv(command) == [
        "/usr/local/bin/mooncake_client", "--port", "50052", "--a", "--global_segment_size=80GB",
        "--name", "x y", "--host=%H", "--p=100%", "--cost", "$5",
    ]  # fmt: skip
    assert command.words[7].unresolved == ("%H",)
    assert command.origin.line == 10
    assert command.environment["MOONCAKE_PROTOCOL"].text == "rdma"
    assert command.wrappers[0][0] == "/usr/bin/numactl"
    assert reading.notes == ()
    assert {limit.name for limit in command.limits} == set(LIMIT_NAMES)


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("MemoryMax=15G", False),
        ("LimitNOFILE=512", True),  # carried, and judged by limits.nofile
        ("AllowedCPUs=0-3", False),
        ("TasksMax=1048576", True),
        # What hides devices or a network, and what does not.
        ("PrivateDevices=yes", False),
        ("PrivateDevices=no", True),
        ("PrivateNetwork=yes", False),
        ("DevicePolicy=closed", False),
        ("DevicePolicy=auto", True),
        ("InaccessiblePaths=/dev/infiniband", False),
        ("InaccessiblePaths=-/sys/class/infiniband /root", False),
        ("InaccessiblePaths=/root /devices", True),
        ("TemporaryFileSystem=/:ro", False),
        ("RestrictAddressFamilies=AF_UNIX", False),
        ("IPAddressDeny=any", False),
        ("ProtectHome=yes", True),
    ],
)
def test_a_limit_of_a_unit_is_not_passed_over(tmp_path: Path, line: str, known: bool) -> None:
    reading = read(tmp_path, f"[Service]\n{line}\nExecStart=/bin/mooncake_master\n", "x.service")
    assert (unread(reading, ()) == ()) is known


DOCKERFILE = """\
FROM ubuntu AS build
CMD ["never"]
FROM lmsysorg/sglang:v0.5.9
ARG VERSION=0.3.11
RUN pip install mooncake-transfer-engine==${VERSION}
ENV MOONCAKE_PROTOCOL=tcp MOONCAKE_MASTER="10.0.0.1:50051"
ENV OLD value of it
ENTRYPOINT ["python3", "-m", \\
  "sglang.launch_server"]
# the arguments
CMD ["--model-path", "Qwen/Qwen3-8B"]
"""


STAGES = """\
ARG BASE=lmsysorg/sglang:v0.5.10
FROM ubuntu:24.04 AS tools
ENV MOONCAKE_DEVICE=none
RUN pip install mooncake-transfer-engine==0.3.1
FROM --platform=linux/amd64 ${BASE} AS Serving
ENV MOONCAKE_DEVICE=mlx5_0
RUN pip install mooncake-transfer-engine==0.3.9
CMD ["mooncake_client", "--port=1"]
FROM serving
COPY --from=tools /bin/x /bin/x
"""


def test_a_stage_that_builds_on_another_has_what_that_one_has(tmp_path: Path) -> None:
    reading = read(tmp_path, STAGES, "Dockerfile")
    pip, client = reading.commands
    assert argv(pip) == [
        "pip",
        "install",
        "mooncake-transfer-engine==0.3.9",
    ]
    assert argv(client) == ["mooncake_client", "--port=1"]
    assert client.container is not None
    assert client.container.image == "lmsysorg/sglang:v0.5.10"
    assert client.environment["MOONCAKE_DEVICE"].text == "mlx5_0"


SRT = """\
name: job
model: {path: dsr1, container: "lmsysorg/sglang:v0.5.9"}
resources: {prefill_nodes: 1, prefill_workers: 2, decode_workers: 1}
frontend: {type: sglang}
backend:
  type: sglang
  prefill_environment: {MC_GID_INDEX: "3"}
  sglang_config:
    prefill:
      tensor-parallel-size: 4
      trust-remote-code: true
      enable-metrics: false
      disaggregation-mode: prefill
    decode:
      model-path: /model
      disaggregation-mode: decode
"""


def test_a_job_of_srt_slurm(tmp_path: Path) -> None:
    reading = of_workers(read(tmp_path, SRT, "job.yaml"))
    server = ["python3", "-m", "sglang.launch_server"]
    assert argvs(reading) == [
        *[[*server, "--port", port, "--disaggregation-bootstrap-port", bootstrap,
           "--model-path", "dsr1", "--tensor-parallel-size", "4", "--trust-remote-code",
           "--disaggregation-mode", "prefill"]
          for port, bootstrap in (("6100", "7200"), ("6132", "7201"))],
        [*server, "--port", "6100", "--model-path", "dsr1", "--disaggregation-mode", "decode"],
    ]  # fmt: skip
    assert reading.commands[0].environment["MC_GID_INDEX"].text == "3"
    assert reading.commands[0].words[10].origin.line == 10
    for old, new in (
        ("lmsysorg/sglang:v0.5.9", "v0.5.8"),
        ("name: job", "identity: {frameworks: {sglang: 0.5.8}}"),
    ):
        found = written_versions(read(tmp_path, SRT.replace(old, new), "job.yaml"))
        assert found["sglang"].version == "0.5.8"
    dynamo = read(tmp_path, SRT.replace("type: sglang}", "type: dynamo}"), "dynamo.yaml")
    assert argvs(dynamo)[0][2] == "dynamo.sglang"


@each_row(
    ("path", "shown"),
    [("dsr1", "org/R1-FP8"), ("hf:org/DSR1", "org/DSR1"), ("/m/dsr1", "/m/dsr1")],
)
def test_an_alias_of_a_job_is_the_model_and_image_that_its_identity_names(
    tmp_path: Path, path: str, shown: str
) -> None:
    identity = "identity: {model: {repo: org/R1-FP8}, container: {image: a/sglang:v0.5.8}}\n"
    text = SRT.replace("dsr1", path).replace("lmsysorg/sglang:v0.5.9", "ours")
    reading = of_workers(read(tmp_path, identity + text, "job.yaml"))
    models = {words[words.index("--model-path") + 1] for words in argvs(reading)}
    assert models == {shown}
    assert written_versions(reading)["sglang"].version == "0.5.8"


DYNAMO = "python3 -m dynamo.frontend --http-port="
ROUTER = "python3 -m sglang_router.launch_router --host 0.0.0.0 --port "
NATS = ("/configs/nats-server -js -sd /tmp/nats", "prefill", 1)
ETCD = (
    "/configs/etcd --data-dir /tmp/etcd --listen-client-urls http://0.0.0.0:2379",
    *("prefill", 1),
)
NGINX = ("nginx -c /logs/nginx.conf -g daemon off;", "prefill", 1)


@pytest.mark.parametrize(
    ("nodes", "frontend", "beside"),
    [
        ((1, 0), "type: dynamo", [NATS, ETCD, (f"{DYNAMO}8000", "prefill", 1)]),
        ((1, 0), "type: sglang", [NATS, ETCD, (f"{ROUTER}8000", "prefill", 1)]),
        ((1, 1), "", [NATS, ETCD, NGINX, (f"{DYNAMO}8180", "decode", 1)]),
        ((1, 20), "type: sglang", [NATS, ETCD, NGINX, (f"{ROUTER}8180", "decode", 10)]),
        (
            (1, 20),
            "type: sglang, num_additional_frontends: 1",
            [NATS, ETCD, NGINX, (f"{ROUTER}8180", "decode", 2)],
        ),
        ((1, 1), "enable_multiple_frontends: false", [NATS, ETCD, (f"{DYNAMO}8000", "prefill", 1)]),
        ((1, 0), "type: vllm", []),
    ],
)
def test_what_a_job_of_srt_slurm_starts_beside_its_workers(
    tmp_path: Path, nodes: tuple[int, int], frontend: str, beside: list[tuple[str, str, int]]
) -> None:
    """srtctl/cli/do_sweep.py, setup_head.py and mixins/frontend_stage.py."""
    prefill, decode = nodes
    text = (
        f"model: {{path: m}}\nfrontend: {{{frontend}}}\n"
        f"resources: {{prefill_nodes: {prefill}, prefill_workers: 1, decode_nodes: {decode}, "
        "decode_workers: 1}\nbackend: {sglang_config: {prefill: {tp-size: 1}, "
        "decode: {tp-size: 1}}}\n"
    )
    found = read(tmp_path, text, "job.yaml")
    workers = of_workers(found).commands
    assert [
        (" ".join(word.text for word in each.words), each.place and each.place.name[1], each.copies)
        for each in found.commands
        if each not in workers
    ] == beside
    apart = read(tmp_path, f"{text}infra: {{etcd_nats_dedicated_node: true}}\n", "job.yaml")
    places = {each.place.name[1] for each in apart.commands if each.place is not None}
    assert ("infra" in places) is bool(beside)


def test_what_a_job_of_srt_slurm_gives_all_its_workers(tmp_path: Path) -> None:
    """srtctl/core/schema.py: ``environment`` comes over that of a kind, ``extra_mount``."""
    more = (
        'environment: {MC_GID_INDEX: "4", MC_A: "a{node_id}", MC_B: "{b}"}\n'
        "extra_mount: [/data/m:/m]\ncontainer_mounts: {/h: /c, '{log_dir}': /l}\n"
    )
    command = read(tmp_path, SRT + more, "job.yaml").commands[0]
    assert command.environment["MC_GID_INDEX"].text == "4"
    assert command.environment["MC_A"].unresolved == ("node_id",)
    assert command.environment["MC_B"].unresolved == ()
    assert command.container is not None
    mounts = {mount.target: mount.source for mount in command.container.mounts}
    assert mounts == {"/m": "/data/m", "/c": "/h"}


def test_a_job_of_srt_slurm_writes_the_stores_file_for_vllm(tmp_path: Path) -> None:
    text = """\
model: {path: m}
resources: {gpus_per_node: 8, agg_nodes: 2, agg_workers: 1}
frontend: {type: vllm}
backend:
  type: vllm
  mooncake_kv_store:
    store_config: {global_segment_size: "200GB", local_buffer_size: 4096, enable_offload: false}
  vllm_config:
    aggregated: {tensor-parallel-size: 16}
"""
    command, master = of_workers(read(tmp_path, text, "job.yaml")).commands
    assert argv(command)[-2:] == ["--nnodes", "2"]
    assert (master.words[0].text, master.place) == ("mooncake_master", command.place)
    path = command.environment["MOONCAKE_CONFIG_PATH"].text
    assert json.loads(command.files[path].text) == {
        "global_segment_size": "200GB",
        "local_buffer_size": 4096,
        "enable_offload": False,
    }


def test_what_a_job_of_srt_slurm_adds_for_sglang(tmp_path: Path) -> None:
    """As srtctl/backends/sglang.py writes a worker's words and its environment."""
    text = """\
model: {path: "hf:Qwen/Qwen3-8B"}
frontend: {type: sglang}
resources: {prefill_workers: 1}
backend:
  mooncake_kv_store:
    env: {MOONCAKE_PROTOCOL: rdma, MOONCAKE_MASTER: mine}
    standalone_store: {placements: {prefill: {}}}
    container: nvcr.io/x/mooncake:1
    master_extra_args: [--eviction_ratio=0.1]
  sglang_config: {prefill: {tp_size: 4, page-size: null, cuda-graph-bs: [1, 2]}}
"""
    reading = read(tmp_path, text, "job.yaml")
    command, master = of_workers(reading).commands
    # srtctl/cli/do_sweep.py, _build_mooncake_master_command
    started = argv(master)
    assert started[:2] == ["mooncake_master", "--port=8700"]
    assert started[-2:] == ["--metrics_port=8702", "--eviction_ratio=0.1"]
    assert master.container is not None
    assert (master.container.image, master.container.engine) == ("nvcr.io/x/mooncake:1", "pyxis")
    assert argv(command)[3:] == [
        *"--port 6100 --disaggregation-bootstrap-port 7200".split(),
        *"--model-path Qwen/Qwen3-8B --tp-size 4 --cuda-graph-bs 1 2".split(),
        *"--disaggregation-mode prefill".split(),
    ]
    assert command.environment["MOONCAKE_PROTOCOL"].text == "rdma"
    assert command.environment["MOONCAKE_MASTER"].unresolved == ("the address of the infra node",)
    assert ids(reading) == ["resource-not-read"]


@pytest.mark.parametrize("between", [" ", "="])
def test_what_a_trainer_hands_on_to_its_servers(tmp_path: Path, between: str) -> None:
    text = (
        'ray job submit --runtime-env-json=\'{"env_vars": {"MOONCAKE_MASTER": "a:1"}}\' -- '
        f"python3 train.py --hf-checkpoint{between}/m --rollout-num-gpus-per-engine{between}2 "
        "--sglang-page-size 64 --sglang-enable-hierarchical-cache --seed 7\n"
    )
    reading = read(tmp_path, text, "slime.sh")
    (process,) = understand(reading.commands, lambda name: "")
    assert process.kind is ProcessKind.SGLANG
    assert [word.text for word in process.arguments] == [
        "--model-path", "/m", "--tp-size", "2", "--page-size", "64", "--enable-hierarchical-cache",
    ]  # fmt: skip
    assert process.command.environment["MOONCAKE_MASTER"].text == "a:1"


POD = "template: {spec: {containers: [{name: c, image: i, command: [mooncake_client]}]}}"
JOB = f"{{parallelism: 3, completions: 9, {POD}}}"


@pytest.mark.parametrize(
    ("text", "copies"),
    [
        (f"kind: StatefulSet\nspec: {{replicas: 3, {POD}}}\n", 3),
        (f"kind: Job\nspec: {JOB}\n", 3),  # those that run side by side
        (f"kind: CronJob\nspec: {{jobTemplate: {{spec: {JOB}}}}}\n", 3),
        (  # of operators' kinds see test_schemas
            f"kind: StormService\nspec: {{replicas: 2, template: {{spec: {{roles: [{{name: a, "
            f"replicas: 3, {POD}}}]}}}}}}\n",
            6,
        ),
        ("services: {a: {image: i, command: mooncake_client, deploy: {replicas: 4}}}\n", 4),
    ],
)
def test_how_many_a_manifest_asks_for(text: str, copies: int, tmp_path: Path) -> None:
    assert read(tmp_path, text, "all.yaml").commands[0].copies == copies


@each_row(
    "section",
    [
        "[Service]\nExecStart=/usr/local/bin/mooncake_master", "[Container]\nImage=i",
        "[program:m]\ncommand=mooncake_master", "FROM i\nCMD mooncake_master",
        "apiVersion: v1\nkind: Pod", "services:\n  a: {image: i}",
    ],
)  # fmt: skip
@each_row("first", ["#!/bin/bash", "set -e", "[ -f x ] || exit", "# starts all"])
@each_row("name", ["launch.sh", "launch"])
def test_a_script_that_writes_another_kind_is_a_script(
    tmp_path: Path, section: str, first: str, name: str
) -> None:
    """Its server was gone where it wrote a unit: 400 GB passed unread."""
    script = f"{first}\ncat > x <<'U'\n{section}\nU\nmooncake_client --global_segment_size=400GB\n"
    started = argvs(read(tmp_path, script, name))
    assert ["mooncake_client", "--global_segment_size=400GB"] in started


@pytest.mark.parametrize(
    "first",
    ["#!/usr/bin/env python3", "#!/usr/bin/python3.11 -u", "#!/usr/bin/env -S uv run --script"],
)
def test_the_first_line_says_that_python_runs_it(tmp_path: Path, first: str) -> None:
    """Read as a shell's script it started nothing, and nothing was named."""
    program = f'{first}\nimport os\nos.system("mooncake_client --port 5 &")\n'
    assert ["mooncake_client", "--port", "5"] in argvs(read(tmp_path, program, "start.sh"))


def test_a_job_of_ray_has_the_limits_of_its_cluster(tmp_path: Path) -> None:
    """``ray start`` ran before, and somewhere else: no limit of this shell reaches the server."""
    reading = read(tmp_path, "ulimit -l 64\nray job submit -- mooncake_client --port=1\n", "r.sh")
    (command,) = reading.commands
    last = {limit.name: limit for limit in command.limits}
    assert {"memlock", "nofile"} <= last.keys()
    assert all(isinstance(limit.soft, Unknown) for limit in last.values())
