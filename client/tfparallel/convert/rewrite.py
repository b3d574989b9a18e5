"""Changes a YAML text where its values change: comments, order and quotes stay as they are.

The text is edited at the marks of PyYAML's nodes. The outcome is parsed and compared with the
values that it has to have, so an unforeseen way of writing never changes a text wrongly.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from tfparallel_operator.api import yaml_documents

_NULL = "tag:yaml.org,2002:null"
_BLOCK_STYLES = ("|", ">")


class _Unforeseen(Exception):  # noqa: N818 (no bug: the caller writes the values again)
    """The text is written in a way that cannot be edited."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Edit:
    """What stands from one index up to another instead of what stood there."""

    start: int
    end: int
    text: str


def rewrite(text: str, documents: Sequence[Any]) -> str | None:
    """Return the text changed so that its documents have other values.

    Args:
        documents: the value of each of its documents that is not empty.

    Returns:
        The text, or None where only writing all of it again would do.
    """
    nodes = [node for node in yaml.compose_all(text, yaml_documents.Loader) if node.tag != _NULL]
    old = _load(text)
    editor = _Editor(text)
    try:
        for node, before, after in zip(nodes, old, documents, strict=True):
            editor.change(node, before, after)
        changed = editor.apply()
        outcome = _load(changed)
    except (_Unforeseen, yaml.YAMLError):
        return None
    return changed if outcome == list(documents) else None


def _load(text: str) -> list[Any]:
    loaded = yaml.load_all(text, yaml_documents.Loader)
    return [document for document in loaded if document is not None]


