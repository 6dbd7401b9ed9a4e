from __future__ import annotations

from ctrain_runtime.report.html import Html, element, join


def test_texts_and_attributes_are_escaped_once() -> None:
    inner = element("b", "<script>&\"'", title='"><img>')
    assert inner == '<b title="&quot;&gt;&lt;img&gt;">&lt;script&gt;&amp;&quot;&#x27;</b>'
    assert element("p", inner, "a<b", class_="x") == f'<p class="x">{inner}a&lt;b</p>'


def test_a_text_made_of_html_is_a_text() -> None:
    """As an f-string is: only what element and join return is trusted."""
    assert join(f"{Html('<b>')}") == "&lt;b&gt;"


def test_what_html_forbids_is_replaced() -> None:
    assert join("a\0b\x1b[1m\udc80\n\t") == "a\ufffdb\ufffd[1m\ufffd\n\t"


def test_empty_elements() -> None:
    assert element("rect", x=1) == '<rect x="1"/>'
    assert element("td") == "<td></td>"
