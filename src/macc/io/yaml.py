"""YAML that nobody has to trust, read with the comment that stands beside each value."""

import re
from pathlib import Path
from typing import Any

import yaml

from macc.words import quoted, shown

MAX_BYTES = 1_000_000

_COMMENT = re.compile(r"(?:^|\s)#\s*(.*)$")


class _Loader(yaml.SafeLoader):
    """The safe loader, without aliases (which grow to gigabytes), tags and repeated keys."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise ValueError(
                f"line {event.start_mark.line + 1} uses the alias *{shown(event.anchor)}; "
                "aliases are not read, write the value out"
            )
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if event.tag is not None:
            # PyYAML takes a tag at its word and fails in many ways where the value does not fit it.
            raise ValueError(
                f"line {event.start_mark.line + 1} uses the tag {quoted(event.tag)}; "
                "tags are not read, write the value alone"
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            # A key that is a list or a mapping is refused by the loader itself.
            name = key.value if isinstance(key, yaml.ScalarNode) else id(key)
            if name in seen:
                raise ValueError(
                    f"line {key.start_mark.line + 1} has the key {quoted(name)} twice; keep one of them"
                )
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 takes 1e-3 for text; people who write recipes mean a number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_text(path: Path) -> str:
    """The text of a YAML file of at most 1 MB."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ValueError(f"{path} has {size} bytes; a YAML file may have {MAX_BYTES}")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; save it as plain YAML") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


def parse(text: str, where: str) -> Any:
    """The value of a YAML text; an error names ``where`` it stands."""
    # The command line gives bytes that are not text as surrogates.
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{where} is not UTF-8 text; rename what it names")
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader that also refuses aliases
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        reason = getattr(error, "problem", None) or "it is not YAML"
        raise ValueError(f"{where} cannot be read{place}: {reason}") from None
    except RecursionError:
        raise ValueError(f"{where} cannot be read: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def ends_in_comment(text: str) -> bool:
    """Whether YAML would leave out the end of a value as a comment."""
    node = yaml.compose(text, Loader=_Loader)
    return text[0 if node is None else node.end_mark.index :].lstrip().startswith("#")


def comments(text: str) -> dict[str, str]:
    """The comment on the line of each value, by dotted key."""
    lines = text.splitlines()
    found: dict[str, str] = {}

    def walk(node: yaml.Node | None, prefix: str) -> None:
        if not isinstance(node, yaml.MappingNode):
            return
        for key, value in node.value:
            name = f"{prefix}{key.value}"
            # A comment on a value of several lines stands beside its key.
            after = value.end_mark if _one_line(value) else key.end_mark
            comment = _COMMENT.search(lines[after.line][after.column :])
            if comment:
                found[name] = comment[1].strip()
            walk(value, f"{name}.")

    walk(yaml.compose(text, Loader=_Loader), "")
    return found


def _one_line(node: yaml.Node) -> bool:
    return bool(node.start_mark.line == node.end_mark.line)
