"""The sections of the documentation that messages and descriptions of fields name exist."""

import pathlib
import re
import sys
import tomllib

import pytest

from testing import pages, paths
from tfparallel_operator.api import names
from tfparallel_trainer.contract import documentation, environment, exits

PLACE = re.compile(r"docs/([\w/-]+)\.md(?:#([\w-]+))?")


def leads_to_a_heading(path: str, anchor: str) -> bool:
    file = paths.PAGES / f"{path}.md"
    return file.is_file() and (not anchor or anchor in pages.anchors(file))


@pytest.mark.parametrize("section", documentation.Section, ids=lambda section: section.name)
def test_a_section_that_messages_name_is_one_of_its_page(section: documentation.Section) -> None:
    [(path, anchor)] = PLACE.findall(documentation.reference(section))
    assert anchor
    assert leads_to_a_heading(path, anchor)


def test_every_reason_condition_and_exit_code_has_a_place_in_the_documentation() -> None:
    names_by_anchor = {word.lower() for word in (*names.ConditionType, *names.Reason)}
    codes = {f"exit-{code.value}" for code in exits.Exit}
    assert names_by_anchor | codes <= {*pages.anchors(paths.PAGES / documentation.REASONS)}


def test_the_site_has_the_address_of_messages() -> None:
    site = (paths.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    default = f'"{documentation.ADDRESS}"'
    assert f"site_url: !ENV [{environment.DOCUMENTATION}, {default}]" in site


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """A page that the wheel of the command brought, on a machine without the repository."""
    page = tmp_path / documentation.INSTALLED / "how-to/local.md"
    page.parent.mkdir(parents=True)
    page.touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(documentation, "REPOSITORY", tmp_path)
    return page


def test_a_message_names_a_page_of_the_installed_version(installed: pathlib.Path) -> None:
    section = documentation.Section.LOCAL_NETWORK
    assert documentation.reference(section) == f"{installed}#who-can-reach-a-run"


def test_a_message_of_an_image_names_a_page_of_the_repository(installed: pathlib.Path) -> None:
    installed.unlink()
    section = documentation.Section.LOCAL_NETWORK
    assert documentation.reference(section) == "docs/how-to/local.md#who-can-reach-a-run"


@pytest.mark.usefixtures("installed")
def test_a_message_names_the_address_of_a_published_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.DOCUMENTATION, "https://docs.example/tfparallel/")
    address = documentation.locate(documentation.REASONS, "replicafailed")
    assert address == "https://docs.example/tfparallel/reference/reasons.html#replicafailed"


def test_the_wheel_of_the_command_brings_every_folder_of_pages() -> None:
    project = tomllib.loads((paths.ROOT / "client/pyproject.toml").read_text(encoding="utf-8"))
    brought = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    folders = [folder.name for folder in paths.PAGES.glob("[!.]*/") if folder.name != "assets"]
    assert brought == {
        f"../docs/{folder}": f"{documentation.INSTALLED}/{folder}" for folder in folders
    }


def test_a_description_of_a_field_names_sections_that_exist() -> None:
    [file] = (paths.ROOT / "manifests/base/crd").glob("tfparallel.dev_*.yaml")
    text = file.read_text(encoding="utf-8")
    places = PLACE.findall(text)
    assert len(places) == text.count("docs/") > 0
    assert all(leads_to_a_heading(*section) for section in places)
