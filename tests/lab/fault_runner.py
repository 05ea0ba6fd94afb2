"""Runs faults inside the guest: breaks something, checks, mends it as the check says, checks again.

Started with the path of a file of orders; writes one line of JSON per answer. Emulated, a Python
that starts takes seconds, so a check is a fork of this process, which has loaded the program
already and becomes what a child of the launch's shell would be: its user, limits, cgroup and
environment.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import resource
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Container, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.rows import in_texts

PLACE = Path("/run/lab")
USERS_PROGRAMS = PLACE / "user"
MODULES = PLACE / "modules"
OURS = ("checks.", "preflight.")
LAUNCHES = PLACE / "launches"
# Where the guest mounts version 2 of cgroups, and below which each controller of version 1.
CGROUP, VERSION_1 = Path("/sys/fs/cgroup"), Path("/run/v1")
INHERITED = ("MEMLOCK", "NOFILE", "NPROC", "DATA", "AS", "STACK")
# Emulated, and beside other guests: nothing here takes as long unless it hangs.
LIMIT_SECONDS = 120
# x86-64 numbers of the system calls that a container's profile refuses.
REFUSED = {"io_uring": (425, 426, 427), "policies": (237, 238, 239)}
SHOWN = ("check", "status", "subject", "have", "need", "text", "consequence", "advice")
LOG_CHARACTERS = 20_000


class Shell:
    """A bash that stays, driven line by line; ``user`` is its user and group."""

    def __init__(self, user: int = 0, refuse: str = "") -> None:
        def become() -> None:
            refuse_calls(refuse)
            if user:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)

        self.user, self.refuse = user, refuse
        path = os.environ["PATH"]
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=become,
            env=dict(os.environ, PATH=f"{USERS_PROGRAMS}:{path}" if user else path),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, lines: str) -> tuple[int, str]:
        """The exit status of the last of ``lines``, and what they printed."""
        assert self._process.stdin
        assert self._process.stdout
        mark = f"<<{time.monotonic_ns()}>>"
        self._process.stdin.write(f'{lines}\necho "{mark} $?"\n')
        self._process.stdin.flush()
        said: list[str] = []
        for line in self._process.stdout:
            before, found, status = line.partition(mark)
            said.append(before)
            if found:
                return int(status), "".join(said)
        return -1, "".join(said) + "the shell ended"

    @classmethod
    def once(cls, lines: str) -> tuple[int, str]:
        """Run ``lines`` as root in a shell of their own."""
        shell = cls()
        try:
            return shell.run(lines) if lines else (0, "")
        finally:
            shell.end()

    def environment(self) -> dict[str, str]:
        file = PLACE / f"environment-{self.pid}"
        self.run(f"env -0 > {file}")
        pairs = file.read_text(errors="replace").rstrip("\0").split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    def end(self) -> None:
        """The shell and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.communicate()


def refuse_calls(what: str) -> None:
    """Answer some system calls with EPERM from now on, as a container's seccomp profile does."""
    if not what:
        return
    numbers = REFUSED[what]
    load, equal, give = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    program = [(load, 0, 0, 0)]
    for left, number in enumerate(reversed(numbers), 1):
        program.insert(1, (equal, left, 0, number))
    program += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050001)]  # allow; errno 1
    code = b"".join(struct.pack("HBBI", *row) for row in program)
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(22, 2, ctypes.create_string_buffer(header), 0, 0):  # PR_SET_SECCOMP, FILTER
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


def as_child_of(shell: Shell, environment: dict[str, str]) -> None:
    """Make this process what a child of the shell would be."""
    for name in INHERITED:
        kind = getattr(resource, f"RLIMIT_{name}")
        resource.setrlimit(kind, resource.prlimit(shell.pid, kind))
    for line in Path(f"/proc/{shell.pid}/cgroup").read_text().splitlines():
        _, controller, path = line.split(":", 2)
        mount = VERSION_1 / controller if controller else CGROUP
        (mount / path.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))
    refuse_calls(shell.refuse)
    if shell.user:
        os.setgroups([])
        os.setgid(shell.user)
        os.setuid(shell.user)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, else /proc/self is root's
    os.environ.clear()
    os.environ.update(environment)


