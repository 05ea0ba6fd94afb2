"""What ended it, which line says so: lines that were taken for another cause, times, processes."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from preflight.cli.main import run
from preflight.server_logs.by_words import answer_query, answer_text, shown_lines
from preflight.server_logs.explain import (
    LogReading,
    explanations_text,
    read_log,
)
from preflight.server_logs.patterns import Stage, read_patterns
from tests.paths import ROOT
from tests.server_logs.test_log_explain import LOGS, plain, rows_of
from tests.valid import valid

Out = pytest.CaptureFixture[str]
SCHEMA = json.loads((ROOT / "preflight/report/schemas/explain-log-v1.schema.json").read_text())


def of_file(name: str) -> LogReading:
    return read_log((LOGS / name).read_text().splitlines())


def causes(*lines: str) -> list[str]:
    return [each.pattern for each in read_log(lines).causes]


def text_of(reading: LogReading, verbose: bool = False) -> str:
    return explanations_text(reading, plain, 100, verbose=verbose)


# Lines that were taken for something else --------------------------------------------------------

E = "E1126 03:12:01.123456  4711 "


@pytest.mark.parametrize(("line", "pattern", "says", "not_said"), rows_of("log_words"))
def test_a_line_is_told_for_what_it_is(line: str, pattern: str, says: str, not_said: str) -> None:
    reading = read_log([line])
    assert [each.pattern for each in reading.explanations] == [pattern]
    one = reading.explanations[0]
    told = " ".join([one.cause, one.decided, one.remedy])
    assert says.lower() in told.lower()
    assert not_said not in told


def test_the_name_of_a_first_client_is_not_there_yet() -> None:
    """After the client was up, the same line is a peer that went."""
    lines = (LOGS / "healthy-client-http-metadata.log").read_text().splitlines()
    assert read_log(lines).exit_code == 0
    gone = f"{E}transfer_metadata.cpp:1067] Failed to retrieve segment descriptor, name 10.0.0.2:1"
    assert causes(*lines, gone) == ["peer.descriptor"]


def test_an_exception_through_the_prefetch_check_is_not_its_hang() -> None:
    """The last line of the traceback says what it is."""
    lines = [
        "Traceback (most recent call last):",
        '  File "/sglang/srt/managers/scheduler.py", line 1, in check_prefetch_progress',
        "    self.tree_cache.check_hicache_events()",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ]
    reading = read_log(lines)
    assert reading.causes[0].pattern == "cuda.memory"
    assert "advisory.mp-2026-0034" not in [each.pattern for each in reading.explanations]
    unknown = read_log([*lines[:-1], "acme.FrobError: no frob"])
    assert (unknown.causes, unknown.exit_code) == ([], 1)
    assert text_of(unknown).index("no frob") < text_of(unknown).index("hicache.progress")


# What is not known is shown ----------------------------------------------------------------------


def test_unknown_errors_are_shown_word_for_word(tmp_path: Path, capsys: Out) -> None:
    """With the file and line; the last exception before errors; exit code 1."""
    log = tmp_path / "server.log"
    log.write_text(
        "E1126 03:12:01.1  4711 foo.cpp:14] frobnication 17 went wrong\n"
        "E1126 03:12:02.1  4711 foo.cpp:14] frobnication 18 went wrong\n"
        "I1126 03:12:02.1  4711 foo.cpp:14] Failed to be silent\n"
        "Traceback (most recent call last):\n"
        '  File "a.py", line 1, in f\n'
        "    raise FrobError('x')\n"
        "acme.FrobError: no frob\n"
        "goodbye\n"
    )
    assert run(["explain", str(log)]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("not known")
    assert f"{log}:7 (exception)\n    acme.FrobError: no frob" in out
    assert f"{log}:2 (error, 2 times, the last, 11-26 03:12:02)" in out
    assert f"{log}:8 (the last line)\n    goodbye" in out
    assert "Failed to be silent" not in out
    assert "root cause" not in out
    assert run(["explain", "--json", str(log)]) == 1
    answer = json.loads(capsys.readouterr().out)
    valid(answer, SCHEMA)
    unknown = answer["answer"]["unknown"]
    found = [(each["kind"], each["count"], each["last_line"]) for each in unknown]
    assert found == [("exception", 1, 7), ("error", 2, 2)]
    assert answer["answer"]["ends"][0]["text"] == "goodbye"


@pytest.mark.slow
def test_the_law_no_answer_by_words_is_a_cause() -> None:
    """Of each line with a word removed: what no pattern matches any more is similar at most."""
    draw = random.Random(7)
    patterns = [each for each in read_patterns() if each.cause]
    for pattern in draw.sample(patterns, 20):
        words = pattern.example.split()
        at = draw.randrange(len(words))
        part = " ".join([*words[:at], *words[at + 1 :]])
        matched = {each.pattern for each in read_log([part], alone=True).explanations}
        found = answer_query(part, {})
        lines = shown_lines(found)
        similar = [each for each in lines if each.pattern not in matched]
        assert all(each.stage in (Stage.SIMILAR, Stage.HARMLESS) for each in similar), part
        assert sum(each.stage is Stage.SIMILAR for each in lines) <= 2
        if not matched:
            assert "root cause" not in answer_text(found, plain, 100)


# By time and by process --------------------------------------------------------------------------

REFUSED = "E1126 {}.118824 4907 master_client.cpp:361] Client not available"
READY = "[2026-11-26 03:20:00] The server is fired up and ready to roll!"
DECODE = "[2026-11-26 {} TP0] Decode batch. #running-req: 1"
STARTED = "[2026-11-26 {}] server_args=ServerArgs(model_path='a')"


def test_what_came_half_an_hour_before_the_end_is_not_the_cause() -> None:
    """Up to that it is; without any later cause it stays the only one that is known."""
    oom = "[2026-11-26 09:00:00 TP1] torch.OutOfMemoryError: CUDA out of memory"
    assert causes(REFUSED.format("08:29:59"), oom) == ["cuda.memory"]
    assert "mooncake.master-unreachable" in causes(REFUSED.format("08:30:01"), oom)
    early = read_log([REFUSED.format("03:12:01"), oom]).explanations[-1]
    assert (early.pattern, early.earlier) == ("mooncake.master-unreachable", "5.8 h before the end")
    hanging = [REFUSED.format("03:12:01"), DECODE.format("09:00:00")]
    assert causes(*hanging) == ["mooncake.master-unreachable"]


def test_ready_parts_a_start_from_a_run() -> None:
    """What a server got over before it was ready did not end it."""
    start = [STARTED.format("03:10:00"), REFUSED.format("03:12:01"), READY]
    reading = read_log([*start, DECODE.format("03:21:00")])
    assert (reading.causes, reading.exit_code) == ([], 1)
    assert reading.explanations[0].earlier == "before the server was ready"
    assert causes(*start, REFUSED.format("03:25:00")) == ["mooncake.master-unreachable"]
    # An earlier start is not this one.
    lines = [STARTED.format("03:00:00"), REFUSED.format("03:02:01"), STARTED.format("03:10:00")]
    reading = read_log([*lines, DECODE.format("03:11:00")])
    assert (reading.causes, reading.explanations[0].earlier) == ([], "in an earlier start")


def test_of_several_ranks_in_one_file_each_line_says_which() -> None:
    """The cause of one rank, and what followed from it on two others."""
    lines = [
        "[2026-11-26 03:10:00 TP3] torch.OutOfMemoryError: CUDA out of memory",
        "[2026-11-26 03:10:01 TP0] HiCache prefetch transfer failed for request 1",
        "[2026-11-26 03:10:01 TP1] HiCache prefetch transfer failed for request 1",
    ]
    said = text_of(read_log(lines))
    assert "once, rank TP3" in said
    assert "2 ranks: TP0, TP1)" in said


PODS = (
    "[pod/sglang-0/server] [2026-11-26 03:12:00 TP0] Load weight begin.",
    "[pod/master-0/master] I1126 03:12:00.1 7 master.cpp:15] Master service started on port 50051",
    "[pod/sglang-0/server] " + REFUSED.format("03:12:01"),
    "[pod/master-0/master] F1126 03:12:02.1 7 master.cpp:439] Failed to resolve "
    "rpc_interface=eth9: interface not found",
    "[pod/sglang-0/server] Traceback (most recent call last):",
    "[pod/sglang-0/server] acme.FrobError: no frob",
)


@pytest.mark.parametrize(
    "lines",
    [
        PODS,
        [f"{line.split('/')[1]}  | {line.split('] ', 1)[1]}" for line in PODS],
        [f"\x1b[36m{line.split('/')[1]} |\x1b[0m {line.split('] ', 1)[1]}" for line in PODS],
        [
            json.dumps({"MESSAGE": line.split("] ", 1)[1], "_SYSTEMD_UNIT": line.split("/")[1]})
            for line in PODS
        ],
        [
            json.dumps({"MESSAGE": [*line.split("] ", 1)[1].encode()], "CONTAINER_NAME": "sglang-0"
                        if "sglang" in line else "master-0"})
            for line in PODS
        ],
    ],
    ids=["kubectl", "compose", "compose in colours", "journald", "journald bytes"],
)  # fmt: skip
def test_the_processes_of_one_stream_are_told_apart(lines: list[str]) -> None:
    """Each has its cause, by the numbers of the stream's lines."""
    reading = read_log(lines)
    assert reading.lines == len(lines)
    found = {each.source.split("/")[0]: (each.pattern, each.line) for each in reading.causes}
    assert found == {
        "sglang-0": ("mooncake.master-unreachable", 3),
        "master-0": ("mooncake.master-interface", 4),
    }
    assert [each.unknown.last_line for each in reading.unknown] == [6]
    said = text_of(reading)
    assert said.count("root cause: ") == 2


