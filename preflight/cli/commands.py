"""How a command is declared, refused and listed, and the forms in which it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from preflight.base.command_frame import Answers, own_words, requested_answers
from preflight.base.output import output_to, say_json
from preflight.base.usage_error import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    AnyParamType = click.ParamType[Any]
else:
    AnyParamType = click.ParamType  # generic for type checkers alone, before click 8.4

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Option = Callable[[Any], Any]

# Forms with an exit code of their own: one at a time.
PROTOCOLS = ("nagios", "npd", "slurm-prolog", "k8s")
WORDS = f"{__name__}.words"
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

# Options that many commands have, by their parameter: the title that --help has above them.
_PARAMETERS = {
    "Which checks": "only skip ignore waivers",
    "About the launch (docs/launch.md)": "nic_nodes rank_nodes mooncake_version "
    "sglang_version model_config gpu_bytes host_group env_files",
    "How much can be registered (--only registration)": "devices page region_bytes up_to_bytes "
    "force no_save",
    "A rehearsal": "rehearse scale",
}
_SECTIONS = {name: title for title, names in _PARAMETERS.items() for name in names.split()}


class RefusingCommand(click.Command):
    """A command that prints a UsageError as click's own; --help has sections of options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their sections."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        here = {name: _SECTIONS[name] for each in self.params if (name := each.name) in _SECTIONS}
        # One option of a section is another command's, by the same name: --force of apply.
        titles = {name: title for name, title in here.items() if [*here.values()].count(title) > 1}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                title = titles.get(parameter.name or "", "Options")
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = tuple(args)
        return super().parse_args(ctx, args)

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


def imported(where: str) -> Any:
    """Import the module of ``MODULE:NAME``, and return the named object."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


# Longer than any sentence: click cuts what is longer.
_WHOLE_SENTENCE = 1000
# Commands that ``measure`` took the place of -> the sentence for who types one.
GONE = {
    "probe": "how much the NICs let be registered: mooncake-preflight measure --only registration",
    "rehearse": "a launch is rehearsed by: mooncake-preflight measure --rehearse LAUNCH",
    "pairs": "fleet pairs is now: mooncake-preflight fleet measure",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when asked for: start-up pays for the one that runs.

    Args:
        later: Title of a section in --help -> command name -> ``MODULE:FUNCTION``.
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
            commands = ((name, self.get_command(ctx, name)) for name in names)
            texts = ((n, c.get_short_help_str(limit=_WHOLE_SENTENCE)) for n, c in commands if c)
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in texts])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command when it is asked for; None if there is no such command."""
        where = self._later.get(cmd_name)
        return None if where is None else imported(where)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return click's answer: the command and its words.

        An unknown name is refused with a hint: the nearest name, the successor of a command that is
        gone, or that the name is a file.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import os
            from difflib import get_close_matches

            near = get_close_matches(args[0], self._later, n=1)
            if args[0] in GONE:
                message = GONE[args[0]]
            elif os.path.isfile(args[0]):
                message = f"{args[0]!r} is a file, not a command: give it to check or read"
            elif near:
                message = f"{error.message.rstrip('.')}: did you mean {near[0]}?"
            else:
                raise
            raise click.UsageError(message, ctx) from None


def say_answer(
    schema: str, exit_code: int, answer: Any = None, *, started: Any = None, **more: Any
) -> None:
    """Print a JSON answer in its envelope.

    Args:
        started: The launch's name and its processes, or None.
        more: Arguments of ``envelope``; but ``err`` prints to standard error.
    """
    from preflight.base.envelope import envelope

    if started is not None:
        from preflight.command_inputs.reading.understood import about

        more["launch"] = about(*started)
    err = more.pop("err", False)
    say_json(envelope(schema, exit_code, answer, **more), err=err)


class FileName(AnyParamType):
    """A name, which a shell completes as that of a file; whether it is there is seen later."""

    name = "file"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


