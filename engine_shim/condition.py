"""A condition on the rows of a step: a small expression that is read, never run as a program.

    length % 16 == 1 and not prefix_hit
    kind in ("language.switch", "text.salad") or entropy > 6
    request == "chatcmpl-…" and 100 <= length < 200

Comparisons (== != < <= > >= in not in), and, or, not, + - %, numbers, text, True, False, and the fields below.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkengine.guards.errors import UserError

FIELDS: Mapping[str, str] = {
    "kind": "text",
    "guard": "text",
    "request": "text",
    "length": "number",
    "tokens": "number",
    "step": "number",
    "batch": "number",
    "entropy": "number",
    "margin": "number",
    "prefix_hit": "flag",
}
"""Name and type. kind and guard: of the row's deepest finding, empty without one; length: tokens in memory after the
step; tokens: of the row in this step; batch: rows in the step; prefix_hit: the row's first step found a part of its
prompt in the cache."""
MOST_CHARACTERS = 500
MOST_NODES = 100
LARGEST = 2**53
"""Beyond it a float no longer holds every whole number."""

COMPARE: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mod: operator.mod,
}
Columns = Mapping[str, NDArray[Any]]
"""By field: one value a row. A number that is not known is NaN."""


class ConditionError(UserError):
    """The expression cannot be used; the message says where and what may stand there."""


@dataclass(frozen=True, slots=True)
class Condition:
    text: str
    fields: frozenset[str]
    """Those that it names."""
    _tree: ast.expr

    @classmethod
    def parse(cls, text: str) -> Condition:
        """ConditionError for anything that the grammar does not hold."""
        if len(text) > MOST_CHARACTERS:
            raise ConditionError(f"a condition of {len(text)} characters: at most {MOST_CHARACTERS}")
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise ConditionError(
                f"{text!r} is no condition: write for example length % 16 == 1 and entropy > 5"
            ) from None
        nodes = list(ast.walk(tree))
        if len(nodes) > MOST_NODES:
            raise ConditionError(f"a condition of {len(nodes)} parts: at most {MOST_NODES}")
        if type_of(tree) != "flag":
            raise ConditionError(f"{text!r} is neither true nor false: compare something")
        return cls(text.strip(), frozenset(node.id for node in nodes if isinstance(node, ast.Name)), tree)

    def rows(self, columns: Columns, count: int) -> NDArray[np.bool_]:
        """Which rows meet it, shape (count,). A row of which a named number is not known does not."""
        with np.errstate(all="ignore"):
            met = np.broadcast_to(np.asarray(value(self._tree, columns), np.bool_), (count,)).copy()
        for name in self.fields:
            if FIELDS[name] == "number":
                met &= ~np.isnan(columns[name].astype(np.float64))
        return met


def type_of(node: ast.expr) -> str:
    """text, number or flag; ConditionError for what the grammar does not hold."""
    match node:
        case ast.Name(id=name):
            if name not in FIELDS:
                raise ConditionError(f"there is no field {name!r}; there are {', '.join(FIELDS)}")
            return FIELDS[name]
        case ast.Constant(value=constant):
            return type_of_constant(constant)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return want(operand, "flag")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return want(operand, "number")
        case ast.BoolOp(values=values):
            for each in values:
                want(each, "flag")
            return "flag"
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mod(), left=left, right=right):
            refuse_divisor(node)
            want(left, "number")
            return want(right, "number")
        case ast.Compare():
            return type_of_comparison(node)
    raise ConditionError(
        f"{shown(node)} has no place in a condition: comparisons, and, or, not, + - % are all there is"
    )


def type_of_constant(constant: object) -> str:
    if isinstance(constant, bool):
        return "flag"
    if isinstance(constant, str):
        return "text"
    if isinstance(constant, int | float) and abs(constant) <= LARGEST:
        return "number"
    raise ConditionError(f"{constant!r} has no place in a condition: give a number, a text, True or False")


def type_of_comparison(node: ast.Compare) -> str:
    left = node.left
    for relation, right in zip(node.ops, node.comparators, strict=True):
        if isinstance(relation, ast.In | ast.NotIn):
            for item in members(right):
                same_type(left, item)
        elif type(relation) in COMPARE:
            kind = same_type(left, right)
            if isinstance(relation, ORDERED) and kind != "number":
                raise ConditionError(f"{shown(node)}: only numbers have an order")
        else:
            raise ConditionError(f"{shown(node)}: there is no such comparison in a condition")
        left = right
    return "flag"


def same_type(left: ast.expr, right: ast.expr) -> str:
    kind, other = type_of(left), type_of(right)
    if kind != other:
        raise ConditionError(f"{shown(left)} is a {kind} and {shown(right)} a {other}: they cannot be compared")
    return kind


def members(node: ast.expr) -> list[ast.expr]:
    if not isinstance(node, ast.Tuple | ast.List) or not node.elts:
        raise ConditionError(f"{shown(node)}: after in comes a list, such as (1, 2, 3)")
    if not all(isinstance(each, ast.Constant) for each in node.elts):
        raise ConditionError(f"{shown(node)}: a list holds numbers or texts only")
    return list(node.elts)


def refuse_divisor(node: ast.BinOp) -> None:
    right = node.right
    whole = isinstance(right, ast.Constant) and isinstance(right.value, int) and right.value > 0
    if isinstance(node.op, ast.Mod) and not whole:
        raise ConditionError(f"{shown(node)}: % needs a whole number above 0 on its right")


def want(node: ast.expr, kind: str) -> str:
    found = type_of(node)
    if found != kind:
        raise ConditionError(f"{shown(node)} is a {found} where a {kind} belongs")
    return kind


def value(node: ast.expr, columns: Columns) -> Any:
    """Of a tree that `type_of` let pass: an array over the rows, or one value for all."""
    match node:
        case ast.Name(id=name):
            return columns[name]
        case ast.Constant(value=constant):
            return constant
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return np.logical_not(value(operand, columns))
        case ast.UnaryOp(operand=operand):
            return -value(operand, columns)
        case ast.BoolOp(op=op, values=values):
            join = np.logical_and if isinstance(op, ast.And) else np.logical_or
            met = value(values[0], columns)
            for each in values[1:]:
                met = join(met, value(each, columns))
            return met
        case ast.BinOp(op=op, left=left, right=right):
            return ARITHMETIC[type(op)](value(left, columns), value(right, columns))
        case ast.Compare():
            return compared(node, columns)
    raise AssertionError(f"{type(node).__name__} was let pass")


def compared(node: ast.Compare, columns: Columns) -> Any:
    met: Any = True
    left = node.left
    for relation, right in zip(node.ops, node.comparators, strict=True):
        met = np.logical_and(met, related(relation, value(left, columns), right, columns))
        left = right
    return met


def related(relation: ast.cmpop, left: Any, right: ast.expr, columns: Columns) -> Any:
    if not isinstance(relation, ast.In | ast.NotIn):
        return COMPARE[type(relation)](left, value(right, columns))
    met: Any = False
    for item in members(right):
        met = np.logical_or(met, left == value(item, columns))
    return np.logical_not(met) if isinstance(relation, ast.NotIn) else met


def shown(node: ast.AST) -> str:
    return f"`{ast.unparse(node)[:80]}`"
