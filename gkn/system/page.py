"""Page: one HTML file, pictures inside."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from gkn.system.files import make_folder, write

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; max-width: 70rem; margin: 2.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; }
th, td { padding: .25rem .9rem .25rem 0; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; } img { max-width: 100%; } .small { color: #555; font-size: .85rem; }
pre { background: #f5f5f5; padding: .6rem; overflow-x: auto; }
"""


class Page:
    """Sections one after the other. `write` makes the file."""

    def __init__(self, title: str) -> None:
        self.title, self._parts = title, [f"<h1>{escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str, small: bool = False) -> None:
        self._parts.append(f"<p{' class=small' if small else ''}>{escape(text)}</p>")

    def code(self, text: str) -> None:
        self._parts.append(f"<pre>{escape(text)}</pre>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        self._parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

    def picture(self, path: Path, what: str) -> None:
        data = base64.b64encode(path.read_bytes()).decode()
        self._parts.append(f'<p><img src="data:image/png;base64,{data}" alt="{escape(what, quote=True)}"></p>')

    def link_picture(self, source: str, what: str, vector: str | None) -> None:
        """Add a picture that stays a file beside the page, with a link to its vector version if there is one."""
        image = f'<img src="{escape(source, quote=True)}" alt="{escape(what, quote=True)}">'
        link = "" if vector is None else f'<br><a class=small href="{escape(vector, quote=True)}">PDF</a>'
        self._parts.append(f"<p>{image}{link}</p>")

    def begin_details(self, summary: str) -> None:
        """Fold up what follows, until `end_details`."""
        self._parts.append(f"<details><summary>{escape(summary)}</summary>")

    def end_details(self) -> None:
        self._parts.append("</details>")

    def write(self, path: Path) -> None:
        make_folder(path.parent)
        head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(self.title)}</title><style>{_STYLE}</style>"
        write(path, (head + "\n".join(self._parts) + "</html>\n").encode())
