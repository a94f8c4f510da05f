"""The package's addresses: those of the repository whose workflow builds it, so that none is written down twice.

A package index shows the README without the repository around it, so its relative links become absolute ones, to the
branch or tag that is built. Only the release workflow sets ``PACKAGE_REPOSITORY``: elsewhere, also in a workflow of
somebody who builds this package from its source, there are no addresses, and the README stays as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_IMAGE = re.compile(r"(!\[[^\]]*\])\((?!https?://)([^)\s]+)\)")
_LINK = re.compile(r"\]\((?!https?://|#)([^)\s]+)\)")


class Addresses(MetadataHookInterface):
    """Fills in ``readme`` and ``urls`` of the project's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both fields; the environment's names are those of GitHub's workflows."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository, urls = os.environ.get("PACKAGE_REPOSITORY", ""), {}
        if repository:
            owner, name = repository.split("/")
            source = f"{os.environ['GITHUB_SERVER_URL']}/{repository}"
            at = f"{source}/blob/{os.environ['GITHUB_REF_NAME']}"
            text = _IMAGE.sub(rf"\1({source}/raw/{os.environ['GITHUB_REF_NAME']}/\2)", text)
            text = _LINK.sub(rf"]({at}/\1)", text)
            urls = {
                "Documentation": f"https://{owner}.github.io/{name}/",
                "Source": source,
                "Changelog": f"{at}/CHANGELOG.md",
                "Issues": f"{source}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls
