"""Fonts for pictures with names in Chinese."""

from __future__ import annotations

from collections.abc import Sequence

from tutti.headless import load_matplotlib

_CJK_FONTS = (  # the first installed one draws Chinese class names
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "SimHei",
    "Arial Unicode MS",
)


def families() -> list[str]:
    """The default font, followed by an installed font with Chinese characters, if any."""
    load_matplotlib()
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return ["DejaVu Sans", *[name for name in _CJK_FONTS if name in installed][:1]]


def characters(families: Sequence[str]) -> set[int]:
    """The code points that the fonts have."""
    from matplotlib.font_manager import findfont, get_font

    return {code for family in families for code in get_font(findfont(family)).get_charmap()}
