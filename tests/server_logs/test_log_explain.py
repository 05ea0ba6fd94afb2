"""Known lines of real logs are explained by the checks that foresee them; good logs by none."""

from __future__ import annotations

import io
import re
import string
import sys
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.processes.other_programs import _known
from preflight.server_logs.explain import (
    COMPUTE,
    Explanation,
    _sentence,
    explanations_object,
    explanations_text,
    read_log,
)
from preflight.server_logs.patterns import TABLES, Case, Stage, read_patterns
from preflight.server_logs.search import read_blocks
from preflight.verdict.catalogue import catalogue
from tests.paths import ROOT
from tests.tables import each_row

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PATTERNS = read_patterns()
KNOWN = {pattern.id for pattern in PATTERNS}
EXAMPLES = tuple(
    (pattern.example, pattern.id)
    for pattern in PATTERNS
    if pattern.cause and pattern.stage is not Stage.HARMLESS
)
FURTHER = [
    (line, expected)
    for expected, _, line in (
        row.partition("\t") for row in (ROOT / "tests/data/log_lines.tsv").read_text().splitlines()
    )
    if line
]
LINES = (*EXAMPLES, *FURTHER)
# What the functions of conclusions add to the groups of a line.
COMPUTED = set(
    "size page_count page_size asked left least admitted free_gb reserve_gb kept_gb wanted_gb "
    "missing_gb victim held shared pinned missing over program since until oldest newest "
    "dropped beyond".split()
)
LOGS = ROOT / "tests/data/logs"


def rows_of(name: str) -> list[list[str]]:
    """The rows of a table in tests/data."""
    text = (ROOT / f"tests/data/{name}.tsv").read_text()
    return [line.split("\t") for line in text.rstrip("\n").split("\n")]


def plain(text: str, _colour: str) -> str:
    return text


def explain_log(lines: Iterable[str]) -> list[Explanation]:
    return read_log(lines).explanations


def ids(lines: list[str]) -> list[str]:
    return [each.pattern for each in explain_log(lines)]


def only(lines: list[str], pattern: str) -> Explanation:
    return next(each for each in explain_log(lines) if each.pattern == pattern)


def of_file(name: str) -> list[Explanation]:
    with (LOGS / name).open("rb") as file:
        return explain_log(read_blocks(file))


@pytest.mark.slow
def test_a_known_line_is_explained_by_its_pattern_alone() -> None:
    """And its sentences have no hole where a value of the line belongs."""
    hole = re.compile(r"(?:^| |\()\?(?= |$|\)|,)")
    wrong = {}
    for line, expected in LINES:
        found = explain_log([line])
        whole = all(
            (each.line, each.times) == (1, 1) and each.remedy and not hole.search(each.cause)
            for each in found
        )
        if [each.pattern for each in found] != expected.split() or not whole:
            wrong[line] = (expected, found)
    assert wrong == {}


def test_every_pattern_has_a_line_and_an_id_of_its_own() -> None:
    """No pattern is there whose wording was never tried; explanations are found again by id."""
    assert all(line for line, _ in EXAMPLES)
    assert {id_ for _, expected in FURTHER for id_ in expected.split()} <= KNOWN
    assert len(PATTERNS) == len(KNOWN)


def test_a_pattern_names_what_there_is() -> None:
    """Checks exist, silencing ids exist, braces are groups of its expression."""
    ids, unchecked = set(catalogue().ids), (Stage.CONSEQUENCE, Stage.HARMLESS)
    for pattern in PATTERNS:
        groups = {name.rstrip("0123456789") for name in re.compile(pattern.regex).groupindex}
        others = {
            id_
            for case in pattern.cases
            for id_ in (*case.seen, *case.unseen, *case.after, *case.before)
        }
        assert {*pattern.unless, *others} <= KNOWN, pattern.id
        assert not pattern.compute or pattern.compute in COMPUTE, pattern.id
        checks = {*pattern.checks, *(id_ for case in pattern.cases for id_ in case.checks or ())}
        assert checks <= ids, pattern.id
        for template in (pattern.cause, pattern.remedy, pattern.apart):
            fields = {name for _, name, _, _ in string.Formatter().parse(template) if name}
            assert fields <= groups, pattern.id
        assert pattern.checks or not pattern.cause or pattern.stage in unchecked, pattern.id


def test_conditions_and_sums_name_what_a_line_can_have() -> None:
    """A misspelt group would be a condition that never holds, or a number that is never told."""
    by_id = {pattern.id: set(re.compile(pattern.regex).groupindex) for pattern in PATTERNS}
    for pattern in PATTERNS:
        own = {name.rstrip("0123456789") for name in by_id[pattern.id]} | COMPUTED
        for case in (Case(), *pattern.cases):
            others = {name for id_ in case.seen for name in by_id[id_]}
            known = own | {f"{when}.{name}" for when in ("seen", "last") for name in others}
            texts = (case.decided, case.sums, case.cause, case.remedy, pattern.sums)
            named = {name for text in texts for _, name, _, _ in string.Formatter().parse(text)}
            named |= {
                name for part in (case.is_, case.begins, case.has, case.above) for name in part
            }
            assert named - {None} <= known, pattern.id


