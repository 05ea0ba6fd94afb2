"""A multi-turn workload: as flags, or as the command line of SGLang's own benchmark.

Source: ``benchmark/hicache/bench_multiturn.py`` of SGLang (its arguments and defaults, and how a
client's history grows: each round sends all that was said, and a new question).
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from checks.framework.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.engines.programs.sglang_arguments import why_unresolved
from preflight.processes.processes import LaunchProcess, ProcessKind

# More than any of these is a slip of the pen, and would only be waited for.
MOST = {"clients": 1_000_000, "rounds": 1_000, "length": 100_000_000}
_MOST_TOKENS = 10**15


class MultiTurnWorkload(NamedTuple):
    """Clients that each hold one conversation of several rounds.

    Attributes:
        first_tokens: Of the first question.
        next_tokens: Of each later one.
        output_tokens: Of each answer.
        origin: Where the workload was written.
        random_order: Clients take turns at random.
        barrier: A round begins when the last has ended for all.
        shorter: The numbers are the most, and real questions and rounds may be fewer and shorter.
    """

    clients: int
    rounds: int
    first_tokens: int
    next_tokens: int
    output_tokens: int
    origin: str
    random_order: bool = True
    barrier: bool = False
    shorter: bool = False

    def context_tokens(self, rounds: int) -> int:
        """Return the tokens of one client's prompts and answers after ``rounds`` rounds."""
        if rounds <= 0:
            return 0
        return self.first_tokens + (rounds - 1) * self.next_tokens + rounds * self.output_tokens

    def cached_tokens(self, rounds: int, page_tokens: int) -> int:
        """Return the tokens that one client has in the cache after ``rounds`` rounds: whole pages,
        without the last token of the last answer, which has no keys yet.
        """
        return max(0, self.context_tokens(rounds) - 1) // page_tokens * page_tokens


class WorkloadOptions(NamedTuple):
    """The workload of the command line: numbers, or the command line of SGLang's benchmark."""

    clients: int | None = None
    rounds: int | None = None
    request_length: int | None = None
    output_length: int | None = None
    command: str | None = None


# The benchmark's own defaults.
_DEFAULTS = {"num_clients": "256", "num_rounds": "5", "request_length": "512"}
_DEFAULTS |= {"output_length": "64", "sub_question_input_length": "0", "range_ratio": "1.0"}
_DEFAULTS |= {"ready_queue_policy": "random", "min_rounds": "0", "max_rounds": "0"}
_SWITCHES = tuple(
    "enable_round_barrier disable_random_sample disable_auto_run flush_between_rounds".split()
)


def workload_of(
    options: WorkloadOptions, processes: Sequence[LaunchProcess]
) -> MultiTurnWorkload | Unknown | None:
    """Return the workload of ``options.command``, else of the launch's last benchmark.

    Numbers in ``options`` replace numbers of that workload, or make a workload if none exists.

    Returns:
        None if nothing is given, or only a length.

    Raises:
        UsageError: For incomplete or invalid numbers.
    """
    workload: MultiTurnWorkload | Unknown | None = None
    for process in processes if options.command is None else ():
        if process.kind is ProcessKind.BENCHMARK:
            workload = _of_process(process)
    if options.command is not None:
        workload = read_command(options.command)
    numbers = options._replace(command=None)
    if all(value is None for value in numbers):
        return workload
    if isinstance(workload, MultiTurnWorkload):
        return _with_numbers(workload, numbers)
    if numbers.clients is None or numbers.rounds is None or numbers.request_length is None:
        if isinstance(workload, Unknown):
            return workload
        if numbers.clients is None and numbers.rounds is None:
            return None  # a length alone: conversations are counted, no rounds
        raise UsageError(
            "a workload is --clients, --rounds and --request-length (and --output-length), or "
            "--workload with the benchmark's command line: one of the three is missing"
        )
    length, output = numbers.request_length, numbers.output_length
    sizes = numbers.clients, numbers.rounds, length, length, 1 if output is None else output
    return _checked(MultiTurnWorkload(*sizes, "command line", barrier=True))


def _with_numbers(workload: MultiTurnWorkload, numbers: WorkloadOptions) -> MultiTurnWorkload:
    """Return the workload with the given numbers.

    Raises:
        UsageError: For one out of bounds.
    """
    length = numbers.request_length
    names = "clients", "rounds", "first_tokens", "next_tokens", "output_tokens"
    counts = numbers.clients, numbers.rounds, length, length, numbers.output_length
    pairs = zip(names, counts, strict=True)
    new: dict[str, Any] = {name: value for name, value in pairs if value is not None}
    return _checked(workload._replace(**new))