def test_several_logs_and_a_folder_are_one_answer(tmp_path: Path, capsys: Out) -> None:
    """Each cause with its file; what is no log in a folder is passed over and said."""
    server, master = tmp_path / "server.log", tmp_path / "master.log"
    server.write_text(REFUSED.format("03:12:01") + "\n")
    master.write_text(PODS[3].split("] ", 1)[1] + "\n")
    (tmp_path / "core.bin").write_bytes(bytes(range(1, 32)) * 99)
    for arguments in ([str(server), str(master)], [str(tmp_path)]):
        assert run(["explain", "--json", *arguments]) == 2
        answer = json.loads(capsys.readouterr().out)
        valid(answer, SCHEMA)
        rows = answer["answer"]["explanations"]
        assert {(row["file"], row["pattern"]) for row in rows} == {
            (str(server), "mooncake.master-unreachable"),
            (str(master), "mooncake.master-interface"),
        }
    assert run(["explain", str(tmp_path)]) == 2
    out = capsys.readouterr().out
    assert f"{server}:1" in out
    assert f"not read: {tmp_path}/core.bin" in out


def test_the_answer_fits_a_screen() -> None:
    """The cause, its line, what to do; the others in a line or two each; -v has them whole."""
    reading = of_file("etcd-metadata-dead.log")
    said = text_of(reading)
    assert len(said.splitlines()) <= 24
    assert said.count("Cause:") == 1
    assert "Also" in said
    assert text_of(reading, verbose=True).count("Cause:") == len(reading.explanations)


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.glob("healthy-*.log")))
def test_a_healthy_log_has_exit_code_0(name: str) -> None:
    """Mooncake's logs were recorded; they hold E and W lines that mean nothing."""
    reading = of_file(name)
    assert (reading.explanations, reading.unknown, reading.exit_code) == ([], [], 0)
    assert "No problem was found" in text_of(reading)


