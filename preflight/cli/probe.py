"""``mooncake-preflight probe``: measuring what no file tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import CONTEXT, LazyGroup, command, examples_text
from preflight.cli.options import JSON, SIZE, NumberOption, timeout_option, with_launch

if TYPE_CHECKING:
    from preflight.inputs.launch_words import LaunchWords


LATER = {"registration": "preflight.cli.probe:registration"}


@click.group(
    cls=LazyGroup,
    later={"Commands": LATER},
    context_settings=CONTEXT,
    epilog=examples_text("mooncake-preflight probe registration"),
)
def probe() -> None:
    """Measure what no file tells, by trying it and taking it back."""


@command(
    "registration",
    "mooncake-preflight probe registration",
    "mooncake-preflight probe registration --device mlx5_0",
)
@JSON
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME[,NAME]",
    help="Register with these at once, as Mooncake does. Default: the launch's, or all.",
)
@click.option(
    "--page",
    type=click.Choice(["4k", "2m", "1g"]),
    default="4k",
    show_default=True,
    help="The pages behind the memory: the machine's smallest, or huge ones from its pool.",
)
@click.option(
    "--region",
    "region_bytes",
    type=SIZE,
    help="Size of the smallest region. Default: the launch's smallest, or 16mb.",
)
@click.option(
    "--up-to",
    "up_to_bytes",
    type=SIZE,
    help="Most of one device. Default: the launch's need and a quarter, or the host's memory.",
)
@click.option(
    "--spend",
    "spend_bytes",
    type=SIZE,
    default="256mb",
    show_default=True,
    help="The most memory that may be taken, the kernel's own lists included.",
)
@click.option("--force", is_flag=True, help="Measure although others use the device.")
@click.option("--no-save", is_flag=True, help="Do not keep the result for later checks.")
@timeout_option(
    NumberOption(0, 3600, min_open=True),
    10.0,
    "Seconds after which what was not read is unknown; measuring takes what it takes.",
)
@with_launch
def registration(
    *,
    devices: tuple[str, ...],
    page: str,
    region_bytes: int | None,
    up_to_bytes: int | None,
    spend_bytes: int,
    force: bool,
    no_save: bool,
    as_json: bool,
    timeout_seconds: float,
    launch: LaunchWords,
) -> int:
    """Find how much memory the RDMA devices let this user register, and which limit that is.

    Registers one small buffer again and again, in regions as large as those of LAUNCH (a file, or a
    command after --): limits and devices count the sum, and the memory is taken once. Releases all
    of it at the end, also after Ctrl-C or a crash. A device that others use is left alone without
    --force.

    Exit codes: 0 measured, and the launch fits; 2 it does not; 3 not measured, or not far enough;
    64 usage error; 70 a defect of this program; 130 interrupted.
    """
    from preflight.base.output import say, say_json
    from preflight.probes.registration import Sizes, answer_object, answer_text, probe_registration

    sizes = Sizes(page, region_bytes, up_to_bytes, spend_bytes)
    answer = probe_registration(
        launch, devices, sizes, force=force, save=not no_save, timeout_seconds=timeout_seconds
    )
    if as_json:
        from preflight.base.envelope import envelope

        code, found, word = answer.exit_code, answer_object(answer), answer.status
        say_json(envelope("probe-registration", code, found, word=word, reason=answer.reason))
    else:
        say(answer_text(answer))
    return answer.exit_code