def read_command(text: str) -> MultiTurnWorkload:
    """Read a workload from ``python3 bench_multiturn.py --num-clients 80 ...``, or from its options
    alone.

    Raises:
        UsageError: For another command line.
    """
    try:
        argv = shlex.split(text, comments=True)
    except ValueError as error:
        raise UsageError(f"--workload {text!r:.80}: not a command line: {error}") from None
    start = next((i for i, word in enumerate(argv) if word.startswith("--")), len(argv))
    program = [word for word in argv[:start] if word.rpartition("/")[2] == "bench_multiturn.py"]
    if not argv or (start and not program):
        raise UsageError(
            f"--workload {text!r:.80}: not the command line of bench_multiturn.py, or options of "
            "it, such as '--num-clients 80 --num-rounds 10 --request-length 2048'"
        )
    return _workload(_options(argv[start:], "--workload"), "--workload")


def _of_process(process: LaunchProcess) -> MultiTurnWorkload | Unknown:
    """Return the workload of a benchmark that the launch starts; Unknown if one of its options is
    unresolved.

    Raises:
        UsageError: For an invalid value.
    """
    before = ""
    for word in process.arguments:
        flags = before, word.text.partition("=")[0]
        names = [flag[2:].replace("-", "_") for flag in flags if flag.startswith("--")]
        if word.unresolved and any(name in _DEFAULTS for name in names):
            return why_unresolved(word)
        before = word.text
    argv = [word.text for word in process.arguments]
    where = str(process.command.origin)
    return _workload(_options(argv, where), where)


def _options(argv: Sequence[str], where: str) -> dict[str, str]:
    """Return the benchmark's options by name, with its defaults.

    The last of equal options wins, and options that do not change the workload are left out.

    Raises:
        UsageError: For a missing value, or for the beginning of a name.
    """
    values, left = dict(_DEFAULTS), iter(argv)
    for word in left:
        flag, equals, value = word.removeprefix("--").partition("=")
        name = flag.replace("-", "_")
        known = (*_DEFAULTS, *_SWITCHES)
        if not word.startswith("--") or name not in known:
            begun = [each.replace("_", "-") for each in known if name and each.startswith(name)]
            if word.startswith("--") and begun:
                meant = " or --".join(begun)
                raise UsageError(f"{where}: --{flag}: write the whole name, --{meant}")
            continue
        if name in _SWITCHES:
            value = "true"
        elif not equals and (value := next(left, "")) == "":
            raise UsageError(f"{where}: --{flag} has no value")
        values[name] = value
    return values


def _workload(options: Mapping[str, str], where: str) -> MultiTurnWorkload:
    """Return the workload of the benchmark's options.

    Args:
        where: Their origin, for messages.

    Raises:
        UsageError: For an invalid value.
    """

    def number(name: str) -> int:
        """Return an option as an integer; raise UsageError if it is not a whole number."""
        text = options[name]
        try:
            return int(text)
        except ValueError:
            flag = name.replace("_", "-")
            raise UsageError(f"{where}: --{flag} {text!r}: not a whole number") from None

    least, most = number("min_rounds"), number("max_rounds")
    rounds = max(least, most) or number("num_rounds")
    request = number("request_length")
    try:
        uniform = float(options["range_ratio"]) >= 1
    except ValueError:
        uniform = False
    varies = least > 0 and most > 0 and least != most
    later, output = number("sub_question_input_length") or request, number("output_length")
    workload = MultiTurnWorkload(number("num_clients"), rounds, request, later, output, where)
    random_order = options["ready_queue_policy"] != "fifo"
    barrier = "enable_round_barrier" in options
    workload = workload._replace(random_order=random_order, barrier=barrier)
    return _checked(workload._replace(shorter=varies or not uniform))


def _checked(workload: MultiTurnWorkload) -> MultiTurnWorkload:
    """Return the workload unchanged; raise UsageError if a number is out of bounds."""
    bounds = (
        ("clients", workload.clients, 1, MOST["clients"]),
        ("rounds", workload.rounds, 1, MOST["rounds"]),
        ("request length", workload.first_tokens, 1, MOST["length"]),
        ("length of later questions", workload.next_tokens, 0, MOST["length"]),
        ("output length", workload.output_tokens, 1, MOST["length"]),
    )
    for name, value, least, most in bounds:
        if not least <= value <= most:
            raise UsageError(f"{workload.origin}: {name} {value}: must be {least} to {most:,}")
    if workload.clients * workload.context_tokens(workload.rounds) > _MOST_TOKENS:
        raise UsageError(f"{workload.origin}: more than {_MOST_TOKENS:,} tokens in all")
    return workload
