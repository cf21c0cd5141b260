"""What a call is for, as far as its name and arguments tell. English words, rules of thumb."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from checkengine.detectors.tool_calls.canonical import canonical

LONGEST_TEXT = 4000
"""Characters of the arguments that are read."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READS = _words(
    "get list read find fetch search show view describe check query lookup look retrieve count browse grep cat "
    "inspect head tail stat peek recall is has test validate verify calculate compute think explain summarize"
)
_CHANGES = _words(
    "edit editor write create update delete remove patch apply replace insert move rename copy set add put submit "
    "book cancel modify change install uninstall commit push merge checkout upload save fix append upsert mkdir touch "
    "chmod kill start stop restart deploy migrate assign close approve enable disable configure register reserve pay "
    "purchase transfer publish fill refactor revert rollback rm mv cp send post click type select"
)
_NEUTRAL = _words("plan todo todos think note notes log memory remember message notify comment reflect scratchpad")
"""Changes nothing but the agent's own notes, or tells somebody."""
_RELATIVE = _words(
    "scroll press key click tap swipe step move undo redo tick advance forward back next previous down up left right "
    "roll draw random shuffle spin toss flip zoom turn uuid nonce sample pop dequeue claim "
    "log notify"
)
"""Each step moves on from where the last one ended."""
_FRESH = _words(
    "next random uuid nonce roll dice toss flip draw shuffle pop dequeue claim sample otp receive consume take"
)
"""Another result each time is what these are for."""
_WAITS = _words("wait sleep pause delay heartbeat keepalive ping noop idle await")
_POLLS = _words(
    "poll polling status state progress check ready health healthy job jobs task tasks todo queue inbox pending tail "
    "log logs watch monitor build deploy deployment pipeline workflow process wait squeue kubectl pods ps await "
    "result operation messages mail notifications events peers agents workers"
)
_BOARDS = _words("task tasks todo todos queue jobs peers agents workers")
"""What others write on: it may be looked at again at any time."""
_POST = _words("inbox message messages mail mails email emails notification notifications events updates")
_STRONG_POLLS = _words("poll polling status progress wait await monitor watch job pending ready health")
_QUERY_KEYS = _words("query q search question keywords keyword term search_query search_term prompt")
_QUERIES = _words("search find query lookup grep retrieve retrieval browse web google bing ask rag semantic research")
_REREADS = _words(
    "read open view cat recall memory memories list ls file files todo todos task tasks plan notes status context "
    "history screenshot snapshot diff pwd"
)
"""What people rightly look at again."""
_CLOCKS = _words("time date now clock datetime today")
_SHELLS = _words("bash shell terminal exec execute command cmd run sh powershell console python code repl ipython")
_SHELL_CHANGES = re.compile(
    r"(?<![-=2&])>{1,2}\s*(?!/dev/null|&)[\w./~$\"'{]|"
    r"\b(?:sed\s+(?:-\w+\s+){0,8}-i|rm|mv|cp|mkdir|touch|tee|chmod|chown|patch|ln|kill|"
    r"curl\s.{0,200}-X\s*(?:POST|PUT|DELETE)|"
    r"git\s+(?:commit|checkout|apply|stash|reset|add|merge|rebase|pull|push|rm|mv|restore|switch)|"
    r"(?:pip3?|npm|yarn|pnpm|apt(?:-get)?|cargo|brew|conda|poetry|uv)\s+"
    r"(?:install|add|remove|i|uninstall|update|upgrade|sync)|make(?!\s+\w{0,16}test)|"
    r"docker\s+(?:run|start|stop|restart|rm|build)|kubectl\s+(?:apply|delete|scale|rollout)|systemctl\s+\w+|"
    r"(?:python3?|node|deno|bun|bash|sh|ruby|perl)\s+[\w./\-]{1,200}\.\w{1,4}|(?:npm|cargo|go|yarn)\s+(?:run|start)|"
    r"terraform\s+\w+|ansible\S{0,16}|write_text|to_csv|to_json|savefig|dump|writelines|\.write|os\.remove|shutil)\b|"
    r"open\([^)]{0,200}['\"][wax]b?\+?['\"]",
)
_SHELL_WAITS = re.compile(r"\b(?:sleep|wait|Start-Sleep|timeout)\s+\d|time\.sleep\(")
_SHELL_LOOKS = re.compile(r"\b(?:git (?:status|diff|log)|ls|pwd|cat|whoami)\b")
_TESTS = re.compile(
    r"\b(?:pytest|unittest|tox|nox|jest|vitest|mocha|rspec|phpunit|ctest|gotest|test|tests|lint|mypy|ruff|eslint|tsc)\b",
    re.I,
)


@lru_cache(maxsize=4096)
def words_of(name: str) -> tuple[str, ...]:
    """A tool's name cut at underscores, dashes, dots and capitals, in lower case."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name[:256])
    return tuple(word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word)


@dataclass(frozen=True, slots=True)
class Purpose:
    waits: bool
    """It does nothing but let time pass."""
    changes: bool
    """It changes the world…"""
    relative: bool
    """…by a step from where it is…"""
    fresh: bool
    """…or its results are to differ each time."""
    polls: bool
    """It may be asking how far somebody else has got…"""
    waits_for_others: bool
    """…and its name leaves no doubt of that…"""
    board: bool
    """…or it reads what others write."""
    queries: bool
    looks_again: bool
    """At what people rightly look at again."""
    tells_time: bool


def purpose_of(name: str, arguments: Any) -> Purpose:
    words = frozenset(words_of(name)) | _action_words(arguments)
    shell = bool(words & _SHELLS) and not words & (_QUERIES | _CHANGES)
    text = (arguments if isinstance(arguments, str) else canonical(arguments))[:LONGEST_TEXT] if arguments else ""
    spoken = words | frozenset(re.findall(r"[a-z]{2,20}", text[:400].lower())) if shell else words
    waits = bool(words & _WAITS) or {"health", "check"} <= words or (shell and _SHELL_WAITS.search(text) is not None)
    queries = bool(words & _QUERIES) or _has_query(arguments)
    return Purpose(
        waits=waits,
        changes=_is_change(name, words, arguments, text, shell),
        relative=bool(words & _RELATIVE),
        fresh=bool(words & _FRESH),
        polls=waits or bool(spoken & _POLLS),
        waits_for_others=bool(words & (_STRONG_POLLS | _BOARDS | _POST)) and not queries,
        board=bool(words & _BOARDS) and not queries,
        queries=queries,
        looks_again=bool(words & _REREADS) or (shell and _SHELL_LOOKS.search(text[:200]) is not None),
        tells_time=bool(words & _CLOCKS),
    )


def _has_query(arguments: Any) -> bool:
    return isinstance(arguments, dict) and any(isinstance(key, str) and key in _QUERY_KEYS for key in arguments)


def _action_words(arguments: Any) -> frozenset[str]:
    """Tools that do several things say which in an argument."""
    said = arguments.get("action", arguments.get("operation")) if isinstance(arguments, dict) else None
    return frozenset(words_of(said)) if isinstance(said, str) and len(said) <= 32 else frozenset()


def _is_change(name: str, words: frozenset[str], arguments: Any, text: str, shell: bool) -> bool:
    if shell:
        return _SHELL_CHANGES.search(text) is not None and not (_TESTS.search(text) and ">" not in text)
    ordered = words_of(name)
    if words & _NEUTRAL or not ordered or ordered[0] in _READS:
        return False
    if isinstance(arguments, dict) and arguments.get("command") in ("view", "read", "list", "show"):
        return False
    return bool(words & _CHANGES)
