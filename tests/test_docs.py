"""The pages of documentation: their links lead somewhere, and the files that they name are there."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

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


def test_what_a_fork_runs_is_there() -> None:
    """Of the CI file: its targets of make, and the site's configuration, whose pages are those of the repository."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text())
    assert [words[1] for words in map(str.split, commands) if words[0] == "make" and words[1] not in targets] == []
    site = ROOT / ".github/mkdocs.yml"
    assert any("mkdocs build --strict -f .github/mkdocs.yml" in command for command in commands)
    assert (site.parent / yaml.safe_load(site.read_text())["docs_dir"]).resolve() == ROOT
