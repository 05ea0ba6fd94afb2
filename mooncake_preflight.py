"""Where both programs start, under a name that no other package has.

Others have packages named ``checks`` and ``preflight`` too: those beside this file are taken,
whatever stands in front of them on the path. No way out of here is a traceback, or an exit code
that a scheduler takes for a verdict.
"""

from __future__ import annotations

import sys

OWN = ("checks", "preflight")
DEFECT = 70
INTERRUPTED = 130
# What protocols make of having no verdict; the others take the exit code as it is. A test holds
# these to preflight.verdict.report, which may be what cannot be imported.
NO_VERDICT = {
    "nagios": (3, "MOONCAKE UNKNOWN - "),
    "npd": (3, "error: "),
    "slurm-prolog": (0, "print mooncake-preflight: error: "),
}
NPD_BYTES = 80
MODE = "MOONCAKE_PREFLIGHT_MODE"
# Seconds. A signal that comes again within these is the same one: timeout(1) and schedulers tell a
# process, and then its group.
SAME_SIGNAL = 1.0
# Whether the one object that was asked for is being printed, or is: what comes then is too late.
_answered = False


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: what is under way is given up as at Ctrl-C.

    ``args[0]``: the signal.
    """


def preflight() -> None:
    """Run ``mooncake-preflight``."""
    _start("preflight.cli.main")


def sizing() -> None:
    """Run ``mooncake-hicache-sizing``."""
    _start("preflight.cli.sizing")


def interrupted_code(error: BaseException | None) -> int:
    """Return the exit code of what a signal ended, as a shell has it."""
    return 128 + int(error.args[0]) if isinstance(error, TerminatedError) else INTERRUPTED


def answering() -> None:
    """Keep the first signal from the answer that begins here; a second one still ends.

    Else half an object would be printed, or a second one behind it, and the exit code be another.
    """
    global _answered
    _answered = True


def _start(module: str) -> None:
    """Run ``module.main``, and end.

    What hangs is left to its thread, and nothing is taken apart, which costs a tenth of a start.
    """
    import gc
    import os
    from contextlib import suppress

    gc.disable()  # a process that lives this short has nothing to collect
    words = sys.argv[1:]
    _end_on_signals()
    try:
        if module == "preflight.cli.main" and words[:1] == ["exec"] and _mode() == "off":
            _become_at_once(words)
        _prefer_own_packages()
        code = _run(module, words)
    except KeyboardInterrupt as error:
        code = _refused(module, words, interrupted_code(error))
    with suppress(OSError):  # whose reader is gone
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    os._exit(code)


def _end_on_signals() -> None:
    """End on SIGTERM and SIGINT: the first raises, a second one ends this process at once.

    The first process of a container has no default action for SIGTERM: a stop would be lost.
    """
    import os
    import signal
    import time

    first: float | None = None

    def end(number: int, frame: object) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            if not _answered:
                raise TerminatedError(number) if number == signal.SIGTERM else KeyboardInterrupt
        elif time.monotonic() - first > SAME_SIGNAL:
            os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


def _run(module: str, words: list[str]) -> int:
    """Run ``module.main``; return the exit code."""
    from importlib import import_module

    try:
        main = import_module(module).main
    except Exception as error:
        return _without_program(words, error)
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    except Exception as error:  # on a way out of the program itself
        print(f"mooncake-preflight: a defect, please report it: {_reason(error)}", file=sys.stderr)
        return DEFECT
    return 0


def _refused(module: str, words: list[str], code: int) -> int:
    """Let the program say that it was interrupted, if it can be imported after that."""
    from importlib import import_module

    try:
        return int(import_module(module).refuse(words, code, "interrupted"))
    except Exception:  # an import that was broken off left half a package
        return _say_plainly(words, code, "interrupted")


def _prefer_own_packages() -> None:
    import os
    from importlib.machinery import ModuleSpec, PathFinder

    folder = os.path.dirname(os.path.abspath(__file__))

    class OwnPackages:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            return PathFinder.find_spec(name, [folder]) if name in OWN else None

    sys.meta_path.insert(0, OwnPackages)


def _without_program(words: list[str], error: Exception) -> int:
    """Say why nothing of the program could be imported; the exit code for no verdict."""
    message = f"this program cannot be imported: {_reason(error)}"
    print(f"mooncake-preflight: {message}", file=sys.stderr)
    own = words[: words.index("--")] if "--" in words else words
    if own[:1] == ["exec"]:
        # A defect of the check is no verdict on the server, as where a check itself breaks.
        if _mode() == "warn" or _value(own, "--fail-on") in ("", "fail"):
            _become_at_once(words)
        return DEFECT
    code, before = NO_VERDICT.get(_value(own, "--format"), (DEFECT, None))
    if _asks_for_json(own):
        return _say_plainly(words, code, message)
    if before is not None:
        line = (before + message).encode("ascii", "replace").decode()
        if _value(own, "--format") == "npd" and len(line) > NPD_BYTES:
            line = f"{line[: NPD_BYTES - 3]}..."
        print(line)
    return code


def _say_plainly(words: list[str], code: int, message: str) -> int:
    """Print the object that was asked for, where nothing of the program can; return the code."""
    own = words[: words.index("--")] if "--" in words else words
    if _asks_for_json(own) and not _answered:
        import json

        answering()
        print(json.dumps({"status": "error", "exit_code": code, "error": message}, indent=2))
    return code


def _asks_for_json(words: list[str]) -> bool:
    return "--json" in words or _value(words, "--format") == "json"


def _reason(error: Exception) -> str:
    """Return the error, and whose file it is about."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    name = (getattr(error, "name", "") or "").partition(".")[0]
    place = getattr(sys.modules.get(name), "__file__", None)
    if place is None:
        trace = error.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            place = place if file.startswith("<") else file
            trace = trace.tb_next
    return text if place is None or place in text else f"{text} ({place})"


