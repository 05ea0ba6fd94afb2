"""The one redactor: what is a secret by its name, its place or its looks is taken out of a text.

The checks need none, and a secret that is printed once is one no longer. Three nets, each for what
the one before cannot know: names (``HF_TOKEN=``, ``--api-key``, ``"redis_password":``), forms and
places (``hf_...``, ``curl -u``, ``?sig=``), and words that look drawn by chance. Lines stay where
they are, so that findings name them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

from checks.capture.handed_passwords import PRINTING, QUOTED, handed
from checks.capture.secret_names import PARTS_OF_NAMES, is_choice, is_secret

REMOVED = "(removed)"
# Characters of a text that can have a name, a sign and a secret.
LEAST_SECRET = 6
# Characters behind the place where a text is cut that may show that what is in front is a secret.
_BEHIND_A_CUT = 400
_PROGRAMS = (
    "curl login sshpass mysql mariadb openssl redis-cli alias bearer basic password etcdctl "
    "smbclient ldap lftp unzip zip 7z ssh-keygen htpasswd sudo useradd usermod ngrok ossutil munge "
    "send passwd kinit cryptsetup passphrase"
).split()
# The same where a text was cut before its end.
_CUT_OFF = r"[\"'][^\s\"'{}\[\],]{2,}(?:\.\.\.)?(?=[ \t]*(?m:$)|\.\.\.)"
_ANY_QUOTED = rf"\\\"[^\"\n]*\\\"|{QUOTED}|{_CUT_OFF}"
# A line of a script that is a text in JSON ends with \\n and goes on with a command or setting.
_NO_END = r"(?!\\n[\w./\-]+[ \t=])"
# A name begins where a word does: a text may be one word of 4 MiB.
_NAME = r"(?<![A-Za-z0-9_.\-])(?P<name>[A-Za-z0-9_.\-]+)"
_NAME_ALONE = re.compile(r"[\w.\-]+")
# A name with its sign, and what is its value behind it.
_NAMED = (
    # A variable of a Kubernetes container: the name is the value of one field.
    (
        rf"name:[ \t]*[\"']?{_NAME}[\"']?[ \t]*(?:,|\n)\s*value:[ \t]*",
        rf"{QUOTED}|[^\s\"',}}]+",
    ),
    # ${NAME:-value}, then NAME=$(echo value), then NAME=value and --name=value
    (rf"\$\{{{_NAME}:?[-=]", rf"{QUOTED}|[^\s\"'{{}}]+"),
    (rf"{_NAME}=[\"']?(?:\$\(|`)[ \t]*{PRINTING}", rf"(?:{QUOTED}|[^\n;&|\"'()`])+"),
    (rf"{_NAME}=", rf"{_ANY_QUOTED}|(?:\$\{{[^{{}}\n]*\}}|{_NO_END}[^\s;&|\"'])+"),
    # name = value, of INI and TOML, and <name>value</name>
    (rf"(?m:^)[ \t]*{_NAME}[ \t]+=[ \t]*", rf"{_ANY_QUOTED}|[^\s\"'][^\n]*"),
    # The same within a line, as words of a command: one word; what a test compares is none.
    (rf"(?<!\$){_NAME}[ \t]+=[ \t]+", rf"{_ANY_QUOTED}|[^\s;&|\"'=][^\s;&|\"']*"),
    (rf"<{_NAME}>", r"[^<>\s][^<>\n]*"),
    # --name value: the next word of a line, of the next one, of a list in YAML's two forms.
    (
        rf"(?=--){_NAME}[\"']?(?:[ \t]*\\\n[ \t]*|[ \t]*,\s*|[ \t]*\n[ \t]*-[ \t]+|[ \t]+)",
        rf"{_ANY_QUOTED}|[^\s;&|\"',\]-](?:{_NO_END}[^\s;&|,\]])*",
    ),
    # name: value, also in JSON that is quoted in a script
    (
        rf"(?<!\$\{{){_NAME}\\?[\"']?[ \t]*:[ \t]*",
        rf"{_ANY_QUOTED}|[^\s\"'{{\[,}}\]|>&*][^\"'\t\n,}}\]]*",
    ),
    # aws configure set aws_secret_access_key X; machine x login y password X, of .netrc
    (rf"\b(?:set|login[ \t]+[^\s-]\S*)[ \t]+{_NAME}[ \t]+", rf"{QUOTED}|\S+"),
)
# The value of such a variable may stand in front of its name.
_NAMED_AFTER = (
    rf"value:[ \t]*(?P<value>{QUOTED}|[^\s\"',}}]+)[ \t]*(?:,|\n)\s*name:[ \t]*[\"']?{_NAME}"
)
# Options whose name says nothing, of the programs that take a secret there.
_WORD = rf"(?:{QUOTED}|\\\"[^\"\n]*\"|(?:{_NO_END}[^\s;&|\"'])+)"
_REGISTRIES = "docker|podman|nerdctl|helm|oras|crane|skopeo"
_OPTIONS = (
    r"curl\b[^\n;&|]{0,160}?[ \t](?:-u[ \t]*|--(?:proxy-)?user(?:=|[ \t]+))",
    rf"(?:{_REGISTRIES})\b[^\n;&|]{{0,160}}?\blogin\b[^\n;&|]{{0,160}}?[ \t]-p[ \t]*",
    r"sshpass\b[^\n;&|]{0,160}?[ \t]-p[ \t]*",
    r"(?:mysql|mysqldump|mariadb)\b[^\n;&|]{0,160}?[ \t]-p",
    r"openssl\b[^\n;&|]{0,160}?[ \t]-(?:k|K|pass(?:in|out)?)[ \t]+",
    r"(?:vault|wandb|huggingface-cli|hf|npm|az|gcloud)[ \t]+(?:auth[ \t]+)?login[ \t]+(?!-)",
    r"redis-cli\b[^\n;&|]{0,160}?[ \t]-a[ \t]+",
    r"mc[ \t]+alias[ \t]+set[ \t]+\S+[ \t]+\S+[ \t]+\S+[ \t]+",
    # Of a header, to its end; elsewhere what is no word of a sentence.
    r"(?i:bearer|basic)[ \t]+(?=[^\s\"']{8})(?![A-Za-z][a-z]{1,18}[.,:;)]?(?![^\s\"']))",
    r"(?<=[\"':=])[ \t]?(?i:bearer|basic)[ \t]+(?=[^\s\"']{8,}\\?(?:[\"']|(?m:$)))",
    r"etcdctl\b[^\n;&|]{0,160}?[ \t]--user(?:=|[ \t]+)|\bETCDCTL_USER=",
    r"smbclient\b[^\n;&|]{0,160}?[ \t](?:-U[ \t]*|--user(?:=|[ \t]+))",
    r"ldap[a-z]{3,8}\b[^\n;&|]{0,160}?[ \t]-w[ \t]*",
    r"lftp\b[^\n;&|]{0,160}?[ \t]-u[ \t]*",
    r"(?:unzip|zip)\b[^\n;&|]{0,160}?[ \t]-P[ \t]*",
    r"7z\w?[ \t][^\n;&|]{0,160}?[ \t]-p(?=\S)",
    r"ssh-keygen\b[^\n;&|]{0,160}?[ \t]-[NP][ \t]*",
    r"htpasswd[ \t]+-\w*b\w*[ \t]+(?:-\w+[ \t]+)*\S+[ \t]+\S+[ \t]+",
    r"(?:useradd|usermod)\b[^\n;&|]{0,160}?[ \t]-p[ \t]+",
    r"curl\b[^\n;&|]{0,160}?[ \t](?:-b[ \t]*|--cookie(?:=|[ \t]+))(?=[\"']?[\w.\-]+=)",
    r"ngrok[ \t]+(?:config[ \t]+add-)?authtoken[ \t]+",
    r"ossutil\w*[ \t]+config\b[^\n;&|]{0,160}?[ \t]-k[ \t]*",
    r"munge\b[^\n;&|]{0,160}?[ \t](?:-s[ \t]*|--string(?:=|[ \t]+))",
    # What expect types, and ends with a return: its program may be in another line.
    r"send(?:_user)?[ \t]+(?:--?[ \t]+)?(?=\\?[\"'][^\n]{1,160}?(?:\\[rn]|\r)|[^\s\"']+(?:\\r|\r))",
    r"expect\b[^\n]{0,160}?\bsend(?:_user)?[ \t]+(?:--?[ \t]+)?",
    r"(?<![\w\-])-U[ \t]*[\"']?[\w.\-\\/]{1,80}%(?!\()",
    # A line of GRUB's menu; those of PAM, which begin alike, end in a module.
    r"(?m:^)[ \t]*password[ \t]+[\w.\-]+[ \t]+(?!\S+\.so\b)(?=\S+[ \t]*(?m:$))",
)
# Whatever they are called: a password in an address, tokens of a known form.
_LEAST_FORM = 15
_FORMS = re.compile(
    r"(?<![\w+.\-])[\w+.\-]{0,80}:[^/\s@\"']{1,80}(?=@(?!sha\d)[\w\[])"
    r"|(?<=://)[^/\s:@\"']{16,}(?=@)"
    r"|\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_\-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w\-]{16,}|xox[abeoprs]-[\w\-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|AIza[\w\-]{30,}|ya29\.[\w\-]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[\w\-]{20,}|dckr_pat_[\w\-]{16,}"
    r"|SG\.[\w\-]{16,}\.[\w\-]{16,}|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|nvapi-[\w\-]{16,}"
    r"|hv[sb]\.[\w\-]{16,}|tskey-[\w\-]{10,}|eyJ[\w\-]{8,}\.[\w\-]{8,}(?:\.[\w\-]*)?"
    r"|AGE-SECRET-KEY-1[0-9A-Z]{20,}|d[oa][opr]_v1_[0-9a-f]{40,}|dapi[0-9a-f]{32}|gsk_\w{20,}"
    r"|r8_[A-Za-z0-9]{20,}|pplx-\w{20,})"
    # Of openssl's options, whose name may be in another line.
    r"|(?<![\w.\-/])pass:[^\s:;&|\"'][^\s;&|\"']{3,}"
    r"|(?<=webhookb2/)[^\s\"']+|(?<=/bot)\d{6,12}:[\w\-]{20,}"
    r"|(?<=hooks\.slack\.com/services/)[\w/]+"
    r"|(?<=/api/webhooks/)[\w/\-]+"
    r"|(?<=grub\.pbkdf2\.)\S+"
)
# Numbers and switches, which MC_PKEY_INDEX and --token-usage have; and how a sentence of ours goes
# on behind a name: ``--api-key at launch.sh:1``, ``api_key = not known``.
_PLAIN = re.compile(
    r"-?\d{1,4}|\d{0,3}\.\d{1,6}|true|false|yes|no|on|off|none|null|\d{1,7}(?:\.\d+)? .*|at|not",
    re.IGNORECASE,
)
# Variables and outputs of commands, with what a format says around them: ``$USER:%s``. What stands
# there instead where a variable is not set is none: ``${PASSWORD:-of-mine}``.
_REFERENCE = re.compile(
    r"\$\{\{[^{}]*(?:\}\})?|\$\((?:[^()\n]|\([^()\n]*\))*\)?|`[^`\n]*`?|%[-\d.]*[sbq]|\\[nrt0]"
    r"|\$\{[#!]?\w+(?::?[-=+](?:\$\{?\w+|\d{1,4}|true|false|none)?(?=[^\w.]|$)|:?\?[^{}]*"
    r"|[#%/^,@\[][^{}]*)?|\$[A-Za-z_]\w*|\$\d(?![\w$])"
)
# How a sentence goes on behind a colon, where a value would stand: with a word of these.
_SENTENCE = re.compile(
    r"(?:a|about|access|all|an|any|are|at|bad|both|by|can|cannot|compare|connection|could|denied|each"
    r"|every|everything|expired|failed|for|from|give|has|have|how|if|in|invalid|is|it|its|may|missing"
    r"|must|neither|never|no|none|not|nothing|of|on|one|only|operation|or|pass|permission|read|see|should"
    r"|such|that|the|their|there|these|they|this|to|unable|unknown|use|was|were|what|when|where|which"
    r"|who|whose|will|with|without|wrong),?[ \t]+\w",
    re.IGNORECASE,
)
_TO_A_QUOTE = re.compile(r"[^\n\"]{0,200}")
_WORDS_OF_A_SENTENCE = re.compile(r"\S+[ \t]+\S")
_THREE_WORDS = re.compile(r"\S+[ \t]+\S+[ \t]+\S")
_USER_AND_PASSWORD = re.compile(r"\$?\{?[\w.\-]+\}?:[^\s/:]{4,}")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.S
)
_SECRET_KIND = re.compile(r"(?m)^[ \t]*[\"']?kind[\"']?:[ \t]*[\"']?Secret\b")
_DOCUMENT = re.compile(r"(?m)^---[^\n]*\n")

# The last net: words of so many characters, which are not so long by being made of words.
_DRAWN = re.compile(r"(?<![\w/+.\-])[A-Za-z0-9_+/\-]{20,}={0,2}(?![\w/+\-])")
_HEX = re.compile(r"(?i)[0-9a-f]{32,}")
# Names of GPUs, pods and file systems.
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}")
_DIGEST = re.compile(r"(?:sha\d+[:\-]|revision[= ]|@|commit[= ]|digest[= ])$", re.IGNORECASE)
# Changes between small letters, capitals and digits, of all neighbours: 0.62 where each character
# is drawn of all 62 alike; few names of models and classes have more than this.
_MOST_CHANGES = 0.42
# And what of it is words: 0.5 and more in those names, 0.2 in what is drawn. Of 40 drawn characters
# both together miss one in a hundred, and take no word of this project's data and pages.
_PARTS = re.compile(r"[A-Z]?[a-z]{3,}")
_LEAST_WORDS = 0.5
# Names of models are of short parts: Qwen3-235B-A22B-FP8. Of 40 drawn characters of base64,
# with - and _ once in 64 each, 1 in 1,000 has no longer part.
_LONGEST_PART = 9
_BETWEEN_PARTS = re.compile(r"[-_/+=]")


def looks_drawn(word: str) -> bool:
    """Return whether a word looks drawn by chance, as keys are: no name that a person chose."""
    if _HEX.fullmatch(word):
        return len(set(word.lower())) > 8
    if max(map(len, _BETWEEN_PARTS.split(word))) <= _LONGEST_PART:
        return False
    kinds = ["a" if a.islower() else "A" if a.isupper() else "0" for a in word if a.isalnum()]
    if len(kinds) < 20 or len(set(kinds)) < 3:
        return False
    changes = sum(one != other for one, other in pairwise(kinds))
    in_words = sum(map(len, _PARTS.findall(word)))
    return changes > _MOST_CHANGES * (len(kinds) - 1) and in_words < _LEAST_WORDS * len(kinds)


@cache
def _named() -> tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]:
    """Compile what most texts do not need: it takes as long as all else here."""
    return tuple((re.compile(head), re.compile(value)) for head, value in _NAMED)


@cache
def _options() -> tuple[re.Pattern[str], ...]:
    # \\n in front: of a script in JSON.
    start = r"(?:\b|(?<=\\n))"
    found = []
    for words in _OPTIONS:
        pattern = words if "(?P<value>" in words else rf"(?:{words})(?P<value>{_WORD})"
        found.append(re.compile(pattern if words.startswith("(?<!") else start + pattern))
    return tuple(found)


def clean_text(text: str, removed: dict[str, None] | None = None, *, of_host: bool = False) -> str:
    """Return the text with secrets gone; what they were is added to ``removed``.

    of_host: a host's or our own text, not a launch's. Long hexadecimal numbers stay, which name
    containers and files that belong to them, and so does what follows a word and a colon.
    """
    if len(text) < LEAST_SECRET:
        return text
    gone: dict[str, None] = {} if removed is None else removed
    lower = text.lower()
    text = _without_handed(text, gone)
    if any(part in lower for part in PARTS_OF_NAMES):
        text = _without_secret_objects(text, gone)
        text = _PRIVATE_KEY.sub(lambda match: _noted("a private key", match[0], gone), text)
        for head, value in _named():
            text = _without_named(text, head, value, gone, of_host)
        text = re.sub(_NAMED_AFTER, lambda match: _replaced(match, gone), text)
    if any(program in lower for program in _PROGRAMS) or ("%" in text and "-U" in text):
        for pattern in _options():
            text = pattern.sub(lambda match: _valued(match, gone), text)
    if "@" in text or len(text) >= _LEAST_FORM:
        text = _FORMS.sub(lambda match: _noted("what looks like one", match[0], gone), text)
    return _DRAWN.sub(lambda match: _drawn(match, gone, of_host), text)


def clean_words(
    words: Iterable[str], removed: dict[str, None] | None = None, *, of_host: bool = False
) -> list[str]:
    """Return the words of a command with secrets gone; what they were is added to ``removed``.

    A word is one by its own looks, by the flag in front of it, or by its place in the line.
    """
    gone: dict[str, None] = {} if removed is None else removed
    found: list[str] = []
    before = ""
    for word in words:
        name, equals, value = word.partition("=")
        shown = word
        if equals and value and _NAME_ALONE.fullmatch(name) and is_secret(name):
            shown = f"{name}={_bare(value, name, gone)}"
        elif (
            before.endswith(":")
            and _NAME_ALONE.fullmatch(_unquoted(before))
            and is_secret(_unquoted(before))
        ):
            shown = _bare(word, _unquoted(before), gone)
        elif before.startswith("-") and "=" not in before and is_secret(before):
            shown = word if word.startswith("-") else _bare(word, before, gone)
        if shown == word:
            shown = clean_text(word, gone, of_host=of_host)
        found.append(shown)
        before = word
    line = clean_text(" ".join(found), gone, of_host=of_host)
    return [word if word in line else REMOVED for word in found]


def clean_command(words: Iterable[str], *, of_host: bool = False) -> list[str]:
    """Return what ``clean_words`` does of a whole command, whose first word is a program's name.

    A program called root:hunter2 is a line that was to be handed to chpasswd.
    """
    found = clean_words(words, of_host=of_host)
    return [REMOVED, *found[1:]] if found and _USER_AND_PASSWORD.fullmatch(found[0]) else found


def _unquoted(word: str) -> str:
    return word.rstrip(":").strip("\"'{,\\")


def _bare(value: str, name: str, removed: dict[str, None]) -> str:
    return REMOVED if _gone(value, name.lstrip("-."), removed) != value else value


def public(value: Any) -> Any:
    """Return plain data, a text or what JSON is made of, with secrets gone from each text of it."""
    if isinstance(value, str):
        shown = _on_lines(value)
        return value if shown == value else shown  # a Quantity stays one
    if isinstance(value, dict):
        return {public(key): public(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if len(value) > 1 and all(isinstance(item, str) for item in value):
            words = clean_words(value, of_host=True)
            return [old if old == new else new for old, new in zip(value, words, strict=True)]
        return [public(item) for item in value]
    return value


def beginning(text: str, most: int) -> str:
    """Return a text of at most so many characters: the whole without secrets, or its beginning."""
    shown = without_cut_secrets(text, most)
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def without_cut_secrets(text: str, most: int) -> str:
    """Return what is to be cut to so many characters, without secrets, of which a half would stay.

    What stands far behind is left away: it is not shown.
    """
    return clean_text(text[: most + _BEHIND_A_CUT], of_host=True)


# A line that was broken for the width of a page, which is one line still.
_BROKEN = re.compile(r"\n(?=  )")


def _on_lines(text: str) -> str:
    """Return a text of ours with secrets gone, also where a line ends within a command."""
    if "\t" in text or "\n  " not in text:
        return clean_text(text, of_host=True)
    return clean_text(_BROKEN.sub("\t", text), of_host=True).replace("\t", "\n")


def _without_named(
    text: str,
    head: re.Pattern[str],
    value: re.Pattern[str],
    removed: dict[str, None],
    of_host: bool,
) -> str:
    parts, done = [], 0
    for match in head.finditer(text):
        if match.start() < done or not is_secret(match["name"]):
            continue
        sign = text[match.end("name") : match.end()].strip()
        behind = value.match(text, match.end())
        if behind is None:
            continue
        if of_host and sign == ":":
            line = _TO_A_QUOTE.match(text, behind.start())
            if line is not None and _is_sentence(match["name"], line[0]):
                continue
        parts += [
            text[done : behind.start()],
            _gone(behind[0], match["name"].lstrip("-."), removed),
        ]
        done = behind.end()
    return "".join([*parts, text[done:]])


def _is_sentence(name: str, behind: str) -> bool:
    """Return whether a word with a colon is one of a sentence, or of our own verdict: PASS."""
    if name == "PASS":
        return _WORDS_OF_A_SENTENCE.match(behind) is not None
    if name == "pass" and _THREE_WORDS.match(behind):  # what a check's page says of it
        return True
    return name.isalpha() and _SENTENCE.match(behind) is not None


def _replaced(match: re.Match[str], removed: dict[str, None]) -> str:
    name = match["name"]
    return match[0] if not is_secret(name) else _valued(match, removed, name.lstrip("-."))


def _valued(match: re.Match[str], removed: dict[str, None], name: str = "a password") -> str:
    start, end = match.span("value")
    before, after = match.string[match.start() : start], match.string[end : match.end()]
    return f"{before}{_gone(match['value'], name, removed)}{after}"


def _gone(value: str, name: str, removed: dict[str, None]) -> str:
    """Return what stands in the place of a value; the value where it can be no secret."""
    bare = value.replace(REMOVED, "").strip("\"'\\").strip()
    # A reference names a secret and is none; nor is what stands for a value that is gone.
    rest = _REFERENCE.sub("", bare) if "$" in bare or "`" in bare or "%" in bare else bare
    if not any(map(str.isalnum, rest)) or _PLAIN.fullmatch(bare) or is_choice(name, bare):
        return value
    removed[name] = None
    quote = value[0] if value[0] in "\"'" else '\\"' if value.startswith('\\"') else ""
    # Quoted where it was not: brackets mean something to a shell.
    return f"{quote or chr(39)}{REMOVED}{quote or chr(39)}"


def _drawn(match: re.Match[str], removed: dict[str, None], of_host: bool) -> str:
    word = match[0]
    parts = [part for part in (word, *word.split("/")) if not (of_host and _HEX.fullmatch(part))]
    before = match.string[max(0, match.start() - 12) : match.start()]
    if _DIGEST.search(before) or _UUID.search(word) or not any(map(looks_drawn, parts)):
        return word
    return _noted("what looks like one", word, removed)


def _without_handed(text: str, removed: dict[str, None]) -> str:
    parts, done = [], 0
    for each in handed(text):
        parts += [text[done : each.start], _gone(text[each.start : each.end], each.name, removed)]
        done = each.end
    return "".join([*parts, text[done:]])


def _noted(what: str, text: str, removed: dict[str, None]) -> str:
    removed[what] = None
    return REMOVED + "\n" * text.count("\n")


def _without_secret_objects(text: str, removed: dict[str, None]) -> str:
    """Replace the objects of the kind Secret by empty lines, and note that in ``removed``."""
    if _SECRET_KIND.search(text) is None:
        return text
    starts = [0, *(match.end() for match in _DOCUMENT.finditer(text)), len(text)]
    found = []
    for start, end in pairwise(starts):
        document = text[start:end]
        if _SECRET_KIND.search(document):
            removed["a Secret"] = None
            body, mark, _ = document.rpartition("---") if end < len(text) else (document, "", "")
            tail = f"{mark}\n" if mark else ""
            document = "\n" * (body.count("\n")) + tail
        found.append(document)
    return "".join(found)
