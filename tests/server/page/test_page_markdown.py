"""Markdown on the page: the supported syntax, and that a model's text never becomes anything but text."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytestmark = pytest.mark.model
SHOWN = """async (texts) => {
  const { renderMarkdown } = await import("/page/js/markdown/render.js");
  return texts.map((text) => {
    const box = document.createElement("div");
    renderMarkdown(box, text);
    const nodes = [...box.querySelectorAll("*")];
    for (const bar of box.querySelectorAll(".code-bar")) bar.remove();
    return {
      html: box.innerHTML.replaceAll(/ (?:title|target|rel|class|tabindex|role|aria-label)="[^"]*"/g, ""),
      text: box.textContent,
      tags: [...new Set(nodes.map((n) => n.localName))],
      names: [...new Set(nodes.flatMap((n) => n.getAttributeNames()))],
      links: nodes.filter((n) => n.localName === "a").map((n) => [n.protocol, n.rel, n.target]),
    };
  });
}"""
TAGS = {
    "p",
    "h3",
    "h4",
    "h5",
    "h6",
    "ul",
    "ol",
    "li",
    "blockquote",
    "hr",
    "pre",
    "code",
    "span",
    "em",
    "strong",
}
TAGS |= {"del", "a", "br", "table", "thead", "tbody", "tr", "th", "td", "div"}
TAGS |= {"button", "svg", "path"}  # the copy button of code
TAGS |= {"sup", "section"}  # footnotes
NAMES = {"class", "href", "title", "target", "rel", "start", "tabindex", "role", "type", "d", "viewBox"}
NAMES |= {"aria-label", "aria-hidden", "data-note", "data-number"}

KNOWN = [
    ("plain", "<p>plain</p>"),
    (
        "*a* **b** ***c*** ~~d~~ `e`",
        "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <del>d</del> <code>e</code></p>",
    ),
    ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
    ("snake_case_name, 2 * 3 * 4", "<p>snake_case_name, 2 * 3 * 4</p>"),
    ("\\*a\\* \\`b", "<p>*a* `b</p>"),
    ("**open and `open", "<p>**open and `open</p>"),
    ("`` a`b ``", "<p><code>a`b</code></p>"),
    ("one\ntwo", "<p>one<br>two</p>"),
    ("# A\n## B ##\n####### C", "<h3>A</h3><h4>B</h4><p>####### C</p>"),
    ("- a\n- b\n  - c\n\nd", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><p>d</p>"),
    ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    ("- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
    ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
    ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
    ("```\na < b\n```", "<div><pre><code>a &lt; b</code></pre></div>"),
    ("~~~\n```\nx", "<div><pre><code>```\nx</code></pre></div>"),
    ("1. a\n   ```\n   x\n   ```", "<ol><li>a<div><pre><code>x</code></pre></div></li></ol>"),
    ("```py\nif x: # c\n```", "<div><pre><code><span>if</span> x: <span># c</span></code></pre></div>"),
    (
        "|a|b|\n|-|-:|\n|1|`\\|`|\n|2",
        "<div><table><thead><tr><th>a</th><th>b</th></tr></thead>"
        "<tbody><tr><td>1</td><td><code>|</code></td></tr><tr><td>2</td><td></td></tr></tbody></table></div>",
    ),
    ('[a](https://b.c "t")', '<p><a href="https://b.c/">a</a></p>'),
    ("at https://b.c/d(e).", '<p>at <a href="https://b.c/d(e)">https://b.c/d(e)</a>.</p>'),
    ("<mailto:f@g.h>", '<p><a href="mailto:f@g.h">mailto:f@g.h</a></p>'),
    ("- [x] a\n- [ ] b\n- [y]", "<ul><li><span></span>a</li><li><span></span>b</li><li>[y]</li></ul>"),
    (
        "a[^1] b[^2] c[^x]\n\n[^2]: *two*\n[^1]: one\n  more\n\nd",
        '<p>a<sup data-note="1"><button type="button">1</button></sup> '
        'b<sup data-note="2"><button type="button">2</button></sup> c[^x]</p><p>d</p>'
        '<section><ol><li data-number="1">one<br>more<button type="button">↩</button></li>'
        '<li data-number="2"><em>two</em><button type="button">↩</button></li></ol></section>',
    ),
    ("$x$ is $5 or $6", "<p><span><code>x</code></span> is $5 or $6</p>"),
    ("S$x$ or 5$ or 6$", "<p>S$x$ or 5$ or 6$</p>"),
    ("\\(a\\) and \\[b\\], \\(c", "<p><span><code>a</code></span> and <span><code>b</code></span>, (c</p>"),
    (
        "so:\n$$\na\n$$\nor $$b$$ c",
        "<p>so:</p><p><span><code>a</code></span></p><p>or <span><code>b</code></span> c</p>",
    ),
    ("\\begin{align}\na\n\\end{align}", "<p><span><code>\\begin{align}a\\end{align}</code></span></p>"),
    ("`$x$` $`", "<p><code>$x$</code> $`</p>"),
    ("![a picture](https://b.c/d.png)", '<p><a href="https://b.c/d.png">a picture</a></p>'),
]
HOSTILE = [
    "<script>pwned()</script>",
    "<img src=x onerror=pwned()>",
    "<svg onload=pwned()>",
    '<iframe srcdoc="<script>parent.pwned()</script>">',
    "[a](javascript:pwned())",
    "[a](JaVaScRiPt:pwned())",
    "[a](java\tscript:pwned())",
    "[a](<java\nscript:pwned()>)",
    "[a](&#106;avascript:pwned())",
    "[a](\x01javascript:pwned())",
    "[a](data:text/html,<script>pwned()</script>)",
    "[a](vbscript:pwned())",
    "[a](blob:https://a.b/c)",
    "[a](file:///etc/passwd)",
    "[a](//evil.example/)",
    "[a](https://good.example@evil.example/)",
    '[a](https://x.y/" onclick="pwned())',
    '[a](https://x.y/ "" onclick=pwned()")',
    '<https://x.y/"onclick=pwned()>',
    "<javascript:pwned()>",
    "![x](javascript:pwned())",
    "![x](https://evil.example/pixel.png)",
    '```"><script>pwned()</script>\nx\n```',
    "```html\n<script>pwned()</script>\n```",
    "| <script>pwned()</script> | b |\n|---|---|\n| <img src=x onerror=pwned()> | c |",
    "# <style>*{display:none}</style>",
    "> <form action=https://evil.example><input name=a></form>",
    "- <meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<base href=https://evil.example/>",
    "<a href=javascript:pwned()>a</a>",
    "<math><mtext><table><mglyph><style><img src=x onerror=pwned()>",
    "{{constructor.constructor('pwned()')()}} ${pwned()}",
    "[a][b]\n\n[b]: javascript:pwned()",
    "$\\href{javascript:pwned()}{x}$ $\\style{position:fixed}{y}$ $\\class{a}{z}$",
    "$\\text{<img src=x onerror=pwned()>}$",
    "$$\\def\\a{\\a\\a}\\a$$",
    "- [x] <script>pwned()</script>",
    "[^<script>]\n\n[^<script>]: <img src=x onerror=pwned()> [a](javascript:pwned())",
    "\u202e[a](https://x.y) \u0000 \ud83d",
]
PIECES = ["*", "**", "_", "~~", "`", "```", "\n", "\n\n", "> ", "- ", "1. ", "# ", "|", "|-|", "[", "](", ")"]
PIECES += [
    "![",
    "<",
    ">",
    "https://a.b",
    "javascript:",
    "mailto:x@y.z",
    "\\",
    "a",
    " ",
    "    ",
    "<br>",
    "&lt;",
]
PIECES += ["$", "$$", "\\(", "\\)", "\\[", "[^a]", "[^a]: ", "[ ] "]
PIECES += ["\t", "é", "\U0001f600"]
# Each takes quadratic time in a backtracking parser.
LONG = [
    "[",
    "![",
    "*a ",
    "**",
    "`",
    "`` ` ",
    "> ",
    "- ",
    "# ",
    "|",
    "(",
    "](",
    "<",
    "http://",
    "~~",
    "_a",
    "\\",
]
LONG += ["  ", "1. ", "$", "$a ", "$$", "$$\n", "\\(", "\\[", "[^a]", "[^a]: ", "[^a]: \n", "- [ ] "]
LONG += ["\\begin{align}\n"]


def shown(tab: Any, texts: list[str]) -> list[dict]:
    return tab.evaluate(SHOWN, texts)


def check(found: dict) -> None:
    assert set(found["tags"]) <= TAGS
    assert set(found["names"]) <= NAMES
    for protocol, rel, target in found["links"]:
        assert protocol in ("http:", "https:", "mailto:")
        assert "noopener" in rel and target == "_blank"


def test_what_is_known(page: Any) -> None:
    found = shown(page, [text for text, _ in KNOWN])
    assert [f["html"] for f in found] == [html for _, html in KNOWN]


def test_hostile_text_stays_text(page: Any) -> None:
    page.add_init_script("window.pwned = () => { window.ran = true }")
    page.reload()
    for text, found in zip(HOSTILE, shown(page, HOSTILE), strict=True):
        check(found)
        assert "script:" not in text or found["links"] == []
    assert page.evaluate("window.ran") is None


def test_hostile_text_of_an_answer_runs_nothing(page: Any, ask: Any, expect: Any, canned: Any) -> None:
    page.add_init_script("window.pwned = () => { window.ran = true }")
    page.reload()
    text = "\n\n".join(HOSTILE)
    call = {"index": 0, "id": "a", "function": {"name": HOSTILE[1], "arguments": HOSTILE[0]}}
    canned(page, {"reasoning_content": text}, {"content": text}, {"tool_calls": [call]})
    ask(page, HOSTILE[1])
    page.reload()
    expect(page.locator(".message.assistant .message-body")).to_contain_text("<script>pwned()</script>")
    expect(page.locator(".conversation-link")).to_have_text(HOSTILE[1])
    assert page.title() == f"{HOSTILE[1]} · Satchel"
    assert page.locator("#thread :is(script, img, iframe, form, style, base, meta)").count() == 0
    assert page.locator("#thread math :is([href], [style], [class], [id])").count() == 0
    assert page.evaluate("window.ran") is None


def test_any_text_becomes_known_elements(page: Any) -> None:
    draw = random.Random(7)
    texts = ["".join(draw.choices(PIECES, k=draw.randint(1, 60))) for _ in range(1500)]
    for found in shown(page, texts):
        check(found)


def test_formulas_are_shown_as_mathml(page: Any, ask: Any, expect: Any, canned: Any) -> None:
    canned(page, {"content": "So $\\frac{a}{b}$.\n\n$$\n\\sum_{i=1}^n i\n$$\n\n$\\href{javascript:x()}{y}$"})
    ask(page, "Sums")
    expect(page.locator(".formula:not(.display) mfrac mi")).to_have_text(["a", "b"])
    expect(page.locator(".formula.display munderover mo").first).to_have_text("∑")
    expect(page.locator(".formula.plain")).to_have_count(0)
    names = "[...document.querySelectorAll('math, math *')].flatMap((e) => e.getAttributeNames())"
    assert set(page.evaluate(names)) == {"display"}


def test_a_formula_that_is_none_stays_as_it_was_written(
    page: Any, ask: Any, expect: Any, canned: Any
) -> None:
    answer = page.expect_response("**/page/formulas")
    canned(page, {"content": "$\\frac{a}$ and $\\def\\a{a}\\a$"})
    with answer as got:
        ask(page, "Sums")
    assert got.value.json() == {"trees": [None, None]}
    expect(page.locator(".formula.plain code")).to_have_text(["\\frac{a}", "\\def\\a{a}\\a"])


def test_a_footnote_and_its_text_lead_to_each_other(page: Any, ask: Any, expect: Any, canned: Any) -> None:
    canned(page, {"content": "So[^a]. And[^b].\n\n[^b]: Two\n[^a]: One"})
    ask(page, "Notes")
    page.get_by_role("button", name="Footnote 1", exact=True).click()
    expect(page.locator(".footnote").first).to_be_focused()
    expect(page.locator(".footnote").first).to_contain_text("One")
    page.get_by_role("button", name="Back to footnote 2 in the text").click()
    expect(page.get_by_role("button", name="Footnote 2", exact=True)).to_be_focused()


# A line of code in each language, with a part of it and that part's kind.
CODE = [
    ("python", "@cached", "tag", "@cached"), ("js", "const a = f(`x`)", "string", "`x`"),
    ("ts", "interface A {}", "word", "interface"), ("c", "#include <a.h>", "tag", "#include"),
    ("cpp", "template <class T>", "word", "template"), ("c#", 'var a = @"b";', "string", '@"b"'),
    ("java", "@Override", "tag", "@Override"), ("go", "func f() {}", "word", "func"),
    ("rust", "println!(1)", "tag", "println!"), ("swift", "guard let a", "word", "guard"),
    ("kotlin", "fun f()", "word", "fun"), ("php", "echo $a;", "tag", "$a"), ("ruby", "x = :a", "tag", ":a"),
    ("bash", "ls -l $A # b", "tag", "-l"), ("powershell", "Get-Item $a", "tag", "Get-Item"),
    ("sql", "SELECT a -- b", "comment", "-- b"), ("html", "<a href='b'>", "tag", "href"),
    ("css", ".a { color: red }", "tag", "color"), ("json", '{"a": true}', "word", "true"),
    ("yaml", "a: 1", "tag", "a"), ("toml", "[a]", "tag", "[a]"), ("lua", "-- a", "comment", "-- a"),
    ("r", "x <- TRUE", "word", "TRUE"), ("perl", "my @a;", "tag", "@a"), ("scala", "val a", "word", "val"),
    ("haskell", "f :: a -- b", "comment", "-- b"), ("dart", "late int a", "word", "late"),
    ("julia", "@time f(x)", "tag", "@time"), ("dockerfile", "RUN ls", "word", "RUN"),
    ("make", "all: $(A)", "tag", "$(A)"), ("diff", "+ added", "string", "+ added"),
    ("latex", "\\frac % a", "comment", "% a"), ("matlab", "x = 1; % a", "comment", "% a"),
]  # fmt: skip
KINDS = """async (cases) => {
  const { highlighted } = await import("/page/js/markdown/highlight.js");
  return cases.map(([language, code]) => highlighted(code, language)
    .filter((n) => n.nodeType).map((n) => [n.className.replace("code-", ""), n.textContent]));
}"""


def test_code_of_the_common_languages_has_colours(page: Any) -> None:
    found = page.evaluate(KINDS, [case[:2] for case in CODE])
    for (language, _, kind, part), parts in zip(CODE, found, strict=True):
        assert [kind, part] in parts, (language, parts)


def test_highlighting_changes_no_code_and_takes_a_short_time(page: Any) -> None:
    """It responds at all: an expression that goes back would take minutes."""
    units = [
        '"',
        "'",
        "`",
        "/*",
        "//",
        "#",
        "<",
        "<a ",
        "$",
        "${",
        "@",
        "-",
        "--",
        "[",
        "\\",
        "a",
        "A-",
        ".a",
    ]
    units += ["a ", "1", "=", ":", "\n", "<!--", "{-", '"""', "[[", "a(", "\t", "_", "a:", "!", "1.", "0x"]
    same = """async ([languages, units]) => {
      const { highlighted } = await import("/page/js/markdown/highlight.js");
      const whole = (parts) => parts.map((p) => p.textContent ?? p).join("");
      return languages.flatMap((language) => units.map((unit) => unit.repeat(49000 / unit.length))
        .filter((code) => whole(highlighted(code, language)) !== code));
    }"""
    assert page.evaluate(same, [[case[0] for case in CODE], units]) == []


