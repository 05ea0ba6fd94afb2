"""What both commands share: their exit codes beside the verdict, and every way out of them."""

from __future__ import annotations

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
    """Run ``command``; returns its exit code, never a traceback. refuse: for no answer."""
    open_streams()

    def refused(exit_code: int, message: str) -> int:
        try:
            return refuse(exit_code, message)
        except OutputError:  # from here on what is printed is discarded
            return refuse(exit_code, message)

    try:
        return int(command.main(list(arguments), name, standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message(), err=True)
        return refused(exit_codes.USAGE, "no subcommand was given")
    except click.ClickException as error:
        say(f"{name}: {error.format_message()}", err=True)
        if isinstance(error, click.UsageError):
            path = name if error.ctx is None else error.ctx.command_path
            if isinstance(error, click.NoSuchOption) and _takes_a_launch(error.ctx):
                say(f"A launch's own options stand behind --: {path} -- COMMAND ...", err=True)
            say(f"Try '{path} --help'.", err=True)
        return refused(exit_codes.USAGE, error.format_message())
    except OutputError as error:
        say(f"{name}: {error}", err=True)
        return refused(exit_codes.USAGE, str(error))
    except (click.Abort, KeyboardInterrupt) as error:
        say(f"{name}: interrupted", err=True)
        # click makes an Abort of what interrupted it.
        signalled = error.__cause__ if isinstance(error, click.Abort) else error
        return refused(interrupted_code(signalled), "interrupted")
    except MemoryError:
        message = "this program itself finds no memory (ulimit -v, or the memory cgroup)"
        say(f"{name}: {message}", err=True)
        return refused(exit_codes.DEFECT, message)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and _of_others(error):
            message = _missing(error)
            say(f"{name}: {message}", err=True)
            return refused(exit_codes.USAGE, message)
        if isinstance(error, OSError) and error.errno in _FULL:
            message = f"{error.filename or 'standard output'}: {error.strerror}"
            discard_output()
            say(f"{name}: {message}", err=True)
            return refused(exit_codes.USAGE, message)
        message = f"a defect of {name}, please report it: {type(error).__name__}: {error}"
        say(f"{name}: {message}", err=True)
        return refused(exit_codes.DEFECT, message)


def _of_others(error: ModuleNotFoundError) -> bool:
    return bool(error.name) and (error.name or "").partition(".")[0] not in ("checks", "preflight")


def _missing(error: ModuleNotFoundError) -> str:
    """Return the message for a dependency that is not installed (``pip install --no-deps``)."""
    import sys

    from preflight.base.shell import line

    module = (error.name or "").partition(".")[0]
    wheel = {"yaml": "PyYAML", "pynvml": "nvidia-ml-py"}.get(module, module)
    install = line([sys.executable, "-m", "pip", "install", wheel])
    return f"{wheel} is not installed for {sys.executable}: {install}"


def own_words(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the words before ``--``: those behind it are the launch's."""
    words = tuple(arguments)
    return words[: words.index("--")] if "--" in words else words


def asked_answers(words: Sequence[str]) -> Answers:
    """Return each --format (--json too) with the --output behind it; "" for an --output alone."""
    answers: Answers = []
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        value = value if equals else next(iter(words[number + 1 :]), "")
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


def _takes_a_launch(context: click.Context | None) -> bool:
    return context is not None and any(
        isinstance(parameter, click.Argument) and parameter.name == "launch"
        for parameter in context.command.params
    )
