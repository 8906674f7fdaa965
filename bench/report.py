"""One HTML file with everything in it: tables, pictures, the machine. Needs matplotlib and Jinja."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import plots

TEMPLATE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{{ title }}</title>
<style>
body { font: 15px/1.45 sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums; font-size: 13px }
th, td { padding: .2em .7em; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th { border-bottom: 2px solid #888 } td:first-child, th:first-child { text-align: left }
figure { margin: 1.5em 0 } img { max-width: 100% } figcaption { color: #555 }
.bad { background: #fdd } code { background: #f3f3f3; padding: .1em .3em }
</style>
<h1>{{ title }}</h1>
{% for report in reports %}
<h2>{{ report.kind }}</h2>
<p><code>{{ report.command }}</code>, started {{ report.start_time }}</p>
<p>{% for key, value in report.machine.items() -%}
{{ key | replace("_", " ") }}: {{ value }}{{ "; " if not loop.last }}
{%- endfor %}</p>
{% for text in report.unavailable %}<p>Not measured: {{ text }}</p>{% endfor %}
<table>
<tr>{% for name in report.columns %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in report.cells %}<tr{% if row.bad %} class="bad"{% endif %}>
{% for cell in row.cells %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
{% endfor %}
{% for figure in figures %}
<figure><img alt="{{ figure.text }}" src="data:image/png;base64,{{ figure.png }}">
<figcaption>{{ figure.text }}</figcaption></figure>
{% endfor %}
<p>Times are microseconds of a call, medians of samples; bandwidths are GB/s (10<sup>9</sup> bytes), as nccl-tests
defines them.</p>
</html>
"""
LEFT_OUT = ("samples", "alg_bw")


def write(reports: Sequence[dict[str, Any]], html: Path, folder: Path | None = None) -> list[Path]:
    """Write the page and, if there is a folder, each picture as a PNG in it. Returns what was written.

    Args:
        reports: as :func:`tricoll.bench.results.read_json` gives them.
    """
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise ImportError('a report needs Jinja: pip install "tricoll[bench]"') from error
    written, figures = [html], []
    for name, text, figure in plots.figures(reports):
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=120)
        figures.append({"text": text, "png": base64.b64encode(image.getvalue()).decode()})
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            written.append(folder / f"{name}.png")
            written[-1].write_bytes(image.getvalue())
    shown = [report | dict(zip(("columns", "cells"), _table(report["results"]), strict=True)) for report in reports]
    title = f"tricoll bench: {', '.join(dict.fromkeys(report['kind'] for report in reports))}"
    page = Environment(autoescape=True).from_string(TEMPLATE)
    html.parent.mkdir(parents=True, exist_ok=True)
    html.write_text(page.render(title=title, reports=shown, figures=figures))
    return written


def _table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    flat = [_flat(row) for row in rows]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    cells = [
        {
            "cells": [_cell(row.get(key)) for key in columns],
            "bad": any(v and k.endswith("nwrong") for k, v in row.items()),
        }
        for row in flat
    ]
    return [column.replace("_", " ") for column in columns], cells


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{key}: {inner}": v for inner, v in value.items() if inner not in LEFT_OUT}
        elif key not in LEFT_OUT:
            flat[key] = value
    return flat


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
