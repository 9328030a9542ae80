"""A small canvas for pictures of the pages: text, boxes, lines and arrows as an SVG that both themes can show.

Each picture has a white background, a title that screen readers read, and fonts of the reader's machine only.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

Points = Sequence[tuple[float, float]]
INK, LINE, PALE = "#1b1f24", "#57606a", "#eef1f4"
BLUE, ORANGE, GREEN, PINK, VIOLET = "#b6d7ff", "#ffd8a8", "#b2e5b9", "#f5b5c8", "#d5c3f5"
STRONG_BLUE, STRONG_ORANGE, STRONG_GREEN = "#0b5cad", "#b35900", "#1a7f37"
_STYLE = (
    f"text {{ font-family: ui-sans-serif, Helvetica, Arial, sans-serif; fill: {INK}; font-size: 13px }} "
    f".small {{ font-size: 11.5px; fill: {LINE} }} .bold {{ font-weight: 600 }} "
    ".code { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12px } "
    ".middle { text-anchor: middle } .end { text-anchor: end }"
)


class Canvas:
    """Collects the elements of one picture.

    Attributes:
      width: in pixels.
      height: in pixels.
      title: what the picture shows, in one sentence.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._body: list[str] = []
        self._colors: set[str] = set()

    def text(self, x: float, y: float, words: str, kind: str = "", color: str = INK) -> None:
        """Writes words; `kind` names classes of the style, such as `small middle`."""
        fill = "" if color == INK else f' style="fill: {color}"'
        self._body.append(f'<text x="{x:g}" y="{y:g}" class="{kind}"{fill}>{escape(words)}</text>')

    def box(
        self, x: float, y: float, width: float, height: float, fill: str = PALE, radius: float = 4, edge: str = LINE
    ) -> None:
        """Draws a rectangle."""
        size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"'
        self._body.append(f'<rect {size} fill="{fill}" stroke="{edge}"/>')

    def line(
        self, points: Sequence[tuple[float, float]], color: str = LINE, width: float = 1.5, dash: str = ""
    ) -> None:
        """Draws a line through points, dashed if `dash` has lengths such as `4 3`."""
        self._body.append(self._path(points, color, width, dash, ""))

    def arrow(self, points: Points, color: str = LINE, both: bool = False) -> None:
        """Draws a line through points with an arrowhead at its end, or at both ends."""
        self._colors.add(color)
        name = color.removeprefix("#")
        ends = f' marker-end="url(#head-{name})"' + (f' marker-start="url(#head-{name})"' if both else "")
        self._body.append(self._path(points, color, 1.8, "", ends))

    @staticmethod
    def _path(points: Points, color: str, width: float, dash: str, ends: str) -> str:
        steps = " L".join(f"{x:.5g} {y:.5g}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        return f'<path d="M{steps}" fill="none" stroke="{color}" stroke-width="{width:g}"{dashes}{ends}/>'

    def __str__(self) -> str:
        heads = [
            f'<marker id="head-{color.removeprefix("#")}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto-start-reverse"><path d="M0 0L8 4L0 8Z" fill="{color}"/></marker>'
            for color in sorted(self._colors)
        ]
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{_STYLE}</style>",
                f"<defs>{''.join(heads)}</defs>" if heads else "<defs/>",
                f'<path d="M0 0H{self.width}V{self.height}H0Z" fill="#ffffff"/>',
                *self._body,
                "</svg>\n",
            ]
        )
