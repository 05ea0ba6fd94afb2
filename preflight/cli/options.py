"""What the commands share: how one is declared, the types of its options, and whole groups of them.

A group that belongs together is handed over as one record: a command's parameters are its request.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from preflight.base.output import JSON_VARIABLE, JSON_VERSIONS, json_version
from preflight.base.usage_error import UsageError
from preflight.base.within import LIMIT_SECONDS, within
from preflight.sizing.sizes import bare_number, parse_size

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from preflight.inputs.launch_words import Chosen, LaunchWords

    AnyParamType = click.ParamType[Any]
else:
    AnyParamType = click.ParamType  # generic for type checkers alone, before click 8.4

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
# Characters of a config.json: those of published models have some thousands.
_LARGEST_CONFIG = 4 << 20

# Options that many commands have, by their parameter: the title that --help has above them.
_SECTIONS = {
    **dict.fromkeys(("only", "skip", "ignore", "waivers"), "Which checks"),
    **dict.fromkeys(
        (
            "nic_numa_nodes",
            "rank_numa_nodes",
            "mooncake_version",
            "sglang_version",
            "model_config",
            "gpu_memory",
            "host_group",
            "env_files",
        ),
        "About the launch (docs/launch.md)",
    ),
}

Function = TypeVar("Function", bound=Callable[..., Any])
Option = Callable[[Any], Any]


class RefusingCommand(click.Command):
    """A command that is refused where what it was given cannot be meant (UsageError).

    --help shows what is said of a launch, and which checks are made, in sections of their own.
    """

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                sections.setdefault(_SECTIONS.get(parameter.name or "", "Options"), []).append(
                    record
                )
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            raise click.UsageError(str(error), ctx) from None


def command(
    name: str | None = None, *examples: str
) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a command; ``examples`` end its help: lines to copy, which are not wrapped."""
    epilog = examples_text(*examples)
    return click.command(name, RefusingCommand, context_settings=CONTEXT, epilog=epilog)


def examples_text(*examples: str) -> str | None:
    """Return the end of a help: lines to copy, which are not wrapped; None without any."""
    lines = ("\b", "Examples:", *(f"  {line}" for line in examples))
    return "\n".join(lines) if examples else None


# Longer than any sentence: click cuts what is longer than its limit.
_WHOLE_SENTENCE = 1000


class LazyGroup(click.Group):
    """A group whose commands are imported when asked for: start-up pays for the one that runs.

    later: title of a section in --help -> command name -> module that has it, under the name after
    the colon.
    """

    def __init__(self, *arguments: Any, later: Mapping[str, Mapping[str, str]], **named: Any):
        super().__init__(*arguments, **named)
        self._sections = later
        self._later = {name: where for each in later.values() for name, where in each.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._later)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section with its commands, and the whole first sentence of each."""
        width = max(len(name) for name in self._later)
        for title, names in self._sections.items():
            found = ((name, self.get_command(ctx, name)) for name in names)
            rows = [
                (f"{name:<{width}}", each.get_short_help_str(limit=_WHOLE_SENTENCE))
                for name, each in found
                if each is not None
            ]
            with formatter.section(title):
                formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = self._later.get(cmd_name)
        if where is None:
            return None
        module, _, name = where.partition(":")
        found: click.Command = getattr(import_module(module), name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; a name that is none is refused with the nearest, or with check."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import os
            from difflib import get_close_matches

            if args[0] == "demo":
                said = "the recorded host is --root demo:h800, as in: check --root demo:h800"
                raise click.UsageError(said, ctx) from None
            near = get_close_matches(args[0], self._later, n=1)
            if os.path.isfile(args[0]):
                said = f"{args[0]!r} is a file, not a command: give it to check or read"
            elif near:
                said = f"{error.message.rstrip('.')}: did you mean {near[0]}?"
            else:
                raise
            raise click.UsageError(said, ctx) from None


class FileName(AnyParamType):
    """A name, which a shell completes as that of a file; whether it is there is seen later."""

    name = "file"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


class CheckId(FileName):
    """The id of a check or rule, or a pattern; ``or_file``: or a file's name."""

    name = "id"

    def __init__(self, or_file: bool = False) -> None:
        self._or_file = or_file

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from preflight.check.catalogue import catalogue

        found = [CompletionItem(id_) for id_ in catalogue().ids if id_.startswith(incomplete)]
        if not self._or_file:
            return found
        if not found:
            return super().shell_complete(ctx, param, incomplete)
        from glob import escape, glob

        return found + [CompletionItem(name) for name in glob(f"{escape(incomplete)}*")]


