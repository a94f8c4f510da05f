from __future__ import annotations

import importlib.util
import pkgutil
import re
from typing import Any

import griffe
import pytest

import dedup_sdk
from dedup_sdk import bridge, producer, shared, testing
from tests.support.pages import ROOT

API = {page.stem: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "api").glob("*.md"))}
MKDOCS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
NAMES = re.findall(r"^::: ([\w.]+)$", "\n".join(API.values()), re.MULTILINE)


def test_every_public_name_is_on_one_page_of_the_api() -> None:
    """The pages have each name that `dedup_sdk` and its packages export, and the modules of errors and orders."""
    names = [path.rpartition(".")[2] for path in NAMES]
    assert len(set(names)) == len(names)
    exported = {
        name for package in (dedup_sdk, bridge, producer, shared, testing) for name in package.__all__
    }
    assert exported - set(vars(dedup_sdk.errors)) - set(names) == set()
    assert {"errors", "orders"} <= set(names)
    assert all(pkgutil.resolve_name(path).__doc__ for path in NAMES)


def test_the_index_of_the_api_has_every_page_of_it() -> None:
    """docs/api.md links to each page of docs/api/."""
    index = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(api/(\w+)\.md\)", index)) == sorted(API)


def test_no_signature_on_the_site_has_a_private_name() -> None:
    """The extension that mkdocs.yml names shows the value of a private constant that is a default."""
    assert "extensions: [dataclasses, docs/site/public_defaults.py]" in MKDOCS
    extensions = griffe.load_extensions("dataclasses", str(ROOT / "docs" / "site" / "public_defaults.py"))
    places = [ROOT, ROOT / "adapters"]
    packages = {
        name: griffe.load(name, search_paths=places, extensions=extensions)
        for name in ("dedup_sdk", "dedup_adapters")
    }
    shown = [packages[path.partition(".")[0]][path.partition(".")[2]] for path in NAMES]
    members = [each for one in shown if not one.is_function for each in one.all_members.values()]
    own = [each for each in members if not each.is_imported]
    constructors = [each["__init__"] for each in own if each.is_class and "__init__" in each.all_members]
    functions = [each for each in (*shown, *own, *constructors) if each.is_function]
    defaults = {
        (each.path, str(p.default)) for each in functions for p in each.parameters if p.default is not None
    }
    assert ("dedup_sdk.DedupConsumer.__init__", "Recovery()") in defaults
    assert sorted(each for each in defaults if re.match(r"_[A-Za-z]", each[1])) == []
    assert ("dedup_sdk.aio.AsyncDedupConsumer.__init__", "Recovery()") in defaults


def test_the_navigation_has_every_page_once() -> None:
    """mkdocs.yml sorts each page of docs/ under one of six heads."""
    navigation = MKDOCS.partition("\nnav:\n")[2]
    assert re.findall(r"^  - ([\w-]+):$", navigation, re.MULTILINE) == [
        "Start", "How-to", "Concepts", "Reference", "Operations", "Project",
    ]  # fmt: skip
    pages = re.findall(r"^ {6,}- (?:[\w ]+: )?([\w/-]+\.md)$", navigation, re.MULTILINE)
    assert len(pages) == len(set(pages))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} <= set(pages)
    assert {f"api/{name}.md" for name in API} <= set(pages)


@pytest.mark.parametrize("in_workflow", [True, False])
def test_links_of_the_package_page_lead_into_the_repository_that_built_it(
    monkeypatch: pytest.MonkeyPatch, *, in_workflow: bool
) -> None:
    """Built by a workflow, the README's links are absolute and the package has addresses; elsewhere neither."""
    for name, value in {
        "GITHUB_SERVER_URL": "https://forge.example", "PACKAGE_REPOSITORY": "shop/dedup", "GITHUB_REF_NAME": "v1.2.3",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value) if in_workflow else monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    metadata: dict[str, Any] = {}
    module.Addresses(str(ROOT), {}).update(metadata)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    if not in_workflow:
        assert metadata == {"readme": {"content-type": "text/markdown", "text": readme}, "urls": {}}
        return
    assert metadata["urls"] == {
        "Documentation": "https://shop.github.io/dedup/",
        "Source": "https://forge.example/shop/dedup",
        "Changelog": "https://forge.example/shop/dedup/blob/v1.2.3/CHANGELOG.md",
        "Issues": "https://forge.example/shop/dedup/issues",
    }
    links = re.findall(r"\]\(([^)]+)\)", metadata["readme"]["text"])
    assert "https://forge.example/shop/dedup/blob/v1.2.3/docs/start.md" in links
    assert "https://forge.example/shop/dedup/raw/v1.2.3/docs/idea.svg" in links
    assert [link for link in links if not link.startswith("https://")] == []
