"""Pictures of a report and of MLflow's pages in Chromium, at double resolution, as ``docs/images`` has them.

``python tests/helpers/screenshots.py report.html DIR [HEIGHT]``, or the address that ``tutti ui`` prints and ``DIR``.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WIDTHS = {"phone": 390, "desk": 1280}
SCHEMES = ("light", "dark")
_SECONDS = 60_000  # milliseconds to wait for MLflow's pages


def chromium() -> str | None:
    """The browser; none where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def browser() -> Iterator[Callable[..., Any]]:
    """Yields what opens a page of Chromium, given options of Playwright's ``new_page``."""
    from playwright.sync_api import sync_playwright

    def new_page(**options: Any) -> Any:
        page = running.new_page(**options)
        page.set_default_timeout(_SECONDS)
        return page

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield new_page
        running.close()


def evaluate(page: Path, script: str, *, width: int = 1280) -> list[Any]:
    """What a script, the body of a function, returns on a page of this width."""
    with browser() as new_page:
        shown = new_page(viewport={"width": width, "height": 900})
        shown.goto(page.absolute().as_uri())
        return list(shown.evaluate(f"() => {{{script}}}"))


def extent(page: Path, width: int) -> list[int]:
    """Width and height of the page's content on a screen of this width."""
    return evaluate(page, "const e = document.documentElement; return [e.scrollWidth, e.scrollHeight]", width=width)


def shoot_all(page: Path, out: Path, *, height: int | None = None) -> list[Path]:
    """The whole page, or its top, at each width and in each scheme: ``report-phone-dark.png`` ..."""
    made = []
    with browser() as new_page:
        for place, width in WIDTHS.items():
            for scheme in SCHEMES:
                shown = new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, device_scale_factor=2)
                shown.goto(page.absolute().as_uri())
                tall = height or min(shown.evaluate("document.documentElement.scrollHeight"), 8000)
                shown.set_viewport_size({"width": width, "height": tall})
                made.append(_shot(shown, out / f"report-{place}-{scheme}.png"))
    return made


def shoot_mlflow(address: str, out: Path) -> list[Path]:
    """The trials' page, the best trial's metrics, and the comparison of the best five."""
    with browser() as new_page:
        page = new_page(viewport={"width": 1280, "height": 720}, device_scale_factor=2)
        page.goto(address)
        best = page.locator(".ag-row a:visible").filter(has_text="t0").first
        best.wait_for()
        made = [_shot(page, out / "mlflow-trials.png")]
        best.click()
        page.get_by_text("Model metrics").click()
        page.get_by_text("Search metric charts").wait_for(state="attached")
        made.append(_shot(page, out / "mlflow-metrics.png"))
        page.goto(address)
        best.wait_for()
        for number in range(5):
            page.locator(".ag-row .ag-checkbox-input-wrapper:visible").nth(number).click()
        page.get_by_role("button", name="Compare").click()
        page.get_by_text("Comparing").wait_for()
        return [*made, _shot(page, out / "mlflow-compare.png")]


def _shot(page: Any, file: Path) -> Path:
    from PIL import Image

    page.wait_for_timeout(2000)  # charts are drawn after their page
    file.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=file)
    with Image.open(file) as image:  # few colours are enough, in a third of the bytes
        image.convert("RGB").quantize(256).save(file, optimize=True)
    return file


if __name__ == "__main__":
    what, folder, *tall = sys.argv[1:]
    if what.startswith("http"):
        files = shoot_mlflow(what, Path(folder))
    else:
        files = shoot_all(Path(what), Path(folder), height=int(tall[0]) if tall else None)
    for file in files:
        print(f"wrote {file}")
