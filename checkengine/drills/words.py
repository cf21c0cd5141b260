"""The demo's result in sentences, for the terminal and the report."""

from __future__ import annotations

from checkengine.drills.outcome import Clean, Outcome


def clean_sentence(clean: Clean) -> str:
    same = "the same tokens with and without guards" if clean.equal else "TOKENS DIFFER with guards"
    return (
        f"{clean.requests} requests, {clean.tokens} tokens: {clean.findings} findings, {same}; "
        f"{clean.tokens_per_s_bare:.0f} tokens/s without guards and recorder, {clean.tokens_per_s_guarded:.0f} with "
        f"({100 * clean.cpu_overhead:.1f} % of the time was spent in our code)"
    )


def caught(outcome: Outcome) -> str:
    if outcome.caught_after_tokens is None:
        return "not caught"
    kinds = list(dict.fromkeys(finding["kind"] for finding in outcome.findings))
    after = outcome.caught_after_tokens
    when = "on the very token" if after == 0 else f"{after} token{'s' if after != 1 else ''} after the first bad one"
    words = f"{when} (output token {outcome.first_bad_token}) by {', '.join(kinds)}"
    if outcome.stopped:
        words += f"; stopped, {outcome.tokens_saved} of {outcome.unguarded_tokens} tokens saved"
    return words


def neighbours(outcome: Outcome) -> str:
    if not outcome.neighbours_equal:
        return "their tokens DIFFER from the clean run's"
    ties = len(outcome.near_ties)
    return "all tokens equal to the clean run's" + (
        f" but for {ties} near tie(s) of the top two logits" if ties else ""
    )


def reproduced(outcome: Outcome) -> str:
    replay = outcome.replay
    if replay is None:
        return "nothing to replay"
    exact = "bit-exact" if replay["bit_exact"] else "NOT bit-exact"
    again = {True: "the finding fires again", False: "the finding does not fire again", None: "no guard could tell"}
    return (
        f"{exact} {replay['equal_rows']} of {replay['rows']} rows in {replay['steps']} steps "
        f"from step {replay['from_step']}; {again[replay['reproduced']]}"
    )


def excerpt(text: str, length: int = 110) -> str:
    """One line of a text's beginning, in quotation marks."""
    line = " ".join(text.split())
    return f"“{line[:length]}{'…' if len(line) > length else ''}”"


def unguarded(outcome: Outcome) -> str:
    """The answer's beginning and, where it ends in one token for ever, that it does."""
    if outcome.unguarded_repeats < 8:
        return excerpt(outcome.unguarded_text)
    return f"{excerpt(outcome.unguarded_text)} and then one token {outcome.unguarded_repeats} times"
