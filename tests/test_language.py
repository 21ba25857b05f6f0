"""What people read: lines of prose are short, and each thing has one spelling."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LONGEST = 100
# Written by programs from runs.
GENERATED = {"results-tables.md", "first-evidence-tables.md", "commands.md"}
GENERATED |= {"scale.md"}  # until they are written anew
PAGES = [
    path
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.rst")])
    if path.name not in GENERATED and "gallery" not in path.parts
]
SETTINGS = [*sorted((ROOT / "src").rglob("*.yaml"))]
MODULES = [
    path
    for folder in ("src", "tests", "benchmarks", "docs")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "gallery" not in path.parts
]


def prose_of_a_page(text: str):
    """Lines of prose with their numbers: no tables, code, pictures or what runs have written."""
    fenced = generated = False
    for number, line in enumerate(text.splitlines(), 1):
        generated = (generated or line.startswith("<!-- begin")) and not line.startswith("<!-- end")
        if re.match(r"\s*(```|:::)", line):
            fenced = not fenced if "```" in line else fenced
        elif not fenced and not generated and not re.match(r"\s*(\||!\[|`[^`]*`\W*$)", line):
            yield number, line


def prose_of_a_module(text: str):
    """Lines of docstrings and of comments that have a line of their own, with their numbers."""
    lines = text.splitlines()
    for found in re.finditer(r'^ *r?"""(?=\S)[\s\S]*?"""', text, re.MULTILINE):
        first = text.count("\n", 0, found.start()) + 1
        example = False
        for number, line in enumerate(found[0].splitlines(), first):
            # Examples and what they print end with an empty line; mathematics stays whole.
            example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
            if not example and "\\" not in line:
                yield number, lines[number - 1]
    yield from (found for found in enumerate(lines, 1) if re.match(r" *# ", found[1]))


def prose_of_settings(text: str):
    """Comments of a YAML file, also behind a value, and sentences of lists."""
    for number, line in enumerate(text.splitlines(), 1):
        if "# " in line.partition("$schema")[0] or re.match(r" *- (?![{\[\"])\w+ ", line):
            yield number, line


def test_prose_is_found_and_code_is_not():
    page = "a\n```python\nb\n```\n| c |\n<!-- begin x -->\nd\n<!-- end -->\ne"
    module = (
        '"""A."""\nx = """B."""  # C\n# D\n\n\ndef f():\n    """E.\n\n    >>> f\n    F\n\n    G\n    """\n'
    )

    assert [line for _, line in prose_of_a_page(page)] == ["a", "<!-- end -->", "e"]
    found = [line.strip() for _, line in prose_of_a_module(module) if line.strip()]
    assert found == ['"""A."""', '"""E.', "G", '"""', "# D"]
    settings = "# A\nb: 1  # C\nd: 2\nnotes:\n  - E is F.\n  - {g: H i}\n"
    assert [number for number, _ in prose_of_settings(settings)] == [1, 2, 5]


@pytest.mark.parametrize(
    ("paths", "prose"),
    [(PAGES, prose_of_a_page), (MODULES, prose_of_a_module), (SETTINGS, prose_of_settings)],
)
def test_lines_of_prose_have_at_most_100_characters(paths, prose):
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in paths
        for text in [path.read_text()]
        if max(map(len, text.splitlines()), default=0) > LONGEST
        for number, line in prose(text)
        if len(line) > LONGEST
    ]

    assert found == [], "break these lines"


# What reads like a translation, and other spellings of what has one: "data set", "CIFAR-10".
BANNED = re.compile(
    r"cannot be told|\btold from\b|\b(told|tells?)( [^\s.]+){0,8} apart\b|\bbut for\b|rate's doing|\bstarted again\b"
    r"|\bgoes on (where|when|with|from)\b|\bof it (over|under)-confident",
    re.IGNORECASE,
)
MISSPELT = re.compile(r"\b(datasets?|CIFAR100?)\b")


def test_no_page_and_no_text_of_a_module_has_a_banned_phrase():
    for text in (
        "the two cannot be told apart",
        "told two models of three classes apart",
        "the same but for one",
    ):
        assert BANNED.search(text)
    assert not BANNED.search("a forward pass that goes on computing with the logits, each apart")
    found = []
    places = ("src", "benchmarks", "docs")
    modules = [path for path in MODULES if any(path.is_relative_to(ROOT / place) for place in places)]
    for path in [*PAGES, *SETTINGS, *(ROOT / "results").glob("*.yaml"), *modules]:
        if path.name not in GENERATED:
            text = " ".join(re.sub(r"\n *#", "\n", path.read_text()).split())
            found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in BANNED.finditer(text)]

    assert found == []


def test_pages_spell_each_thing_in_one_way():
    found = []
    for path in PAGES:
        for number, line in prose_of_a_page(path.read_text()):
            for match in MISSPELT.finditer(re.sub(r"`[^`]*`", "", line)):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")

    assert found == []
