"""check_page.py PAGE: the page of train_ctr --report is one of well-formed HTML that needs nothing from outside: no script, no link but
into itself, every chart with its name and its numbers, everything that scrolls or opens reachable with the keyboard."""
import html.parser
import re
import sys

text = open(sys.argv[1], encoding="utf-8").read()
VOID = {"meta", "link", "br", "line", "rect", "circle", "path"}


class page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.ids, self.targets, self.charts, self.numbers = [], set(), set(), 0, 0

    def handle_startendtag(self, tag, attributes):
        self.look(tag, dict(attributes))

    def handle_starttag(self, tag, attributes):
        self.look(tag, dict(attributes))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes {self.open}"

    def look(self, tag, of):
        assert tag not in ("script", "img", "iframe", "object"), tag
        assert not any(name.startswith("on") for name in of), of
        for name in ("href", "src"):
            where = of.get(name, "#")
            assert where.startswith("#") or where == "data:,", where
            if tag == "a" and name == "href":
                self.targets.add(where[1:])
        if "id" in of:
            assert of["id"] not in self.ids
            self.ids.add(of["id"])
        if tag == "svg":
            assert of["role"] == "img" and of["aria-label"] and "viewbox" in of, of
            self.charts += 1
        if tag == "summary":
            self.numbers += 1
        if of.get("class") == "wide" or tag == "pre":
            assert of.get("tabindex") == "0", of


found = page()
found.feed(text)
assert not found.open, found.open
assert found.targets <= found.ids, found.targets - found.ids
assert found.charts == found.numbers >= int(sys.argv[2]), (found.charts, found.numbers)
assert "http" not in text and "url(" not in text and "@import" not in text
assert "prefers-color-scheme:dark" in text and "width=device-width" in text
assert not re.search(r">nan<|>-?inf<|NaN", text)
print(f"{found.charts} charts, {len(text)} bytes")
