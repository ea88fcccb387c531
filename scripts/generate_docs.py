"""Write into the pages of docs/ what the code knows: options, commands, the plugin, and each promise's tests.

A page marks the place: everything between ``<!-- generated: NAME -->`` and ``<!-- end -->`` is replaced.

Usage: ``python -m scripts.generate_docs`` (``make docs`` does it).
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeGuard

import click

from tests.isolation.hermitage import LEVELS, SCENARIOS, Scenario
from tests.spark import databricks
from twophase.catalogs.hive import options as hive
from twophase.catalogs.jdbc import options as jdbc
from twophase.catalogs.lakehouse import options as lakehouse
from twophase.config.settings import Settings
from twophase.monitoring import metrics
from twophase.spark import options

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"(<!-- generated: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


# -- options -----------------------------------------------------------------------------------------------------------


def options_table(settings: type[Settings], prefix: str = "") -> str:
    """A table of the options of a session or a catalog."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for option in settings.options():
        shown = _value(option.default) if option.default else ""
        lines.append(f"| `{prefix}{option.name}` | {shown} | {_cell(option.description)} |")
    return "\n".join(lines)


def _value(text: str) -> str:
    """A default as code, where it is a value and no description."""
    return text if " " in text and not text.startswith("<") else f"`{text}`"


# -- commands ----------------------------------------------------------------------------------------------------------


def command_line() -> click.Group:
    """The group of all commands, as the package installs it."""
    (entry,) = entry_points(group="console_scripts", name="twophase")
    group: click.Group = entry.load()
    return group


def commands_text() -> str:
    """A section for each command."""
    group = command_line()
    common = frozenset(option for parameter in group.params for option in parameter.opts)
    sections = [_parameters(group, frozenset({"--version"}))]
    for name, command in group.commands.items():
        words = [f"twophase {name}", *_usage(command, common)]
        parts = [f"## twophase {name}", f"```\n{' '.join(words)}\n```", _paragraphs(command.help or "")]
        parts.append(_parameters(command, common))
        sections.append("\n\n".join(part for part in parts if part))
    return "\n\n".join(sections)


def _usage(command: click.Command, common: frozenset[str]) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            yield parameter.make_metavar(click.Context(command))
        elif not common & set(parameter.opts):
            yield _head(parameter) if parameter.required else f"[{_head(parameter)}]"


def _head(parameter: click.Parameter) -> str:
    """An option with the name of its value: ``--limit NUMBER``."""
    if getattr(parameter, "is_flag", False):
        return parameter.opts[0]
    choices = parameter.type.choices if isinstance(parameter.type, click.Choice) else ()
    value = "|".join(map(str, choices)) or parameter.metavar or "NUMBER"
    return f"{parameter.opts[0]} {value}"


def _parameters(command: click.Command, left_out: frozenset[str]) -> str:
    options = [p for p in command.params if isinstance(p, click.Option) and not left_out & set(p.opts)]
    if not options:
        return ""
    rows = [f"| `{_cell(_head(option))}` | {_cell(option.help or '')}{_shown_default(option)} |" for option in options]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def _shown_default(option: click.Option) -> str:
    return f" Default: {option.default}." if option.show_default else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _paragraphs(text: str) -> str:
    parts = (" ".join(part.split()) for part in text.split("\n\n"))
    return "\n\n".join(textwrap.fill(part, 116, break_on_hyphens=False) for part in parts)


# -- promises ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Promise:
    """A marker ``@pytest.mark.promise(topic, sentence, detail=False)`` and the test that it stands on.

    Attributes
    ----------
    topic : str
        The anchor of the sentence or row in ``docs/guarantees.md``.
    sentence : str
        What this test proves of it.
    test : str
        ``folder/test_file.py::test_function``, relative to ``tests/``.
    is_detail : bool
        Whether ``make test`` leaves the test out.
    """

    topic: str
    sentence: str
    test: str
    is_detail: bool


def promises() -> list[Promise]:
    """All markers, in the order of files and lines."""
    return [found for file in sorted((ROOT / "tests").rglob("*.py")) for found in _promises_in(file)]


def _promises_in(file: Path) -> Iterator[Promise]:
    text = file.read_text(encoding="utf-8")
    if "mark.promise(" not in text:
        return
    name = file.relative_to(ROOT / "tests").as_posix()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    for node in sorted(functions, key=lambda node: node.lineno):
        for marker in filter(_is_promise, node.decorator_list):
            topic, sentence = (ast.literal_eval(argument) for argument in marker.args)
            yield Promise(topic, sentence, f"{name}::{node.name}", is_detail=bool(marker.keywords))