PRINTERS = {"SGLang", "Mooncake", "kernel", "CUDA", "system library", "container or shell"}
PRINTERS |= {"vLLM", "LMCache", "NIXL"}
TEXTS = {"id", "from", "regex", "example", "compute", "apart", "cause", "remedy", "sums", "stage"}
LISTS = {"find", "unless", "checks"}
OF_CASE = {"cause", "remedy", "sums", "stage", "decided", "checks"}
CONDITIONS = {"seen", "unseen", "after", "before", "is", "begins", "has", "above"}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_what_a_row_may_have(name: str) -> None:
    """Nothing of it is looked at again where it is read."""
    table = tomllib.loads((ROOT / f"preflight/server_logs/{name}.toml").read_text())
    assert set(table) <= {"shared", "line"}
    for row in table["line"]:
        assert {"id", "from", "find"} <= set(row) <= TEXTS | LISTS | {"when"}, row["id"]
        assert row["from"] in PRINTERS, row["id"]
        assert row["find"], row["id"]
        # A mark has none of them.
        assert len({"cause", "remedy", "stage"} & set(row)) in (0, 3), row["id"]
        assert all(type(row[key]) is list for key in LISTS & set(row)), row["id"]
        for case in row.get("when", ()):
            assert set(case) <= OF_CASE | CONDITIONS, row["id"]
            lists = {"seen", "unseen", "after", "before", "checks"} & set(case)
            assert all(type(case[key]) is list for key in lists), row["id"]
            assert all(type(each) is int for each in case.get("above", {}).values()), row["id"]


FILES = rows_of("log_files")


@each_row(("name", "cause", "check", "why", "do"), FILES)
def test_failures_have_causes_first(name: str, cause: str, check: str, why: str, do: str) -> None:
    """What followed from it stands below; its words choose what is said.

    Those that begin with public are excerpts of threads, with other names and addresses: the cause
    is what the thread settled on. Of a line that it found harmless there is none, and it is known.
    """
    with (LOGS / name).open("rb") as file:
        reading = read_log(read_blocks(file))
    found = reading.explanations
    assert next((each.pattern for each in found), "") == cause
    assert cause or not reading.unknown
    assert not why or (why in found[0].cause and do in found[0].remedy)
    if check:
        assert found[0].checks[0] == check
        assert sorted(found, key=lambda each: each.stage) == found


def test_every_log_is_tested() -> None:
    """No file lies among the logs that no test reads."""
    named = {row[0] for row in FILES} | {"environment.log", "sigquit-killed.log"}
    assert {path.name for path in LOGS.glob("*.log") if "healthy" not in path.name} == named


KILLED = "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9)."
OOM = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=python3,pid=7,uid=0"


@pytest.mark.parametrize("row", rows_of("log_decided"), ids=" ".join)
def test_other_lines_or_names_decide_what_a_line_means(row: list[str]) -> None:
    """Other lines do so before or after it in the log. A row: pattern, check, lines."""
    pattern, check, *lines = row
    assert only(lines, pattern).checks[0] == check
    assert only(lines[::-1], pattern).checks[0] == check


def test_a_kill_that_the_kernel_explains_is_a_consequence() -> None:
    """Alone it is all that is known."""
    assert only([KILLED], "process.sigkill").stage is Stage.SYMPTOM
    assert only([KILLED, OOM], "process.sigkill").stage is Stage.CONSEQUENCE
    assert ids([KILLED, OOM])[0] == "kernel.oom-host"


REFUSED = "  what():  Resource temporarily unavailable"
PIDS = "[48614.6] cgroup: fork rejected by pids controller in {}"


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        ("Connection refused", "std::system_error"),
        ("basic_string::_M_construct null not valid", "std::logic_error"),
        ("vector::reserve", "std::length_error"),
    ],
)
def test_another_exception_is_not_taken_for_threads(what: str, kind: str) -> None:
    """Nor is one of that type with another reason; the reason is shown."""
    lines = [f"terminate called after throwing an instance of '{kind}'", f"  what():  {what}"]
    assert ids(lines) == ["process.terminate"]
    found = only(lines, "process.terminate")
    assert "limits.threads" not in found.checks
    assert what in found.decided


