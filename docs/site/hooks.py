"""Hooks of MkDocs: pages of the repository that are not in docs/ become pages of the site.

Links in pages are those of the repository, so that they lead somewhere in a clone, too. Here each becomes the link to
the site's page. A file that the site does not have is linked in the repository; where its address is unknown, the link
becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = {
    f"examples/{path.name}": f"examples/{path.stem}.md" for path in sorted((ROOT / "examples").glob("*.py"))
}
PAGES: Final = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "examples/README.md": "examples/index.md",
    **EXAMPLES,
}
"""The site's page for each file of the repository that is not its own."""
SOURCES: Final = {page: source for source, page in PAGES.items()}

_LINK = re.compile(r"(\[[^\]]+\])\(([^)\s#]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from other folders; the index of docs/ gives its place to the README."""
    index = files.get_file_from_path("README.md")
    if index is not None:
        files.remove(index)
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source in EXAMPLES:
            text = f"# {Path(source).name}\n\n```python\n{text}```\n"
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages."""
    of_site = page.file.src_uri
    source = SOURCES.get(of_site, f"docs/{of_site}")

    def linked(match: re.Match[str]) -> str:
        text, place, anchor = match.groups(default="")
        if "://" in place:
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), place))
        to = PAGES.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(to) is not None:
            return f"{text}({posixpath.relpath(to, posixpath.dirname(of_site) or '.')}{anchor})"
        if config.repo_url and (ROOT / target).exists():
            return f"{text}({config.repo_url.rstrip('/')}/blob/HEAD/{target}{anchor})"
        return text[1:-1] if (ROOT / target).exists() else match[0]

    parts = _CODE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(linked, part) for part in parts)