def _is_promise(decorator: ast.expr) -> TypeGuard[ast.Call]:
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.promise"


def topics() -> dict[str, str]:
    """Anchor -> text of each row or sentence of the page for users: what stands before the link to its tests."""
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    found = {}
    for line in re.sub(r"\n +", " ", page).splitlines():
        rest = line.split(" | ")[0] if line.startswith("|") else line
        for link in re.finditer(r"\(?\[tests\]\(promises\.md#([a-z0-9-]+)\)\)?", line):
            text, _, rest = rest.partition(link[0])
            found[link[1]] = text.lstrip("|- ").strip()
    return found


def promises_text() -> str:
    """A section for each promise of the page for users, with its tests."""
    found = promises()
    sections = []
    for anchor, text in topics().items():
        rows: dict[str, list[str]] = {}
        for promise in found:
            if promise.topic == anchor:
                rows.setdefault(promise.sentence, []).append(f"`{promise.test}`")
        table = [f"| {sentence} | {'<br>'.join(tests)} |" for sentence, tests in rows.items()]
        sections.append("\n".join([f"## {anchor}", "", text, "", "| promise | test |", "|---|---|", *table]))
    return "\n\n".join(sections)


# -- isolation ---------------------------------------------------------------------------------------------------------


def anomalies_text() -> str:
    """What becomes of each schedule of the Hermitage suite under each level; last where no former states are kept."""
    levels = [(place, keeps) for keeps in (True, False) for place in range(len(LEVELS)) if keeps or place]
    stores = {True: "", False: ", no former states"}
    heads = ["schedule", "", *(f"`{LEVELS[place]}`{stores[keeps]}" for place, keeps in levels)]
    rows = [
        [f"`{s.name}`", s.what, *(_fate(s, place, keeps_states=keeps) for place, keeps in levels)]
        for s in SCENARIOS.values()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])


def _fate(scenario: Scenario, place: int, *, keeps_states: bool) -> str:
    """The cell of a scenario, a level and a kind of stores."""
    if scenario.partitions and not keeps_states:
        return ""
    if scenario.allowed[place] >= scenario.is_anomaly:
        return "**possible**"
    refused = scenario.refused_under(place, keeps_states=keeps_states)
    if refused:
        agents = refused.split()
        return (
            "prevented or refused"
            if refused == "?"
            else f"{' and '.join(agents)} {'is' if agents[1:] == [] else 'are'} refused"
        )
    return "all commit" if scenario.is_harmless else "prevented"


# -- SQL ---------------------------------------------------------------------------------------------------------------


def databricks_text() -> str:
    """Statements about transactions, as Databricks documents them and here."""
    heads = ["statement", "Databricks", "twophase"]
    rows = [[row.statement, row.theirs, row.ours] for row in databricks.ROWS]
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])


# -- metrics -----------------------------------------------------------------------------------------------------------


def metrics_text() -> str:
    """The metrics, with their attributes."""
    rows = [
        f"| `{i.name}` | {i.kind} | `{i.unit}` | {i.meaning} | {'<br>'.join(f'`{name}`' for name in i.attributes)} |"
        for i in metrics.INSTRUMENTS
    ]
    return "\n".join(["| metric | kind | unit | meaning | attributes |", "|---|---|---|---|---|", *rows])


# -- examples ----------------------------------------------------------------------------------------------------------


def plugin_text() -> str:
    """The plugin of the examples."""
    code = (ROOT / "examples" / "sqlite_plugin.py").read_text(encoding="utf-8")
    return f"```python\n{code}```"


# -- pages -------------------------------------------------------------------------------------------------------------

BLOCKS: Mapping[str, Callable[[], str]] = {
    "session options": lambda: options_table(options.Options, options.PREFIX),
    "hive options": lambda: options_table(hive.Settings),
    "jdbc options": lambda: options_table(jdbc.Settings),
    "lakehouse options": lambda: options_table(lakehouse.Settings),
    "commands": commands_text,
    "anomalies": anomalies_text,
    "databricks": databricks_text,
    "metrics": metrics_text,
    "plugin": plugin_text,
    "promises": promises_text,
}


def filled(page: str) -> str:
    """The text of a page with its generated blocks made anew."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block[2]]()}\n\n{block[3]}", page)


def main() -> None:
    """Write all pages."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = filled(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
