"""The report in a real browser: Debian's Chromium without a window, and without a network."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import debian_packages
from relay.run_folder.job_times import PARTS
from results_tree import REFUSED, Tree

pytestmark = [pytest.mark.slow]
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1440, "height": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    debian_packages.require({"chromium": "chromium"})
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything in it: a winner, scaling, what is struck out, failed and skipped, long names, warnings."""
    tree = Tree(tmp_path_factory.mktemp("browser"))
    parts = dict(zip(PARTS, (2.0, 3.0, 30.0, 4.0, 2.0, 1.0, 2.0), strict=True))
    jobs = [{"attempt": n, "job": "7", "last": 22 * n, "queued": 4000.0, "parts": parts} for n in (1, 2)]
    split = {"data": 0.1, "compute": 0.4, "communication": 0.3, "optimizer": 0.1, "no_cpu": 0.05, "idle": 0.05}
    time = {"jobs": jobs, **{f"step_{part}_fraction": share for part, share in split.items()}}
    for devices, speed in ((1, 12000.0), (2, 20000.0), (4, 24000.0)):
        speeds = [speed, 1.01 * speed, 0.99 * speed]
        tree.setting("ddp", speeds, name=f"ddp-{devices}", devices_per_node=devices, summary=time)
    tree.setting("cpu", [30500.0, 30700.0, 30400.0], name="fast", threads=2, cpus_per_task=2)
    tree.setting("cpu", [12900.0, 9000.0, 13050.0], name="noisy", loader="dataloader", data_workers=2)
    tree.setting("ddp", [41000.0] * 3, devices_per_node=2, options={"hook": "<b>$x_1$"}, verdict=REFUSED)
    tree.setting("cpu", [None] * 3, name="short", channels_last=True)
    failing = tree.setting("fsdp", [9000.0, 9100.0, 9200.0], devices_per_node=4)
    for identity in failing[1:]:
        tree.fail(identity, "RuntimeError: out of memory " + "x" * 60)
    tree.skip("single_gpu", "no GPU here", device="cuda")
    assert tree.compare("--partial") == 0
    return tree.root / "comparison.html"


# What of a picture lies beyond its edges, by more than a letter's width.
OUTSIDE = """[...document.querySelectorAll('figure svg')].flatMap(svg => {
  const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text, use')].filter(each => {
    const at = each.getBoundingClientRect();
    return at.left < box.left - 6 || at.right > box.right + 6 || at.top < box.top - 6 || at.bottom > box.bottom + 6;
  }).map(each => each.textContent || each.id);
})"""


@pytest.mark.parametrize(("size", "scheme"), [(PHONE, "light"), (DESK, "dark")], ids=["phone", "desk"])
def test_the_page_loads_fits_and_is_accessible(browser: Any, report: Path, size: dict[str, int], scheme: str) -> None:
    """Without a network, a complaint, or a bar to scroll sideways; axe finds no violation of its rules."""
    from axe_playwright_python.sync_playwright import Axe

    complaints, requests = list[str](), list[str]()
    context = browser.new_context(viewport=size, color_scheme=scheme)
    context.set_offline(True)
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(report.as_uri())
    assert complaints == []
    assert requests == [report.as_uri()]
    wide = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide[0] <= wide[1]
    blocks = page.evaluate(
        "[...document.querySelectorAll('.block')].map(({children: [button, pre]}) =>"
        " [button.checkVisibility(), pre.scrollWidth <= pre.clientWidth])"
    )
    assert blocks == [[True, True]] * 2, "each can be copied, and is read without scrolling"
    outside = page.evaluate(OUTSIDE)
    assert outside == [], "a text or a mark of a picture that is not in it"
    answer, bars = (page.locator(name).first.bounding_box() for name in (".answer", ".bars"))
    assert (bars["x"] >= answer["x"] + answer["width"]) == (size is DESK), "beside the answer, or below it"
    assert bars["y"] < size["height"] or size is PHONE
    assert page.locator("aside [id^=how-long]").count() == 1, "below the bars"
    found = Axe().run(page).response["violations"]
    assert [(each["id"], [node["target"] for node in each["nodes"]][:3]) for each in found] == []