OPENBLAS = "OpenBLAS blas_thread_init: pthread_create failed for thread 1 of 2: Resource "
OPENBLAS += "temporarily unavailable"
BOUND = "OpenBLAS blas_thread_init: RLIMIT_NPROC {} current, {} max"
FLAG = "ERROR: unknown command line flag '{}'"
SECCOMP = 'audit: type=1326 audit(1.2:3): pid=1 comm="a" exe="/a" arch={} syscall={} code=0x50000'
LISTENS = "I1121 master.cpp:1522] Master service started on port 51971, max_threads=2, "
LISTENS += "rpc_port=51971, rpc_address={}, rpc_interface=, client_ttl=10"
STOPPED = "I1121 master_service.cpp:2619] Task cleanup thread stopped"


@each_row(
    ("pattern", "says", "lines"),
    [
        # Each maker of a cgroup has a setting of its own.
        (
            *("kernel.pids", "podPidsLimit"),
            [PIDS.format("/kubepods.slice/kubepods-burstable.slice/cri-containerd-1.scope")],
        ),
        ("kernel.pids", "2048", [PIDS.format("/machine.slice/libpod-9f.scope/container")]),
        ("kernel.pids", "--pids-limit", [PIDS.format("/docker/9f1c")]),
        ("kernel.pids", "TasksMax", [PIDS.format("/system.slice/sglang.service")]),
        # -1 is no bound: then only the cgroup's is left.
        ("threads.refused", "is unlimited", [OPENBLAS, BOUND.format(-1, -1)]),
        ("threads.refused", "4096", [OPENBLAS, BOUND.format(4096, 4096)]),
        # The line is the same for a flag that was dropped, one to come and one misspelt.
        ("mooncake.flag-unknown", "from 0.3.10 to 0.3.13.post1", [FLAG.format("enable_snapshot")]),
        ("mooncake.flag-unknown", "from 0.3.13 on", [FLAG.format("metrics_host")]),
        (
            *("mooncake.flag-unknown", "mooncake_client has --local_buffer_size from 0.3.12 on"),
            [FLAG.format("local_buffer_size")],
        ),
        ("mooncake.flag-unknown", "no release", [FLAG.format("rcp_port")]),
        # 238 is set_mempolicy on x86-64 and something else on arm64.
        ("kernel.seccomp", "set_mempolicy", [SECCOMP.format("c000003e", 238)]),
        ("kernel.seccomp", "set_mempolicy", [SECCOMP.format("c00000b7", 237)]),
        # The same lines for a port that is taken and for an address of another host.
        (*("mooncake.master-ended", "port 51971 is taken"), [LISTENS.format("0.0.0.0"), STOPPED]),
        (
            *("mooncake.master-ended", "10.99.99.99, port 51971"),
            [LISTENS.format("10.99.99.99"), STOPPED],
        ),
    ],
)
def test_what_the_words_of_a_line_decide_is_said(pattern: str, says: str, lines: list[str]) -> None:
    assert says in only(lines, pattern).decided


NUMBERS = (
    # 40 GB asked, 34.13 GB left after 10 GiB: 5.87 GB are missing; 40 + 10.74 GB have to be there.
    ("Not enough host memory available. Requesting 40.00 GB but only have 34.13 GB free.",
     ("5.87 GB are missing", "50.74 GB")),
    # An old release's number before its reserve: 44.87 - 10.74 = 34.13.
    ("Not enough host memory available. Requesting 40.00 GB but only have 44.87 GB free.",
     ("34.13 GB", "5.87 GB are missing")),
    ("mmap_arena.cpp] Arena hugepage mmap failed for pool_size=209715201 bytes, errno=12 (x); "
     "regular-page fallback disabled", ("101 free pages of 2 MiB",)),
    ("Failed to map shared memory using 1GB hugepages (size 3221225472 bytes, need 3 hugepages): "
     "Cannot allocate memory", ("3.00 GiB take 3 free pages of 1 GiB",)),
    ("infiniband erdma_0: ERROR: Out of mr size: 0, max 68719476736", ("0 bytes",)),
    ("infiniband erdma_0: ERROR: Out of mr size: 85899345920, max 68719476736",
     ("80.00 GiB in one region, the device takes 64.00 GiB",)),
    ("Cannot map memory with base addr 0x75fb76000000 and size of 0x200000 pages", ("8.00 GiB",)),
    ("Arena OOM: requested=83886080, aligned_size=83886080, aligned_offset=16777216, "
     "pool_size=94371840", ("74.00 MiB left", "96.00 MiB at least")),
    ("segment.cpp:216] buffer=140169202106368 or size=67108864 is not aligned to 16777216 as "
     "required by Cachelib", ("What is no multiple is its address (0x7f7baf800000)",)),
    ("HugeTLB: allocating 262144 of page size 2.00 MiB failed.  Only allocated 191222 hugepages.",
     ("70922 of 262144",)),
    ("DistStoreError: Timed out after 601 seconds waiting for clients. 1/4 clients joined.",
     ("3 did not reach",)),
)  # fmt: skip


