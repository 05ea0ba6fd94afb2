"""Lines that tmux types into a pane are read by one shell, which keeps what they set."""

from __future__ import annotations

import pytest

from preflight.launches.shell_script import read_script

SET = "tmux send-keys -t s:0 'export MOONCAKE_MASTER=a:1' C-m\n"
OTHER = "screen -S t -X stuff 'mooncake_client\\n'\n"
STUFF = "screen -S s -p 0 -X stuff "
START = "tmux send-keys -t %s 'mooncake_client --port 1' Enter\n"
HERE = START.replace("-t %s ", "")


@pytest.mark.parametrize(
    ("script", "master"),
    [
        (SET + START % "s:0", "a:1"),
        ("tmux send-keys 'export MOONCAKE_' MASTER= Space C-c\n" + SET + START % "s:0", "a:1"),
        ("tmux send -t s 'export MOONCAKE_' 'MASTER=b:1' KPEnter\n" + START % "s", "b:1"),
        ("tmux send-keys -t s 'export MOONCAKE_MASTER=b:1\n' Enter\n" + START % "s", "b:1"),
        ("tmux new -d \\; send-keys 'export MOONCAKE_MASTER=b:1' C-m\n" + HERE, "b:1"),
        (STUFF + "'export MOONCAKE_MASTER=b:1\\n'\n" + STUFF + "'mooncake_client -v^M'\n", "b:1"),
        (STUFF + "$'export MOONCAKE_MASTER=b\\r'\n" + STUFF + "$'mooncake_client\\n'\n", "b"),
        (STUFF + "'mooncake_'\n" + STUFF + "'client\\015'\n", None),
        (STUFF + "'export MOONCAKE_MASTER=b\\n'\n" + OTHER, None),
        (SET + START % "s:1", None),
        (SET.replace("s:0", "s") + "tmux new-window -t s\n" + START % "s", None),
        (SET + "tmux split-window -t s:0\n" + START % "s:0", None),
        (SET + START % "s:0.1", "unknown"),
        (SET + START % "$PANE", "unknown"),
        (SET + "tmux select-pane -L -t s:0\n" + START % "s:0", "unknown"),
        (SET + "tmux send-keys -t s:0 'ssh n1' C-m\n" + START % "s:0", "unknown"),
    ],
)  # fmt: skip
def test_what_a_pane_exported_is_there_in_that_pane(script: str, master: str | None) -> None:
    """What nobody can tell is unknown; another pane has what the caller has."""
    found = read_script(script, "s", {})
    (client,) = [one for one in found.commands if one.words[0].text == "mooncake_client"]
    word = client.environment.get("MOONCAKE_MASTER")
    if master == "unknown":
        assert word is not None
        assert word.unresolved
    else:
        assert (None if word is None else word.text) == master
    assert not client.waited


def test_a_line_that_nobody_ends_is_named() -> None:
    found = read_script("tmux send-keys -t s 'mooncake_client --port 1'\n", "s", {})
    assert found.commands == ()
    assert [note.id for note in found.notes] == ["script-not-read"]
