"""Screenshots of a report as people see it: python tests/support/screenshots.py REPORT FOLDER

Light, dark, on a phone and as it is printed, as small PNG files. Needs playwright, and Debian's Chromium. Those in
docs/images are made so.
"""

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

COLOURS = 64
# Width and height in pixels, colour scheme, medium. A4 in landscape is 1032 pixels wide within its margins.
SHOTS = {
    "light": (1440, 1200, "light", "screen"),
    "dark": (1440, 1200, "dark", "screen"),
    "phone": (390, 844, "light", "screen"),
    "print": (1032, 1400, "light", "print"),
}


def main(report: Path, folder: Path) -> None:
    """Take them all; the height is that of the window, so that a picture shows how the page begins."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for name, (width, height, scheme, medium) in SHOTS.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(report.resolve().as_uri())
            page.emulate_media(media=medium)
            shot = Image.open(io.BytesIO(page.screenshot()))
            shot.convert("RGB").quantize(COLOURS).save(folder / f"report-{name}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