class WaiverText(CheckId):
    """ID=REASON, as a Waiver."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from preflight.inputs.launch_words import Waiver

        check, _, reason = value.partition("=")
        # A waiver without a reason says so, in the place where the reason would stand.
        return Waiver(check, reason.strip() or "no reason given")


FILE = FileName()


class NumberOption(click.FloatRange):
    """``'abc' is not a valid number.``, where click says float range; ``nan`` is none either."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid number.", param, ctx)
        return number


class Integer(click.IntRange):
    """``'abc' is not a valid integer.``, where click says integer range."""

    name = "integer"


class Size(AnyParamType):
    """A byte size in the documented grammar; a bare number is refused, with both spellings.

    With ``--rule documented`` it is bytes, as the helper reads it.
    empty: an empty text is no size, as where the option is left out.
    """

    name = "size"

    def __init__(self, least_bytes: int = 0, empty: bool = False) -> None:
        self._least_bytes = least_bytes
        self._empty = empty

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        if isinstance(value, int):
            return value
        if self._empty and not value:
            return None
        helper = ctx is not None and ctx.params.get("rule") == "documented"
        try:
            size = parse_size(value, bare_bytes=helper)
        except ValueError as error:
            self.fail(_with_sglang_spelling(str(error), value, param), param, ctx)
        if size < self._least_bytes:
            self.fail(f"{value!r} is no memory: give the size, such as 80gb", param, ctx)
        return size


def _with_sglang_spelling(message: str, value: str, param: click.Parameter | None) -> str:
    """Return a message that explains a bare --hicache-size.

    It is SGLang's own spelling, and means 10^9 bytes there.
    """
    number = value.strip()
    bare = number.isascii() and number.isdecimal() and len(number) <= 9
    if not bare or param is None or param.name != "hicache_size":
        return message
    return (
        f"{bare_number(value, number)}. SGLang's own --hicache-size {number} is {number} x 10^9 "
        f"bytes: write {int(number) * 10**9}b for that"
    )


class Part(AnyParamType):
    """``60%`` or ``0.6``, as a part of 1."""

    name = "part"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        try:
            part = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            part = -1.0
        if not 0 < part <= 1:
            self.fail(f"{value!r} is not a part of all: write 60% or 0.6", param, ctx)
        return part


class Nodes(AnyParamType):
    """NUMA nodes: ``0,1``, ``0-3`` or ``none``. ``repeats`` keeps order and repetitions."""

    name = "nodes"

    def __init__(self, repeats: bool = False) -> None:
        self._repeats = repeats

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        from checks.numa.nodes import parse_node_list

        if isinstance(value, tuple):
            return value
        if value.strip().lower() == "none":
            return ()
        try:
            if not self._repeats:
                return parse_node_list(value)
            return tuple(node for part in value.split(",") for node in parse_node_list(part))
        except ValueError:
            self.fail(f"{value!r} is not a list of NUMA nodes: write 0,1 or none", param, ctx)


SIZE = Size()


COLOR: Option = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Colour the text.",
)
ROOT: Option = click.option(
    "--root",
    type=FILE,
    metavar="HOST",
    default="/",
    show_default=True,
    help="The host: /, a folder laid out like one, a capture, or demo:h800.",
)


def timeout_option(type_: NumberOption, default: float, help_: str) -> Option:
    """Return the option ``--timeout``, as ``timeout_seconds``."""
    return click.option(
        "--timeout", "timeout_seconds", type=type_, default=default, show_default=True, help=help_
    )