def mooncake_preflight(shell: Shell, *words: str) -> dict[str, Any]:
    """The program's exit code, and what it wrote."""
    from preflight.cli.main import main

    load_modules()
    environment = shell.environment()
    output, errors = PLACE / "output", PLACE / "errors"
    began = time.monotonic()
    child = os.fork()
    if not child:
        code = 70
        try:
            with output.open("wb") as file, errors.open("wb") as other:
                os.dup2(file.fileno(), 1)
                os.dup2(other.fileno(), 2)
            as_child_of(shell, environment)
            sys.argv = ["mooncake-preflight", *words]
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException as error:
            os.write(1, f"{type(error).__name__}: {error}".encode())
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                MODULES.write_text("\n".join(sys.modules))
            os._exit(code)
    return {
        "code": wait_for(child),
        "output": output.read_text(errors="replace") or errors.read_text(errors="replace"),
        "seconds": round(time.monotonic() - began, 1),
    }


def load_modules() -> None:
    """Import here what the last check imported, so that the next one need not."""
    names = MODULES.read_text().splitlines() if MODULES.exists() else ()
    for name in names:
        if name.startswith(OURS) and name not in sys.modules:
            import_module(name)


def wait_for(child: int) -> int:
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -9


def check(shell: Shell, order: dict[str, Any]) -> dict[str, Any]:
    """What a check says: all rows but those that are skipped, without what no test reads."""
    words = ["check", "--json", "--timeout", str(LIMIT_SECONDS), *order["arguments"]]
    done = mooncake_preflight(shell, *words, f"{LAUNCHES}/{order['launch']}.sh")
    answer = {"code": done["code"], "seconds": done["seconds"]}
    try:
        report = json.loads(done["output"])
        answer["rows"] = [
            {name: row[name] for name in SHOWN}
            | ({"commands": row["commands"]} if row["commands"] else {})
            for row in map(in_texts, report["findings"])
            if row["status"] != "skip"
        ]
    except (ValueError, KeyError) as error:
        answer["defect"] = f"{error!r}: {done['output'][:2000]}"
    return answer


def start(shell: Shell, order: dict[str, Any]) -> dict[str, Any]:
    """Run the launch itself until its port answers or it has ended."""
    log = PLACE / "launch.log"
    log.unlink(missing_ok=True)
    words = f"setsid bash {LAUNCHES}/{order['started']}.sh"
    if order["packages"]:  # of this Python
        programs = Path(sys.executable).parent
        words = f"PATH={programs}:$PATH PYTHONPATH=$PYTHONPATH:{order['packages']} {words}"
    shell.run(f"{words} > {log} 2>&1 & launch=$!")
    _, pid = shell.run("echo $launch")
    deadline = time.monotonic() + LIMIT_SECONDS
    said = f"nothing within {LIMIT_SECONDS} s"
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("10.0.0.1", order["port"])) == 0:
                said = "ok"
                break
        if not Path(f"/proc/{pid.strip()}").exists():
            said = f"exit {shell.run('wait $launch')[0]}"
            break
        time.sleep(0.1)
    shell.run("kill -9 -- -$launch; wait $launch")
    written = log.read_text(errors="replace")
    return {"said": said, "log": f"{written[-LOG_CHARACTERS:]}\n{said}"}


def _of_launch(arguments: list[str]) -> list[str]:
    """Those that say something of the launch, without the choice of checks."""
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    return [word for pair in pairs for word in pair if pair[0] != "--skip"]


def remedy(rows: Iterable[dict[str, Any]], expect: Container[str]) -> list[str]:
    """Return the commands that are printed for the checks that are expected to fail, each once."""
    lines = [line for row in rows if row["check"] in expect for line in row.get("commands", ())]
    return list(dict.fromkeys(line for line in lines if not line.startswith("#")))


