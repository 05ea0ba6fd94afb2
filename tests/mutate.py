"""Mutated launches, hosts, archives, reports, logs and traces, each held against the whole program.

``python -m tests.mutate --count 100000 --resume night.json`` goes on where it was stopped. A case
follows from its number alone: ``--only 4711`` runs that one and shows it. What must hold: an answer
or a refusal, never a traceback or a defect; nothing is started, and written in its own folder
alone; no control character is printed; bounded processor time and memory.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from preflight.base.output import terminal_text
from preflight.cli.main import run
from preflight.cli.sizing import run as run_sizing
from tests.builders.synthetic import build_host, gpu_host, limited_container, plain_host
from tests.paths import ROOT

LONGEST_SECONDS = 20.0  # of processor time
MOST_BYTES = 512 << 20  # that a case may add to the most that this process ever had
SAVED_EVERY = 200
DATA = ROOT / "tests" / "data"
# What shells, YAML, JSON, terminals and numbers stumble over.
PIECES = [
    *"\0\t\n\r\\'\"$`;&|<>(){}[]#=~*?!,:%-\x1b\x9b\u202e\ufeff\u2028",
    *"$( ${ $(( <<EOF\n EOF\n ${A:-${A}} $(touch\tP) `touch\tP` A=( && || 2>&1 <( \\\n".split(" "),
    *'&a *a <<:\t*a !!python/object: {"a": --- - |\n ]]>  </script> ../../ /dev/zero'.split(" "),
    *"-1 0 00 1e400 nan 9223372036854775808 999999999999999999999 0x7f 4gb 1.5tb ١٢ ½".split(),
    *"--tp --hicache-size --config= -D --no-such exec eval source bash sudo docker".split(),
    "[" * 500, "{" * 500, "(" * 500, "$(" * 200, "a" * 5000, "é" * 300, "\n" * 300,
]  # fmt: skip


def mutated(text: str, draw: random.Random) -> str:
    """Cut, doubled, exchanged, and with pieces put in: one to six times."""
    for _ in range(draw.randint(1, 6)):
        start = draw.randint(0, len(text))
        end = min(len(text), start + draw.choice((0, 1, 1, 4, 20, 200)))
        new = draw.choice(
            (
                "",
                draw.choice(PIECES),
                chr(draw.choice((draw.randrange(128), draw.randrange(0xD800)))),
                text[start:end] * draw.randint(2, 5),
                text[draw.randint(0, len(text)) :][: draw.choice((3, 30, 300))],
            )
        )
        text = text[:start] + new + text[end:]
    return text


def mutated_bytes(content: bytes, draw: random.Random) -> bytes:
    return mutated(content.decode("latin-1"), draw).encode("latin-1", "replace")


@cache
def seeds(*patterns: str) -> tuple[Path, ...]:
    found = (path for pattern in patterns for path in DATA.glob(pattern))
    return tuple(sorted(path for path in found if path.name != "__pycache__"))  # of a .py there


@cache
def hosts(folder: str) -> tuple[tuple[dict[str, bytes], dict[str, str]], ...]:
    """Files and links of each host, by relative name."""
    found = []
    for number, make in enumerate((gpu_host, limited_container, plain_host)):
        root = build_host(Path(folder) / f"base{number}", make())
        files, links = {}, {}
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if path.is_symlink():
                links[name] = os.readlink(path)
            elif path.is_file():
                files[name] = path.read_bytes()
        found.append((files, links))
    return tuple(found)


@cache
def capture_of(folder: str) -> tuple[bytes, bytes]:
    """A capture with a launch, as it is written, and unpacked."""
    import gzip

    build = hosts(folder) and Path(folder) / "base2"
    target = Path(folder) / "base.tar.gz"
    assert run(["capture", "--root", str(build), str(target), str(launches()[0])]) == 0
    content = target.read_bytes()
    return content, gzip.decompress(content)


@cache
def report_text() -> str:
    from tests.fleet.merge_fleets import produced_document

    return json.dumps(produced_document())


def launches() -> tuple[Path, ...]:
    return seeds("launches/*")


# One case of each kind: writes into ``folder``, and returns the words of the command.
Words = Sequence[str]


def launch(draw: random.Random, folder: Path) -> Words:
    text = draw.choice(launches()).read_text()
    if draw.random() < 0.2:
        text += draw.choice(launches()).read_text()
    file = folder / draw.choice(("launch.sh", "compose.yaml", "pod.yaml", "launch"))
    file.write_bytes(mutated(text, draw).encode("utf-8", "surrogatepass"))
    root = ("--root", str(folder.parent / f"base{draw.randrange(3)}"))
    if draw.random() < 0.7:
        return ("sizing", *root, *draw.choice(((), ("--json",))), str(file))
    if draw.random() < 0.5:
        return ("check", *root, str(file))
    format_ = draw.choice(("text", "shell", "docker", "env", "k8s", "compose", "systemd"))
    return ("plan", *root, f"--format={format_}", str(file))


def words(draw: random.Random, folder: Path) -> Words:
    text = mutated(draw.choice(launches()).read_text(), draw).replace("\0", "")
    root = ("--root", str(folder.parent / f"base{draw.randrange(3)}"))
    return ("sizing", *root, "--", *text.split()[-60:])


def host(draw: random.Random, folder: Path) -> Words:
    found = draw.choice(hosts(str(folder.parent)))
    files, links = dict(found[0]), dict(found[1])
    for name in draw.sample(sorted(files), k=draw.randint(1, 8)):
        kind = draw.randrange(6)
        if kind == 0:
            del files[name]
        elif kind == 1:
            links[name] = draw.choice(("/dev/zero", "../" * 30, name, *files))
            del files[name]
        else:
            files[name] = mutated_bytes(files[name], draw)
    file = folder / "host.tar"
    with tarfile.open(file, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    start = draw.choice((("check",), ("check", "--json"), ("plan",), ("topology",)))
    return (*start, "--root", str(file), str(launches()[draw.randrange(3)]))


def archive(draw: random.Random, folder: Path) -> Words:
    packed, plain = capture_of(str(folder.parent))
    content = draw.choice((packed, plain))
    file = folder / "host.tar.gz"
    if draw.random() < 0.3:  # of a header, where most is read
        at = 512 * draw.randrange(len(plain) // 512)
        content = plain[:at] + mutated_bytes(plain[at : at + 512], draw) + plain[at + 512 :]
    else:
        at = draw.randrange(len(content))
        content = content[:at] + mutated_bytes(content[at : at + 4000], draw) + content[at + 4000 :]
    file.write_bytes(content)
    return ("sizing", "--root", str(file), str(launches()[0]))


def report(draw: random.Random, folder: Path) -> Words:
    text = report_text()
    lines = [text, mutated(text, draw), mutated(text, draw)]
    file = folder / "reports.json"
    file.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    shown_as = draw.choice(((), ("--json",), ("--format", "html")))
    return ("fleet", "merge", *shown_as, str(file))


def log(draw: random.Random, folder: Path) -> Words:
    text = draw.choice(seeds("logs/*.log")).read_text(errors="replace")
    file = folder / "server.log"
    file.write_bytes(mutated(text, draw).encode("utf-8", "surrogatepass"))
    return ("explain", "--log", str(file), *draw.choice(((), ("--json",))))


@cache
def other_launches() -> tuple[tuple[str, str], ...]:
    """Launches that are no script: their file's name, and what it says."""
    from tests.launches import (
        test_compose,
        test_kubernetes_pods,
        test_odd_launches,
        test_other_kinds,
    )

    return (
        ("pod.yaml", test_kubernetes_pods.GROUP),
        ("pod.yaml", test_kubernetes_pods.MAPS),
        ("pod.yaml", test_kubernetes_pods.DYNAMO),
        ("compose.yaml", test_compose.TEXT),
        ("compose.yaml", test_odd_launches.COMPOSE),
        ("store.service", test_other_kinds.UNIT),
        ("Dockerfile", test_other_kinds.DOCKERFILE),
        ("job.yaml", test_other_kinds.SRT),
    )


