"""What a tool's name says that it does, and what its result says that came of it. English words, rules of thumb."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import Any

from checkengine.detectors.tool_calls.canonical import canonical

_HEAD = 4000
_READS = frozenset(
    "get list read find fetch search show view describe check query lookup look retrieve count browse grep cat inspect "
    "head tail stat peek recall is has test validate verify calculate compute think explain summarize".split()
)
_CHANGES = frozenset(
    "edit editor write create update delete remove patch apply replace insert move rename copy set add put submit book "
    "cancel modify change install uninstall commit push merge checkout upload save fix append upsert mkdir touch chmod "
    "kill start stop restart deploy migrate assign close approve enable disable configure register reserve pay purchase "
    "transfer publish fill refactor revert rollback rm mv cp send post click type select".split()
)
_NEUTRAL = frozenset("plan todo todos think note notes log memory remember message notify comment reflect scratchpad".split())
_RELATIVE = frozenset(
    "scroll press key click tap swipe step move undo redo tick advance forward back next previous down up left right "
    "roll draw random shuffle spin toss flip zoom turn uuid nonce sample pop dequeue claim".split()
)
_FRESH = frozenset("next random uuid nonce roll dice toss flip draw shuffle pop dequeue claim sample otp".split())
_WAITS = frozenset("wait sleep pause delay heartbeat keepalive ping noop idle await".split())
_POLLS = frozenset(
    "poll polling status state progress check ready health healthy job jobs task tasks todo queue inbox pending tail log "
    "logs watch monitor build deploy deployment pipeline workflow process wait squeue kubectl pods ps await "
    "result operation messages mail notifications events peers agents workers".split()
)
_QUERIES = frozenset("search find query lookup grep retrieve retrieval browse web google bing ask rag semantic research".split())
_REREADS = frozenset(
    "read open view cat recall memory memories list ls file files todo todos task tasks plan notes status context history "
    "screenshot snapshot diff pwd".split()
)
_CLOCKS = frozenset("time date now clock datetime today".split())
_SHELLS = frozenset("bash shell terminal exec execute command cmd run sh powershell console python code repl ipython".split())
_SHELL_CHANGES = re.compile(
    r"(?<![-=2&>])>{1,2}\s*(?!/dev/null|&)[\w./~$\"'{]|\b(?:sed\s+(?:-\w+\s+)*-i|rm|mv|cp|mkdir|touch|tee|chmod|chown|patch|ln|"
    r"kill|curl\s.*-X\s*(?:POST|PUT|DELETE)|git\s+(?:commit|checkout|apply|stash|reset|add|merge|rebase|pull|push|rm|mv|restore|switch)|"
    r"(?:pip3?|npm|yarn|pnpm|apt(?:-get)?|cargo|brew|conda|poetry|uv)\s+(?:install|add|remove|i|uninstall|update|upgrade|sync)|make(?!\s+\w*test)|"
    r"docker\s+(?:run|start|stop|restart|rm|build)|kubectl\s+(?:apply|delete|scale|rollout)|systemctl\s+\w+|write_text|to_csv|to_json|savefig|"
    r"dump|writelines|\.write|os\.remove|shutil)\b|open\([^)]{0,200}['\"][wax]b?\+?['\"]",
)
_SHELL_WAITS = re.compile(r"\b(?:sleep|wait|Start-Sleep|timeout)\s+\d|time\.sleep\(")
_TESTS = re.compile(r"\b(?:pytest|unittest|tox|nox|jest|vitest|mocha|rspec|phpunit|ctest|gotest|test|tests|lint|mypy|ruff|eslint|tsc)\b", re.I)

_INFRA = re.compile(
    r"(?:error|status|http|code|failed|returned|response)[^\n]{0,24}?\b(?:408|425|429|5\d\d)\b|"
    r"\b(?:408|425|429|50[0-9]|52\d|529)\b[^\n]{0,24}?(?:error|unavailable|gateway|time-?out|too many|internal|overload|limit|server)|"
    r"too many requests|rate.?limit|service (?:is )?(?:temporarily )?unavailable|bad gateway|gateway time-?out|internal server error|"
    r"temporar(?:y|ily) (?:unavailable|failure|error)|overloaded|connection (?:was )?(?:reset|refused|timed out|aborted|error|closed|lost)|"
    r"\btimed? ?out\b|\btimeout\b|econnreset|econnrefused|etimedout|try again (?:later|in)|retry.?after|network (?:error|is unreachable)|"
    r"name resolution|quota exceeded|throttl|deadline exceeded|server (?:is )?busy|upstream|socket hang up",
    re.I,
)
_BUSY = (
    r"(?:pending|running|in[ _\-]?progress|queued|enqueued|processing|waiting|not[ _](?:yet[ _])?(?:ready|finished|complete|completed|done|"
    r"available|started)|still \w{2,20}ing|starting|building|deploying|provisioning|initiali[sz]ing|executing|compiling|training|"
    r"uploading|downloading|indexing|rendering|converting|transcoding|exporting|importing|ongoing|busy|incomplete|booting|creating|pulling|syncing|"
    r"migrating|unfinished)"
)
_BUSY_STATE = re.compile(rf"(?:status|state|phase|stage|conclusion)[\"']?\s{{0,3}}(?:is|[:=])\s{{0,3}}[\"']?{_BUSY}\b", re.I)
_BUSY_WORDS = re.compile(
    rf"\b{_BUSY}\b|\b\d{{1,3}}(?:\.\d{{1,4}})? ?%|\beta\b|\bprogress\b|please wait|check back|"
    r"\bno (?:new )?(?:unread )?(?:messages?|mail|e-?mails?|updates?|changes?|events?|notifications?|output|progress|replies|reply|response)\b|"
    r"has(?:n't| not)|\[~\]|\bstill\b",
    re.I,
)
_BUSY_PHRASE = re.compile(r"\bstill \w{2,20}ing\b|\bin[ _]progress\b|\bnot (?:yet )?(?:ready|finished|complete|done)\b|\bis (?:running|pending|queued)\b", re.I)
_EMPTY = re.compile(
    r"\W*(?:null|none|no|nothing|0|zero|nil|\(?empty\)?)?\W*|"
    r"\W{0,4}(?:no|0|zero|nothing|not any)\b[^\n]{0,40}\b(?:results?|match(?:es)?|records?|items?|documents?|files?|entries|hits|data|output|rows|found|"
    r"flights?|products?|articles?|pages?|messages?|answers?)\b[^\n]{0,80}|[^\n]{0,60}\b(?:not found|did not match|could not find|couldn't find|nothing (?:was )?found|"
    r"no (?:results|matches))\b[^\n]{0,80}",
    re.I,
)
_EMPTY_JSON = re.compile(
    r'"(?:results?|matches|items|hits|documents|data|rows|records|entries|organic)" ?: ?\[ ?\]|"(?:count|total|total_\w{1,16}|num_\w{1,16}|n)" ?: ?0\b', re.I
)
_ERROR = re.compile(
    r"\W{0,4}(?:error|exception|traceback|failed|failure|fatal|invalid|unknown|permission denied|access denied|cannot|could not|unable|usage:|bash:|sh:|command not found)"
    r'|[^\n]{0,200}"(?:error|errors|exception)" ?: ?(?!null|false|""|\[\]|\{\}|0)|[^\n]{0,200}"(?:success|ok)" ?: ?false|[^\n]{0,80}\b(?:\w{0,32}Error|Exception)\b ?:',
    re.I,
)
_ACK = re.compile(
    r"\W*(?:ok(?:ay)?|done|success\w*|true|yes|ack\w*|saved|sent|written|wrote|updated|created|deleted|removed|moved|copied|applied|complete[d]?|logged|noted|"
    r"recorded|accepted|received|clicked|pressed|scrolled|typed|executed|added|edited|inserted|replaced|renamed|formatted|committed|pong|1|200|204)\b|"
    r'[^\n]{0,120}\b(?:successfully|success|has been \w{2,20}|have been \w{2,20}|was (?:updated|created|deleted|written|saved|sent|moved|edited)|all good|no issues)\b|'
    r'\W{0,4}(?:status|result|ok|success|message)\W{1,5}(?:ok|success\w*|true|done|200|completed?|updated|created|saved|sent)\b',
    re.I,
)


class Outcome(IntEnum):
    """From what says nothing to what says something."""

    MISSING = 0
    """No result was recorded."""
    ACKNOWLEDGED = 1
    EMPTY = 2
    """An answer, and nothing in it."""
    PENDING = 3
    """Something else is at work: to ask again is right."""
    UNREACHED = 4
    """Rate limits, time-outs, 5xx: to try again is right."""
    ERROR = 5
    CONTENT = 6


@lru_cache(maxsize=4096)
def words_of(name: str) -> tuple[str, ...]:
    """A tool's name cut at underscores, dashes, dots and capitals, in lower case."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name[:256])
    return tuple(word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word)


