"""Hostile templates (rows T01-T05, T07, T09): each gives one clear error within its limits, on any thread."""

import random
import threading
import tracemalloc

import pytest

from satchel.errors import ModelError, RequestError, SatchelError
from satchel.formats.template import ChatTemplate, TemplateLimits
from satchel.formats.template.limits import LimitReached, TemplateMeter

USER = [{"role": "user", "content": "hi"}]

LOOP = "{% for i in range(100000) %}"
END = "{% endfor %}"


def grown(step: str, start: str, end: str) -> str:
    """A template that repeats `step` on ns.x sixty times."""
    begin = f"{{% set ns = namespace(x={start}) %}}{{% for i in range(60) %}}"
    return f"{begin}{{% set ns.x = {step} %}}{END}{{{{ {end} }}}}"


REACH = "is out of reach in a chat template"
CALL = "can't be called in a chat template"
MEMORY = "needed more than [0-9,]+ characters of memory"
STEPS = "took more than"
ROWS = [
    # T01 the object graph
    ("T01-subclasses", "{{ ''.__class__.__mro__[1].__subclasses__() }}", ModelError, REACH),
    ("T01-loop", "{% for c in [].__class__.__base__.__subclasses__() %}{% endfor %}", ModelError, REACH),
    ("T01-subscript", "{{ ''['__class__']['__mro__'] }}", RequestError, REACH),
    ("T01-built-name", "{{ messages['__cl' ~ 'ass__'] }}", RequestError, REACH),
    # T02 filters and formats as a way around
    ("T02-attr", "{{ ''|attr('__init__') }}", RequestError, REACH),
    ("T02-map", "{{ [1]|map(attribute='__class__')|list }}", RequestError, REACH),
    ("T02-map-attr", "{{ [1]|map('attr', '__class__')|list }}", RequestError, REACH),
    ("T02-groupby", "{{ [1]|groupby('__class__') }}", RequestError, REACH),
    ("T02-sum", "{{ [1]|sum(attribute='__class__') }}", RequestError, REACH),
    ("T02-format", "{{ '{0.__class__}'.format(messages) }}", RequestError, REACH),
    ("T02-format-item", "{{ '{0[__class__]}'.format(messages) }}", RequestError, REACH),
    ("T02-format-map", "{{ '{a.__class__}'.format_map({'a': 1}) }}", RequestError, REACH),
    ("T02-stored", "{% set f = '{0.__class__}'.format %}{{ f(1) }}", RequestError, REACH),
    ("T02-stored-map", "{% set f = '{a.__class__}'['format_map'] %}{{ f({'a': 1}) }}", RequestError, REACH),
    # T03 objects that Jinja exposes
    ("T03-cycler", "{{ cycler.__init__.__globals__ }}", ModelError, REACH),
    ("T03-cycler-item", "{{ cycler['__init__'] }}", RequestError, REACH),
    ("T03-lipsum", "{{ lipsum(n=1000000) }}", RequestError, "'lipsum' is undefined"),
    ("T03-joiner", "{{ joiner['__init__'] }}", RequestError, REACH),
    ("T03-namespace", "{{ namespace['__init__'] }}", RequestError, REACH),
    ("T03-self", "{{ self.__init__ }}", ModelError, REACH),
    ("T03-self-context", "{{ self._TemplateReference__context }}", RequestError, REACH),
    ("T03-macro", "{% macro m() %}{% endmacro %}{{ m._func }}", RequestError, REACH),
    ("T03-helper", "{{ raise_exception['__globals__'] }}", RequestError, REACH),
    ("T03-dict", "{{ dict['__call__'] }}", RequestError, REACH),
    ("T03-namespace-new", "{{ namespace(__class__=1) }}", RequestError, "a namespace can't hold '__class__'"),
    ("T03-namespace-set", "{% set n = namespace() %}{% set n.__x = 1 %}", RequestError, "can't hold '__x'"),
    ("T03-update", "{{ messages[0].update({}) }}", RequestError, "'update' of 'dict' object is unsafe"),
    ("T03-generator", "{{ ([1]|map('string')).send(1) }}", RequestError, "has no attribute 'send'"),
    ("T03-bytes", "{{ (5).to_bytes(1000000000, 'big') }}", RequestError, f"int.to_bytes {CALL}"),
    ("T03-encode", "{{ 'a'.encode() }}", RequestError, f"str.encode {CALL}"),
    ("T03-translate", "{{ 'a'.translate({97: 'b' * 1000}) }}", RequestError, f"str.translate {CALL}"),
    # T04 time and memory
    ("T04-range", "{% for i in range(1000000000) %}x{% endfor %}", RequestError, "Range too big"),
    ("T04-nested", LOOP * 2 + END * 2, RequestError, STEPS),
    (
        "T04-nested-empty",
        LOOP + "{% for j in range(99999) if false %}{% endfor %}" + END,
        RequestError,
        STEPS,
    ),
    (
        "T04-nested-test",
        LOOP + "{% for j in range(99999) if j > i ~ '' %}" + END * 2,
        RequestError,
        "not supported",
    ),
    ("T04-large-body", LOOP + "{% set a = messages[0].role %}" * 900 + END, RequestError, STEPS),
    (
        "T04-append-for-ever",
        "{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}",
        RequestError,
        STEPS,
    ),
    (
        "T04-power-calls",
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(38) }}",
        RequestError,
        STEPS,
    ),
    ("T04-text", "{{ 'a' * 10**9 }}", RequestError, MEMORY),
    ("T04-list", "{{ [1] * 10**9 }}", RequestError, MEMORY),
    ("T04-tuple", "{{ 10**9 * (1,) }}", RequestError, MEMORY),
    (
        "T04-text-again",
        "{% set x = 'a' * 100000 %}" + LOOP + "{% set y = x * 100 %}" + END,
        RequestError,
        MEMORY,
    ),
    ("T04-center", "{{ 'a'|center(10**9) }}", RequestError, MEMORY),
    ("T04-center-method", "{{ 'a'.center(1000000000) }}", RequestError, MEMORY),
    ("T04-ljust", "{{ 'a'.ljust(1000000000) }}", RequestError, MEMORY),
    ("T04-zfill", "{{ 'a'.zfill(1000000000) }}", RequestError, MEMORY),
    ("T04-tabs", "{{ '\\t'.expandtabs(1000000000) }}", RequestError, MEMORY),
    ("T04-printf", "{{ '%1000000000d' % 1 }}", RequestError, "formats a field wider than"),
    ("T04-printf-precision", "{{ '%.1000000000f' % 1.0 }}", RequestError, "formats a field wider than"),
    ("T04-printf-star", "{{ '%*d' % (1000000000, 1) }}", RequestError, "formats a field wider than"),
    ("T04-printf-filter", "{{ '%1000000000d'|format(1) }}", RequestError, "formats a field wider than"),
    ("T04-printf-names", "{{ ('%(a)s' * 10000) % {'a': 'b' * 10000} }}", RequestError, MEMORY),
    ("T04-format", "{{ '{:1000000000}'.format(1) }}", RequestError, "formats a field wider than"),
    ("T04-format-nested", "{{ '{:{}}'.format(1, 1000000000) }}", RequestError, "formats a field wider than"),
    ("T04-format-again", "{{ ('{0}' * 10000).format('x' * 100000) }}", RequestError, MEMORY),
    ("T04-indent", "{{ 'a\\nb'|indent(10**9) }}", RequestError, MEMORY),
    ("T04-indent-text", "{{ ('a\\n' * 10000)|indent('x' * 10000) }}", RequestError, MEMORY),
    ("T04-join", "{{ range(100000)|join('x' * 100000) }}", RequestError, MEMORY),
    ("T04-join-method", "{{ ('x' * 100000).join(['a'] * 100000) }}", RequestError, MEMORY),
    ("T04-replace", "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}", RequestError, MEMORY),
    ("T04-replace-method", "{{ ('a' * 100000).replace('', 'b' * 100000) }}", RequestError, MEMORY),
    ("T04-split", "{{ ('a ' * 4000000).split()|length }}", RequestError, MEMORY),
    ("T04-batch", "{{ [1]|batch(10**9, 'x')|list }}", RequestError, MEMORY),
    ("T04-slice", "{{ [1]|slice(10**9)|list }}", RequestError, MEMORY),
    ("T04-sum", "{{ ([[1] * 10000] * 10000)|sum(start=[])|length }}", RequestError, MEMORY),
    ("T04-sort", "{{ (['a' * 500000 ~ 'b', 'a' * 500000 ~ 'b'] * 50000)|sort|length }}", RequestError, STEPS),
    ("T04-unique", "{{ (['a' * 1000000 ~ 'b'] * 50000)|unique|length }}", RequestError, STEPS),
    ("T04-json", "{{ messages|tojson(indent=100000000) }}", RequestError, "indents or separates JSON"),
    (
        "T04-json-text",
        "{{ messages|tojson(separators=(',' * 1000, ':')) }}",
        RequestError,
        "indents or separates JSON",
    ),
    ("T04-power", "{{ 10 ** (10 ** 8) }}", RequestError, "integer of more than 4096 bits"),
    ("T04-square", grown("ns.x * ns.x", "3", "ns.x"), RequestError, "integer of more than 4096 bits"),
    ("T04-round", "{{ 1|round(10**9, 'floor') }}", RequestError, "integer of more than 4096 bits"),
    ("T04-digits", "{{ ('9' * 100000)|int }}", RequestError, "number of more than 4096 digits"),
    ("T04-double", grown("ns.x ~ ns.x", "'a'", "1"), RequestError, MEMORY),
    ("T04-double-add", grown("ns.x + ns.x", "'a'", "1"), RequestError, MEMORY),
    ("T04-double-list", grown("ns.x + ns.x", "[1]", "1"), RequestError, MEMORY),
    ("T04-double-set", "{% set x = 'a' %}" + "{% set x = x ~ x %}" * 60, RequestError, MEMORY),
    (
        "T04-double-block",
        "{% set x = 'a' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
        RequestError,
        MEMORY,
    ),
    (
        "T04-double-escape",
        grown("ns.x|forceescape|string ~ '&&&&'", "'<'", "ns.x * 99999"),
        RequestError,
        MEMORY,
    ),
    ("T04-shared-print", grown("[ns.x, ns.x]", "[1]", "ns.x"), RequestError, STEPS),
    ("T04-shared-json", grown("[ns.x, ns.x]", "[1]", "ns.x|tojson"), RequestError, STEPS),
    ("T04-shared-equal", grown("[ns.x, ns.x]", "[1]", "ns.x == ns.x[:]"), RequestError, STEPS),
    ("T04-shared-in", grown("[ns.x, ns.x]", "[1]", "ns.x is in [ns.x[:]]"), RequestError, STEPS),
    ("T04-shared-hash", grown("(ns.x, ns.x)", "(1,)", "{ns.x: 1}"), RequestError, STEPS),
    ("T04-shared-item", grown("(ns.x, ns.x)", "(1,)", "messages[0][ns.x]"), RequestError, STEPS),
    ("T04-shared-get", grown("(ns.x, ns.x)", "(1,)", "messages[0].get(ns.x)"), RequestError, STEPS),
    ("T04-shared-dict", grown("(ns.x, ns.x)", "(1,)", "dict([(ns.x, 1)])"), RequestError, STEPS),
    ("T04-shared-count", grown("[ns.x, ns.x]", "[1]", "[ns.x].count(ns.x[:])"), RequestError, STEPS),
    (
        "T04-shared-changed",
        "{% for i in 'ab' %}" + grown("[ns.x, ns.x]", "[1]", "loop.changed(ns.x)") + END,
        RequestError,
        STEPS,
    ),
    (
        "T04-spread",
        "{% macro m() %}{{ varargs|length }}{% endmacro %}" + LOOP + "{{ m(*range(100000)) }}" + END,
        RequestError,
        "took more|needed more",
    ),
    (
        "T04-find",
        "{% set a = 'a' * 4000000 %}{% set b = 'a' * 1000000 ~ 'b' %}" + LOOP + "{{ b in a }}" + END,
        RequestError,
        "took more|needed more|wrote more",
    ),
    (
        "T04-keep",
        "{% set ns = namespace(x=[]) %}" + LOOP + "{% set ns.x = ns.x + ['a' * 1000000 ~ i] %}" + END,
        RequestError,
        MEMORY,
    ),
    (
        "T04-macro-text",
        "{% macro m() %}" + LOOP + "y" * 10000 + END + "{% endmacro %}{{ m()|length }}",
        RequestError,
        MEMORY,
    ),
    ("T04-set-text", "{% set x %}" + LOOP + "y" * 10000 + END + "{% endset %}", RequestError, MEMORY),
    ("T04-date", "{{ strftime_now('%1000000000d') }}", RequestError, "short format"),
    ("T04-negative", "{{ 'a'|center(-10**12) }}{{ 'a' * 10**9 }}", RequestError, MEMORY),
    ("T04-widths", "{{ ('%9999d' * 9000) % (1,) }}", RequestError, MEMORY),
    ("T04-widths-star", "{{ ('%*d' * 9000) % (9999, 1) }}", RequestError, MEMORY),
    ("T04-widths-format", "{{ ('{0:9999}' * 9000).format(1) }}", RequestError, MEMORY),
    ("T04-printf-key", "{{ '%((a))1000000000d' % {'(a)': 1} }}", RequestError, "formats a field wider than"),
    ("T04-printf-scan", "{{ ('%(' * 1000000) % {} }}", RequestError, "took more|incomplete format key"),
    ("T04-format-scan", "{{ ('{0' ~ '.a' * 100000 ~ '}').format(1) }}", RequestError, "a field name of"),
    ("T04-search-back", "{{ ('a' * 2000000).rfind('b' ~ 'a' * 1000000) }}", RequestError, STEPS),
    (
        "T04-split-back",
        "{{ ('a' * 900000).rsplit('b' ~ 'a' * 400000) }}",
        RequestError,
        "took more|needed more",
    ),
    ("T04-strip", "{{ ('a' * 2000000).strip('b' * 1000000 ~ 'a') }}", RequestError, STEPS),
    ("T04-trim", "{{ ('a' * 1000000)|trim('b' * 1000000 ~ 'a') }}", RequestError, STEPS),
    ("T04-json-deep", grown("[ns.x]", "[1] * 20000", "ns.x|tojson(indent=60)"), RequestError, MEMORY),
    # T05 recursion
    (
        "T05-macro",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        RequestError,
        "nested more than 40 calls",
    ),
    (
        "T05-caller",
        "{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall %}"
        "{% endmacro %}{{ n() }}",
        RequestError,
        "nested more than 40 calls",
    ),
    (
        "T05-loop",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        RequestError,
        "nested more than 40 calls",
    ),
    ("T05-include", "{% include 'x' %}", ModelError, "'include' has no place in a chat template"),
    ("T05-import", "{% import 'x' as y %}", ModelError, "'import' has no place"),
    ("T05-from", "{% from 'x' import y %}", ModelError, "'fromimport' has no place"),
    ("T05-extends", "{% extends 'x' %}", ModelError, "'extends' has no place"),
    ("T05-block", "{% block a %}{{ self.a() }}{% endblock %}", ModelError, "'block' has no place"),
    (
        "T05-parentheses",
        "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
        ModelError,
        "more than 48 brackets",
    ),
    ("T05-lists", "{{ " + "[" * 100_000 + "]" * 100_000 + " }}", ModelError, "more than 48 brackets"),
    ("T05-blocks", "{% if 1 %}" * 100_000 + "{% endif %}" * 100_000, ModelError, "characters, at most"),
    ("T05-ifs", "{% if 1 %}" * 2000 + "{% endif %}" * 2000, ModelError, "nest too deeply"),
    ("T05-ifs-100", "{% if 1 %}" * 100 + "{% endif %}" * 100, ModelError, "nest"),
    ("T05-fors", "{% for i in [1] %}" * 30 + END * 30, ModelError, "nest too deeply"),
    ("T05-not", "{{ " + "not " * 9000 + "1 }}", ModelError, "nest too deeply"),
    ("T05-minus", "{{ " + "-" * 9000 + "1 }}", ModelError, "nest too deeply"),
    ("T05-plus", "{{ 1" + "+1" * 4000 + " }}", ModelError, "nest deeper than"),
    ("T05-dots", "{{ a" + ".b" * 4000 + " }}", ModelError, "nest deeper than"),
    ("T05-filters", "{{ 1" + "|abs" * 4000 + " }}", ModelError, "nest deeper than"),
    ("T05-ternary", "{{ " + "1 if a else " * 2500 + "2 }}", ModelError, "nest"),
    ("T05-tokens", "{{ 1 }}" * 6000, ModelError, "more than 10,000 tokens"),
    (
        "T05-nested-value",
        "{% set ns = namespace(x=[1]) %}{% for i in range(9000) %}{% set ns.x = [ns.x] %}{% endfor %}"
        "{{ ns.x }}",
        RequestError,
        "nested lists deeper than",
    ),
    (
        "T05-own-list",
        "{% set l = [] %}{% set _ = l.append(l) %}{{ l|tojson }}",
        RequestError,
        "nested lists deeper",
    ),
    # T07 a template's own errors, with their line
    ("T07-undefined-call", "\n\n{{ foo() }}", RequestError, "line 3: 'foo' is undefined"),
    ("T07-undefined-attribute", "\n{{ foo.bar }}", RequestError, "line 2: 'foo' is undefined"),
    (
        "T07-raise",
        "\n{{ raise_exception('no\\nway') }}",
        RequestError,
        "line 2: the template refuses .*: no$",
    ),
    (
        "T07-date-type",
        "{{ strftime_now(5) }}",
        RequestError,
        "line 1: strftime_now wants a format string, got int",
    ),
    (
        "T07-zero",
        "{% if messages %}\n{{ 1 // 0 }}{% endif %}",
        RequestError,
        r"line 2: .* \(ZeroDivisionError\)",
    ),
    (
        "T07-in-macro",
        "{% macro m() %}\n\n{{ 1 + 'a' }}\n{% endmacro %}\n{{ m() }}",
        RequestError,
        "line 3: .*TypeError",
    ),
    ("T07-json-object", "{{ namespace(a=1)|tojson }}", RequestError, "not JSON serializable"),
    ("T07-syntax", "a\nb{% if %}", ModelError, "line 2: "),
    ("T07-filter", "\n{{ 1|nofilter }}", ModelError, "line 2: No filter named 'nofilter'"),
    ("T07-unclosed", "{% for m in messages %}", ModelError, "line 1: "),
    ("T07-number", "{{ " + "9" * 200_000 + " }}", ModelError, "can't be read"),
    # T09 output
    (
        "T09-loop",
        LOOP + "x" * 100 + END,
        RequestError,
        "wrote more than 100 characters for each it was given",
    ),
    (
        "T09-value",
        "{{ messages[0].content * 5000 }}",
        RequestError,
        "wrote more than 100 characters for each",
    ),
]