def _value(words: list[str], option: str) -> str:
    found = ""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option:
            found = value if equals else "".join(words[number + 1 : number + 2])
    return found


def _mode() -> str:
    import os

    return os.environ.get(MODE, "")


def _become_at_once(words: list[str]) -> None:
    """Become the command after ``--``, where one stands there; nothing of it is checked."""
    import os

    command = tuple(words[words.index("--") + 1 :]) if "--" in words else ()
    if command:
        sys.exit(become(command, dict(os.environ)))


def become(command: tuple[str, ...], environment: dict[str, str]) -> int:
    """Replace this process: id, signals, exit code are the command's own.

    Returns where it cannot.

    126: it cannot be run; 127: it is not there, as in a shell.
    """
    import os
    import signal

    # Python ignores these two, and what is ignored stays so in the command.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        os.execvpe(command[0], command, given_locale(environment))
    except FileNotFoundError:
        code, why = 127, "command not found"
    except (OSError, ValueError) as error:
        code, why = 126, (error.strerror if isinstance(error, OSError) else None) or str(error)
    print(f"mooncake-preflight exec: {command[0]!a}: {why}", file=sys.stderr)
    return code


def given_locale(environment: dict[str, str]) -> dict[str, str]:
    """Return ``environment`` with the LC_CTYPE that this process was given.

    Python sets it to UTF-8 for itself where the locale is C (PEP 538), and the kernel keeps what
    was there at the start.
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            given = file.read().split(b"\0")
    except OSError:
        return environment
    values = [one.partition(b"=")[2] for one in given if one.startswith(b"LC_CTYPE=")]
    kept = {name: value for name, value in environment.items() if name != "LC_CTYPE"}
    return {**kept, "LC_CTYPE": values[0].decode(errors="surrogateescape")} if values else kept


if __name__ == "__main__":  # python -m mooncake_preflight: under its own name, as the script has it
    import mooncake_preflight

    mooncake_preflight.preflight()