class _Editor:
    """Gathers the edits of a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._edits: set[_Edit] = set()
        """A node that is used twice is edited once."""

    def apply(self) -> str:
        """Return the text with all edits, the last first."""
        text = self._text
        edits = sorted(self._edits, key=lambda edit: (edit.start, edit.end), reverse=True)
        for edit in edits:
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text

    def change(self, node: yaml.Node, before: Any, after: Any) -> None:
        """Edit a node from one value to another."""
        if before == after:
            return
        if isinstance(node, yaml.MappingNode) and isinstance(after, Mapping):
            self._change_mapping(node, before, after)
        elif isinstance(node, yaml.SequenceNode) and isinstance(after, list):
            self._change_sequence(node, before, after)
        elif isinstance(node, yaml.ScalarNode) and isinstance(after, str | int | bool):
            self._edit(node.start_mark.index, node.end_mark.index, _scalar(after, node.style))
        else:
            raise _Unforeseen

    def _edit(self, start: int, end: int, text: str) -> None:
        self._edits.add(_Edit(start, end, text))

    def _change_mapping(
        self, node: yaml.MappingNode, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> None:
        entries = {
            key.value: (key, value) for key, value in node.value if key.tag != yaml_documents.MERGE
        }
        if not entries.keys() <= before.keys():  # a key that is not a string
            raise _Unforeseen
        renamed = _renamed(before, after)
        if not any(renamed.get(name, name) in after for name in entries):
            self._replace(node, after)
            return
        gone: list[tuple[yaml.Node, yaml.Node]] = []
        for name, (key, value) in entries.items():
            if name in renamed:
                self._edit(
                    key.start_mark.index, key.end_mark.index, _scalar(renamed[name], key.style)
                )
            new = renamed.get(name, name)
            if new in after:
                self.change(value, before[name], after[new])
            else:
                gone.append((key, value))
        self._remove(node, gone)
        stay = {*entries, *renamed.values()}
        added = {
            name: value
            for name, value in after.items()
            if name not in stay and before.get(name) != value
        }
        if added:
            self._insert(node, added)

    def _replace(self, node: yaml.MappingNode, after: Mapping[str, Any]) -> None:
        """Write a mapping of which nothing is left."""
        column = node.start_mark.column
        text = json.dumps(after) if node.flow_style else _block(after, column).strip()
        self._edit(node.start_mark.index, self._end(node), text)

    def _change_sequence(
        self, node: yaml.SequenceNode, before: Sequence[Any], after: Sequence[Any]
    ) -> None:
        if len(before) == len(after):
            for inner, old, new in zip(node.value, before, after, strict=True):
                self.change(inner, old, new)
            return
        if node.flow_style:
            raise _Unforeseen
        for inner, old in zip(node.value, before, strict=True):
            if old not in after:
                start = self._line_start(inner.start_mark.index)
                if self._text[start : inner.start_mark.index].strip() != "-":
                    raise _Unforeseen
                self._edit(start, self._line_end(self._end(inner)), "")

    def _remove(self, node: yaml.MappingNode, gone: list[tuple[yaml.Node, yaml.Node]]) -> None:
        """Remove some entries of a mapping, but not all: their lines, or their part of braces."""
        if node.flow_style:
            self._remove_from_braces(node, gone)
            return
        for key, value in gone:
            start = self._line_start(key.start_mark.index)
            if self._text[start : key.start_mark.index].strip():
                raise _Unforeseen
            alias = value.start_mark.index < key.start_mark.index
            end = key.end_mark.index if alias else self._end(value)
            self._edit(start, self._line_end(end), "")

    def _remove_from_braces(
        self, node: yaml.MappingNode, gone: list[tuple[yaml.Node, yaml.Node]]
    ) -> None:
        """Remove each entry up to the next one; the last ones from the last that stays."""
        stays = [entry not in gone for entry in node.value]
        last = max(index for index, is_kept in enumerate(stays) if is_kept)
        for index in range(last):
            if not stays[index]:
                start, end = (node.value[i][0].start_mark.index for i in (index, index + 1))
                self._edit(start, end, "")
        if not stays[-1]:
            self._edit(self._end(node.value[last][1]), self._end(node.value[-1][1]), "")

    def _insert(self, node: yaml.MappingNode, added: Mapping[str, Any]) -> None:
        """Insert entries: after the short ones that a mapping begins with, else before all."""
        first = node.value[0][0]
        if node.flow_style:
            text_of_entries = "".join(
                f"{json.dumps(key)}: {json.dumps(v)}, " for key, v in added.items()
            )
            self._edit(first.start_mark.index, first.start_mark.index, text_of_entries)
            return
        column = first.start_mark.column
        text = _block(added, column)
        short = None
        for key, value in node.value:
            if not isinstance(value, yaml.ScalarNode) or value.style in _BLOCK_STYLES:
                break
            if value.start_mark.index < key.start_mark.index:
                break
            short = value
        if short is not None:
            index = self._line_end(short.end_mark.index)
            newline = "" if self._text[:index].endswith("\n") else "\n"
            self._edit(index, index, newline + text)
            return
        start = self._line_start(first.start_mark.index)
        if self._text[start : first.start_mark.index].strip():
            index = first.start_mark.index
            self._edit(index, index, text.lstrip(" ") + " " * column)
            return
        index = self._before_comments(start)
        self._edit(index, index, text)

    def _before_comments(self, start: int) -> int:
        """Return where the comments begin that stand right above a line."""
        while start:
            above = self._line_start(start - 1)
            if not self._text[above:start].lstrip().startswith("#"):
                break
            start = above
        return start

    def _line_start(self, index: int) -> int:
        return self._text.rfind("\n", 0, index) + 1

    def _line_end(self, index: int) -> int:
        """Return where the line after the one of an index begins."""
        newline = self._text.find("\n", index)
        return len(self._text) if newline < 0 else newline + 1

    def _end(self, node: yaml.Node) -> int:
        """Return the index behind a value: a block's own mark lies behind what follows it."""
        if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
            last = node.value[-1]
            if isinstance(last, tuple):
                key, value = last
                alias = value.start_mark.index < key.start_mark.index
                return int(key.end_mark.index) if alias else self._end(value)
            if any(item.start_mark.index >= last.start_mark.index for item in node.value[:-1]):
                raise _Unforeseen  # an alias: its node is the one that it stands for
            return self._end(last)
        index = int(node.end_mark.index)
        if isinstance(node, yaml.ScalarNode) and node.style in _BLOCK_STYLES:
            return len(self._text[:index].rstrip())
        return index


def _renamed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys that are called otherwise: in another case, or with an equal value."""
    added = [key for key in after if key not in before]
    renamed: dict[str, str] = {}
    for key in before:
        if key not in after:
            for new in added:
                alike = str(key).casefold() == new.casefold() or before[key] == after[new]
                if alike and new not in renamed.values():
                    renamed[key] = new
                    break
    return renamed


def _block(value: Mapping[str, Any], column: int) -> str:
    """Write a mapping as lines that begin at a column."""
    lines = yaml.safe_dump(dict(value), sort_keys=False).splitlines()
    return "".join(f"{' ' * column}{line}\n" for line in lines)


def _scalar(value: str | int | bool, style: str | None) -> str:
    """Write a scalar, in the quotes of the one before it."""
    if style == '"' or not isinstance(value, str):
        return json.dumps(value)
    if style == "'":
        return f"'{value}'"
    return str(yaml.safe_dump(value, width=1_000_000)).removesuffix("\n").removesuffix("\n...")