@pytest.mark.parametrize(("line", "parts"), NUMBERS)
def test_numbers_of_a_line_are_worked_out(line: str, parts: tuple[str, ...]) -> None:
    """Sizes in units, shortages as differences."""
    sums = explain_log([line])[0].sums
    for part in parts:
        assert part in sums


@pytest.mark.slow
def test_counts_and_lines_are_exact_over_blocks() -> None:
    """Far more than one block, one literal among others, every third line."""
    failing = "E1121 master_client.cpp:239] RPC call failed: invalid rpc arg"
    lines = [failing if number % 3 == 1 else f"I {number} " + "x" * 90 for number in range(60000)]
    wire = only(lines, "mooncake.wire")
    assert (wire.times, wire.line) == (20000, 2)
    many = ["Failed to ping master"] * 5000
    assert only(many, "mooncake.master-lost").times == 5000
    assert read_log(lines).lines == 60000


@pytest.mark.slow
def test_bytes_that_are_no_text_are_read_over() -> None:
    """Binary junk without a line's end, then a known line."""
    junk = bytes(range(128, 256)) * 80000
    stream = io.BytesIO(junk + b"\nKilled\n" + junk)
    reading = read_log(read_blocks(stream))
    assert [each.pattern for each in reading.explanations] == ["process.sigkill"]


def test_words_alone_are_no_known_line() -> None:
    """Sentences that share words with known lines."""
    harmless = [
        "Killed 3 idle workers",
        "fault tolerance is enabled",
        "exit code 0",
        "Using RDMA transport (RoCE/iWARP)",
        '"OOMKilled": false',
        "GET /metadata?key=a http=404 body: metadata not found",
        "invalid literal for int() with base 10: 'abc'",
        "using default chat template",
        "exited with code 0",
        "E1121 transfer_metadata.cpp:1098] Local segment descriptor not found",
        "RuntimeError: can't start new thread at interpreter shutdown",
        "  what():  Connection refused",
        "0/3 nodes are available: 3 node(s) had untolerated taint",
        "cat: /proc/sys/vm/nr_hugepages: No such file or directory",
        "Watchdog timeout is set to 300 s",
        "python3[12]: segfault handler installed",
        "AER: Corrected error received: 0000:3b:00.0",
        "vocab file does not appear in the folder",
        "accept: Resource temporarily unavailable",
        "PIDPressure      False   KubeletHasSufficientPID",
        "OpenBLAS blas_thread_init: RLIMIT_NPROC 4096 current, 4096 max",
    ]
    assert ids(harmless) == []


FRAGMENTS = st.sampled_from(
    [literal for pattern in PATTERNS for literal in pattern.find]
    + [line for line, _ in LINES]
    + ["\n", "\r", "\r\n", "\x1b[0m", " ", "size=", "99999999999999999999", "0x", "\0", "{}", "{x}"]
)


@given(st.lists(FRAGMENTS | st.text(max_size=20), max_size=12))
def test_no_text_raises(parts: list[str]) -> None:
    """Known words in any order and company."""
    reading = read_log(["".join(parts)])
    assert explanations_text(reading, plain, 60)
    assert explanations_object(reading)["lines"] >= 1


@given(st.lists(st.binary(max_size=60) | FRAGMENTS.map(lambda text: text.encode()), max_size=12))
def test_no_bytes_raise(parts: list[bytes]) -> None:
    """Whatever is in the file."""
    reading = read_log(read_blocks(io.BytesIO(b"".join(parts))))
    assert explanations_text(reading, plain, 60)


@given(st.lists(st.sampled_from([line for line, _ in LINES]), max_size=8))
def test_the_same_lines_mean_the_same_in_any_order(lines: list[str]) -> None:
    """Only the numbers of the lines differ."""
    shuffled = sorted(lines)
    assert {each.pattern: each.times for each in explain_log(lines)} == {
        each.pattern: each.times for each in explain_log(shuffled)
    }


def test_what_is_typed_begins_as_it_is_typed() -> None:
    """A command at the start of a sentence has no capital, or nobody can run it."""
    fields = ("remedy", "cause", "apart", "decided")
    texts = [
        str(text)
        for pattern in read_patterns()
        for each in (pattern, *pattern.cases)
        for field in fields
        if (text := getattr(each, field, None))
    ]
    english = {"find", "free", "mount", "wait", "which"}
    tools = _known("tool") - english
    typed = [text for text in texts if text.split()[0] in tools or re.match(r"\w+ -\w", text)]
    assert any(text.startswith("kubectl logs") for text in typed)
    for text in typed:
        assert _sentence(text).split()[0] == text.split()[0]