def test_a_launch_that_passes_the_checks_says_so(tmp_path: Path, capsys: Out) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "E1126 13:30:48.702925 28842 common.h:392] Socket read failed: Connection reset by peer "
        "[104]\n"
    )
    launch = str(ROOT / "docs/examples/launch.sh")
    run(["explain", "--root", "demo:h800", "--launch", launch, str(log)])
    assert "What check can see is fine here" in " ".join(capsys.readouterr().out.split())


# A client in another process ----------------------------------------------------------------------

EXPIRED = "I0320 11:44:1{}.7 1965 real_client.cpp:2127] client_id={}-2, action=client_expired"
UNMAPPED = "E0320 11:44:1{}.8 1965 real_client.cpp:2457] client_id={}-2, error=shm_not_mapped"


@pytest.mark.parametrize(
    ("lines", "stage"),
    [
        ([EXPIRED.format(1, 1), UNMAPPED.format(1, 1)], None),
        ([EXPIRED.format(1, 1)], Stage.WARNING),
        ([EXPIRED.format(1, 1), UNMAPPED.format(1, 1), EXPIRED.format(3, 3)], Stage.WARNING),
        ([EXPIRED.format(1, 1), *[UNMAPPED.format(9, 1)] * 2], Stage.CAUSE),
    ],
)
def test_a_server_that_mooncake_client_dropped_is_no_end_in_order(
    lines: list[str], stage: Stage | None
) -> None:
    """Of one that ended in order nothing was mapped; of the others each counts."""
    found = read_log(lines).explanations
    assert [each.stage for each in found[:1]] == ([] if stage is None else [stage])
    assert all(each.pattern == "client.server-expired" for each in found[:1])