def with_options(*options: Option) -> Decorator:
    """Return a decorator that adds ``options``, in the order in which --help is to show them."""

    def decorated(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


def with_one_parameter(
    function: Callable[..., Any], name: str, make: Callable[..., Any] | str, *options: str
) -> Callable[..., Any]:
    """Return ``function`` with the parameters ``options`` replaced by one parameter ``name``.

    Args:
        make: Called with the values of ``options``, by name, gives the value of ``name``; or the
            ``MODULE:NAME`` of such a function, imported when the command runs.
    """

    @wraps(function)
    def with_one(**values: Any) -> Any:
        maker = imported(make) if isinstance(make, str) else make
        made = maker(**{option: values.pop(option) for option in options if option in values})
        return function(**values, **{name: made})

    return with_one


def taking(name: str, make: Callable[..., Any] | str, *options: Option) -> Decorator:
    """Return a decorator that adds ``options``, and gives the function one parameter ``name`` in
    their place.

    Args:
        make: As for ``with_one_parameter``.
    """
    nothing: Any = with_options(*options)(lambda: None)
    names = [option.name for option in nothing.__click_params__]
    return lambda function: with_options(*options)(with_one_parameter(function, name, make, *names))


def with_formats(*names: str, again: str = "; may be given again") -> Decorator:
    """Add --format, --output and --json to a command, which gets them as ``answers``: pairs of
    format and file, None for standard output.

    Args:
        names: The formats, the first by default.
        again: Ends the help of --format.
    """
    default = names[0]
    return taking(
        "answers",
        lambda **_: _requested_answers(default),
        click.option(
            "--format", "format_", type=click.Choice(names), metavar="FORMAT", multiple=True,
            help=f"One of {', '.join(names)}{again}. Default: {default}.",
        ),
        click.option(
            "--output", type=FileName(), metavar="FILE", multiple=True,
            help="Where the --format before it goes. Default: standard output.",
        ),
        click.option(
            "--json", "as_json", is_flag=True, help="As --format json: one object, always."
        ),
    )  # fmt: skip


def with_one_format(*names: str) -> Decorator:
    """Add --format, --output and --json to a command that answers in one format.

    The command gets the format as ``format_``, and what it prints goes to the file of --output.
    """

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        """Add the options to ``function``; more than one format raises UsageError."""

        @wraps(function)
        def with_one(*, answers: Answers, **options: Any) -> Any:
            if len(answers) > 1:
                raise UsageError("this command answers in one format: give one --format")
            ((name, path),) = answers
            with output_to(path):
                return function(format_=name, **options)

        return with_formats(*names, again="")(with_one)

    return decorated


def JSON(function: Callable[..., Any]) -> Callable[..., Any]:  # noqa: N802 - as the options beside it
    """Add --format text or json: ``as_json``."""
    as_json = with_one_parameter(function, "as_json", lambda format_: format_ == "json", "format_")
    return with_one_format("text", "json")(as_json)


def _requested_answers(default: str) -> Answers:
    """Return the formats that the command line asks for, each with its file.

    The file is None for standard output; that format is the last in the list. If no format is asked
    for: ``default``.

    Raises:
        UsageError: For a format given twice, two formats with exit codes of their own, or two on
            standard output.
    """
    argv = click.get_current_context().meta[WORDS]
    answers = requested_answers(own_words(argv)) or [(default, None)]
    answers = [(name or default, path) for name, path in answers]
    asked, printed = [name for name, _ in answers], [n for n, path in answers if path is None]
    if twice := [name for name in asked if asked.count(name) > 1]:
        raise UsageError(f"--format {twice[0]} is given twice")
    if len(protocols := [name for name in asked if name in PROTOCOLS]) > 1:
        raise UsageError(f"{' and '.join(protocols)} each have an exit code: give one of them")
    if len(printed) > 1:
        both = " and ".join(printed)
        raise UsageError(f"{both} both take standard output: write --output FILE behind one")
    # What cannot be written is told before something is printed.
    return sorted(answers, key=lambda answer: answer[1] is None)