class Purpose:
    """What a call is for, as far as its name and arguments tell."""

    __slots__ = ("changes", "fresh", "looks_again", "polls", "queries", "relative", "tells_time", "waits")

    def __init__(self, name: str, arguments: Any) -> None:
        words = frozenset(words_of(name))
        shell = bool(words & _SHELLS) and not words & {"search", "query"}
        text = (arguments if isinstance(arguments, str) else canonical(arguments))[:_HEAD] if arguments else ""
        spoken = words | frozenset(re.findall(r"[a-z]{2,20}", text[:400].lower())) if shell else words
        self.waits = bool(words & _WAITS) or (shell and _SHELL_WAITS.search(text) is not None)
        self.changes = _is_change(name, words, arguments, text, shell)
        self.polls = self.waits or bool(spoken & _POLLS)
        self.queries = bool(words & _QUERIES)
        self.relative = bool(words & _RELATIVE)
        self.fresh = bool(words & _FRESH)
        self.looks_again = bool(words & _REREADS) or (shell and bool(frozenset(text[:80].lower().split()) & _REREADS)) or (
            shell and re.search(r"\b(?:git (?:status|diff|log)|ls|pwd|cat|whoami)\b", text[:200]) is not None
        )
        self.tells_time = bool(words & _CLOCKS)