def test_a_connection_that_the_client_closed_itself_is_no_fault() -> None:
    closed = [
        "I1128 18:14:02.9 28413 dummy_client.cpp:604] [unregister_shm] client_id=1-2",
        "E1128 18:14:03.9 28413 dummy_client.cpp:186] Dummy Client not connected",
    ]
    assert read_log(closed).exit_code == 0
    assert read_log(closed[::-1]).exit_code == 2
    lost = "W1128 18:14:02.9 28413 dummy_client.cpp:1] RealClient lost, entering reconnection loop"
    assert read_log([lost, *closed]).exit_code == 2


# How a process ended ------------------------------------------------------------------------------

SIGNALS = [
    (4, "ILL"),
    (5, "TRAP"),
    (31, "SYS"),
    (6, "ABRT"),
    (7, "BUS"),
    (8, "FPE"),
    (9, "KILL"),
    (11, "SEGV"),
]
# SGLang, vLLM, torchrun, systemd, Kubernetes, podman, a shell.
ENDINGS = [
    "Scheduler or DataParallelController 1201 terminated with -{number}",
    "RuntimeError: Rank 0 scheduler died during initialization (exit code: -{number}).",
    "(APIServer pid=1) ERROR 08-13 10:22:41 [utils.py:6] EngineCore_0 terminated with -{number}",
    "E1126 02:08:05.123 12 torch/api.py:882] failed (exitcode: -{number}) local_rank: 3 (pid: 77)",
    "  traceback : Signal {number} (SIG{name}) received by PID 77",
    "systemd[1]: sglang.service: Main process exited, code=killed, status={number}/{name}",
    "systemd[1]: sglang.service: Main process exited, code=exited, status={status}/n/a",
    "      Exit Code:    {status}",
    'level=info msg="container died" exitCode={status}',
]
DEATHS = [
    *("corrupted size vs. prev_size", "double free or corruption (!prev)", "free(): invalid size"),
    *("malloc(): corrupted top size", "munmap_chunk(): invalid pointer", "Aborted (core dumped)"),
    *("pure virtual method called", "*** stack smashing detected ***: terminated"),
    "Fatal glibc error: malloc.c:2593 (sysmalloc): assertion failed: (old_top == initial_top (av))",
    "run.sh: line 3:  1234 Aborted                 (core dumped) python3 -m sglang.launch_server",
    "Illegal instruction (core dumped)",
    # Printed by bash 5.2 for python3 that kills itself.
    "k.sh: line 2: 22657 Floating point exceptionpython3 -c 1",
    "bash: line 1: 22023 Trace/breakpoint trap   python3 -c 1",
    "k.sh: line 2: 23262 Bad system call         python3 -c 1",
    "bash: 23454 Aborted                 python3 -c 1",
    "srun: error: node1: task 3: Bus error",
    "systemd[1]: sglang.service: A process of this unit has been killed by the OOM killer.",
    "systemd[1]: sglang.service: Failed with result 'oom-kill'.",
    "[ 6210.91] Out of memory: Killed process 2343 (python3)",
    "[ 6210.91] traps: python3[11] general protection fault ip:7f sp:7f error:0 in libc.so.6[7f+1]",
    "      Reason:       OOMKilled",
]


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_law_an_end_by_a_signal_is_a_problem(ending: str) -> None:
    """Whoever tells it; an end in order is none."""
    for number, name in SIGNALS:
        found = read_log([ending.format(number=number, status=128 + number, name=name)])
        expected = {7: "process.sigbus", 9: "process.sigkill"}.get(number, "process.signal")
        assert [each.pattern for each in found.causes] == [expected], name
    if "code=killed" not in ending and "(SIG" not in ending:
        assert read_log([ending.format(number=0, status=0, name="")]).causes == []


