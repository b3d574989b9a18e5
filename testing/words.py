"""Counts names and phrases that make readers stumble: `python -m testing.words [-v] [--record]`.

bound    variables, parameters and attributes that are a pronoun, participle or verb, and no noun
shadows  variables, parameters and attributes named like something that the same file imports
twins    names of modules and classes that a package has several times
verbs    functions whose whole name is a verb or preposition without an object
phrases  turns of phrase that a native speaker would put otherwise, in code, docs, charts, examples

`words.json` has the words, and the highest count of each kind. A limit only falls: `--record`
lowers those that are above their counts. `-v` lists what is counted.
"""

import argparse
import ast
import collections
import dataclasses
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Set

from testing import paths

PAGE = paths.ROOT / "testing/words.json"
KINDS = ("bound", "shadows", "twins", "verbs", "phrases")
SHARED = ("__init__", "__main__", "conftest")
"""Names that modules of all packages share."""


@dataclasses.dataclass(frozen=True)
class Stumble:
    """A name or a phrase that counts."""

    kind: str
    package: str
    position: str
    text: str

    def __str__(self) -> str:
        return f"{self.position}: {self.kind} {self.text}"


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """What counts, and how often it may occur."""

    limits: Mapping[str, int]
    bound: Set[str]
    verbs: Set[str]
    phrases: re.Pattern[str]

    @classmethod
    def read(cls) -> "Vocabulary":
        """Read the page."""
        page = json.loads(PAGE.read_text(encoding="utf-8"))
        phrases = re.compile(rf"\b(?:{'|'.join(page['phrases'])})\b", re.IGNORECASE)
        return cls(page["limits"], {*page["bound"].split()}, {*page["verbs"].split()}, phrases)


def main() -> int:
    """Print the counts, and each one that is above its limit; return the exit status."""
    parser = argparse.ArgumentParser(prog="testing.words", description=__doc__)
    parser.add_argument("-v", action="store_true", help="list what is counted")
    parser.add_argument("--record", action="store_true", help="lower limits to the counts")
    arguments = parser.parse_args()
    vocabulary = Vocabulary.read()
    stumbles = find_all(paths.ROOT, vocabulary)
    if arguments.v:
        print(*stumbles, sep="\n")
    print(*table(stumbles), sep="\n")
    totals = collections.Counter(stumble.kind for stumble in stumbles)
    if arguments.record:
        record(totals)
    for sentence in compare(totals, vocabulary.limits):
        print(sentence)
    return 1 if any(totals[kind] > vocabulary.limits[kind] for kind in KINDS) else 0


def table(stumbles: list[Stumble]) -> list[str]:
    """Return a line of counts for each package."""
    counts = collections.Counter((stumble.package, stumble.kind) for stumble in stumbles)
    packages = sorted({package for package, _ in counts})
    return [
        f"{package:14} " + " ".join(f"{counts[package, kind]:5} {kind}" for kind in KINDS)
        for package in packages
    ]


def compare(totals: Mapping[str, int], limits: Mapping[str, int]) -> list[str]:
    """Return a sentence for each kind whose count is not its limit."""
    return [
        f"{kind}: {totals[kind]} are above the limit of {limits[kind]}. Find a noun or the field's"
        " word for yours (`python -m testing.words -v` lists them)."
        if totals[kind] > limits[kind]
        else f"{kind}: {totals[kind]} are below the limit of {limits[kind]}: run it with --record."
        for kind in KINDS
        if totals[kind] != limits[kind]
    ]


def record(totals: Mapping[str, int]) -> None:
    """Lower the limits of the page that are above their counts."""
    page = json.loads(PAGE.read_text(encoding="utf-8"))
    limits = page["limits"]
    page["limits"] = {kind: min(totals[kind], limits[kind]) for kind in KINDS}
    PAGE.write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")


def find_all(root: pathlib.Path, vocabulary: Vocabulary) -> list[Stumble]:
    """Return what counts in the tracked files of a repository."""
    modules = {
        pathlib.PurePath(name): [*ast.walk(ast.parse((root / name).read_bytes()))]
        for name in _tracked(root, "*.py")
    }
    return [
        *(
            stumble
            for source, nodes in modules.items()
            for stumble in find_names(source, nodes, vocabulary)
        ),
        *find_twins(modules),
        *(
            Stumble("phrases", name.partition("/")[0], f"{name}:{number}", match[0])
            for name in _tracked(root, "*.py", "*.md", "*.yaml", "*.tpl")
            for number, line in enumerate((root / name).read_text("utf-8").splitlines(), 1)
            if (match := vocabulary.phrases.search(line))
        ),
    ]


def find_names(
    source: pathlib.PurePath, nodes: Iterable[ast.AST], vocabulary: Vocabulary
) -> Iterator[Stumble]:
    """Yield the names of a module, given by its nodes, that count by themselves."""
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in nodes:
        counted: list[tuple[str, str]] = []
        if name := _bound_name(node):
            counted += [("bound", name)] * (name.strip("_") in vocabulary.bound)
            counted += [("shadows", name)] * (name in imported)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            counted += [("verbs", node.name)] * (node.name.strip("_") in vocabulary.verbs)
        for kind, text in counted:
            position = f"{source}:{getattr(node, 'lineno', 0)}"
            yield Stumble(kind, source.parts[0], position, text)


def _bound_name(node: ast.AST) -> str | None:
    """Return the name that a node binds, if it binds one."""
    match node:
        case ast.arg(arg=name):
            return name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
    return None


def find_twins(modules: Mapping[pathlib.PurePath, Iterable[ast.AST]]) -> Iterator[Stumble]:
    """Yield the names that several modules, or classes of several modules, of a package have."""
    files_by_module: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    files_by_class: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for source, nodes in modules.items():
        files_by_module[source.parts[0], source.stem].add(str(source))
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                files_by_class[source.parts[0], node.name].add(str(source))
    for (package, name), files in [*files_by_module.items(), *files_by_class.items()]:
        if len(files) > 1 and name not in SHARED:
            yield Stumble("twins", package, ", ".join(sorted(files)), name)


def _tracked(root: pathlib.Path, *patterns: str) -> list[str]:
    """Return the paths of tracked files; a file that was deleted since the last commit is none."""
    command = ["git", "ls-files", "-z", *patterns]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if (root / name).is_file()]


if __name__ == "__main__":
    sys.exit(main())
