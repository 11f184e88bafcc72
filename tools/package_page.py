"""The page of the package index: README.md with links that lead into the repository. Run by hatchling in each build."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGE = re.compile(r"(!\[[^\]]*\]\()(?!https?:)([^)\s]+\))")
LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)\s]+\))")


def with_absolute_links(readme: str, repository: str) -> str:
    """The text with relative links replaced by links into the repository."""
    readme = IMAGE.sub(rf"\1{repository}/raw/main/\2", readme)
    return LINK.sub(rf"\1{repository}/blob/main/\2", readme)


class PackagePage(MetadataHookInterface):
    """Sets `readme`, which pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """`metadata` is what pyproject.toml has in [project]."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        page = with_absolute_links(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