def other(draw: random.Random, folder: Path) -> Words:
    name, text = draw.choice(other_launches())
    file = folder / name
    file.write_bytes(mutated(text, draw).encode("utf-8", "surrogatepass"))
    root = ("--root", str(folder.parent / f"base{draw.randrange(3)}"))
    return (*draw.choice((("sizing",), ("check", "--json"), ("read",))), *root, str(file))


def answer(draw: random.Random, folder: Path) -> Words:
    """Of the commands that say more of a launch."""
    file = folder / "launch.sh"
    text = mutated(draw.choice(launches()).read_text(), draw)
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    root = ("--root", str(folder.parent / f"base{draw.randrange(3)}"))
    start = draw.choice(
        (
            ("read", "--json", *root),
            ("read", "--keys"),
            ("capacity", "--json", *root),
            ("explain", "--advisories", "--json", *root),
            ("diff", "--sglang", draw.choice(("0.5.9", "0.5.23")), *root),
            ("fit", *root),
        )
    )
    return (*start, str(file))


@cache
def traces() -> tuple[str, ...]:
    from tests.cache_sizing.traces.test_formats import MOONCAKE, QWEN, RECEIVED, SIMULATOR, STORED

    parts: list[Any] = [RECEIVED, STORED, {"token_ids": list(range(150))}]
    parts.append({"messages": [{"role": "user", "content": "x" * 600}]})
    talk = [{"id": 1, "conversations": [{"from": "human", "value": "so" * 300}]}]
    return (*(MOONCAKE, QWEN % -1, SIMULATOR), *map(json.dumps, (*parts, talk)))


def trace(draw: random.Random, folder: Path) -> Words:
    lines = [draw.choice(traces())] * draw.randint(1, 6)
    file = folder / "trace.jsonl"
    file.write_bytes(mutated("\n".join(lines), draw).encode("utf-8", "surrogatepass"))
    if draw.random() < 0.3:
        root = ("--root", str(folder.parent / "base0"))
        return ("capacity", *root, "--trace", str(file), str(launches()[0]))
    if draw.random() < 0.3:
        return ("trace", "sample", "--part", "50%", str(file))
    return ("trace", *draw.choice((("describe",), ("describe", "--json"), ("convert",))), str(file))


