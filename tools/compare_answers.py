#!/usr/bin/env python3
"""Compare what two versions of this project answer, over every host and launch of the tests.

How to: before a change, check the old state out beside this tree (``git worktree add ../old
HEAD``); after it, run ``tools/compare_answers.py --old ../old --new . --sample 60`` while you work,
and without ``--sample`` at the end. A version is a source tree, which runs on the Python
that runs this script (3.11 or newer, with the ``dev`` extra), or the Python of an environment in
which the project is installed. Each row of the output is one difference: how many requests have it,
where in the answer it stands, both values, and one request to run by hand (``--keep FOLDER`` keeps
the hosts and launches that it names, and what an old tree answers: the next run with the same
folder takes half the time). A difference
that is intended goes into a TOML file with its reason, ``--allow FILE``:

    [[difference]]
    command = '^plan'                           # regular expressions; what is left out is met
    path = '^stdout$'
    old = 'vm.nr_hugepages'
    reason = "plan printed a number that apply refuses"

Only the commands' public face is used (``--json``, exit codes, what ``plan`` prints), so that the
versions may have other modules. Hosts and launches are those of the tree that ``--corpus`` names:
see ``tools/comparing/corpus.py``. Exit codes: 0 no difference that is not allowed, 1 some, 2 usage,
or nothing could be compared. Ctrl-C shows what was found until then; requests are asked in an order
that mixes hosts, launches and commands.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from comparing.corpus import spread
from comparing.differences import Allowed, AllowedError, Table, differences, read_allowed

HERE = Path(__file__).resolve().parent
COMMANDS = ("check", "sizing", "plan", "fit", "capacity")
PREFLIGHT, SIZING = "mooncake-preflight", "mooncake-hicache-sizing"
# All that plan speaks: each pair is asked for JSON and, in turn, for so many of these.
DIALECTS = (
    *("text", "sysctl", "sysfs", "cmdline", "limits", "systemd", "containerd", "docker"),
    *("compose", "k8s", "env", "shell"),
)
DIALECTS_A_PAIR = 1
GOALS = ("l2", "pool", "balanced")
# What is said beside the launch, in turn: releases with other defaults, a GPU of a known size.
VARIANTS = (
    (),
    ("--mooncake-version", "0.3.14", "--sglang-version", "0.5.23"),
    ("--gpu-memory", "80gb"),
    ("--mooncake-version", "0.3.13.post1", "--sglang-version", "0.5.16"),
    ("--mooncake-version", "0.3.10", "--sglang-version", "0.5.2", "--gpu-memory", "24gb"),
)
# No answer may depend on how busy this machine is: the commands' own limit, and that of a request.
TIMEOUT = ("--timeout", "600")
REQUEST_LIMIT_SECONDS = 300
# What the tests' builders and the commands read from the environment is not handed on.
KEPT_ENVIRONMENT = ("PATH", "TMPDIR", "LD_LIBRARY_PATH")
MOST_CORES = 2
# What of a source tree makes its answers: these files, and not those in these folders.
ANSWERING = (".py", ".json", ".md", ".toml", ".txt", ".csv")
NO_ANSWERS = ("tests", "tools", "benchmarks")


class Request(NamedTuple):
    """One command line.

    Attributes:
        command: How rows name it, as ``plan --format sysctl``.
    """

    number: int
    command: str
    program: str
    arguments: tuple[str, ...]

    @property
    def line(self) -> str:
        """Return what to type in the corpus folder."""
        return shlex.join((self.program, *self.arguments))


class NotComparedError(Exception):
    """Nothing can be compared; the message says why."""


class Version:
    """A version of the program, as workers that answer one request at a time."""

    def __init__(self, place: str, folder: Path, answers: Path | None) -> None:
        """Run in ``folder``; take answers from ``answers``, and leave them there."""
        self._place = place
        self._folder = folder
        self._answers = answers
        self._process: subprocess.Popen[bytes] | None = None

    def _start(self) -> subprocess.Popen[bytes]:
        path = Path(self._place).absolute()
        environment = {
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "HOME": str(self._folder),
            **{name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ},
        }
        worker = str(HERE / "comparing" / "worker.py")
        if path.is_dir():
            command = [sys.executable, worker, str(path)]
            environment["PYTHONPATH"] = str(path)
        else:
            command = [str(path), worker]
        pipe = subprocess.PIPE
        try:
            return subprocess.Popen(
                command,
                env=environment,
                cwd=self._folder,
                stdin=pipe,
                stdout=pipe,
                start_new_session=True,  # Ctrl-C is for this process alone
            )
        except OSError as error:
            raise NotComparedError(f"{self._place}: {error.strerror}") from None

    def send(self, request: Request) -> None:
        """Ask, unless the answer is there; ``receive`` returns it."""
        if (kept := self._kept(request)) is not None and kept.exists():
            return
        asked = {
            "program": request.program,
            "arguments": request.arguments,
            "limit_seconds": REQUEST_LIMIT_SECONDS,
        }
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise NotComparedError(f"{self._place}: cannot be run") from None

    def receive(self, request: Request) -> dict[str, Any]:
        """Return the answer to what was sent."""
        kept = self._kept(request)
        if kept is not None and kept.exists():
            return self._read(zlib.decompress(kept.read_bytes()))
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = self._read(line)
        if kept is not None:
            unfinished = kept.with_suffix(f".{os.getpid()}")
            unfinished.write_bytes(zlib.compress(line))
            unfinished.rename(kept)
        return answer

    def _read(self, line: bytes) -> dict[str, Any]:
        if not line:
            raise NotComparedError(f"{self._place}: cannot be run")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _kept(self, request: Request) -> Path | None:
        """Return the file that has the answer, or will."""
        if self._answers is None:
            return None
        return self._answers / hashlib.sha256(request.line.encode()).hexdigest()

    def close(self) -> None:
        """End the worker."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()


def kept_answers(place: str, folder: Path) -> Path | None:
    """Return the folder for answers of a source tree as it stands now; None of an installation."""
    tree = Path(place)
    if not tree.is_dir():
        return None
    content = hashlib.sha256(sys.version.encode())
    for path in sorted(tree.rglob("*")):
        inside = path.relative_to(tree)
        if inside.parts[0] in NO_ANSWERS or inside.parts[0].startswith("."):
            continue
        if path.suffix in ANSWERING:
            content.update(str(inside).encode() + path.read_bytes())
    answers = folder / "answers" / content.hexdigest()[:16]
    answers.mkdir(parents=True, exist_ok=True)
    return answers


def requests(pairs: Sequence[dict[str, Any]], commands: Sequence[str]) -> Iterator[Request]:
    """Yield what each pair is asked."""
    number = 0
    for pair in pairs:
        # The same pair is asked the same in every sample.
        turn = zlib.crc32(f"{pair['host']} {pair['launch']}".encode())
        for command, program, words in _of_pair(turn, pair):
            if command.split()[0] in commands:
                yield Request(number, command, program, words)
                number += 1


def _of_pair(turn: int, pair: dict[str, Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    root = ("--root", f"hosts/{pair['host']}")
    words = tuple(pair["words"])
    if pair["kind"] == "flags":
        yield "sizing", SIZING, ("--json", *root, *words)
        return
    rest = (*root, *VARIANTS[turn % len(VARIANTS)], *words)
    yield "sizing", SIZING, ("--json", *rest)
    rest = (*TIMEOUT, *rest)
    yield "check", PREFLIGHT, ("check", "--json", *rest)
    yield "plan --json", PREFLIGHT, ("plan", "--json", "--exit-code", *rest)
    for step in range(DIALECTS_A_PAIR):
        dialect = DIALECTS[(turn * DIALECTS_A_PAIR + step) % len(DIALECTS)]
        yield f"plan --format {dialect}", PREFLIGHT, ("plan", "--format", dialect, *rest)
    goal = GOALS[turn % len(GOALS)]
    yield "fit", PREFLIGHT, ("fit", "--json", "--goal", goal, *rest)
    yield "capacity", PREFLIGHT, ("capacity", "--json", *rest)


class Comparison:
    """What the requests showed.

    exits: how often the old version ended with which code.

    cpu_seconds: by command and "old" or "new".
    """

    def __init__(self, allowed: Sequence[Allowed], wording: bool) -> None:
        self.table = Table()
        self.exits: Counter[tuple[str, int]] = Counter()
        self.cpu_seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.asked = 0
        self._allowed = allowed
        self._wording = wording
        self._lock = threading.Lock()

    def add(self, request: Request, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Compare one request's answers."""
        found = list(differences(old, new))
        with self._lock:
            self.asked += 1
            command = request.command.split()[0]
            self.exits[command, old["exit"]] += 1
            for side, answer in (("old", old), ("new", new)):
                self.cpu_seconds[command, side] += answer["cpu_seconds"]
            for one in found:
                if one.is_wording and not self._wording:
                    continue
                allowed = [rule for rule in self._allowed if rule.allows(request.command, one)]
                if allowed:
                    allowed[0].count += 1
                else:
                    self.table.add(request.command, one, request.number, request.line)

    def as_json(self) -> dict[str, Any]:
        """Return rows, allowed differences, exit codes and CPU time, for ``--json``."""
        exits: dict[str, dict[int, int]] = {}
        for (command, code), count in sorted(self.exits.items()):
            exits.setdefault(command, {})[code] = count
        return {
            "exit_codes_of_old": exits,
            "cpu_seconds": {
                f"{command} {side}": round(spent, 1)
                for (command, side), spent in self.cpu_seconds.items()
            },
            "differences": [row.as_json() for row in self.table.rows()],
            "allowed": [{"reason": rule.reason, "count": rule.count} for rule in self._allowed],
        }


def compare(
    versions_of: Callable[[], tuple[Version, Version]],
    asked: Sequence[Request],
    jobs: int,
    comparison: Comparison,
) -> None:
    """Ask the old and the new version everything, with ``jobs`` workers of each."""
    waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
    for request in asked:
        waiting.put(request)
    failures: list[BaseException] = []
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()

    def work() -> None:
        try:
            versions = versions_of()
            while not failures:
                try:
                    request = waiting.get_nowait()
                except queue.Empty:
                    break
                for version in versions:
                    version.send(request)
                comparison.add(request, *(version.receive(request) for version in versions))
                _tell(comparison.asked, len(asked))
            for version in versions:
                version.close()
        except BaseException as error:
            failures.append(error)
        finally:
            ended.put(None)

    for _ in range(jobs):
        threading.Thread(target=work).start()
    working = [None] * jobs
    try:
        while working:  # Thread.join would take an interrupted wait for the thread's end
            working.remove(ended.get())
    except KeyboardInterrupt as interrupt:
        failures.insert(0, interrupt)
        print("ending after what is being asked", file=sys.stderr, flush=True)
        for _ in working:
            ended.get()
    if failures and not isinstance(failures[0], KeyboardInterrupt):
        raise failures[0]


def _tell(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {of} requests", end="\n" if done == of else "", file=sys.stderr)


def make_corpus(tree: Path, shared: Path, folder: Path, pairs: int) -> None:
    """Collect the hosts and launches of ``tree`` into ``folder``."""
    script = HERE / "comparing" / "corpus.py"
    words = [sys.executable, str(script), str(tree), str(shared), str(folder), str(pairs)]
    paths = os.pathsep.join((str(tree), str(HERE)))
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": paths}, check=False)
    if done.returncode != 0:
        raise NotComparedError(f"{tree}: its hosts and launches cannot be collected")


def show(comparison: Comparison, allowed: Sequence[Allowed], about: dict[str, Any]) -> None:
    """Print the rows as text."""
    rows = comparison.table.rows()
    for row in rows:
        kind = "wording" if row.difference.is_wording else "answer"
        print(f"{row.command}  {row.difference.path}  ({kind}, {len(row.requests)} requests)")
        for name in ("old", "new"):
            print(f"  {name}: " + getattr(row.difference, name).replace("\n", "\n       "))
        print(f"  as:  {row.example}\n")
    for rule in allowed:
        print(f"allowed {rule.count} times: {rule.reason}")
    for name, reason in about["skipped"].items():
        print(f"not compared: {name}: {reason}")
    print(
        f"{about['pairs']} pairs of {about['hosts']} hosts and {about['launches']} launches, "
        f"{comparison.asked} requests in {about['seconds']} s"
    )
    for command in COMMANDS:
        codes = {code: n for (name, code), n in comparison.exits.items() if name == command}
        if codes:
            counted = ", ".join(f"{code} x{count}" for code, count in sorted(codes.items()))
            old, new = (comparison.cpu_seconds[command, side] for side in ("old", "new"))
            print(f"  {command}: exit code {counted}; {old:.0f} s of CPU old, {new:.0f} s new")
    answers = sum(not row.difference.is_wording for row in rows)
    if about["not_asked"]:
        print(f"interrupted: {about['not_asked']} requests were not asked")
    print(f"{answers} differences of answers, {len(rows) - answers} of wording")


def options() -> argparse.ArgumentParser:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    place = "a source tree, or the Python that the version is installed for"
    parser.add_argument("--old", required=True, metavar="PATH", help=place)
    parser.add_argument("--new", required=True, metavar="PATH", help=place)
    parser.add_argument(
        "--only", action="append", choices=COMMANDS, help="this command; may be given again"
    )
    parser.add_argument(
        "--sample", type=int, default=0, metavar="N", help="N pairs, spread over all of them"
    )
    parser.add_argument("--allow", metavar="FILE", help="differences that are intended")
    parser.add_argument(
        "--no-wording", action="store_true", help="leave out the texts that explain an answer"
    )
    parser.add_argument(
        "--corpus",
        default=str(HERE.parent),
        metavar="TREE",
        help="whose tests' hosts and launches (default: of the tree of this script)",
    )
    parser.add_argument(
        "--shared",
        metavar="FOLDER",
        help="captures/ and launches/ that are no part of the project (default: TREE/../shared)",
    )
    parser.add_argument(
        "--keep", metavar="FOLDER", help="hosts, launches and old answers: taken from here, or kept"
    )
    parser.add_argument("--jobs", type=int, help="workers of each version (default: the cores)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main() -> int:
    """Return 0 where nothing differs, 1 where something does."""
    parser = options()
    given = parser.parse_args()
    for place in (given.old, given.new, given.corpus):
        if not Path(place).exists():
            parser.error(f"{place}: no such file or folder")
    if given.sample < 0:
        parser.error(f"--sample {given.sample}: give 1 or more")
    try:
        allowed = read_allowed(Path(given.allow).read_text()) if given.allow else []
    except (AllowedError, OSError) as error:
        parser.error(f"--allow {given.allow}: {error}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(given, allowed)
    except NotComparedError as error:
        parser.error(str(error))


def run(given: argparse.Namespace, allowed: Sequence[Allowed]) -> int:
    """Compare and print; return the exit code."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.keep or Path(temporary, "corpus")).resolve()
        if not (folder / "index.json").exists():
            shared = Path(given.shared or Path(given.corpus).resolve().parent / "shared")
            make_corpus(Path(given.corpus), shared, folder, 0 if given.keep else given.sample)
        index = json.loads((folder / "index.json").read_text())
        pairs = spread(index["pairs"], given.sample)
        asked = list(requests(pairs, given.only or COMMANDS))
        asked.sort(key=lambda request: zlib.crc32(request.line.encode()))
        if not asked:
            raise NotComparedError(f"{given.corpus}: no host and no launch to ask about")
        comparison = Comparison(allowed, not given.no_wording)
        jobs = given.jobs or min(os.cpu_count() or 1, MOST_CORES)
        answers = kept_answers(given.old, folder) if given.keep else None

        def versions() -> tuple[Version, Version]:
            return Version(given.old, folder, answers), Version(given.new, folder, None)

        compare(versions, asked, jobs, comparison)
    about = {
        "pairs": len(pairs),
        "hosts": len({pair["host"] for pair in pairs}),
        "launches": len({pair["launch"] for pair in pairs}),
        "requests": comparison.asked,
        "not_asked": len(asked) - comparison.asked,
        "seconds": round(time.monotonic() - started),
        "skipped": index["skipped"],
    }
    rows = comparison.table.rows()
    if given.json:
        print(json.dumps({**about, **comparison.as_json()}, indent=1))
    else:
        show(comparison, allowed, about)
    if rows:
        return 1
    return 2 if about["not_asked"] else 0


if __name__ == "__main__":
    sys.exit(main())
