"""``--json`` of every command: one object on every way out, by its schema, with its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from preflight.base import envelope
from preflight.cache_sizing.traces.describe import mooncake_lines, profile_trace
from preflight.cli.main import NAME, run
from preflight.cli.sizing import run as run_sizing
from preflight.launch_problems.advisories.records import advisories
from preflight.server_logs.patterns import read_patterns
from preflight.verdict.catalogue import catalogue
from tests.builders.synthetic import PATIENCE_SECONDS, build_host, gpu_host, plain_host
from tests.cache_sizing.capacity.test_capacity_published import H800_L2
from tests.cli.commands import LEAVES as EVERY_LEAF
from tests.paths import ROOT
from tests.tables import each_row
from tests.valid import valid

Json = dict[str, Any]
Words = tuple[str, ...]

SCHEMAS = {
    schema["$id"]: schema
    for file in sorted((ROOT / "preflight/report/schemas").glob("*.json"))
    for schema in (json.loads(file.read_text()),)
}
VALIDATORS = {id_: jsonschema.Draft202012Validator(schema) for id_, schema in SCHEMAS.items()}
SIZING = "mooncake-hicache-sizing"
# Messages of one program of this project to another, and the documented helper, drop-in as it is.
APART = ("node", "sizing")
# What each command needs beside --json for its words to be taken, and the schema of its errors.
COMMANDS: dict[Words, tuple[Words, str]] = {
    ("apply",): ((), "apply"),
    ("capacity",): ((), "capacity"),
    ("capture",): (("x",), "capture"),
    ("check",): ((), "check"),
    ("diff",): (("--to", "sglang=0.5.9"), "diff"),
    ("exec",): (("--", "true"), "check"),
    ("explain",): (("--log", "x"), "explain-log"),
    ("fit",): ((), "fit"),
    ("fleet", "check"): (("--nodes", "a"), "fleet"),
    ("fleet", "measure"): (("--nodes", "a,b"), "fleet"),
    ("fleet", "merge"): (("x",), "fleet"),
    ("fleet", "observe"): (("--nodes", "a"), "fleet"),
    ("fleet", "rails"): (("x",), "fleet"),
    ("measure",): ((), "measure"),
    ("observe",): ((), "observe"),
    ("plan",): ((), "plan"),
    ("read",): ((), "launch"),
    ("topology",): ((), "topology"),
    ("trace", "describe"): (("x",), "trace"),
    (SIZING,): ((), "sizing"),
}
WITH_ROOT = ("capacity", "check", "diff", "fit", "observe", "plan", "read", "topology", SIZING)


LEAVES = {tuple(path.removeprefix(f"{NAME} ").split()): leaf for path, leaf in EVERY_LEAF.items()}


def object_of(path: Words, words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Json:
    """The one object of standard output: by its schema, its exit code that of the process."""
    given = [*(["--format", "json"] if path == ("plan",) else ["--json"]), *words]
    code = run_sizing(given) if path == (SIZING,) else run([*path, *given])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    found: Json = json.loads(said.out)
    VALIDATORS[found["schema"]].validate(found)
    assert found["exit_code"] == code
    if path != (SIZING,):
        assert found["command"] == " ".join(path)
        assert found["reason"] or code == 0
    return found


def refused(path: Words, words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> int:
    """The exit code of an answer that says that there is none."""
    found = object_of(path, words, capsys)
    assert (found["schema"], found["status"]) == (f"{NAME}/{COMMANDS[path][1]}/v1", "error")
    assert found["error" if path == (SIZING,) else "reason"]
    return int(found["exit_code"])


def test_no_command_is_left_out() -> None:
    """Every one that takes --json (plan takes --format json) is in the table above."""
    options = {
        path: {name for parameter in leaf.params for name in parameter.opts}
        for path, leaf in LEAVES.items()
    }
    assert {path for path, names in options.items() if "--json" in names} | {("plan",)} == set(
        COMMANDS
    )
    assert {path for path, names in options.items() if "--root" in names} - {
        ("capture",),
        ("apply",),
        ("explain",),  # of the host alone where an id or a line is given: tests/server_logs
    } == {(name,) for name in WITH_ROOT}


# Without an answer -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_wrong_word_an_interrupt_and_a_defect_each_have_an_object(
    path: Words, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit codes 64, 130 and 70; so has a process that finds no memory."""
    assert refused(path, ["--no-such-option"], capsys) == 64
    raised: list[BaseException] = []

    def ended(**options: object) -> int:
        raise raised[-1]

    monkeypatch.setattr(LEAVES[path], "callback", ended)
    for error, code in ((KeyboardInterrupt(), 130), (KeyError("x"), 70), (MemoryError(), 70)):
        raised.append(error)
        assert refused(path, COMMANDS[path][0], capsys) == code


