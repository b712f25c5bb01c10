from gkn.system.page import Page


def test_a_page_is_one_file_with_everything_in_it(tmp_path):
    (tmp_path / "x.png").write_bytes(b"\x89PNG")
    page = Page("a < b")
    page.heading("errors & such")
    page.text("text <script>", small=True)
    page.code("gkn demo <x>")
    page.table(("on", "error"), [("16 x 16", "0.05"), ("<241>", "0.06")])
    page.picture(tmp_path / "x.png", 'a "picture"')
    page.write(tmp_path / "new/page.html")
    text = (tmp_path / "new/page.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "a &lt; b" in text
    assert "<script>" not in text
    assert "data:image/png;base64,iVBORw==" in text
    assert 'alt="a &quot;picture&quot;"' in text
    assert "<td>&lt;241&gt;</td><td>0.06</td>" in text
    assert 'src="x.png' not in text
