"""What ``mooncake-preflight fleet merge`` costs: time, memory, and how both grow.

Merges 1,000 and 10,000 reports of nodes with 8 GPUs and 8 NICs, each a process of its own, as a
folder of files, as JSON lines, and with every node different in the values that differ in the
field. Prints wall time, peak memory and the ratio of ten times the reports. Every hundredth node
has something of its own: a failure, another firmware, another kernel.

Then 5,000 reports with --json: all alike, and none like another (each node with amounts, a warning,
a model's folder and names of RDMA devices of its own). What counts there is processor time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fleet.merge_fleets import Report, altered, fails, finding, line, report_of

FEW, MANY = 1_000, 10_000
ROUNDS = 3
MOST_FEW_SECONDS, MOST_MANY_SECONDS = 2.0, 15.0
MOST_MIB = 1024
MOST_RATIO = 12.0
OF_A_KIND = 5_000
MOST_KIND_CPU_SECONDS, MOST_KIND_MIB = 15.0, 500
FAILING_EXIT_CODE = 2
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from preflight.cli.main import run; sys.exit(run(sys.argv[1:]))",
]
CHANGES = [fails, altered(kernel="5.15.0-91-generic"), altered(**{"mlx5_3.firmware": "28.38.1900"})]


def reports(count: int, noisy: bool) -> Iterator[tuple[str, str]]:
    """(node, report).

    Args:
        noisy: Free memory and the like are no two nodes' same.
    """
    for number in range(count):
        node = f"gpu{number:05}"
        odd = CHANGES[number // 100 % len(CHANGES)] if number % 100 == 7 else None
        report = report_of(node, number, odd)
        if noisy:
            _noise(report, number)
        yield node, line(report)


def _noise(report: Report, number: int) -> None:
    for at, (check, subject, have) in enumerate(report["passes"]):
        if at % 10 == 0:
            report["passes"][at] = [check, subject, f"{have}; {number} free"]


def of_a_kind(count: int, alike: bool) -> Iterator[str]:
    """Reports of nodes that all say the same, or of which no two do."""
    for number in range(count):
        report = report_of(f"gpu{number:05}", number, fails if number == 7 else None)
        if alike:
            yield line(report)
            continue
        _noise(report, number)
        amount = f"{number} B free"
        report["findings"].append(finding("memory.free", "warn", have=amount, text="little memory"))
        report["facts"][f"model /scratch/{number}/model"] = "Qwen3"
        yield line(report).replace("mlx5_", f"rocex{number:06x}n")


class Cost(NamedTuple):
    """Of one process: wall and processor seconds, and peak memory."""

    wall_seconds: float
    cpu_seconds: float
    peak_mib: float


def cost(words: list[str], output: str) -> Cost:
    """One merge; it has to end with the verdict that the reports give."""
    start = time.perf_counter()
    with open(output, "wb") as file:
        process = subprocess.Popen([*COMMAND, "fleet", "merge", *words], stdout=file)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if process.returncode != FAILING_EXIT_CODE:
        raise SystemExit(f"exit code {process.returncode}: a node fails, so it has to be 2")
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def show(name: str, few: str, many: str, output: str) -> None:
    """Processes take turns, and ratios are of processor time: neighbours slow both alike."""
    cost([few], output)  # the files are in the page cache, and compiled
    rounds = [(cost([few], output), cost([many], output)) for _ in range(ROUNDS)]
    as_json = cost(["--json", many], output)
    small = statistics.median(one.wall_seconds for one, _ in rounds)
    large = statistics.median(other.wall_seconds for _, other in rounds)
    ratio = statistics.median(other.cpu_seconds / one.cpu_seconds for one, other in rounds)
    cpu = statistics.median(other.cpu_seconds for _, other in rounds)
    peak = max(other.peak_mib for _, other in rounds)
    print(f"{name}:")
    print(f"  {FEW} reports: {small:.2f} s (to stay below {MOST_FEW_SECONDS:g})")
    print(f"  {MANY} reports: {large:.2f} s (to stay below {MOST_MANY_SECONDS:g}), {cpu:.2f} s of")
    print(f"    them on a processor; with --json {as_json.wall_seconds:.2f} s")
    print(f"  ten times the reports: {ratio:.1f} times (at most {MOST_RATIO:g})")
    print(
        f"  peak memory: {peak:.0f} MiB, with --json {as_json.peak_mib:.0f} MiB "
        f"(to stay below {MOST_MIB})"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        size = 0
        for count in (FEW, MANY):
            files = Path(folder) / f"files-{count}"
            files.mkdir()
            for noisy in (False, True):
                with open(Path(folder) / f"{noisy}-{count}.jsonl", "w") as together:
                    for node, report in reports(count, noisy):
                        together.write(f"{report}\n")
                        size = len(report)
                        if not noisy:
                            (files / f"{node}.json").write_text(f"{report}\n")
        print(f"a report: {size / 1024:.1f} KiB")
        for name, place in (
            ("a folder of files", "files-{}"),
            ("JSON lines", "False-{}.jsonl"),
            ("JSON lines, a tenth of what passes never alike", "True-{}.jsonl"),
        ):
            few, many = (str(Path(folder) / place.format(count)) for count in (FEW, MANY))
            show(name, few, many, str(Path(folder) / "out"))
        for alike in (True, False):
            text = Path(folder) / f"{alike}.jsonl"
            text.write_text("".join(f"{each}\n" for each in of_a_kind(OF_A_KIND, alike)))
            spent = cost(["--json", str(text)], str(Path(folder) / "out"))
            print(f"{OF_A_KIND} reports, {'all' if alike else 'no two'} alike, with --json:")
            print(f"  {spent.cpu_seconds:.2f} s of a processor (at most {MOST_KIND_CPU_SECONDS:g})")
            print(f"  peak memory {spent.peak_mib:.0f} MiB (at most {MOST_KIND_MIB})")


if __name__ == "__main__":
    main()
