"""A page of HTML, parsed: its elements, texts and what it would load or run."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "circle", "rect", "polyline"}  # those of SVG are closed where they begin
LOADS = {"src", "srcset", "href", "xlink:href", "data", "action", "formaction", "poster", "background", "ping"}


class HtmlPage(HTMLParser):
    """Elements and texts of a page.

    Attributes:
        tags: Names of the elements, in order.
        ids: Their ids.
        texts: Texts outside of styles, in order.
        problems: Elements that are not closed in order, run something, or load something from outside of the page.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.problems: list[str] = []
        self._links: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.problems += [f"<{tag}> is not closed" for tag in self._open]
        self.problems += [f"{link} leads nowhere" for link in self._links if link[1:] not in self.ids]

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._element(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._element(tag, attrs)

    def _element(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in ("script", "iframe", "object", "embed", "link", "form", "img", "image", "use", "foreignobject"):
            self.problems.append(f"<{tag}>")
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in LOADS and (value or "").startswith("#"):
                self._links.append(value or "")
            elif name in LOADS or name.startswith("on") or "url(" in (value or ""):
                self.problems.append(f"<{tag} {name}={value!r}>")

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> closes another element")

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            if "url(" in data or "@import" in data:
                self.problems.append("the style loads something")
        elif data.strip():
            self.texts.append(data)
