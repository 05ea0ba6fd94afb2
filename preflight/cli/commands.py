"""How a command is declared, refused and listed: the kinds of click commands in use here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

import click

from preflight.base.usage_error import UsageError
from preflight.cli.formats import GONE, WORDS

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

# Options that many commands have, by their parameter: the title that --help has above them.
_PARAMETERS = {
    "Which checks": "only skip ignore waivers",
    "About the launch (docs/launch.md)": "nic_numa_nodes rank_numa_nodes mooncake_version "
    "sglang_version model_config gpu_memory host_group env_files",
    "How much can be registered (--only registration)": "devices page region_bytes up_to_bytes "
    "force no_save",
    "A rehearsal": "rehearse scale",
}
_SECTIONS = {name: title for title, names in _PARAMETERS.items() for name in names.split()}


class RefusingCommand(click.Command):
    """A command that refuses contradicting options (UsageError); --help groups the options.

    --help shows what is said of a launch, and which checks are made, in sections of their own.
    """

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their sections."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                title = _SECTIONS.get(parameter.name or "", "Options")
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; an option that is gone is refused with its successor."""
        ctx.meta[WORDS] = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in GONE:
                raise
            message = f"{error.option_name} is gone: {GONE[error.option_name]}"
            raise click.UsageError(message, ctx) from None

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
    the colon. gone: what people type that is no command -> the sentence that says what is.
    """

    def __init__(
        self,
        *arguments: Any,
        later: Mapping[str, Mapping[str, str]],
        gone: Mapping[str, str] = MappingProxyType({}),
        **named: Any,
    ):
        """Take the commands by section, each with where its function stands."""
        super().__init__(*arguments, **named)
        self._sections, self._gone = later, gone
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
        if where is None:
            return None
        module, _, name = where.partition(":")
        loaded: click.Command = getattr(import_module(module), name)
        return loaded

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; an unknown name is refused with the nearest, or with check."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import os
            from difflib import get_close_matches

            near = get_close_matches(args[0], self._later, n=1)
            if args[0] in self._gone:
                message = self._gone[args[0]]
            elif os.path.isfile(args[0]):
                message = f"{args[0]!r} is a file, not a command: give it to check or read"
            elif near:
                message = f"{error.message.rstrip('.')}: did you mean {near[0]}?"
            else:
                raise
            raise click.UsageError(message, ctx) from None
