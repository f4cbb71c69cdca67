"""The pages of documentation: their links lead somewhere, and the files that they name are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("config", "config/sites", "results", "benchmarks")),
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    titles = re.findall(r"(?m)^#+ (.+)$", text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    """The relative links of a page that lead nowhere: no such file, or no such heading in it."""
    found = []
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(f"{page}: {path}" + (f"#{anchor}" if anchor else ""))
    return found


def test_every_link_leads_somewhere() -> None:
    assert [link for page in PAGES for link in broken(page)] == []
