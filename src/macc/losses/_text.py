"""Losses from their text form, one in Python, YAML and the shell: ``parse(str(criterion))``."""

import ast
import inspect
import math
from typing import Any

from macc.losses._terms import Criterion, Penalty, Task, Term, Weighted, add
from macc.words import did_you_mean

MAX_TEXT = 1000


def parse(text: str) -> Task | Criterion:
    """Read a criterion from its text form.

    Names and knobs are those of this namespace; nothing is evaluated.

    Args:
        text: For example ``"Focal(gamma=3) + 10*MACC(warmup=500)"``, at most 1000 characters.

    Returns:
        The task or criterion; ``str`` of it reads back as the same.

    Raises:
        ValueError: With the place in the text where reading failed.

    Example:
        >>> parse("Focal(gamma=2) + 10*MACC")
        Focal(gamma=2) + 10*MACC
        >>> parse("Focal + MAC")
        Traceback (most recent call last):
        ...
        ValueError: cannot read loss 'Focal + MAC' at character 9: no loss is called 'MAC'; did you mean 'MACC'?
    """
    if not isinstance(text, str):
        raise ValueError(f"a loss is read from a string, got {type(text).__name__}")
    if len(text) > MAX_TEXT:
        raise ValueError(
            f"the text of a loss may have {MAX_TEXT} characters, got {len(text)}; "
            "build one with so many class weights in Python"
        )
    reader = _Reader(text)
    for place, character in enumerate(text, start=1):
        if character in "#<":
            reason = {
                "#": "a comment is not part of a loss",
                "<": "a loss in <> is a module of your own: it prints but is not read back; build it in Python",
            }[character]
            raise ValueError(reader.message(place, reason))
    try:
        tree = ast.parse(reader.source, mode="eval")
    except (SyntaxError, ValueError) as error:
        # Where the text ends too soon, Python points at the line after it.
        found = getattr(error, "offset", None) if getattr(error, "lineno", None) == 1 else None
        place = found or len(reader.source) + 1
        raise ValueError(reader.message(place + reader.offset, "this is not a sum of losses")) from None
    except (RecursionError, MemoryError):
        raise ValueError(reader.message(1, "it is nested too deeply")) from None
    try:
        result = reader.read(tree.body)
    except RecursionError:
        raise ValueError(reader.message(1, "it is nested too deeply")) from None
    if isinstance(result, Task | Criterion):
        return result
    raise ValueError(
        reader.message(1, f"{result} is no criterion; it needs a task loss, as in CrossEntropy + {result}")
    )


def _known() -> dict[str, type[Term]]:
    from macc import losses

    return {
        name: value
        for name, value in vars(losses).items()
        if inspect.isclass(value) and issubclass(value, Term) and not inspect.isabstract(value)
    }


class _Reader:
    """Builds losses from a syntax tree of names, calls, sums, products and literals."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.offset = len(text) - len(text.lstrip())
        # On one line, so that a column is a place in the text.
        self.source = "".join(" " if character.isspace() else character for character in text).strip()

    def message(self, column: int, reason: str) -> str:
        return f"cannot read loss {self.text!r} at character {column}: {reason}"

    def error(self, node: ast.expr, reason: str) -> ValueError:
        # The tree counts columns in UTF-8 bytes.
        column = len(self.source.encode()[: node.col_offset].decode(errors="ignore"))
        return ValueError(self.message(column + self.offset + 1, reason))

    def read(self, node: ast.expr) -> Any:
        match node:
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.guard(node, add, self.read(left), self.read(right))
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return self.product(left, right)
            case ast.Name(id=name):
                return self.guard(node, self.loss_class(node, name))
            case ast.Call(func=ast.Name(id=name)):
                return self.call(node, name)
        raise self.error(node, "expected a loss such as CrossEntropy or 10*MACC")

    def product(self, left: ast.expr, right: ast.expr) -> Any:
        weight, penalty = (left, right) if isinstance(left, ast.Constant | ast.UnaryOp) else (right, left)
        term = self.read(penalty)
        if not isinstance(term, Penalty):
            raise self.error(penalty, f"only a penalty takes a weight, {term} is none (a task has weight 1)")
        return self.guard(weight, Weighted, self.literal(weight), term)

    def call(self, node: ast.Call, name: str) -> Any:
        cls = self.loss_class(node, name)
        if node.args:
            raise self.error(node.args[0], f"write the knob's name, as in {name}({self.knobs(cls)[0]}=...)")
        values = {}
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg not in self.knobs(cls):
                raise self.error(
                    keyword.value,
                    f"{name} has no knob {keyword.arg!r}; {did_you_mean(keyword.arg, self.knobs(cls))}",
                )
            if keyword.arg in values:
                raise self.error(keyword.value, f"{name} is given {keyword.arg!r} twice")
            values[keyword.arg] = self.literal(keyword.value)
        return self.guard(node, cls, **values)

    def loss_class(self, node: ast.expr, name: str) -> type[Term]:
        known = _known()
        if name not in known:
            short = {loss.label: real for real, loss in known.items()} | {"CE": "CrossEntropy"}
            cure = f"did you mean {short[name]!r}?" if name in short else did_you_mean(name, sorted(known))
            raise self.error(node, f"no loss is called {name!r}; {cure}")
        return known[name]

    def literal(self, node: ast.expr) -> Any:
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError):
            reason = "expected a number, a quoted word, True, False, None or a list of numbers"
            raise self.error(node, reason) from None
        if isinstance(value, float) and not math.isfinite(value):
            raise self.error(node, "expected a finite number")
        return value

    def guard(self, node: ast.expr, make: Any, *args: Any, **knobs: Any) -> Any:
        """Build a term; what it refuses is an error at its place in the text."""
        try:
            result = make(*args, **knobs)
        except (ValueError, TypeError) as error:
            raise self.error(node, str(error)) from None
        if result is NotImplemented:
            raise self.error(node, "only losses can be added up")
        return result

    @staticmethod
    def knobs(cls: type[Term]) -> list[str]:
        return list(inspect.signature(cls).parameters)
