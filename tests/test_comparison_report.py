"""The comparison's report: a page that is well formed, escapes what it is given and loads nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from results_tree import Tree

pytest_plugins = ["results_tree"]


class Page(HTMLParser):
    """Notes what a page is made of and what it would load."""

    VOID = frozenset({"meta", "br", "hr", "img", "input", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
                self.references.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()


def test_settings_of_two_tasks_are_not_compared(tree: Tree) -> None:
    tree.setting("cpu", [1000.0, 1001.0])
    tree.setting("cpu", [10.0, 10.1], task="lenet-synthetic")
    rows = tree.rows()
    assert [row["standing"] for row in rows] == ["fastest", "fastest"]
    assert tree.compare() == 0
    assert tree.html.count('class="headline"') == 2
    ids = Page(tree.html).ids
    assert len(ids) == len(set(ids))


def test_page_is_well_formed_and_loads_nothing(full: Tree) -> None:
    page = Page(full.html)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert not [ref for ref in page.references if "://" in ref or ref.startswith(("/", "data:"))]
    beside = {ref for ref in page.references if not ref.startswith("#")}
    assert {"comparison.csv", "runs.csv", "answer.json", "recommendation.sbatch"} <= beside
    assert [ref for ref in beside if not (full.root / ref).is_file()] == []
    assert page.tags.count("script") == 1
    assert not {"link", "img", "iframe", "object", "embed", "b"} & set(page.tags)
    assert not re.search(r"@import|url\((?!#)", full.html)
    assert {ref[1:] for ref in page.references if ref.startswith("#")} <= set(page.ids)


def test_page_escapes_what_it_is_given(full: Tree) -> None:
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; [bold]" in full.html
    assert full.html.count("<script") == 1
    assert "&lt;img src=x&gt;" in full.html
    assert "hook=&lt;b&gt;$x_1$" in full.html


def test_the_page_begins_with_the_answer_and_its_block(full: Tree) -> None:
    text = full.html
    assert text.index("Ask Slurm for 1 node with 2 CPUs, no GPU and ") < text.index("#SBATCH --nodes=1")
    assert text.index("#SBATCH --nodes=1") < text.index('class="settings"')


def test_the_page_says_what_went_wrong_with_each(full: Tree) -> None:
    part = full.html.split("What went wrong</h3>")[1].split("</ul>")[0]
    assert part.count("<li>") == 2
    assert "struck out</strong>: ddp (2 procs" in part
    assert "algorithm: losses differ by 0.25" in part
    assert "failed</strong>: ddp (4 procs" in part


def test_what_is_struck_out_or_failed_links_to_what_says_why(full: Tree) -> None:
    assert 'href="equivalence/gates/gate-ddp-9/verdict.json">the gate' in full.html
