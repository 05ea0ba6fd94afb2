"""What a program reads as a password is gone from a text, and what goes to a secret's file."""

from __future__ import annotations

import json

import pytest

from checks.capture.secrets import clean_text, public

SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2"
LINES = (
    "echo root:{} | chpasswd",
    "echo root:{} | sudo /usr/sbin/chpasswd",
    "echo {} | tee f | passwd --stdin root",
    "echo {} 2>&1 | tee -a f 2>&1 | sudo -S true",
    "echo root:{} | cat - | chpasswd",
    "printf '%s' {} | tr -d '\\n' | sudo -k -S true",
    'echo "{}" | base64 -d | docker login -u a --password-stdin r.b',
    "echo {} | tr a b | sudo -Sv",
    "echo two {} words | sudo -S true",
    'echo "$USER:{}" | chpasswd',
    "root:{} | tee f | chpasswd",
    "echo -e '{}\\n{}' | passwd root",
    "(echo {}; echo {}) | passwd root",
    "echo {} \\\n  | sudo -S true",
    "echo {} |\n  sudo -S true",
    "chpasswd <<EOF\nroot:{}\nother:{}\nEOF",
    "cat <<'EOF' | chpasswd\nroot:{}\nEOF",
    "chpasswd <<-EOF\n\troot:{}\n\tEOF",
    "docker login -u a --password-stdin r.b <<EOF\n{}\nEOF",
    "chpasswd <<EOF root:{} other:{} EOF",
    "cat <<EOF | chpasswd root:{} EOF",
    "docker login -u a --password-stdin r.b <<< {}",
    "sudo -S true < <(echo {})",
    "echo {} | kinit a",
    "echo {} | gh auth login --with-token",
    "echo {} | gpg --batch --passphrase-fd 0 -d m.gpg",
    "echo {} > /run/secrets/redis",
    "echo {} | sudo tee /run/secrets/redis",
    "echo 'machine r.b login u {}' >> ~/.netrc",
)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("secret", ["hunter2-of-mine", "kuwhfksrekxybnr"])
def test_what_a_program_reads_as_a_password_is_gone(line: str, secret: str) -> None:
    """In a script, in one that is a text in JSON, in words of ours; the lines around it stay."""
    said = line.replace("{}", secret)
    script = f"set -e\n{said}\n{SERVER}\n"
    for text in (said, script, json.dumps({"args": ["bash", "-c", script]})):
        for of_host in (False, True):
            shown = clean_text(text, of_host=of_host)
            assert secret not in shown
            assert (SERVER in shown) is (SERVER in text)
            assert shown.count("\n") == text.count("\n")
    assert secret not in public(f"  error: {said}")


@pytest.mark.parametrize(
    "kept",
    [
        "echo $PASSWORD | sudo -S true",
        'echo "$USER:$PASSWORD" | chpasswd',
        "printf '%s\\n' \"$TOKEN\" | docker login -u a --password-stdin r.b",
        "echo vm.nr_hugepages=1024 | sudo tee -a /etc/sysctl.d/90-x.conf",
        "cat <<EOF | sudo tee /etc/sysctl.d/90-x.conf\nvm.nr_hugepages=1024\nEOF",
        "ls /models | grep Qwen3 | wc -l",
        "echo never > /sys/kernel/mm/transparent_hugepage/enabled",
        "grep root /etc/passwd | cut -d: -f3 | sort",
        "echo starting || sudo -S true",
        "echo starting; sudo -S true",
        f"chpasswd < users\n{SERVER}",
    ],
)
def test_what_no_program_reads_as_a_password_stays(kept: str) -> None:
    assert clean_text(kept) == kept
    assert clean_text(kept, of_host=True) == kept


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        "echo a | b | c | d | e | f\n",
        "a|",
        "cat <<EOF | sudo -S true\nx\n",
        "password=${",
        "(echo a b; ",
        "echo 'a' \"b\" | ",
    ],
)
def test_work_grows_with_the_text(piece: str) -> None:
    """A tenth of a megabyte of it, which one regular expression took 15 s for, is done in two."""
    from time import process_time

    before = process_time()
    clean_text(piece * (100_000 // len(piece)) + "sudo passwd key")
    assert process_time() - before < 5
