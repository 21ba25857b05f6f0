"""How other people's text is shown: on one line, escaped and not too long."""

import difflib
import inspect
import os
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

LONGEST = 200
"""How many characters of somebody else's text a message repeats."""

ARGUMENTS = {
    "ax": "Axes to draw into; a new figure by default.",
    "bins": "Number of bins of equal width.",
    "confidence": "Level of the intervals, in ``(0, 1)``.",
    "from_logits": "``probs`` holds logits.",
    "groups": "The group of each sample ``(N,)``.",
    "labels": "Class indices ``(N,)``.",
    "logits": "``(N, K)``, or ``(N,)`` of class 1 of two; a tensor, an array or lists.",
    "normalise": "Divide rows by their sum instead of refusing those that do not sum to 1.",
    "on_progress": "Called with the share of the work done.",
    "positive": "The positive class, 0 or 1.",
    "probs": "Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two; a tensor, an array or lists.",
    "resamples": "Number of bootstrap resamples, at least 100.",
    "seed": "Seed of the resamples; the same seed gives the same report.",
    "sync": "Whether to use the batch of all processes.",
    "warmup": "Training steps over which the term is faded in; see :class:`macc.losses.Penalty`.",
    "weight": "A weight per class, ``(K,)``; see :class:`macc.losses.Task`.",
    "weights": "How often each sample counts, ``(N,)``, at least 0; whole weights are repeated samples.",
}
"""What arguments mean where a docstring does not say more; :func:`documented` puts it there."""

# Joiners are part of ordinary words in some scripts; other invisible characters only hide
# something.
_JOINERS = "\u200c\u200d"


def shown(text: object, longest: int | None = LONGEST) -> str:
    r"""Text that is safe to print: control characters are escaped, and what is too long is cut.

    A terminal obeys control characters, and text may change the direction in which it is read.
    Bytes of a file name that are not UTF-8 are shown as bytes.

    Args:
        text: What to show; a path, a name or a message.
        longest: The most characters; None for all of them.

    Example:
        >>> print(shown("a\x1b[31mred\nname"))
        a\x1b[31mred\nname
        >>> shown("x" * 300, 10)
        'xxxxxxxxx…'
    """
    # A surrogate stands for a byte that the file system gave and that is no text.
    line = os.fsdecode(text) if isinstance(text, bytes) else str(text)
    if longest is not None and len(line) > longest:
        line = line[: longest - 1] + "…"
    if line.isascii() and line.isprintable():
        return line
    return "".join(character if _harmless(character) else _escaped(character) for character in line)


def quoted(text: object, longest: int = LONGEST) -> str:
    r"""The same in quotation marks, for a value or a name within a sentence.

    Example:
        >>> print(quoted("dog\x07"))
        'dog\x07'
    """
    line = shown(text, longest)
    mark = '"' if "'" in line and '"' not in line else "'"
    return f"{mark}{line}{mark}"


def class_called(name: str) -> str:
    """A class in a sentence: quoted, unless its name is its index.

    Example:
        >>> class_called("yes"), class_called("1")
        ("class 'yes'", 'class 1')
    """
    return f"class {name}" if name.isdigit() else f"class {quoted(name, 40)}"


def listed(names: "list[str] | tuple[str, ...]", most: int = 12) -> str:
    """The first of several names.

    Example:
        >>> listed(["cat", "dog", "owl"], most=2)
        'cat, dog, …'
    """
    parts = [shown(name, 40) for name in names[:most]]
    return ", ".join([*parts, "…"] if len(names) > most else parts) or "none"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """What an unknown name may have meant: the nearest known one, or all of them.

    Example:
        >>> did_you_mean("Focl", ["Focal", "Brier"]), did_you_mean("?", ["Focal", "Brier"])
        ("did you mean 'Focal'?", 'there are Focal, Brier')
    """
    names = list(known)
    by_case = {name.lower(): name for name in names}
    near = difflib.get_close_matches(str(word).lower(), by_case, n=1)
    return f"did you mean {quoted(by_case[near[0]])}?" if near else f"there are {', '.join(names)}"


def slug(name: str) -> str:
    """A name in characters that every file system takes.

    Example:
        >>> slug("CIFAR-10 (mine)"), slug("Ω")
        ('cifar-10-mine', '')
    """
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.")


def _harmless(character: str) -> bool:
    return character.isprintable() or character in _JOINERS or unicodedata.category(character) in ("Zs", "Co")


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def documented(function: F) -> F:
    """Complete the arguments in the docstring of a function or class by what they mean everywhere,
    :data:`ARGUMENTS`.

    Example:
        >>> "labels: Class indices" in documented(lambda labels: 0).__doc__
        True
    """
    text = inspect.cleandoc(function.__doc__ or "")
    section = re.search(r"^Args:\n((?: {4}.*\n)+)", text + "\n", re.MULTILINE)
    own = (
        dict(re.findall(r"^ {4}(\w+): ((?:.*\n)(?: {8}.*\n)*)", section[1], re.MULTILINE)) if section else {}
    )
    shared = {name: f"{meaning}\n" for name, meaning in ARGUMENTS.items()}
    named = [name for name in inspect.signature(function).parameters if name in {**shared, **own}]
    if not named:
        return function
    block = "Args:\n" + "".join(f"    {name}: {own.get(name) or shared[name]}" for name in named)
    if section:
        text = f"{text}\n".replace(section[0], block)
    elif "\nReturns:" in text:
        text = text.replace("\nReturns:", f"\n{block}\nReturns:", 1)
    else:
        text = f"{text}\n\n{block}"
    function.__doc__ = text.strip()
    return function
