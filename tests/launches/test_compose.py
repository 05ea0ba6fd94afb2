"""Compose files: each service's process, its environment, and what its container gets."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.needs import GivenGpus
from preflight.launches.compose import read_compose
from preflight.launches.container import ContainerSettings, Mount
from preflight.launches.documents import load_documents
from preflight.launches.env_files import interpolate, read_compose_env_file
from preflight.launches.source import Command, Origin, SourceError
from preflight.launches.variables import environment_words
from tests.builders.launched import ids, programs
from tests.tables import each_row

TEXT = """\
x-env: &env
  MC_STORE_USE_HUGEPAGE: 1
  MOONCAKE_MASTER: old
services:
  prefill:
    image: lmsysorg/sglang:${TAG:-latest}
    command: numactl -m 0 python3 -m sglang.launch_server --model-path $MODEL --x '$$HOME a'
    environment:
      <<: *env
      MOONCAKE_MASTER: ${MASTER?set it}
      DEVICE: ${DEVICE_LIST}
      CALLER:
      NOBODY:
    env_file: [prod.env, other.env]
    ipc: host
    network_mode: host
    shm_size: 32gb
    privileged: true
    cap_add: [IPC_LOCK]
    devices: ["/dev/infiniband:/dev/infiniband"]
    ulimits:
      memlock: -1
      stack: {soft: 1, hard: 2}
    volumes:
      - /dev/hugepages:/dev/hugepages
      - {type: bind, source: /a, target: /b}
      - {type: tmpfs, target: /dev/shm, tmpfs: {size: 1g}}
    tmpfs: /t
    cpuset: 0-3
    security_opt: ["seccomp:unconfined"]
    deploy:
      resources:
        limits: {memory: 64g, pids: 300}
        reservations: {devices: [{driver: nvidia, count: all, capabilities: [gpu]}]}
  master:
    image: m
    entrypoint: ["mooncake_master"]
    command:
      - --port=50051
    environment: ["A=x=y", CALLER]
  bare:
    image: b
"""


def test_settings() -> None:
    """The same record as for docker run, from the file's own spelling."""
    reading = read_compose(TEXT, "compose.yaml", {"TAG": "v1"})
    prefill, master = reading.commands
    assert prefill.container is not None
    assert prefill.container == ContainerSettings(
        engine="compose",
        image="lmsysorg/sglang:v1",
        ipc="host",
        network="host",
        shm_size_bytes=32 * 2**30,
        ulimits={"memlock": (-1, -1), "stack": (1, 2)},
        devices=("/dev/infiniband",),
        gpus=GivenGpus(),
        privileged=True,
        cap_add=("IPC_LOCK",),
        security_opt=("seccomp=unconfined",),
        mounts=(
            Mount("/dev/hugepages", "bind", "/dev/hugepages"),
            Mount("/b", "bind", "/a"),
            Mount("/dev/shm", "tmpfs", size_bytes=2**30),
            Mount("/t", "tmpfs"),
        ),
        cpuset_cpus="0-3",
        memory_bytes=64 * 2**30,
        pids=300,
    )
    assert master.container == ContainerSettings(engine="compose", image="m")


@pytest.mark.parametrize(
    ("text", "expected", "unresolved"),
    [
        ("$A ${A} $$A a$", "1 1 $A a$", ()), ("${A:-x} ${B:-x} ${E:-x} ${E-x}", "1 x x ", ()),
        ("${A:+p}${B:+p}${E:+p}${E+p}", "pp", ()), ("${B:-${C:-${A}}}", "1", ()),
        ("$B ${B:?why}", "$B ${B:?why}", ("B",)), ("${B:-x", "${B:-x", ("B",)), ("${", "${", ()),
    ],
)  # fmt: skip
def test_interpolation(text: str, expected: str, unresolved: tuple[str, ...]) -> None:
    word = interpolate(text, environment_words({"A": "1", "E": ""}), Origin("c"))
    assert (word.text, word.unresolved) == (expected, unresolved)


BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@each_row(
    ("text", "says"),
    [
        (BOMB, "aliases"), ("a: 1\na: 2", "c.yaml:2 has the key 'a' twice"),
        ('{"a": 1, "a": 2}', "key 'a' twice"), ("a: [1", "not YAML"), ('{"a": ', "not JSON"),
        ("[" * 5000 + "]" * 5000, "deep|nesting"), ("[" * 5000, "deep|nesting"),
        ("- " * 5000, "deep"), ("{a: " * 5000, "deep|nesting"),
        ("a: *b", "nothing defines|undefined alias"), ("a: \x01", "YAML"),
        ("[a]: 1\nx: {[b]: c}", "c.yaml"), ("x" * (2**20 + 1), "1 MiB"),
        ("a: &a [*a]", "YAML|nothing defines"),
        ("!!python/object/apply:os.system [id]: 1", "not text"),
    ],
)  # fmt: skip
def test_texts_that_are_refused(text: str, says: str) -> None:
    with pytest.raises(SourceError, match=says):
        load_documents(text, "c.yaml")


def test_values_stay_as_they_are_written() -> None:
    (document,) = load_documents("a: 0.30\nb: yes\nc: ~\nd: '~'\ne: 0x10\nf: !!int 3", "c.yaml")
    values = [node.value for node in document.fields.values()]
    assert values == ["0.30", "yes", None, "~", "0x10", "3"]
    (document,) = load_documents('{"a": 0.30, "b": 9007199254740993, "c": true, "d": null}', "c")
    values = [node.value for node in document.fields.values()]
    assert values == ["0.30", "9007199254740993", "true", None]


def process(text: str, environment: dict[str, str] | None = None, **files: str) -> Command:
    (command,) = read_compose(text, "c.yaml", environment or {}, beside=files.get).commands
    return command


ENV_FILE = """\
# comment
export A="a $CALLER"
B='b $CALLER'   # comment
C=c # comment
D = d#d
CALLER
NOBODY
G=${A:-x}/${NONE:-n}
"""


def test_env_files_have_quotes_and_variables() -> None:
    """Unlike those of docker run; and ``format: raw`` is one of those."""
    text = "services: {s: {image: i, command: x, env_file: [{path: e, format: FORMAT}]}}"
    read = process(text.replace(", format: FORMAT", ""), {"CALLER": "c"}, e=ENV_FILE).environment
    assert {name: word.text for name, word in read.items()} == {
        "A": "a c", "B": "b $CALLER", "C": "c", "D": "d#d", "CALLER": "c", "G": "a c/n",
    }  # fmt: skip
    assert read["G"].origin == Origin("e", 8)
    raw = process(text.replace("FORMAT", "raw"), {"CALLER": "c"}, e='A="a" # b').environment
    assert raw["A"].text == '"a" # b'


@each_row(
    ("line", "id_"),
    [
        ("A b=1", "env-file-name"), ("=1", "env-file-name"), ("A='b", "env-file-not-read"),
        ('A="q\\n"', "env-file-not-read"), ("A='b'c", "env-file-not-read"),
    ],
)  # fmt: skip
def test_lines_of_an_env_file_that_compose_refuses_or_that_are_more_than_plain(
    line: str, id_: str
) -> None:
    text = "services: {s: {image: i, command: x, env_file: e}}"
    (note,) = read_compose(text, "c", {}, {"e": f"X=1\n{line}\n"}.get).notes
    assert (note.id, note.origin) == (id_, Origin("e", 2))


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("include: [a.yaml]\nservices: {m: {image: i, command: x}}", "include-not-read"),
        ("include: [{path: [a.yaml, b.yaml]}]\nservices: {m: {command: x}}", "include-not-read"),
        ("services: {m: {image: i, command: x}, s: {extends: {service: m}}}", "extends-not-read"),
        ("services: {m: {command: x}, s: {extends: m, command: y}}", "extends-not-read"),
        (
            "services: {m: {command: x}, s: {extends: {file: b.yml, service: c}}}",
            "extends-not-read",
        ),
    ],
)
def test_what_is_put_together_of_several_is_named(text: str, note: str) -> None:
    """Its own services are read; nothing is said of one that takes settings from another."""
    files = {"a.yaml": "services: {z: {command: z}}", "b.yml": "services: {s: {command: c}}"}
    reading = read_compose(text, "c", {}, beside=files.get)
    assert [(found.id, "docker compose config" in found.text) for found in reading.notes] == [
        (note, True)
    ]
    assert [one.place and one.place.name for one in reading.commands] == [("m",)]