@pytest.mark.parametrize("name", WITH_ROOT)
def test_what_is_no_host_has_an_object(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No such place, a file that is no capture, and an archive that breaks off."""
    broken = tmp_path / "host.tar.gz"
    broken.write_bytes(b"\x1f\x8b\x08\0broken")
    for root in ("/no/such/root", "/etc/passwd", str(broken)):
        assert refused((name,), ["--root", root], capsys) == 64


# Answers ---------------------------------------------------------------------------------------

SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --enable-hierarchical-cache "
STORE = "--hicache-size {} --hicache-storage-backend mooncake --page-size 64"
ENVIRONMENT = "MOONCAKE_MASTER=127.0.0.1:1 MOONCAKE_PROTOCOL=tcp MOONCAKE_GLOBAL_SEGMENT_SIZE={} "


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """plain: without GPUs. gpus: with 8 GPUs and NICs. blind: plain without its meminfo."""
    folder = tmp_path_factory.mktemp("hosts")
    plain = replace(plain_host(), services={("127.0.0.1", 1): "master"})
    build_host(folder / "plain", plain)
    build_host(folder / "blind", replace(plain, files={"/proc/meminfo": None}))
    build_host(folder / "gpus", gpu_host())
    return folder


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a launch and returns its name; nothing is found in the caller's environment."""
    for name in ("MC_STORE_USE_HUGEPAGE", "MOONCAKE_PROTOCOL", "NOBODY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        Path("run.sh").write_text(text)
        return "run.sh"

    return write


SMALL = ENVIRONMENT.format("1gb") + SERVER + STORE.format(1)
PAGES = f"export MC_STORE_USE_HUGEPAGE=1\n{SMALL}"
UNSET = ENVIRONMENT.format("$NOBODY") + SERVER + STORE.format(1)
PATIENCE = ("--timeout", str(PATIENCE_SECONDS))

# command, its words, the host, the launch; the exit code, and the answer's own word or status.
ANSWERS = [
    ("capacity", ("--gpu-memory", "80gb"), "gpus", H800_L2, 0, "known"),
    ("capacity", (), "plain", H800_L2, 3, "unknown"),
    ("fit", PATIENCE, "gpus", SMALL, 0, "fits"),
    ("fit", PATIENCE, "plain", SMALL, 1, "fits-but-fails"),
    ("fit", ("--keep", "900gb", *PATIENCE), "plain", SMALL, 2, "nothing-fits"),
    ("fit", PATIENCE, "blind", SMALL, 3, "unknown"),
    ("plan", PATIENCE, "plain", SMALL, 0, "known"),
    ("plan", PATIENCE, "plain", "", 0, "known"),
    ("plan", ("--exit-code", *PATIENCE), "plain", PAGES, 1, "known"),
    ("plan", PATIENCE, "plain", UNSET, 3, "unknown"),
    ("topology", PATIENCE, "gpus", "", 0, "pass"),
    ("topology", PATIENCE, "plain", SMALL.replace("tcp", "rdma"), 2, "fail"),
    # Which release of SGLang runs is not known: records of older ones may affect it.
    ("explain", ("--advisories", "--all", *PATIENCE), "plain", SMALL, 1, None),
    ("diff", ("--to", "sglang=0.5.9", *PATIENCE), "plain", SMALL, 1, None),
    ("read", ("--keys", *PATIENCE), "plain", SMALL, 0, None),
    ("read", PATIENCE, "plain", SMALL, 0, "read"),
    ("read", PATIENCE, "plain", f"{SMALL} $(nobody knows)", 3, "unread"),
    (SIZING, (), "plain", SMALL, 0, "fits"),
    (SIZING, (), "plain", PAGES, 2, "fails"),
    (SIZING, (), "plain", UNSET, 3, "error"),
    (SIZING, ("--rule", "documented"), "plain", PAGES, 2, "insufficient_for_baseline"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "words", "host", "launch", "code", "status"), ANSWERS)
def test_an_answer_is_as_its_schema_says(
    name: str,
    words: Words,
    host: str,
    launch: str,
    code: int,
    status: str | None,
    hosts: Path,
    launched: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [*words, "--root", str(hosts / host), *([launched(launch)] if launch else [])]
    found = object_of((name,), given, capsys)
    usual = ("pass", "warn", "fail", "unknown")[code]
    word = (found.get("answer") or {}).get("outcome", found["status"])
    assert (found["exit_code"], word) == (code, usual if status is None else status)
    if name != SIZING:
        assert found["status"] == usual
        if launch:
            assert "1 SGLang server (Qwen" in found["launch"]["summary"]


def test_lists_and_a_trace_are_as_their_schemas_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = object_of(("explain",), [], capsys)
    assert (checks["schema"], len(checks["answer"]["checks"]) > 100) == (f"{NAME}/list/v1", True)
    known = object_of(("explain",), ["--advisories"], capsys)
    assert known["schema"] == f"{NAME}/advisories/v1"
    assert len(known["answer"]["advisories"]) > 20
    chat = list(mooncake_lines(profile_trace("chat", 64, 50, 0), b""))
    (tmp_path / "chat.jsonl").write_text("\n".join(chat))
    words = [str(tmp_path / "chat.jsonl")]
    assert object_of(("trace", "describe"), words, capsys)["answer"]["requests"] == 50


@pytest.mark.slow
def test_what_commands_do_is_an_object_too(
    launched: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """apply, which changes nothing here, capture, and diff --lock."""
    script = launched(SMALL)
    found = object_of(("apply",), ["--dry-run", *PATIENCE, script], capsys)["answer"]
    assert {one["name"] for one in found["left"]} >= {"nofile"} or found["changes"] is not None
    words = [*PATIENCE, "host.tar.gz", script]
    size_bytes = object_of(("capture",), words, capsys)["answer"]["size_bytes"]
    assert size_bytes == Path("host.tar.gz").stat().st_size
    words = ["--lock", "good.json", *PATIENCE, "--root", "host.tar.gz"]
    assert object_of(("diff",), words, capsys)["answer"]["lock"] == "good.json"
    # What cannot be had here is unknown, or a usage error: never nothing.
    no_library = ["--rehearse", "--python", "/no/such/python", "--", "mooncake_master"]
    for words in (no_library, ["--device", "no_such_device"]):
        assert object_of(("measure",), words, capsys)["exit_code"] in (3, 64)


LOGS = ROOT / "tests/data/logs"


@each_row("log", [*sorted(file.name for file in LOGS.glob("*.log")), "/dev/null"])
def test_an_explained_log_is_as_its_schema_says(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = object_of(("explain",), ["--log", str(LOGS / log)], capsys)
    assert found["exit_code"] in (0, 1, 2)


@pytest.mark.slow
@each_row(
    "words",
    [
        "memlock.limit",
        "hicache-size-per-rank",
        "MP-2026-0034",
        "--index",
        "Failed to register memory",
    ],
)
def test_what_is_explained_is_as_its_schema_says(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert object_of(("explain",), [words], capsys)["exit_code"] == 0


def test_an_id_of_each_explanation_is_as_the_schema_has_it() -> None:
    """Of those that no recorded log has, too."""
    part = SCHEMAS[f"{NAME}/explain-log/v1"]["$defs"]["explanation"]["properties"]["pattern"]
    for pattern in read_patterns():
        valid(pattern.id, part)


# The schemas -----------------------------------------------------------------------------------

# Objects whose keys are the host's or the launch's own: their values have a type all the same.
OPEN = {
    ("explain-log", "$defs/explanation/properties/values"),
    ("fleet", "properties/answer/anyOf/1/properties/repeats"),
    ("keys", "$defs/texts"),
    ("launch", "$defs/values"),
    ("launch", "properties/answer/anyOf/1/properties/processes/items/properties/release"),
    ("check", "$defs/machine/properties/facts"),
    ("sizing", "$defs/answer/properties/inputs"),
    ("sizing", "$defs/launch/properties/needs"),
}
# A setting of any program; an answer of another command.
FREE = {("launch", "$defs/value/properties/value")}
# What says of a value what it may be.
TYPED = {"type", "enum", "const", "$ref", "oneOf", "anyOf"}


def parts(node: Any, path: str = "") -> Iterator[tuple[str, Json]]:
    """Every object of a schema with the way to it."""
    if isinstance(node, dict):
        yield path, node
        for key, value in node.items():
            yield from parts(value, f"{path}/{key}".lstrip("/"))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from parts(value, f"{path}/{number}")


@pytest.mark.parametrize("id_", SCHEMAS)
def test_a_schema_is_closed_and_every_value_of_it_has_a_type(id_: str) -> None:
    """A field that nobody declared, or one of another type, is no valid answer."""
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[id_])
    name = id_.split("/")[1]
    for path, part in parts(SCHEMAS[id_]):
        if "object" in part.get("type", ()) and (name, path) not in FREE:
            rest = part.get("additionalProperties")
            assert TYPED & set(rest or ()) if (name, path) in OPEN else rest is False, path
        if path.rpartition("/")[2] == "properties" and not path.startswith("if/"):
            for key, value in part.items():
                assert TYPED & set(value), f"{path}/{key}"
        if "array" in part.get("type", ()):
            assert {"items", "prefixItems"} & set(part) or part.get("maxItems") == 0, path


def test_an_error_of_the_documented_helper_is_taken_whole_or_not_at_all() -> None:
    """With each field missing, of another type, or one more, it is no valid error."""
    id_ = f"{NAME}/sizing/v1"
    error = {"schema": id_, "rule": None, "status": "error", "exit_code": 64, "error": "why"}
    _whole_or_not_at_all(VALIDATORS[id_].is_valid, error)


def _whole_or_not_at_all(valid: Callable[[Json], bool], answer: Json) -> None:
    assert valid(answer)
    assert not valid({**answer, "more": 1})
    for name in answer:
        assert not valid({**answer, name: ["of another type"]}), name
        assert not valid({key: value for key, value in answer.items() if key != name}), name


# One word for one thing ------------------------------------------------------------------------
# Parts that several schemas have, each as the others.
SHARED = ("quantity", "subject", "action", "unknown")
OF_FINDINGS = {"check", "status", "subjects", "have", "need", "text"}


def properties(schema: Json) -> Iterator[tuple[str, str, Json]]:
    """Every property of a schema: where it stands, its name, and what it may be."""
    for path, part in parts(schema):
        if path.rpartition("/")[2] == "properties":
            for name, value in part.items():
                yield path, name, value


COMMON = {id_: one for id_, one in SCHEMAS.items() if id_.split("/")[1] not in APART}


@pytest.mark.parametrize("id_", COMMON)
def test_amounts_subjects_and_actions_are_the_same_in_all(id_: str) -> None:
    schema = COMMON[id_]
    null = {"type": "null"}
    for path, name, value in properties(schema):
        inside = (path, name)
        if name in ("have", "need"):
            assert value == {"oneOf": [null, {"$ref": "#/$defs/quantity"}]}, inside
        if name in ("subjects", "actions"):
            kind = {"subjects": "subject", "actions": "action"}[name]
            assert value["items"] == {"$ref": f"#/$defs/{kind}"}, inside
    found = schema["properties"]["findings"]
    for each in found.get("anyOf", [found]):
        if each.get("maxItems") == 0:
            continue
        items = each["items"]
        items = schema["$defs"][items["$ref"].rpartition("/")[2]] if "$ref" in items else items
        assert set(items["required"]) >= OF_FINDINGS


@pytest.mark.parametrize("id_", COMMON)
def test_an_envelope_is_the_same_in_all_and_taken_whole_or_not_at_all(id_: str) -> None:
    own = ("schema", "findings", "answer")
    shared = [
        {
            **{key: one["properties"][key] for key in one["required"] if key not in own},
            **{key: part for key, part in one["$defs"].items() if key in SHARED},
        }
        for one in (COMMON[id_], COMMON[f"{NAME}/check/v1"])
    ]
    assert shared[0].items() <= shared[1].items()
    envelope_: Json = {
        "schema": id_,
        "version": "1",
        "command": "check",
        "status": "error",
        "exit_code": 64,
        "reason": "why",
        "launch": {"source": "a", "summary": None},
        "host": None,
        "findings": [],
        "answer": None,
    }
    _whole_or_not_at_all(VALIDATORS[id_].is_valid, envelope_)


def test_which_kind_a_checks_subjects_are_is_said_of_checks_that_there_are() -> None:
    ids = {*catalogue().ids, *(one.check for one in advisories())}
    kinds = SCHEMAS[f"{NAME}/check/v1"]["$defs"]["subject"]["properties"]["kind"]["enum"]
    assert set(envelope.SUBJECTS.values()) <= set(kinds)
    for beginning in envelope.SUBJECTS:
        assert any(id_.startswith(beginning) for id_ in ids), beginning


def test_schemas_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """All names, and each schema."""
    assert run(["schema"]) == 0
    names = capsys.readouterr().out.split()
    assert names == sorted(id_.split("/")[1] for id_ in SCHEMAS)
    for id_, schema in SCHEMAS.items():
        assert run(["schema", id_.split("/")[1]]) == 0
        assert json.loads(capsys.readouterr().out) == schema
    assert run(["schema", "nope"]) == 64
    assert "one of advisories, apply" in capsys.readouterr().err
