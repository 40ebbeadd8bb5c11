#!/usr/bin/env python3
"""Writes tests/data/text/jinja.json: small templates and what Jinja 2 makes of them in the
environment that transformers uses for chat templates.

    pip install jinja2==3.1.6
    python reference/text/jinja_cases.py > tests/data/text/jinja.json
"""
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception

VARIABLES = {
    "s": "Hello wörld", "e": "", "n": 7, "neg": -7, "f": 2.5, "none": None, "t": True,
    "list": [3, 1, 2], "empty": [], "words": ["a", "b", "c"],
    "d": {"b": 1, "a": {"x": [1, 2.0, "\u2028<&>'"]}, "items": "hidden", "count": 5},
    "people": [{"name": "Ann", "age": 3}, {"name": "Bob"}, {"name": "Cy", "age": 5}],
    "pad": "  x y \n", "html": "<b>&'\"</b>", "floats": [1e-07, 1e16, 1e20, 0.1, -0.0, 123456.789, 1e-4, 1.5e300],
}
TEMPLATES = [
    # white space
    "a\n  {% if t %}\n  b\n  {% endif %}\nc\n", "a  {%- if t -%}  b  {%- endif -%}  c", "  {{ n }}\n  {{ n }}\n\n",
    "x {% if t %} y {% endif %} z\n\n", "{# c #}\nx\n  {# c #}\n y", "a\n  {%+ if t %}b{% endif +%}\nc", "a\r\n{% if t %}\r\nb{% endif %}",
    "{%- for x in words %}\n  {{- x }}\n{%- endfor %}", "{% set x = 1 %}\n\n{{ x }}", "  {#- c -#}  x", "a {{- n -}} b", "\n\n{% if t %}\n\n{% endif %}\n\n",
    "x{% if t %}\n   {% if t %}\ny{% endif %}{% endif %}",
    # expressions
    "{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }}", "{{ neg // 2 }} {{ neg % 4 }} {{ -n }} {{ +n }}",
    "{{ 'a' ~ 1 ~ none ~ t ~ 2.0 }}", "{{ 'a' + 'b' 'c' }}", "{{ 1 < 2 and 2 <= 2 and not 3 > 4 or false }}", "{{ 1 == 1.0 }} {{ '1' == 1 }} {{ true == 1 }}",
    "{{ n if t else 'x' }} {{ n if not t }}|", "{{ 'x' if e else 'y' if none else 'z' }}", "{{ e or 'default' }} {{ s and n }}",
    "{{ 'ell' in s }} {{ 'z' not in s }} {{ 3 in list }} {{ 'b' in d }} {{ 4 not in list }} {{ 'x' in missing }}",
    "{{ list[0] }} {{ list[-1] }} {{ list[5] }}| {{ s[6] }} {{ s[-1] }} {{ d['b'] }} {{ d['zz'] }}|", "{{ list[1:] | tojson }} {{ list[::-1] | tojson }} {{ list[:-1] | tojson }} {{ s[6:8] }} {{ s[::-1] }} {{ list[5:] | tojson }} {{ list[-2:5:2] | tojson }}",
    "{{ words[:100] | tojson }}{{ words[2:0:-1] | tojson }}{{ words[-100:2] | tojson }}",
    "{{ [1, 'a', none, true, [2.0], {'k': 1}] | tojson }} {{ (1, 2) | tojson }} {{ {} | tojson }} {{ [] | tojson }}",
    "{{ missing }}|{{ none }}|{{ t }}|{{ f }}|{{ n }}", "{{ 1.0 }} {{ 1e0 if false else 2.50 }} {{ 100000000000000000 * 1.0 }}",
    "{{ 'tab\\tnl\\nq\\'q\\\"b\\\\u\\u00e9' }}", "{{ not none }} {{ not e }} {{ not 0 }} {{ not list }}", "{{ -1 | abs }} {{ (n - 9) | abs }}", "{{ 2 * f }} {{ f - 1 }} {{ n * 1.0 }} {{ 1 - 0.9 }}",
    # attributes and methods
    "{{ d.b }} {{ d.a.x[2] }} {{ d.count }} {{ d.zz }}|", "{% for k, v in d.items() %}{{ k }}={{ v is mapping }};{% endfor %}", "{{ d.keys() | list | tojson }} {{ d.get('b') }} {{ d.get('q', 9) }} {{ d.get('q') }}",
    "{{ s.upper() if false else 'abc dEf'.upper() }} {{ 'aBC dEF'.lower() }} {{ 'abc dEf-gh'.title() }} {{ 'abC'.capitalize() }}", "{{ pad.strip() }}|{{ pad.lstrip() }}|{{ pad.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcba'.lstrip('ab') }}|{{ '\\u00e9a\\u00e9'.strip('\\u00e9') }}",
    "{{ 'a,b,,c'.split(',') | tojson }} {{ ' a  b '.split() | tojson }} {{ 'a,b,c'.split(',', 1) | tojson }} {{ 'a,b,c'.rsplit(',', 1) | tojson }} {{ ''.split(',') | tojson }} {{ ' a b  c '.split(none, 1) | tojson }}",
    "{{ s.startswith('Hell') }} {{ s.endswith(('x', 'd')) }} {{ 'aXbX'.replace('X', '-') }} {{ 'aXbX'.replace('X', '', 1) }} {{ s.find('w') }} {{ s.find('ld') }} {{ s.find('q') }}",
    "{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ 'x'.removesuffix('.py') }}",
    # filters
    "{{ d | tojson }}", "{{ d | tojson(indent=2) }}", "{{ d | tojson(indent=4) }} {{ [] | tojson(indent=2) }}", "{{ floats | tojson }}", "{{ html | tojson }} {{ '\\x01\\x7f\\u2028' | tojson }}", "{{ floats[0] }} {{ floats[1] }} {{ floats[3] }}",
    "{{ s | length }} {{ list | length }} {{ d | length }} {{ list | count }} {{ missing | length }}", "{{ missing | default('x') }} {{ e | default('x') }}| {{ e | default('x', true) }} {{ none | default('y') }} {{ e | d('z', boolean=true) }}",
    "{{ pad | trim }}|{{ 'xax' | trim('x') }}", "{{ words | join(', ') }} {{ list | join }} {{ people | join('+', attribute='name') }}", "{{ list | first }} {{ list | last }} {{ empty | first }}| {{ s | last }}", "{{ list | reverse | list | tojson }} {{ 'abc' | reverse }} {{ 'ab' | list | tojson }}",
    "{{ people | map(attribute='name') | join(',') }} {{ words | map('upper') | join }} {{ people | map(attribute='age', default=0) | list | tojson }}", "{{ people | selectattr('age') | list | length }} {{ people | selectattr('age', 'defined') | list | tojson }} {{ people | rejectattr('name', 'equalto', 'Bob') | map(attribute='name') | join }}",
    "{{ list | select('odd') | list | tojson }} {{ list | reject('equalto', 1) | list | tojson }} {{ [0, 1, ''] | select | list | tojson }}", "{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ 3.9 | int }} {{ n | string }} {{ ' 7 ' | int }}", "{{ s | replace('l', 'L') }} {{ 'abc' | upper }} {{ d | items | list | length }} {{ 'a' | safe }}",
    "{{ 'x' | upper | lower }} {{ 'a b' | title }} {{ ('a' ~ 'b') | upper }} {{ 'a' ~ 'b' | upper }}",
    # tests
    "{{ missing is defined }} {{ n is defined }} {{ d.zz is undefined }} {{ none is none }} {{ n is not none }} {{ not n is defined }}", "{{ s is string }} {{ n is number }} {{ t is number }} {{ n is integer }} {{ t is integer }} {{ f is float }} {{ t is boolean }} {{ t is true }} {{ n is true }} {{ t is false }}",
    "{{ d is mapping }} {{ list is iterable }} {{ s is iterable }} {{ n is iterable }} {{ list is sequence }} {{ d is sequence }} {{ s is sequence }} {{ range is callable }}", "{{ n is odd }} {{ n is even }} {{ n is divisibleby 7 }} {{ 3 is in list }} {{ n is eq 7 }} {{ n is equalto(8) }} {{ n is ge 7 }} {{ 1 is lt 2 }} {{ 'a' is in 'abc' }}",
    "{{ n is defined and n is not none and n > 3 }}",
    # statements
    "{% if n > 10 %}a{% elif n > 5 %}b{% else %}c{% endif %}", "{% for x in list %}{{ loop.index }}/{{ loop.length }}:{{ x }}{% if not loop.last %}, {% endif %}{% else %}none{% endfor %}", "{% for x in empty %}x{% else %}none{% endfor %}", "{% for x in missing %}x{% else %}none{% endfor %}",
    "{% for x in list if x > 1 %}{{ loop.index0 }}{{ loop.first }}{{ loop.revindex }}{{ loop.revindex0 }} {% endfor %}", "{% for x in words %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem is defined }}{% endfor %}", "{% for k in d %}{{ k }},{% endfor %}{% for c in 'wö' %}{{ c }}.{% endfor %}",
    "{% set x = 1 %}{% for i in list %}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(a=0, b='q') %}{% for i in list %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.zz is defined }}", "{% if t %}{% set y = 5 %}{% endif %}{{ y }}",
    "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% for i in range(2, 10, 3) %}{{ i }} {% endfor %}{% for i in range(3, 0, -1) %}{{ i }}{% endfor %}", "{% for a, b in [[1, 2], [3, 4]] %}{{ a }}-{{ b }} {% endfor %}{% for i in [1, 2] %}{% for j in [1, 2] %}{{ loop.index }}{% endfor %}{{ loop.index }}|{% endfor %}",
    "{% set x %}a{{ n }}b{% endset %}[{{ x }}]{{ x | length }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% macro m(a, b=2, c='x') %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(a=5, c='y') }}{{ m() }}",
    "{% macro rec(x) %}{% if x > 0 %}{{ x }}{{ rec(x - 1) }}{% endif %}{% endmacro %}{{ rec(4) }}", "{% macro m(x) %}{{ s }}{{ loop is defined }}{% endmacro %}{% for i in [1] %}{{ m(i) }}{% endfor %}", "{% set x = [1] + [2] %}{{ x | tojson }}{{ 'a' if x else 'b' }}",
    "{{ raise_exception('no') }}", "{{ missing.x }}", "{{ none + 'a' }}", "{{ 'a' + 1 }}", "{% for x in none %}{% endfor %}", "{{ 'a' in none }}", "{{ s.nothing }}|", "{{ s.nothing() }}", "{{ 1 // 0 }}", "{{ missing() }}", "{{ missing | tojson }}", "{{ n | length }}", "{{ 1 < 'a' }}",
]
cases = []
for template in TEMPLATES:
    case = {"template": template}
    try:
        case["text"] = env.from_string(template).render(**VARIABLES)
    except Exception as e:  # noqa: BLE001
        case["error"] = f"{type(e).__name__}: {e}"
    cases.append(case)
print(json.dumps({"variables": VARIABLES, "cases": cases}, ensure_ascii=False, indent=1))