@pytest.mark.parametrize(
    ("profiles", "started", "notes"),
    [
        (None, ["x"], ["not-started"] * 2),
        ("gpu", ["x", "y"], ["not-started"]),
        ("*", ["x", "y", "z"], []),
    ],
)
def test_profiles(profiles: str | None, started: list[str], notes: list[str]) -> None:
    """What COMPOSE_PROFILES chooses; without it Compose starts none that has a profile."""
    text = """\
services:
  a: {image: i, command: x}
  b: {image: i, command: y, profiles: [gpu, all]}
  c: {image: i, command: z, profiles: [cpu]}
"""
    reading = read_compose(text, "c", {} if profiles is None else {"COMPOSE_PROFILES": profiles})
    assert programs(reading) == started
    assert ids(reading) == notes


@pytest.mark.parametrize("said", ["scale: 0", "deploy: {replicas: 0}", "scale: $NONE"])
def test_a_service_of_which_none_is_asked_for_is_no_process(said: str) -> None:
    text = f"services: {{a: {{image: i, command: x, ports: ['1:1'], {said}}}}}"
    reading = read_compose(text, "c", {"NONE": "0"})
    assert (reading.commands, reading.published) == ((), ())
    assert ids(reading) == ["not-started"]


@each_row(
    ("service", "note"),
    [
        ("command: [x, --tp, 8]", "value-not-text"),
        ("command: [x, true]", "value-not-text"),
        ("command: a && b", "no-shell"),
        ("command: a > log", "no-shell"),
        ("command: x, shm_size: 64Gi", "container-refused"),
        ("command: x, mem_limit: 1ib", "container-refused"),
        ("command: x, ulimits: {memlock: unlimited}", "container-refused"),
        ("command: x, ulimits: {memlock: {soft: 9, hard: 5}}", "container-refused"),
        ("command: x, ulimits: {lock: 9}", "container-refused"),
        ("command: x, tmpfs: '$DIR:size=64Gi'", "container-refused"),
        ("command: 'x $SIZE', shm_size: $SIZE", None),
        ("command: x, shm_size: '%SIZE%'", None),
        ("command: 'a \"&&\" ''b;'''", None),
        ("command: [x, '8', yes]", None),
    ],
)
def test_what_compose_does_not_start_as_it_is_meant(service: str, note: str | None) -> None:
    reading = read_compose(f"services: {{s: {{image: i, {service}}}}}", "c", {})
    assert ids(reading) == ([note] if note else [])


def test_variables_that_double_each_other_stay_small() -> None:
    text = "A=x\n" + 'A="$A$A"\n' * 60
    variables, notes = read_compose_env_file(text, "e", {})
    assert len(variables["A"].text) <= 2**18
    assert variables["A"].unresolved == ("A",)
    assert notes == ()


@given(st.text(alphabet="AB='\"\\$#: \n\r{}-x\u00e9", max_size=60))
def test_any_env_file_is_read(text: str) -> None:
    """To its end, or to a line that Compose refuses."""
    variables, notes = read_compose_env_file(text, "e", {})
    assert all(name and " " not in name for name in variables)
    assert len(notes) <= 1


def test_a_chain_of_merges_is_bounded_before_it_is_built() -> None:
    """Each mapping holds all that stood in those before it: 724 kB would take 3.5 GiB."""
    links = (f"a{n}: &a{n}\n  <<: *a{n - 1}\n  k{n}: v\n" for n in range(1, 10_000))
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="aliases"):
            load_documents("a0: &a0 {k: v}\n" + "".join(links), "c.yaml")
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()