TIMEOUT = timeout_option(
    NumberOption(0, 3600, min_open=True),
    LIMIT_SECONDS,
    "Seconds after which what was not read is unknown.",
)

_CHOSEN = ("only", "skip", "ignore", "waivers")
_CHECKS: tuple[Option, ...] = (
    click.option(
        "--only",
        type=CheckId(),
        multiple=True,
        metavar="GLOB",
        help="Make only these checks, as 'rdma.*'.",
    ),
    click.option(
        "--skip", type=CheckId(), multiple=True, metavar="GLOB", help="Leave out these checks."
    ),
    click.option(
        "--ignore",
        type=WaiverText(),
        multiple=True,
        metavar="ID=REASON",
        help="Show what this check finds, and do not count it.",
    ),
    click.option(
        "--waivers",
        type=FILE,
        metavar="FILE",
        help="The same from a file, each with a reason and a last day.",
    ),
)

NIC_NODES: Option = click.option(
    "--nic-numa-nodes",
    type=Nodes(),
    help="NUMA nodes of the NICs in use, as 0,1, or none. Default: this host's.",
)
RANK_NODES: Option = click.option(
    "--rank-numa-nodes",
    type=Nodes(repeats=True),
    help="The node that each rank is bound to, as 0,0,1,1, or none. Default: its GPU's.",
)


