"""Pictures of a report in Chromium: ``python tests/helpers/screenshots.py report.html DIR [HEIGHT]``."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

WIDTHS = {"phone": 390, "desk": 1280}
SCHEMES = {"light": (), "dark": ("--blink-settings=preferredColorScheme=0",)}
_SECONDS = 120


def chromium() -> str | None:
    """The browser; none where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def _run(page: Path, *options: str) -> str:
    with tempfile.TemporaryDirectory() as profile:
        plain = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        command = [chromium() or "chromium", *plain, *options, page.absolute().as_uri()]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    return ran.stdout


def evaluate(page: Path, script: str, *, width: int = 1280) -> list[Any]:
    """What a script, the body of a function, returns on a page in a frame of this width: windows have a least width."""
    said = f"JSON.stringify((() => {{{script}}})())"
    told = f"<script>addEventListener('load', () => parent.postMessage({said}, '*'))</script>"
    heard = "<script>onmessage = event => document.body.dataset.said = encodeURIComponent(event.data)</script>"
    with tempfile.TemporaryDirectory() as folder:
        text, framed = page.read_text(encoding="utf-8"), Path(folder, "frame.html")
        Path(folder, "page.html").write_text(text.replace("</body>", f"{told}</body>"), encoding="utf-8")
        frame = f'<iframe src="page.html" style="border:0;width:{width}px;height:900px"></iframe>'
        framed.write_text(f"<body>{heard}{frame}", encoding="utf-8")
        dumped = _run(framed, "--dump-dom", "--virtual-time-budget=3000", "--allow-file-access-from-files")
    found = re.search(r'data-said="([^"]*)"', dumped)
    assert found, "the script has said nothing"
    return list(json.loads(unquote(found[1])))


def extent(page: Path, width: int) -> list[int]:
    """Width and height of the page's content on a screen of this width."""
    return evaluate(page, "const e = document.documentElement; return [e.scrollWidth, e.scrollHeight]", width=width)


def shoot(page: Path, file: Path, *, width: int, height: int, scheme: str = "light") -> Path:
    """A picture of the top of a page at double resolution."""
    with tempfile.TemporaryDirectory() as folder:
        framed = Path(folder, "frame.html")
        framed.write_text(
            f'<body style="margin:0"><iframe src="{page.absolute().as_uri()}" '
            f'style="border:0;width:{width}px;height:{height}px"></iframe>',
            encoding="utf-8",
        )
        options = (f"--window-size={max(width, 500)},{height}", "--force-device-scale-factor=2")
        _run(framed, *options, *SCHEMES[scheme], "--allow-file-access-from-files", f"--screenshot={file}")
    from PIL import Image

    with Image.open(file) as image:  # a window has a least width; few colours are enough, in a third of the bytes
        image.crop((0, 0, 2 * width, 2 * height)).convert("RGB").quantize(256).save(file, optimize=True)
    return file


def shoot_all(page: Path, out: Path, *, height: int | None = None) -> list[Path]:
    """The whole page, or its top, at each width and in each scheme: ``report-phone-dark.png`` ..."""
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for place, width in WIDTHS.items():
        tall = height or min(extent(page, width)[1], 8000)
        for scheme in SCHEMES:
            file = out / f"report-{place}-{scheme}.png"
            made.append(shoot(page, file, width=width, height=tall, scheme=scheme))
    return made


if __name__ == "__main__":
    for made in shoot_all(Path(sys.argv[1]), Path(sys.argv[2]), height=int(sys.argv[3]) if sys.argv[3:] else None):
        print(f"wrote {made}")
