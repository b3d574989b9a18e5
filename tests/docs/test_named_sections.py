"""The sections of the documentation that messages and descriptions of fields name exist."""

import functools
import itertools
import pathlib
import re

import pytest

from testing import language, pages, paths
from tfparallel_operator.api import names
from tfparallel_trainer.contract import documentation, exits

PACKAGES = [
    paths.ROOT / folder
    for folder in (
        "client/tfparallel",
        "operator/tfparallel_operator",
        "trainer/tfparallel_trainer",
    )
]
CHART = [
    *sorted((paths.ROOT / "charts/tfparallel-operator/templates").rglob("*.*")),
    paths.ROOT / "charts/tfparallel-operator/values.yaml",
]
ADDRESS = re.compile(rf"{re.escape(documentation.ADDRESS)}/([\w/-]+)\.html(?:#([\w-]+))?")


def leads_to_a_heading(path: str, anchor: str) -> bool:
    file = paths.PAGES / f"{path}.md"
    return file.is_file() and (not anchor or anchor in pages.anchors(file))


@functools.cache
def sections_in_code() -> frozenset[str]:
    files = (file for package in PACKAGES for file in package.rglob("*.py"))
    texts = (file.read_text(encoding="utf-8") for file in files)
    return frozenset(name for text in texts for name in re.findall(r"Section\.\w+", text))


@pytest.mark.parametrize("section", documentation.Section, ids=lambda section: section.name)
def test_a_section_that_messages_name_is_one_of_its_page(section: documentation.Section) -> None:
    [(path, anchor)] = ADDRESS.findall(documentation.reference(section))
    assert anchor
    assert leads_to_a_heading(path, anchor)


def test_every_reason_condition_and_exit_code_has_a_place_in_the_documentation() -> None:
    words = {word.lower() for word in (*names.Condition, *names.Reason)}
    codes = {f"exit-{code.value}" for code in exits.Exit}
    [(path, _)] = ADDRESS.findall(documentation.REASONS)
    assert words | codes <= {*pages.anchors(paths.PAGES / f"{path}.md")}


def test_the_site_has_the_address_of_messages() -> None:
    site = (paths.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"site_url: {documentation.ADDRESS}/\n" in site


@pytest.mark.parametrize("section", documentation.Section, ids=lambda section: section.name)
def test_a_section_is_named_by_a_message(section: documentation.Section) -> None:
    assert f"Section.{section.name}" in sections_in_code()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_message_names_a_file_that_only_the_repository_has(package: pathlib.Path) -> None:
    files = (file for file in package.rglob("*.py") if "docs" in file.read_text(encoding="utf-8"))
    messages = itertools.chain.from_iterable(map(language.messages_of, files))
    assert not {f"{m.file}:{m.line}": m.text for m in messages if "docs/" in m.text}


def test_a_description_of_a_field_names_sections_that_exist() -> None:
    [file] = (paths.ROOT / "manifests/base/crd").glob("tfparallel.dev_*.yaml")
    text = file.read_text(encoding="utf-8")
    addresses = ADDRESS.findall(text)
    assert addresses
    assert all(leads_to_a_heading(*address) for address in addresses)
    assert "docs/" not in text


@pytest.mark.parametrize("file", CHART, ids=lambda file: file.name)
def test_the_chart_names_no_file_that_it_does_not_have(file: pathlib.Path) -> None:
    assert "docs/" not in file.read_text(encoding="utf-8")