def failure(source: str) -> Exception | None:
    try:
        ChatTemplate(source).render(USER)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize(("source", "kind", "text"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_hostile_template_is_one_error(source: str, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        ChatTemplate(source).render(USER)
    assert str(caught.value).startswith("tokenizer.chat_template")
    assert "\n" not in str(caught.value)
    assert caught.value.__context__ is None, "the failed frames would keep what they hold alive"


def test_limits_hold_on_other_threads() -> None:
    chosen = [row for row in ROWS if row[0].startswith(("T04-nested", "T04-double", "T05"))]
    errors: dict[str, Exception | None] = {}

    def work(name: str, source: str) -> None:
        errors[name] = failure(source)

    threads = [threading.Thread(target=work, args=row[:2]) for row in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: type(error) for name, error in errors.items()} == {row[0]: row[2] for row in chosen}


LARGE = ("T04-text", "T04-double", "T04-double-list", "T04-macro-text", "T04-keep", "T09-loop")


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if row[0] in LARGE],
    ids=lambda row: row[0],
)  # fmt: skip
def test_memory_stays_small(row: tuple[str, str, type[Exception], str]) -> None:
    ChatTemplate("warm").render(USER)
    tracemalloc.start()
    try:
        assert isinstance(failure(row[1]), row[2])
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()


def test_the_clock_stops_what_steps_do_not() -> None:
    ticks = iter(range(1_000_000))
    meter = TemplateMeter(TemplateLimits(steps=10**12, seconds=50), 0, 0, clock=lambda: float(next(ticks)))
    with pytest.raises(LimitReached, match="took more than 50 s"):
        for _ in range(1_000_000):
            meter.tick()
    assert meter.steps < 256 * 60


def test_budget_grows_with_the_conversation() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% for n in messages[:40] %}{{ m.content[:1] }}{% endfor %}{% endfor %}"
    )
    messages = [{"role": "user", "content": "x" * 1000}] * 3000
    assert len(template.render(messages)) == 3000 * 40
    small = ChatTemplate(template.source, limits=TemplateLimits(steps_per_node=0, steps=1000))
    with pytest.raises(RequestError, match="took more than 1,000 steps"):
        small.render(messages)


