"""Secrets in a script's arguments, replaced before anything of them is recorded, shown or sent.

What looks like a secret is recognised by the name of the option or variable (`--api-key X`, `password=Y`,
`AWS_SECRET_ACCESS_KEY=Z`), and by unmistakable forms: a URL's user and password, the well-known
beginnings of access tokens. In doubt it is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"

_ANYWHERE = (
    "secret", "passw", "passphrase", "pswd", "credential", "apikey", "accesskey", "privatekey", "authkey",
    "accountkey", "signingkey", "encryptionkey", "sshkey", "licensekey", "wandbkey", "openaikey",
)  # fmt: skip
"""In a name without its dashes and underscores."""

_PARTS = frozenset({"auth", "oauth", "oauth2", "authorization", "bearer", "cookie", "pwd", "pw"})
"""As a whole part of a name: `--auth`, but not `--author`."""

# Not looked for within a name, as those above: they are parts of harmless ones (`--keyboard`, `--bypass`).
_WHOLE = frozenset({"key", "pass", "pat", "sas"})

_VOCABULARY_WORDS = frozenset(
    {
        "pad", "eos", "bos", "unk", "mask", "sep", "cls", "id", "ids", "max", "min", "num", "n", "per", "len",
        "length", "type", "level", "count", "limit", "budget", "special", "image", "embedding", "drop",
    }
)  # fmt: skip
"""Beside `token` in a name they make it one of a language model's: `--pad-token`, `--max-token-length`."""

_PART = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+")
_NAME = r"[A-Za-z_][\w.\-]*"
_ASSIGNED_WORD = re.compile(rf"(?P<before>(?:-{{1,2}}|\+{{1,2}}|~)?(?P<name>{_NAME})=).+", re.DOTALL)
_ASSIGNED = re.compile(rf"(?P<name>{_NAME})[\"']?\s*[=:]\s*")
_VALUE = re.compile(r"\"[^\"]*\"|'[^']*'|[^\s\"']*")
_OPTION = re.compile(rf"(?P<before>--?(?P<name>{_NAME})\s+)(?!-)\S+")
_SURE = (
    (re.compile(r"(\w+://)[^/\s@]+@"), rf"\1{HIDDEN}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"']+"), rf"\1 {HIDDEN}"),
    (re.compile(r"\b(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[a-z]-|AKIA|ASIA|eyJ)[\w\-.]{12,}"), HIDDEN),
)
"""Forms of secrets, whatever stands before them."""


def redact_words(words: Sequence[str]) -> list[str]:
    """The words of a command line with HIDDEN for each value that looks like a secret."""
    redacted = []
    hides, plural = False, False
    for word in words:
        # One dash is no option here: a password may begin with it.
        if hides and not word.startswith("--"):
            redacted.append(HIDDEN)
            hides = plural
            continue
        hides = word.startswith("-") and "=" not in word and _is_secret(word)
        # `--api-keys A B`: all words up to the next option are values of it.
        plural = word.endswith("s")
        redacted.append(_redact_word(word))
    return redacted


def _redact_word(word: str) -> str:
    """A single word; one with spaces in it may be a command line or JSON of its own."""
    for pattern, instead in _SURE:
        word = pattern.sub(instead, word)
    assigned = _ASSIGNED_WORD.fullmatch(word)
    if assigned is not None and _is_secret(assigned["name"]):
        return assigned["before"] + HIDDEN
    word = _OPTION.sub(lambda m: m["before"] + HIDDEN if _is_secret(m["name"]) else m[0], word)
    kept, end = "", 0
    for assigned in _ASSIGNED.finditer(word):
        # A secret that is hidden already may look like an assignment itself.
        if assigned.start() >= end and _is_secret(assigned["name"]):
            value = _VALUE.match(word, assigned.end())
            assert value is not None  # it may be empty
            kept, end = kept + word[end : assigned.end()] + HIDDEN, value.end()
    return kept + word[end:]


def _is_secret(name: str) -> bool:
    """Whether an option or a variable of this name holds a secret."""
    parts = [part.lower() for part in _PART.findall(name)]
    joined = "".join(parts)
    if any(word in joined for word in _ANYWHERE) or joined in _WHOLE or _PARTS & set(parts):
        return True
    return joined.endswith(("token", "tokenfile")) and not _VOCABULARY_WORDS & set(parts)