def test_long_runs_are_read_in_a_short_time(page: Any) -> None:
    """The page responds at all: a quadratic parser would take minutes."""
    texts = [unit * (40_000 // len(unit)) for unit in LONG]
    texts += [f"[{unit * (40_000 // len(unit))}x" for unit in LONG]
    texts += ["#" + " " * 100_000 + "x", "x" + " " * 100_000 + "y\nz", "a|b\n-" + " " * 100_000 + "x"]
    texts += ["```c\n" + '"\\' * 20_000, "```py\n" + "'" * 40_000, "```js\n" + "/*" * 20_000]
    for text, found in zip(texts, shown(page, texts), strict=True):
        check(found)
        assert found["html"] or not text.strip()


def test_a_text_that_grows_is_shown_as_if_it_came_whole(page: Any) -> None:
    same = """async (text) => {
      const { renderMarkdown } = await import("/page/js/markdown/render.js");
      const [grown, whole] = [0, 0].map(() => document.createElement("div"));
      for (let i = 0; i <= text.length; i += 1) renderMarkdown(grown, text.slice(0, i));
      renderMarkdown(whole, text);
      return grown.innerHTML === whole.innerHTML;
    }"""
    for text in ("\n\n".join(text for text, _ in KNOWN), "\n\n".join(HOSTILE[:-1])):
        assert page.evaluate(same, text)


def test_blocks_that_stay_keep_their_nodes(page: Any) -> None:
    kept = """async () => {
      const { renderMarkdown } = await import("/page/js/markdown/render.js");
      const box = document.createElement("div");
      renderMarkdown(box, "one\\n\\ntwo");
      const [first] = box.childNodes;
      renderMarkdown(box, "one\\n\\ntwo and more\\n\\n- three");
      return first === box.childNodes[0] && box.childNodes.length === 3;
    }"""
    assert page.evaluate(kept)


def test_code_is_copied(page: Any, ask: Any, expect: Any, canned: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    canned(page, {"content": "```python\nprint('<b>')\n```"})
    ask(page, "Some code")
    expect(page.locator(".code-bar span")).to_have_text("python")
    page.get_by_role("button", name="Copy code").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "print('<b>')"
