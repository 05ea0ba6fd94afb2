"""``mooncake-preflight completion``: what a shell needs to complete both commands."""

from __future__ import annotations

import click

from preflight.cli.commands import command

COMMANDS = ("mooncake-preflight", "mooncake-hicache-sizing")


@command(
    "completion",
    'eval "$(mooncake-preflight completion bash)"',
    "mooncake-preflight completion zsh > ~/.zfunc/_mooncake-preflight",
    "mooncake-preflight completion fish > ~/.config/fish/completions/mooncake-preflight.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print what makes a shell complete options, files and ids of both commands."""
    from click.shell_completion import get_completion_class

    from preflight.base.output import say

    found = get_completion_class(shell)
    assert found is not None  # click knows these three
    for name in COMMANDS:
        variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
        made = found(completion, {}, name, variable)
        say(made.source_template % made.source_vars())
    return 0