def _given(_: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Refuse an empty version, which is a variable without a value: it names no release."""
    if text is not None and not text.strip():
        raise click.UsageError(f"{option.opts[0]} '': give a version, or leave the option out")
    return text


MOONCAKE_VERSION: Option = click.option(
    "--mooncake-version", callback=_given, help="As 0.3.13.post1. Default: the installed one."
)
# What is said of a launch alone, in the order in which --help shows it.
LAUNCH_OPTIONS: tuple[Option, ...] = (
    click.option(
        "--sglang-version", callback=_given, help="The launch's SGLang, as 0.5.23 (the default)."
    ),
    click.option(
        "--model-config",
        type=FILE,
        metavar="FILE",
        help="The model's config.json, where not found.",
    ),
    click.option(
        "--gpu-memory",
        type=Size(least_bytes=1),
        help="Memory of the launch's smallest GPU, for --hicache-ratio. Default: this host's.",
    ),
    click.option(
        "--host-group",
        metavar="GROUP",
        help="Which of the launch's hosts this one is, where it is for several; read lists them.",
    ),
    click.option(
        "--env-file",
        "env_files",
        type=FILE,
        metavar="FILE",
        multiple=True,
        help="More environment for a launch, in docker's form; may be given again.",
    ),
)
LAUNCH: Option = click.argument("launch", nargs=-1, type=FILE)


def with_options(*options: Option) -> Callable[[Function], Function]:
    """Return a decorator that adds ``options``, in the order in which --help is to show them."""

    def decorated(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


def gathered(
    function: Callable[..., Any], name: str, make: Callable[..., Any], *options: str
) -> Callable[..., Any]:
    """Give ``function`` one parameter ``name``, made of the values of ``options``."""

    @wraps(function)
    def with_one(**given: Any) -> Any:
        made = make(**{option: given.pop(option) for option in options if option in given})
        return function(**given, **{name: made})

    return with_one


def with_json(
    help_: str = "One JSON object, always.", usual: str = "v2"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --json and --json-schema: ``as_json: bool``; ``say_json`` asks for the version."""

    def as_json(as_json: bool, json_schema: str | None) -> bool:
        version = json_version(json_schema, usual)
        if as_json and version not in JSON_VERSIONS:
            raise UsageError(f"{JSON_VARIABLE}={version}: one of {', '.join(JSON_VERSIONS)}")
        click.get_current_context().meta[JSON_VARIABLE] = version
        return as_json or json_schema is not None

    adding = with_options(
        click.option("--json", "as_json", is_flag=True, help=help_),
        click.option(
            "--json-schema",
            type=click.Choice(JSON_VERSIONS),
            help=f"The same, in this version. Default: {usual}, or {JSON_VARIABLE}.",
        ),
    )
    return lambda function: adding(gathered(function, "as_json", as_json, "as_json", "json_schema"))


JSON = with_json()


def with_checks(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add which checks are made, and what of them counts: ``chosen: Chosen``."""
    return with_options(*_CHECKS)(gathered(function, "chosen", _chosen, *_CHOSEN))


def _chosen(**given: Any) -> Chosen:
    from preflight.inputs.launch_words import Chosen

    if given["waivers"] is not None:
        given["wait_seconds"] = limit_seconds()
    return Chosen(**given)


def with_launch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the launch, and what may be said of it beside its own words: ``launch: LaunchWords``."""
    return _with_launch(function, NIC_NODES, RANK_NODES, MOONCAKE_VERSION)


def with_launch_of_installed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the launch without its Mooncake release, which the installed one says itself."""
    return _with_launch(function, NIC_NODES, RANK_NODES)


def _with_launch(function: Callable[..., Any], *first: Option) -> Callable[..., Any]:
    return with_options(*first, *LAUNCH_OPTIONS, LAUNCH)(taking_launch(function))


def taking_launch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``launch: LaunchWords`` of these options, which the caller adds itself."""
    versions = ("mooncake_version", "sglang_version", "model_config")
    names = ("nic_numa_nodes", "rank_numa_nodes", "gpu_memory", "host_group", "env_files", "launch")
    return gathered(function, "launch", _launch_words, *versions, *names)


def _launch_words(
    launch: tuple[str, ...],
    env_files: tuple[str, ...],
    nic_numa_nodes: tuple[int, ...] | None,
    rank_numa_nodes: tuple[int, ...] | None,
    sglang_version: str | None,
    model_config: str | None,
    gpu_memory: int | None,
    host_group: str | None = None,
    mooncake_version: str | None = None,
) -> LaunchWords:
    from preflight.inputs.launch_words import LaunchWords

    if launch == ("-",):
        from preflight.launches.env_files import read_small_file

        # Here, once: what reads the launch may be another process, or read it twice.
        within(limit_seconds(), "standard input", lambda: read_small_file("-"))
    return LaunchWords(
        launch,
        env_files,
        nic_numa_nodes,
        rank_numa_nodes,
        mooncake_version,
        sglang_version,
        config_text(model_config),
        gpu_memory,
        host_group=host_group,
    )


def config_text(path: str | None) -> str | None:
    """Read what ``--model-config`` names, within bounds: a device has no end, a model no text."""
    if path is None:
        return None
    name = f"--model-config {path}"

    def read() -> str:
        file = sys.stdin if path == "-" else open(path, encoding="utf-8")  # noqa: SIM115
        with file:
            return file.read(_LARGEST_CONFIG + 1)

    try:
        text = within(limit_seconds(), name, read)
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"{name}: {why}: give a config.json") from None
    if len(text) > _LARGEST_CONFIG:
        raise UsageError(f"{name}: more than {_LARGEST_CONFIG >> 20} MiB: give a config.json")
    return text


_TYPED = click.core.ParameterSource.COMMANDLINE


def limit_seconds() -> float:
    """Return the command's --timeout where it was given: some wait longer for what they start."""
    context = click.get_current_context(silent=True)
    if context is None or context.get_parameter_source("timeout_seconds") != _TYPED:
        return LIMIT_SECONDS
    return float(context.params["timeout_seconds"])


def _verbosity(quiet: int, verbose: int) -> int:
    return verbose - quiet


def with_verbosity(verbose: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add -q and -v as ``verbosity``: below 0 the verdict alone; ``verbose`` is the help of -v."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        adding = with_options(
            click.option("-q", "--quiet", count=True, help="Print only the verdict."),
            click.option("-v", "--verbose", count=True, help=verbose),
        )
        return adding(gathered(function, "verbosity", _verbosity, "quiet", "verbose"))

    return decorated