def test_a_long_text_passes() -> None:
    text = "long text, " * 200_000
    template = ChatTemplate(
        "{% for m in messages %}{{ '<' + m.role + '>' + m.content | trim + '</s>' }}{% endfor %}"
    )
    assert template.render([{"role": "user", "content": text}]) == f"<user>{text.strip()}</s>"


# fmt: off
PIECES = [
    "{{", "}}", "{%", "%}", " for m in messages ", " endfor ", " if m ", " endif ", " set x = ",
    "namespace(a=1)", ".a", "messages", "[0]", "['content']", "|", "tojson", "length", "join", "~", "+",
    "*", "**", "%", "'a'", "'%s'", "10", "99999", "(", ")", "[", "]", "{", "}", ":", ",", " in ", " is ",
    "defined", " not ", "range", ".split", ".format", "macro m(x)", " endmacro ", "m(1)", "loop",
    "caller()", " call ", " endcall ", "recursive", "-", "{#", "#}", "\n", "é", "\x00", "\ud800",
    "__class__", ".items()", "|map", "attribute=", "true", "none", "continue", "generation", "raw",
]
# fmt: on
FRAMES = ["{{ %s }}", "{%% set x = %s %%}", "{%% for m in messages %%}{{ %s }}{%% endfor %%}", "%s"]


def test_random_templates_only_fail_as_they_should() -> None:
    rng = random.Random(7)
    outcomes = set()
    for _ in range(1500):
        body = "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 25)))
        source = rng.choice(FRAMES) % body
        try:
            ChatTemplate(source).render(USER)
            outcomes.add("text")
        except SatchelError as error:
            outcomes.add(type(error).__name__)
    assert outcomes == {"text", "ModelError", "RequestError"}
