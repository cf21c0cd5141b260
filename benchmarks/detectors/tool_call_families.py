"""One generation of each family of tool-call delimiters, as its chat template writes it, with the calls it holds."""

from __future__ import annotations

from typing import Any

FAMILIES: dict[str, tuple[str, list[tuple[str, Any]]]] = {
    "hermes": (
        'Sure.\n<tool_call>\n{"name": "f", "arguments": {"q": "é } </x>"}}\n</tool_call>',
        [("f", {"q": "é } </x>"})],
    ),
    "qwen3 coder": (
        "<tool_call>\n<function=f>\n<parameter=q>\né < 3\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n"
        "</tool_call>",
        [("f", {"q": "é < 3", "n": "3"})],
    ),
    "seed oss": (
        "<seed:tool_call>\n<function=f>\n<parameter=q>é</parameter>\n</function>\n</seed:tool_call>",
        [("f", {"q": "é"})],
    ),
    "glm 4": (
        "<tool_call>f\n<arg_key>q</arg_key>\n<arg_value>é [1]</arg_value>\n</tool_call>",
        [("f", {"q": "é [1]"})],
    ),
    "hunyuan 3": (
        "<tool_calls><tool_call>f<tool_sep><arg_key>q</arg_key><arg_value>1</arg_value></tool_call></tool_calls>",
        [("f", {"q": "1"})],
    ),
    "llama 3": (
        '<|python_tag|>{"name": "f", "parameters": {"q": "\\"}{"}}; {"name": "g", "parameters": {}}',
        [("f", {"q": '"}{'}), ("g", {})],
    ),
    "llama 3 without its tag": ('{"name": "f", "parameters": {"q": "é"}}', [("f", {"q": "é"})]),
    "llama 4": ('<|python_start|>[f(q="x) é", n=1), g()]<|python_end|>', [("f", {"q": "x) é", "n": 1}), ("g", {})]),
    "olmo 3": (
        "<function_calls>\nf(n=1)\ng(l=[1, 2])\n</function_calls>",
        [("f", {"n": 1}), ("g", {"l": [1, 2]})],
    ),
    "invoke": (
        '<function_calls>\n<invoke name="f">\n<parameter name="q">é</parameter>\n</invoke>\n</function_calls>',
        [("f", {"q": "é"})],
    ),
    "mistral": (
        '[TOOL_CALLS] [{"name": "f", "arguments": {"l": [1]}}, {"name": "g", "arguments": {}}]',
        [("f", {"l": [1]}), ("g", {})],
    ),
    "mistral v11": (
        'Well.[TOOL_CALLS]f[ARGS]{"q": "]é"}[TOOL_CALLS]g[ARGS]{}',
        [("f", {"q": "]é"}), ("g", {})],
    ),
    "deepseek v3": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"q": "é"}\n```'
        "<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [("f", {"q": "é"}), ("g", {})],
    ),
    "deepseek v3.1": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"n": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [("f", {"n": 1})],
    ),
    "deepseek v3.2": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="q" string="true">é'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        [("f", {"q": "é"})],
    ),
    "kimi k2": (
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"q": "é"}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        [("f", {"q": "é"})],
    ),
    "gpt-oss": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"q": "é"}<|call|>',
        [("f", {"q": "é"})],
    ),
    "gpt-oss, recipient first": (
        '<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"q": "é"}<|call|>',
        [("f", {"q": "é"})],
    ),
    "minimax m2": (
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="q">é</parameter>\n</invoke>\n<invoke name="g">\n'
        "</invoke>\n</minimax:tool_call>",
        [("f", {"q": "é"}), ("g", {})],
    ),
    "minimax m1": (
        '<tool_calls>\n{"name": "f", "arguments": {"n": 1}}\n{"name": "g", "arguments": {}}\n</tool_calls>',
        [("f", {"n": 1}), ("g", {})],
    ),
    "longcat": (
        '<longcat_tool_call>{"name": "f", "arguments": {"q": "é"}}</longcat_tool_call>',
        [("f", {"q": "é"})],
    ),
    "jamba": ('<tool_calls>[\n {"name": "f", "arguments": "{\\"n\\": 1}"}\n]</tool_calls>', [("f", {"n": 1})]),
    "function gemma": (
        "<start_function_call>call:f{q:<escape>a{b,é<escape>,n:3}<end_function_call>",
        [("f", {"q": "a{b,é", "n": "3"})],
    ),
    "gemma 4": (
        '<|tool_call>call:f{q:<|"|>a}é<|"|>,l:[1,2]}<tool_call|>',
        [("f", {"q": "a}é", "l": "[1,2]"})],
    ),
    "granite 3": ('<|tool_call|>[{"name": "f", "arguments": {"q": "é"}}]', [("f", {"q": "é"})]),
    "granite 20b": ('<function_call> {"name": "f", "arguments": {"q": "é"}}', [("f", {"q": "é"})]),
    "internlm 2": (
        '<|action_start|><|plugin|>\n{"name": "f", "parameters": {"q": "é"}}<|action_end|>',
        [("f", {"q": "é"})],
    ),
    "lfm 2": ('<|tool_call_start|>[f(q="é")]<|tool_call_end|>', [("f", {"q": "é"})]),
    "step 3": (
        '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f"><steptml:parameter '
        'name="q">é</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>',
        [("f", {"q": "é"})],
    ),
    "apertus": ('<|tools_prefix|>[{"f": {"q": "é"}}, {"g": {}}]<|tools_suffix|>', [("f", {"q": "é"}), ("g", {})]),
    "command r": (
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"q": "é"}}]<|END_ACTION|>',
        [("f", {"q": "é"})],
    ),
    "nemotron": ('<TOOLCALL>[{"name": "f", "arguments": {"q": "é"}}]</TOOLCALL>', [("f", {"q": "é"})]),
}


def runaways(count: int) -> dict[str, str]:
    """Generations that do not end, with `count` repeats each; every one is a fault."""
    call = '<tool_call>\n{"name": "f", "arguments": {"q": "the sea"}}\n</tool_call>\n'
    unclosed = "".join(f'<tool_call>\n{{"name": "f", "arguments": {{"q": {n}}}}}\n' for n in range(count))
    return {
        "the same call": "I will look.\n" + call * count,
        "closing tags": call + "</tool_call>\n" * count,
        "opening tags": "<tool_call>" * (count + 1),
        "unclosed calls": unclosed,
        "an endless argument": '<tool_call>{"name": "f", "arguments": {"q": "' + "and then the sea came in, " * count,
        "an endless list of calls": "<tool_calls>[" + '{"name": "f", "arguments": {"q": "the sea"}}, ' * count,
        "an endless list of parameters": "<tool_call><function=f>" + "<parameter=q>sea</parameter>\n" * count,
        "two calls in turn": (call + call.replace("sea", "sky")) * count,
        "deepseek calls": "<｜tool▁calls▁begin｜>"
        + '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"n": 1}\n```<｜tool▁call▁end｜>' * count,
        "kimi closing tags": "<|tool_calls_section_end|>" * count,
        "mistral calls": '[TOOL_CALLS]f[ARGS]{"n": 1}' * count,
        "python calls": "<|python_start|>[" + 'f(q="the sea is wide"), ' * count,
    }
