#!/usr/bin/env python3
"""Makes one SVG image of charts of a report, for documents: docs/report.svg is of the quick start.

usage: athanor report RUN; report_picture.py RUN/report.html docs/report.svg [--charts TITLE,TITLE...]

The charts are those that `athanor report` drew, with its style; their labels, HTML in the page, become text. Charts are
placed two in a row. A title that the page lacks is an error that names those it has.
"""
import argparse
import html
import re
import sys
from pathlib import Path

CHARTS = "Training loss,Validation loss,Gradient norm,Throughput"
WIDTH, HEIGHT = 480, 300       # of a chart with its labels, in pixels
LEFT, TOP, RIGHT, BOTTOM = 60, 40, 16, 34  # around the curves
TEXT_STYLE = """text { font: 12px system-ui, "Segoe UI", Roboto, sans-serif; fill: var(--soft); }
.title { font-size: 14px; font-weight: 600; fill: var(--ink); } .card { fill: var(--card); stroke: var(--rule); }"""


def charts_of(page):
    """The page's charts by title: (unit, SVG element, labels), a label being (class, percent of the axis, text)."""
    found = {}
    for figure in re.findall(r"<figure>(.*?)</figure>", page, re.S):
        title, unit = re.match(r"<figcaption>([^<]*?) ?(?:<small>(.*?)</small>)?<output>", figure).groups()
        labels = [(kind, float(percent), text) for kind, percent, text in re.findall(
            r'<span class="(y|x|x end)" data-at="(?:top|left):([\d.]+)%">(.*?)</span>', figure)]
        found[html.unescape(title)] = unit or "", re.search(r"<svg.*?</svg>", figure, re.S)[0], labels
    return found


def drawn(title, unit, svg, labels, x, y):
    """One chart with its upper left corner at (x, y)."""
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    place = {"y": lambda at: (LEFT - 8, TOP + at / 100 * height + 4, "end"),
             "x": lambda at: (LEFT + at / 100 * width, TOP + height + 20, "middle"),
             "x end": lambda at: (LEFT + at / 100 * width, TOP + height + 20, "end")}
    lines = [f'<g transform="translate({x} {y})">',
             f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
             f'<text class="title" x="16" y="24">{html.escape(title)} <tspan class="unit">{unit}</tspan></text>',
             svg.replace("<svg ", f'<svg x="{LEFT}" y="{TOP}" width="{width}" height="{height}" overflow="visible" ', 1)]
    for kind, percent, text in labels:
        at_x, at_y, anchor = place[kind](percent)
        lines.append(f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}">{text}</text>')
    return "\n".join([*lines, "</g>"])


def picture(page, titles):
    found = charts_of(page)
    if missing := [title for title in titles if title not in found]:
        raise ValueError(f"no chart {', '.join(missing)}; the page has {', '.join(found) or 'none'}")
    style = re.search(r"<style>(.*?)</style>", page, re.S)[1].partition("[data-at=")[0]
    step_x, step_y = WIDTH + 14, HEIGHT + 14
    width, height = 2 * step_x - 14, (len(titles) + 1) // 2 * step_y - 14
    charts = [drawn(title, *found[title], i % 2 * step_x, i // 2 * step_y) for i, title in enumerate(titles)]
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
                      f"<style>{style}{TEXT_STYLE}\n.unit {{ font-weight: 400; fill: var(--soft); }}</style>", *charts,
                      "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--charts", default=CHARTS, metavar="TITLE,TITLE...")
    args = parser.parse_args()
    try:
        args.out.write_text(picture(args.report.read_text(), args.charts.split(",")))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {args.report}: {error}")


if __name__ == "__main__":
    main()
