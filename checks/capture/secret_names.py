"""Whether a variable, flag or key holds a secret, by its name."""

from __future__ import annotations

import re
from functools import lru_cache

_SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|SIGNATURE|BEARER|WEBHOOK"
    r"|(?<!BY)(?<!COM)(?<!TRES)(?<!SUR)PASS$|[A-Z]PW$"
    r"|(?:^|[_.-])(?:PWD|PSWD|PW|JWT|SIG|CRED|CREDS|SAS|DSN)$",
    re.IGNORECASE,
)
# Without one of these in a text there is no such name in it; most texts have none.
PARTS_OF_NAMES = (
    "key token secret pass cred auth cookie signature bearer webhook pwd pswd pw jwt sig sas dsn"
).split()
# Parts of names that have KEY, TOKEN or AUTH in them and mean something else: several are counted
# or name the entries of a table, those of a model's vocabulary, those of RDMA's memory.
_OTHER_MEANING = re.compile(
    r"(?<!API)(?<!API.)(?<!ACCESS.)(?:TOKENS|KEYS)|TOKENIZ\w+|^KEY$|^(?:OLD)?PWD$"
    r"|AUTHOR(?:S|IT(?:Y|IES))?(?![A-Z])|(?:HOT|MON)KEY|KEY(?:BOARD|MAP|SPACE|WORD)"
    r"|(?<![A-Z])[LMPQR]_?KEY(?![A-Z])"
    r"|(?:CACHE|FOREIGN|GRAPH|INDEX|LOOKUP|OBJECT|PARTITION|PUBLIC|SHARD|SORT)[_-]KEY"
    r"|(?:AUDIO|BOS|CLS|EOS|IMAGE|MASK|PAD|SEP|STOP|UNK|VIDEO)[_-]TOKEN"
    r"|(?<![A-Z])(?:EACH|FIRST|HEAVY|INTER|KI|MAX|MIN|NEXT|NUM|PER|TO)[_-]TOKEN"
    r"|NEW[_-]TOKEN[_-]RATIO|TOKEN[_-](?:BLOCK|IDS|LATENCY|LEVEL|MAP|NUM|PER|TO|USAGE)(?![A-Z])"
    r"|IMAGE[_-]?PULL[_-]?SECRETS?(?![A-Z])",
    re.IGNORECASE,
)
# Last words that say of a secret where it is or how it is made, and are not it. Those that may
# stand behind a part of it are not among them: DATA, HASH, HEADER, ID, STRING, VALUE.
_SAYS_OF_ONE = re.compile(
    r"(?:DIR|FILE|PATH)S?$"
    r"|(?:[_.\-]|(?-i:(?<=[a-z])(?=[A-Z])))"
    r"(?:ALGO|ALGORITHM|BACKEND|BUCKET|BUDGET|COUNT|DIM|D?TYPE|ENABLED?|EXPIRY|FORMAT|INDEX|INTERVAL"
    r"|LEN|LENGTH|LIMIT|METHOD|MODE|NAME|NORM|POLICY|POOL|PORT|PREFIX|PROVIDER|RATE|RATIO|REF|SIZE"
    r"|STDIN|STRATEGY|SUFFIX|THRESHOLD|TIMEOUT|TTL|VERSION)$",
    re.IGNORECASE,
)
# A key that is said to be of nothing secret may be that of an entry: it is with such a value.
_KEY_OF_ANYTHING = re.compile(r"[-_.]*[A-Z]+(?:[-_.][A-Z]+)*[-_.]KEY", re.IGNORECASE)
_KEY_OF_A_SECRET = re.compile(r"(?:ACCESS|ACCOUNT|API|MASTER|PRIVATE)[-_.]KEY", re.IGNORECASE)
_CHOICE = re.compile(
    r"auto|default|hf3fs|lru|mooncake|nixl|rdma|tcp|fp\d\w*|bf(?:loat)?16|float\d\d\w*",
    re.IGNORECASE,
)


@lru_cache(maxsize=4096)  # a launch of many servers asks of the same names
def is_secret(name: str) -> bool:
    """Return whether the value of a variable or flag of this name is not to be shown."""
    if _SAYS_OF_ONE.search(name):
        return False
    return _SECRET.search(_OTHER_MEANING.sub("", name)) is not None


def is_secret_file(path: str) -> bool:
    """Return whether a file holds a secret by its path: /run/secrets/redis, ~/.netrc."""
    return path.endswith("netrc") or any(map(is_secret, path.split("/")))


def is_choice(name: str, value: str) -> bool:
    """Return whether a value is one of a few that a setting can have, and its name may be one's.

    ``storage_key = mooncake`` is, where ``storage_key = Zk3...`` is an account's secret.
    """
    return (
        _CHOICE.fullmatch(value) is not None
        and _KEY_OF_ANYTHING.fullmatch(name) is not None
        and _KEY_OF_A_SECRET.search(name) is None
    )
