"""The comparison's report: a page that is well formed, escapes what it is given and loads nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from relay.comparison.wording import headlines
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
    assert [told.split(":")[0] for told in headlines(rows)] == ["lenet-digits", "lenet-synthetic"]
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


def test_page_says_how_it_was_measured_and_what_was_not(full: Tree) -> None:
    for told in (
        "ddp: only shown on CPUs, not timed on GPUs",
        "AMD EPYC",
        "node1",
        "torch 2.13.0+cpu",
        "dropout switched off",
        "first 10 steps",
        "a margin of 3 %",
        "3e-16",
        "1e-09",
        "247,400; 247,400",
    ):
        assert told in full.html
    assert full.html.count("<svg") == 7  # speed, cost, CPUs, time to an accuracy, memory, accuracy, loss


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


def test_the_page_says_how_long_a_training_takes(tree: Tree) -> None:
    """22 steps of 64 samples at 352 samples/s are 4 s an epoch; 2 epochs were trained."""
    tree.setting("cpu", [352.0, 352.0], summary={"train_seconds": 8.0, "allocated_seconds": 11.5})
    assert tree.compare() == 0
    assert "An epoch of 22 steps takes 4.0 s" in tree.html
    assert "took another 3.5 s of each training here" in tree.html
    for epochs, *told in (
        ("2 (this comparison)", "8.0 s", "12 s", "2 minutes"),
        ("20", "80 s", "120 s", "4 minutes"),
        ("200", "13 min", "19 min", "25 minutes"),
    ):
        cells = "".join(f'<td class="whole">{each}</td>' for each in told)
        assert f'<tr><th scope="row">{epochs}</th>{cells}</tr>' in tree.html


def test_another_choice_says_what_it_takes_and_why_it_is_not_recommended(tree: Tree) -> None:
    """One is faster and dearer, one slower, one cheaper and too slow."""
    tree.setting("cpu", [1000.0, 1001.0, 999.0], threads=2, cpus_per_task=2)
    tree.setting("ddp", [1250.0, 1251.0, 1249.0], devices_per_node=4)
    tree.setting("cpu", [500.0, 501.0, 499.0], threads=2, cpus_per_task=2, loader="dataloader")
    tree.setting("cpu", [400.0, 401.0, 399.0])
    assert tree.compare() == 0
    part = tree.html.partition("What another choice costs</h3>")[2].partition("</table>")[0]
    told = dict(re.findall(r'<th scope="row">(\w+ \(.*?\)).*?<td class="whole">(.*?) times', part))
    assert told == {
        "ddp (4 procs, 1 thread, resident)": "0.800",
        "cpu (1 proc, 2 threads, dataloader)": "2.00",
        "cpu (1 proc, 1 thread, resident)": "2.50",
    }
    assert re.findall(r'<td class="text">(.*?)</td>', part) == [
        "faster, but dearer: it pays from 1.40 times the speed on",
        "slower",
        "cheaper, but too slow: it would do from 0.71 times the speed on",
    ]


def test_what_is_struck_out_or_failed_links_to_what_says_why(full: Tree) -> None:
    assert 'href="equivalence/gates/gate-ddp-9/verdict.json">the gate' in full.html