def _is_change(name: str, words: frozenset[str], arguments: Any, text: str, shell: bool) -> bool:
    if shell:
        return _SHELL_CHANGES.search(text) is not None and not (_TESTS.search(text) and ">" not in text)
    ordered = words_of(name)
    if words & _NEUTRAL or not ordered or ordered[0] in _READS:
        return False
    if isinstance(arguments, dict) and arguments.get("command") in ("view", "read", "list", "show"):
        return False
    return bool(words & _CHANGES)


def outcome_of(result: str | None, purpose: Purpose, *, failed: bool = False) -> Outcome:
    if result is None:
        return Outcome.MISSING
    head = result[:_HEAD].strip()
    short = len(result) <= 1500
    if short and _INFRA.search(head):
        return Outcome.UNREACHED
    if _is_pending(head, len(result), purpose):
        return Outcome.PENDING
    if failed or (short and _ERROR.match(head)):
        return Outcome.ERROR if not (_EMPTY.fullmatch(head)) else Outcome.EMPTY
    if len(head) <= 200 and _ACK.match(head):
        return Outcome.ACKNOWLEDGED
    if len(head) <= 300 and (_EMPTY.fullmatch(head) or _EMPTY_JSON.search(head)):
        return Outcome.EMPTY
    return Outcome.CONTENT


def _is_pending(head: str, length: int, purpose: Purpose) -> bool:
    if purpose.polls:
        return (length <= 600 and _BUSY_WORDS.search(head) is not None) or _BUSY_STATE.search(head) is not None
    if length <= 600 and _BUSY_STATE.search(head):
        return True
    return length <= 80 and _BUSY_PHRASE.search(head) is not None
