"""What both programs share: exit codes beside the verdict, and every way out of a command."""

import errno
from collections.abc import Callable, Sequence

import click

from mooncake_preflight import interrupted_code
from preflight.base import exit_codes
from preflight.base.output import OutputError, discard_output, open_streams, say

_FULL = (errno.ENOSPC, errno.EDQUOT)

# Told the exit code and why there is no answer; returns the exit code of the process.
Refuse = Callable[[int, str], int]
# The forms in which an answer is asked for, each with its file; None for standard output.
Answers = list[tuple[str, str | None]]


def run_command(command: click.Command, name: str, arguments: Sequence[str], refuse: Refuse) -> int:
    """Run a click command and return the exit code of the process.

    Errors are printed in a line, never as a traceback.

    Args:
        name: The program's name.
        refuse: Called with an exit code and the message if the command gives no answer; its value
            is then returned.
    """
    open_streams()

    def refused(exit_code: int, message: str, shown: str | None = None) -> int:
        """Say ``shown``, by default the message behind the program's name; refuse."""
        say(f"{name}: {message}" if shown is None else shown, err=True)
        try:
            return refuse(exit_code, message)
        except OutputError:  # from here on what is printed is discarded
            return refuse(exit_code, message)

    try:
        return int(command.main(list(arguments), name, standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        return refused(exit_codes.USAGE, "no subcommand was given", error.format_message())
    except click.ClickException as error:
        lines = [f"{name}: {error.format_message()}"]
        if isinstance(error, click.UsageError):
            path = name if error.ctx is None else error.ctx.command_path
            takes = () if error.ctx is None else error.ctx.command.params
            launch = any(isinstance(p, click.Argument) and p.name == "launch" for p in takes)
            if isinstance(error, click.NoSuchOption) and launch:
                lines.append(f"A launch's own options stand behind --: {path} -- COMMAND ...")
            lines.append(f"Try '{path} --help'.")
        return refused(exit_codes.USAGE, error.format_message(), "\n".join(lines))
    except OutputError as error:
        return refused(exit_codes.USAGE, str(error))
    except (click.Abort, KeyboardInterrupt) as error:
        # click makes an Abort of what interrupted it.
        signalled = error.__cause__ if isinstance(error, click.Abort) else error
        return refused(interrupted_code(signalled), "interrupted")
    except MemoryError:
        message = "this program itself finds no memory (ulimit -v, or the memory cgroup)"
        return refused(exit_codes.DEFECT, message)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError):
            module = (error.name or "").partition(".")[0]
            if module not in ("", "checks", "preflight"):
                return refused(exit_codes.USAGE, _not_installed(module))
        if isinstance(error, OSError) and error.errno in _FULL:
            discard_output()
            message = f"{error.filename or 'standard output'}: {error.strerror}"
            return refused(exit_codes.USAGE, message)
        message = f"a defect of {name}, please report it: {type(error).__name__}: {error}"
        return refused(exit_codes.DEFECT, message)


def _not_installed(module: str) -> str:
    """Return the message for a dependency that is not installed (``pip install --no-deps``)."""
    import sys

    from preflight.base.shell import line

    wheel = {"yaml": "PyYAML", "pynvml": "nvidia-ml-py"}.get(module, module)
    install = line([sys.executable, "-m", "pip", "install", wheel])
    return f"{wheel} is not installed for {sys.executable}: {install}"


def own_words(argv: Sequence[str]) -> Sequence[str]:
    """Return the words before ``--``: those behind it are the launch's."""
    return argv[: argv.index("--")] if "--" in argv else argv


def requested_answers(argv: Sequence[str]) -> Answers:
    """Read from a command line which answers it asks for: pairs of format and file.

    --json is the format "json". The file is None for standard output. An --output belongs to the
    --format before it. If that format has a file already, or no format precedes, it belongs to the
    next format; the format is "" if none follows.
    """
    answers: Answers = []
    for number, word in enumerate(argv):
        name, equals, value = word.partition("=")
        value = value if equals else next(iter(argv[number + 1 :]), "")
        if name == "--output":
            path = None if value == "-" else value
            if answers and answers[-1][0] and answers[-1][1] is None:
                answers[-1] = (answers[-1][0], path)
            else:
                answers.append(("", path))
        elif name in ("--format", "--json"):
            value = "json" if name == "--json" else value
            if answers and not answers[-1][0]:
                answers[-1] = (value, answers[-1][1])
            else:
                answers.append((value, None))
    return answers