@pytest.mark.parametrize("line", DEATHS)
def test_the_last_words_of_a_process_are_a_problem(line: str) -> None:
    reading = read_log(["[2026-11-26 03:20:00] The server is fired up and ready to roll!", line])
    assert reading.causes
    assert "No problem" not in text_of(reading)


def test_an_abort_of_the_c_library_is_told_by_its_own_words() -> None:
    found = read_log(["corrupted size vs. prev_size", "Aborted (core dumped)"])
    assert [each.pattern for each in found.causes] == ["process.heap"]


# The end, then back -------------------------------------------------------------------------------

LOST = "E1126 02:05:04.587862  1192 client_service.cpp:4857] Failed to ping master"
RETRY = (
    "E1126 02:07:04.1 1192 worker_pool.cpp:654] Worker: Process failed for slice (opcode: 1): "
    "transport retry counter exceeded"
)
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
SIGQUIT = "[2026-11-26 02:08:05] Received sigquit from a child process. It usually means the child"
FIRED_UP = "[2026-11-26 02:00:00] The server is fired up and ready to roll!"


@pytest.mark.parametrize("before", [RETRY, LOST])
def test_the_last_exception_before_the_end_comes_first(before: str) -> None:
    """Without an end it is a line as others, in their order."""
    assert causes(FIRED_UP, before, OUT_OF_MEMORY, SIGQUIT)[0] == "cuda.memory"
    assert causes(FIRED_UP, before, OUT_OF_MEMORY)[1] == "cuda.memory"
    assert causes(FIRED_UP, OUT_OF_MEMORY, before, SIGQUIT)[0] == "cuda.memory"


def test_a_cause_long_ago_explains_a_server_that_answers_badly_since() -> None:
    """Not one that answers well, nor one that ended of something else."""
    bad = "[2026-11-26 02:50:00 TP0] HiCache storage query failed for request 17"
    decode = DECODE.format("03:10:00")
    assert causes(FIRED_UP, LOST, bad, decode) == ["mooncake.master-lost"]
    assert causes(FIRED_UP, LOST, decode) == []
    assert causes(FIRED_UP, bad, LOST, decode) == []
    assert causes(FIRED_UP, LOST, bad, decode, SIGQUIT.replace("02:08", "03:10")) == []


# What is not printed ------------------------------------------------------------------------------

SECRET_LINES = [
    "E1126 03:12:01.1  4711 foo.cpp:14] no answer of redis://user:hunter2@10.0.0.1:6379/0",
    "E1126 03:12:01.1  4711 foo.cpp:14] refused, Authorization: Bearer hunter2",
    "E1126 03:12:01.1  4711 foo.cpp:14] python3 -m sglang.launch_server --api-key hunter2 failed",
    "E1126 03:12:01.1  4711 foo.cpp:14] " + "x" * 280 + " redis://user:hunter2@10.0.0.1:6379/0",
    "E1126 03:12:01.1  4711 client_service.cpp:1095] Failed to ping master, " + "y" * 400
    + " --api-key hunter2",
    "torch.OutOfMemoryError: CUDA out of memory of redis://user:hunter2@10.0.0.1:6379/0",
    "FooError: {'Authorization': 'Bearer hunter2'}",
    "FooError: got Bearer hunter2.hunter2",
]  # fmt: skip


@pytest.mark.parametrize("line", SECRET_LINES)
def test_a_quoted_line_has_no_secret(line: str, tmp_path: Path, capsys: Out) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"{line}\n")
    for arguments in (["-v", str(log)], ["--json", str(log)], [line], ["--json", line]):
        run(["explain", *arguments])
        written = capsys.readouterr()
        assert "hunter2" not in written.out + written.err
    assert read_log([line]).exit_code