def mend(shell: Shell, order: dict[str, Any], found: dict[str, Any]) -> list[dict[str, Any]]:
    """Run what the check printed for the findings that are expected, then what is done by hand."""
    if order["applied"]:
        words = ["apply", "--yes", "--timeout", str(LIMIT_SECONDS)]
        words += [*_of_launch(order["arguments"]), f"{LAUNCHES}/{order['launch']}.sh"]
        twice = [mooncake_preflight(shell, *words) for _ in range(2)]
        line = shlex.join(["mooncake-preflight", *words])
        return [{"line": line, "status": one["code"], "said": one["output"]} for one in twice]
    lines = remedy(found.get("rows", ()), order["expect"])
    done = []
    for line in lines:
        status, said = shell.run(line)
        done.append({"line": line, "status": status, "said": said[-500:]})
    return done


def run_fault(order: dict[str, Any]) -> dict[str, Any]:
    host = Shell()
    shell = Shell(order["user"], order["refuse"])
    answer: dict[str, Any] = {"id": order["id"]}
    try:
        host.run(f"LAUNCH_SHELL={shell.pid}")
        if order["possible"] and host.run(order["possible"])[0]:
            answer["impossible"] = order["possible"]
            return answer
        for where, lines in ((host, order["inject"]), (shell, order["before"])):
            status, said = where.run(lines) if lines else (0, "")
            if status:
                answer["defect"] = f"{lines}: {said}"
                return answer
        answer["broken"] = check(shell, order)
        if order["captured"]:
            answer["capture"] = capture(shell, order)
        if order["starts"]:
            answer["broken_start"] = start(shell, order)
        if not order["mends"]:
            return answer
        answer["done"] = mend(shell, order, answer["broken"])
        if order["refuse"]:
            shell.end()
            shell = Shell(order["user"])
            shell.run(order["before"])
        if order["by_hand"]:
            status, said = host.run(order["by_hand"])
            answer["by_hand"] = f"{status}: {said}"
        if order["in_the_shell"]:
            shell.run(order["in_the_shell"])
        if order["then"]:
            status, said = host.run(order["then"])
            if status:
                answer["defect"] = f"{order['then']}: {said}"
                return answer
        answer["mended"] = check(shell, order)
        answer["mended_start"] = start(shell, order)
    except (OSError, ValueError) as error:
        answer["defect"] = f"{type(error).__name__}: {error}"
    finally:
        shell.end()
        Shell.once(order["undo"])
        host.end()
    return answer


def capture(shell: Shell, order: dict[str, Any]) -> dict[str, Any]:
    """A capture of this guest, with the launch; ``content`` is the file in base64."""
    file = PLACE / "capture.tar.gz"
    file.unlink(missing_ok=True)
    words = ("--timeout", str(LIMIT_SECONDS), f"{LAUNCHES}/{order['launch']}.sh")
    done = mooncake_preflight(shell, "capture", str(file), *words)
    content = base64.b64encode(file.read_bytes()).decode() if file.exists() else ""
    return {**done, "content": content}


def prepare(orders: dict[str, Any]) -> None:
    """Bring up what a healthy host has, and let user 1000 read what it runs."""
    LAUNCHES.mkdir()
    PLACE.chmod(0o1777)
    for name, text in orders["launches"].items():
        (LAUNCHES / f"{name}.sh").write_text(text)
    for path in orders["readable"]:
        for folder in (Path(path), *Path(path).parents):
            if folder.stat().st_mode & 0o005 != 0o005:
                folder.chmod(folder.stat().st_mode | 0o055)
    host = Shell()
    status, said = host.run(f"set -e\n{orders['healthy']}\nset +e")
    host.run("trap - EXIT")
    print(json.dumps({"id": "prepare", "status": status, "said": said[-2000:]}), flush=True)
    KEPT.append(host)


KEPT: list[Shell] = []


def main(path: str) -> None:
    orders = json.loads(Path(path).read_text())
    prepare(orders)
    for order in orders["faults"]:
        print(json.dumps(run_fault(order)), flush=True)
    for shell in KEPT:
        shell.end()


if __name__ == "__main__":
    main(sys.argv[1])
