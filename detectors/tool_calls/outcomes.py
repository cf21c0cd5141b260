"""What a tool's result says that came of its call. English words, rules of thumb."""

from __future__ import annotations

import re
from enum import IntEnum

from checkengine.detectors.tool_calls.purposes import Purpose

_HEAD = 4000
"""Characters of the result that are read."""
_SHORT = 1500
"""Of what only says that it failed."""
_UNREACHED = re.compile(
    r"(?:error|status|http|code|failed|returned|response)[^\n]{0,24}?\b(?:408|425|429|5\d\d)\b|"
    r"\b(?:408|425|429|50[0-9]|52\d|529)\b[^\n]{0,24}?"
    r"(?:error|unavailable|gateway|time-?out|too many|internal|overload|limit|server)|"
    r"too many requests|rate.?limit|service (?:is )?(?:temporarily )?unavailable|bad gateway|internal server error|"
    r"temporar(?:y|ily) (?:unavailable|failure|error)|overloaded|"
    r"connection (?:was )?(?:reset|refused|timed out|aborted|error|closed|lost)|"
    r"\btimed? ?out\b|time-?out|econnreset|econnrefused|etimedout|try again (?:later|in)|retry.?after|"
    r"network (?:error|is unreachable)|name resolution|"
    r"getaddrinfo|\benotfound\b|eai_again|could not resolve|"
    r"name or service not known|no route to host|ehostunreach|could not get lock|is locked\b|resource busy|"
    r"quota exceeded|throttl|deadline exceeded|"
    r"server (?:is )?busy|upstream|socket hang up",
    re.I,
)
_BUSY = (
    r"(?:pending|running|in[ _\-]?progress|queued|enqueued|processing|waiting|"
    r"not[ _](?:yet[ _])?(?:ready|finished|complete|completed|done|available|started)|still \w{2,20}ing|"
    r"starting|building|deploying|provisioning|initiali[sz]ing|executing|compiling|training|uploading|downloading|"
    r"indexing|rendering|converting|transcoding|exporting|importing|ongoing|busy|incomplete|booting|creating|pulling|"
    r"syncing|migrating|unfinished)"
)
_BUSY_STATE = re.compile(
    rf"(?:status|state|phase|stage|conclusion)[\"']?\s{{0,3}}(?:is|[:=])\s{{0,3}}[\"']?{_BUSY}\b", re.I
)
_BUSY_VALUE = re.compile(r'" ?: ?"(?:pending|running|in[ _\-]?progress|queued|processing|building|waiting)"', re.I)
_BUSY_WORDS = re.compile(
    rf"\b{_BUSY}\b|\b\d{{1,3}}(?:\.\d{{1,4}})? ?%|\beta\b|\bprogress\b|please wait|check back|"
    r"\bno (?:new )?(?:unread )?(?:messages?|mail|e-?mails?|updates?|changes?|events?|notifications?|output|progress|"
    r"replies|reply|response)\b|has(?:n't| not)|\[~\]|\bstill\b|\b0 ?/ ?\d{1,6}\b|"
    r'"(?:is_?)?(?:done|ready|completed?|finished|available|succeeded)" ?: ?(?:false|null)',
    re.I,
)
_BUSY_PHRASE = re.compile(
    r"\bstill \w{2,20}ing\b|\bin[ _]progress\b|\bnot (?:yet )?(?:ready|finished|complete|done)\b|"
    rf"\bis (?:running|pending|queued)\b|\A\W{{0,4}}(?:now )?{_BUSY}\b",
    re.I,
)
_EMPTY = re.compile(
    r"\W{0,16}(?:null|none|no|nothing|0|zero|nil|\(?empty\)?)?\W{0,16}|"
    r"(?:no|zero|0) (?:\w{1,20} ){0,2}\w{1,20}(?: found| available| yet)?\W{0,4}|"
    r"\W{0,4}(?:no|0|zero|nothing|not any)\b[^\n]{0,40}\b(?:results?|match(?:es)?|records?|items?|documents?|files?|"
    r"entries|hits|data|output|rows|found|flights?|products?|articles?|pages?|messages?|answers?)\b[^\n]{0,80}|"
    r"[^\n]{0,60}\b(?:not found|did not match|could not find|couldn't find|nothing (?:was )?found|"
    r"no (?:results|matches))\b[^\n]{0,80}",
    re.I,
)
_EMPTY_JSON = re.compile(
    r'\W{0,4}"\w{1,32}" ?: ?\[ ?\]\W{0,4}\Z|'
    r'"(?:results?|matches|items|hits|documents|data|rows|records|entries|organic)" ?: ?\[ ?\]|'
    r'"(?:count|total|total_\w{1,16}|num_\w{1,16}|n)" ?: ?0\b',
    re.I,
)
_ERROR = re.compile(
    r"\W{0,4}(?:error|exception|traceback|failed|failure|fatal|invalid|unknown|permission denied|access denied|cannot|"
    r"could not|unable|usage:|bash:|sh:|command not found)|"
    r'[^\n]{0,200}"(?:error|errors|exception)" ?: ?(?!null|false|""|\[\]|\{\}|0)|'
    r'[^\n]{0,200}"(?:success|ok)" ?: ?false|[^\n]{0,80}\b(?:\w{0,32}Error|Exception)\b ?:',
    re.I,
)
_ACKNOWLEDGED = re.compile(
    r"\W{0,16}(?:ok(?:ay)?|done|success\w{0,8}|true|yes|ack\w{0,12}|saved|sent|written|wrote|updated|created|deleted|"
    r"removed|moved|copied|applied|completed?|logged|noted|recorded|accepted|received|clicked|pressed|scrolled|typed|"
    r"executed|added|edited|inserted|replaced|renamed|formatted|committed|pong|(?:1|200|204)\W{0,4}\Z)(?:\b|\Z)|"
    r"[^\n]{0,120}\b(?:successfully|success|(?:has|have) been \w{2,20}|"
    r"was (?:updated|created|deleted|written|saved|sent|moved|edited)|all good|no issues)\b|"
    r"\W{0,4}(?:image|screenshot|binary data|media|attachment)\b[^\n]{0,60}\Z|"
    r"\W{0,4}(?:status|result|ok|success|message)\W{1,5}"
    r"(?:ok|success\w{0,8}|true|done|200|completed?|updated|created|saved|sent)\b",
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


def outcome_of(result: str | None, purpose: Purpose, *, failed: bool = False) -> Outcome:
    if result is None:
        return Outcome.PENDING if purpose.waits_for_others else Outcome.MISSING
    head = result[:_HEAD].strip()
    short = len(result) <= _SHORT
    if short and _UNREACHED.search(head):
        return Outcome.UNREACHED
    if _is_pending(head, len(result), purpose):
        return Outcome.PENDING
    if failed or (short and _ERROR.match(head)):
        return Outcome.ERROR if purpose.changes or not _EMPTY.fullmatch(head) else Outcome.EMPTY
    if len(head) <= 200 and _ACKNOWLEDGED.match(head):
        return Outcome.ACKNOWLEDGED
    if len(head) <= 300 and (_EMPTY.fullmatch(head) or _EMPTY_JSON.search(head)):
        return Outcome.PENDING if purpose.waits_for_others else Outcome.EMPTY
    return Outcome.PENDING if purpose.board and not purpose.changes else Outcome.CONTENT


def _is_pending(head: str, length: int, purpose: Purpose) -> bool:
    if purpose.polls:
        return (length <= 600 and _BUSY_WORDS.search(head) is not None) or _BUSY_STATE.search(head) is not None
    if length <= 600 and (_BUSY_STATE.search(head) or (length <= 300 and _BUSY_VALUE.search(head))):
        return True
    return length <= 80 and _BUSY_PHRASE.search(head) is not None