KINDS: tuple[tuple[Callable[[random.Random, Path], Words], int], ...] = (
    (launch, 40),
    (words, 15),
    (host, 10),
    (archive, 10),
    (report, 10),
    (log, 15),
    (other, 15),
    (answer, 10),
    (trace, 15),
)
CODES = (0, 1, 2, 3, 64)


class TooLongError(Exception):
    """A case that takes more processor time than it may."""


def problems_of(number: int, folder: Path, show: bool = False) -> list[str]:
    """Run one case; returns what must not be."""
    draw = random.Random(number)
    kind = draw.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0]
    here = Path(tempfile.mkdtemp(dir=folder))
    given = kind(draw, here)
    if show:
        print(" ".join(map(repr, given)))
    _begin(str(here))
    out, err = io.StringIO(), io.StringIO()
    before = resource.getrusage(resource.RUSAGE_SELF)
    problems = []
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            signal.setitimer(signal.ITIMER_PROF, LONGEST_SECONDS)
            start, rest = given[0], list(given[1:])
            code = run_sizing(rest) if start == "sizing" else run(list(given))
        except BaseException as error:
            code, problems = -1, [f"{type(error).__name__}: {error}"]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    after = resource.getrusage(resource.RUSAGE_SELF)
    said = out.getvalue() + err.getvalue()
    if code not in CODES:
        problems.append(f"exit code {code}: {err.getvalue()[-300:]}")
    # Unknown lines of a log are shown as they stand, and may be a traceback's.
    problems += ["says Traceback"] * ("Traceback" in err.getvalue())
    # A line of a log may tell of another program's defect.
    problems += ["says defect of this"] * ("defect of this" in said)
    if "--json" in given[: given.index("--") if "--" in given else None]:
        try:
            json.loads(out.getvalue())
        except ValueError as error:
            problems.append(f"prints no JSON: {error}")
    if terminal_text(said) != said:
        problems.append("prints control characters")
    problems += _end()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if used > LONGEST_SECONDS:
        problems.append(f"takes {used:.1f} s of processor time")
    if (after.ru_maxrss - before.ru_maxrss) << 10 > MOST_BYTES:
        problems.append(f"takes {(after.ru_maxrss - before.ru_maxrss) >> 10} MiB more")
    if show:
        print(said, f"exit code {code}, {used:.2f} s", sep="\n")
    else:
        import shutil

        shutil.rmtree(here, ignore_errors=True)
    return [f"{number} ({kind.__name__}): {problem}" for problem in problems]


# What Python says when something is started, or opened for writing, while a case runs.
_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system")
_watched: list[str] = []
_folder: list[str] = []


def _look(event: str, arguments: tuple[object, ...]) -> None:
    if not _folder:
        return
    if event in _STARTS or event in ("os.rename", "os.remove", "os.mkdir", "socket.connect"):
        _watched.append(f"{event} {arguments[:2]}")
    elif event == "open" and isinstance(arguments[0], str) and isinstance(arguments[2], int):
        writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and not arguments[0].startswith((_folder[0], "/dev/null")):
            _watched.append(f"{event} {arguments[:2]}")


def _begin(folder: str) -> None:
    _watched.clear()
    _folder[:] = [folder]


def _end() -> list[str]:
    _folder.clear()
    return [f"does {one}" for one in dict.fromkeys(_watched)]


def main() -> int:
    """Return 1 where a case fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="cases, from 0 on")
    parser.add_argument("--only", type=int, help="this case alone, shown")
    parser.add_argument("--part", default="0/1", help="2/4: of four processes, the third")
    parser.add_argument("--resume", help="FILE: where it stands; it goes on from there")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after these")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    state: dict[str, Any] = {"next": part, "failures": []}
    if given.resume and os.path.exists(given.resume):
        state = json.loads(Path(given.resume).read_text())
    sys.dont_write_bytecode = True  # a module's first import would be something written
    sys.addaudithook(_look)

    def late(*_: object) -> None:
        raise TooLongError(f"more than {LONGEST_SECONDS:g} s of processor time")

    signal.signal(signal.SIGPROF, late)
    until = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as name:
        with contextlib.redirect_stdout(io.StringIO()):
            capture_of(name)
        if given.only is not None:
            problems = problems_of(given.only, Path(name), show=True)
            print("\n".join(problems))
            return bool(problems)
        first = state["next"]
        for number in range(first, given.count, parts):
            problems = problems_of(number, Path(name))
            state["failures"] += problems
            for problem in problems:
                print(problem, flush=True)
            state["next"] = number + parts
            done = time.monotonic() > until
            if given.resume and (done or number // parts % SAVED_EVERY == 0):
                Path(given.resume).write_text(json.dumps(state))
            if done:
                break
    if given.resume:
        Path(given.resume).write_text(json.dumps(state))
    print(f"{(state['next'] - first) // parts} cases, {len(state['failures'])} failures")
    return bool(state["failures"])


if __name__ == "__main__":
    sys.exit(main())
