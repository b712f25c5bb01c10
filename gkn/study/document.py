"""Document: a page as HTML and as Markdown at once."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from gkn.system.files import make_folder, write
from gkn.system.page import Page


class Document:
    """Blocks, written as Markdown and as HTML."""

    def __init__(self, title: str) -> None:
        self.page, self.lines = Page(title), [f"# {title}", ""]

    def heading(self, text: str) -> None:
        self.page.heading(text)
        self.lines += [f"## {text}", ""]

    def text(self, text: str, small: bool = False) -> None:
        self.page.text(text.replace("`", ""), small)
        self.lines += [text.replace("<", "&lt;"), ""]

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.page.table(header, rows)
        cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
        self.lines += [
            f"| {' | '.join(cells[0])} |",
            "|" + "---|" * len(header),
            *(f"| {' | '.join(r)} |" for r in cells[1:]),
            "",
        ]

    def more(self, summary: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table that is folded up."""
        self.page.begin_details(summary)
        self.lines += ["<details>", f"<summary>{escape(summary)}</summary>", ""]
        self.table(header, rows)
        self.page.end_details()
        self.lines += ["</details>", ""]

    def picture(self, path: str, what: str, pdf: bool = True) -> None:
        """Show a picture, with a link to its PDF if there is one."""
        vector = f"{path.removesuffix('.png')}.pdf" if pdf else None
        self.page.link_picture(path, what, vector)
        self.lines += [f"![{what}]({path})", "", *([f"[PDF]({vector})", ""] if pdf else [])]

    def write(self, folder: Path) -> Path:
        make_folder(folder)
        self.page.write(folder / "index.html")
        write(folder / "README.md", ("\n".join(self.lines)).encode())
        return folder / "index.html"


def short(commit: str) -> str:
    """Return the beginning of a commit's name; a + behind it says that files had changed since."""
    return commit[:10] + "+" * commit.endswith("+")


def check_own(folder: Path, title: str) -> None:
    """Raise an error if the pages in a folder were not written by gkn."""
    for name in ("README.md", "index.html"):
        path = folder / name
        if path.exists() and title not in path.read_text(errors="replace")[:400]:
            raise ValueError(f"{path} is there already and was not made by gkn; choose another folder with --out")