@pytest.mark.parametrize("device", ["mlx5_0", "mlx5_bond_1", "bnxt_re0", "rxe0", "rocep59s0"])
def test_the_name_of_a_peer_s_nic_is_no_password(device: str) -> None:
    line = f"CUDA out of memory, peer_nic: 10.0.0.2:1500@{device}, a:1@{device}"
    assert read_log([line]).explanations[0].excerpt == line


def test_what_tells_a_peer_or_a_count_is_no_secret() -> None:
    line = "[2026-11-26 02:02:00 TP0] CUDA out of memory, #new-token: 512, GET http://h:1/metadata?key=mooncake%2Fram%2Fa"
    assert read_log([line]).explanations[0].excerpt == line


def test_a_folder_of_which_nothing_was_read_is_no_healthy_log(tmp_path: Path, capsys: Out) -> None:
    (tmp_path / "core.bin").write_bytes(bytes(range(1, 32)) * 99)
    assert run(["explain", str(tmp_path)]) == 3
    written = capsys.readouterr()
    assert "No problem" not in written.out
    assert f"not read: {tmp_path}/core.bin" in written.out
    (tmp_path / "core.bin").write_bytes(b"")
    assert run(["explain", "--json", str(tmp_path)]) == 3
    answer = json.loads(capsys.readouterr().out)
    valid(answer, SCHEMA)
    assert "nothing of it was read" in answer["reason"]


# Other engines ------------------------------------------------------------------------------------


def test_of_what_is_not_known_the_first_error_is_shown_first() -> None:
    """What followed from it says less; the last exception says more than those before it."""
    unknown = of_file("public-ascend-slice.log").unknown
    assert "Transfer slice failed with status: 503900" in unknown[0].unknown.text
    known = text_of(read_log([OUT_OF_MEMORY, *(each.unknown.text for each in unknown[:2])]))
    assert "Transfer slice failed with status: 503900" in known


def test_the_first_error_is_kept_however_many_follow() -> None:
    kinds = ["".join(letters) for letters in itertools.product("ghijklmnopqrstuvwxyz", repeat=2)]
    lines = [f"E1126 03:12:01.1  4711 foo.cpp:14] {kind} is not there" for kind in kinds]
    unknown = read_log(lines).unknown
    assert (unknown[0].unknown.line, unknown[1].unknown.line) == (1, len(kinds) - 199)


def test_each_line_of_a_traceback_of_vllm_is_no_error_of_its_own() -> None:
    head = "(EngineCore_DP0 pid=7) ERROR 05-21 03:40:21 [core.py:468] "
    lines = [
        "Traceback (most recent call last):",
        '  File "/a/core.py", line 5, in run',
        '    raise FrobError("failed with error")',
        "acme.FrobError: no frob",
    ]
    unknown = read_log([head + line for line in lines]).unknown
    assert [(each.unknown.fault, each.unknown.line) for each in unknown] == [("exception", 4)]


# A tier that is not there -------------------------------------------------------------------------

METRICS = (
    "I20260521 08:00:00.2 30 rpc_service.cpp:265] Master Admin Metrics: master={{Mem Storage: "
)
METRICS += (
    "1 GB / 1 TB | NVMe-oF SSD: 0 B / 0 B | SSD Storage: {} | Keys: 7 | Clients: {} | Requests"
)
NO_SSD, OFFERED = METRICS.format("0 B / 0 B", 9), METRICS.format("0 B / 2.00 TB", 9)
OFFLOADS = "I1128 18:13:42.1 2 master.cpp:1522] Master service started on port 2, enable_offload=1"


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([OFFLOADS, NO_SSD], 1),
        ([OFFLOADS, NO_SSD, OFFERED], 0),
        ([OFFLOADS, METRICS.format("0 B / 0 B", 0)], 0),
        ([NO_SSD], 0),
    ],
)
def test_an_ssd_that_no_client_offers_is_said_where_it_was_meant(
    lines: list[str], code: int
) -> None:
    assert read_log(lines).exit_code == code
    told = [each.pattern for each in read_log([NO_SSD]).harmless]
    assert told == ["master.no-ssd"]
