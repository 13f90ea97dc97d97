// Style of the report (light, dark, narrow screens) and its script, which shows values under the pointer.
#include "report/html_report.h"

namespace athanor {

const char* const kReportStyle = R"css(
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #16202c; --soft: #5b6675; --rule: #e1e5ea;
  --c0: #2563eb; --c1: #d9730d; --c2: #0f9d6b; --c3: #c2337a; --c4: #7c4ddb; --c5: #0a8ea8; --c6: #8a6d1c; --c7: #64748b;
  --bad: #cf222e; }
@media (prefers-color-scheme: dark) {
  :root { --page: #10151b; --card: #18202a; --ink: #e3e8ee; --soft: #93a0b0; --rule: #2a3440;
    --c0: #6ea8fe; --c1: #f5a35c; --c2: #4fd1a0; --c3: #f48fbf; --c4: #b69cf6; --c5: #58cfe6; --c6: #d8bd6a; --c7: #a3b1c2;
    --bad: #ff7b72; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 20px; max-width: 1280px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.45rem; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 30px 0 10px; }
.lead, .note, small { color: var(--soft); font-weight: 400; }
.lead { margin: 0 0 18px; }
.note { margin: 6px 0 0; font-size: .85rem; }
figure, .card { margin: 0; padding: 14px 16px; background: var(--card); border: 1px solid var(--rule);
  border-radius: 8px; min-width: 0; }
.grid2 { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); }
figcaption { font-weight: 600; margin-bottom: 10px; display: flex; flex-wrap: wrap; gap: 0 8px; align-items: baseline; }
figcaption output { margin-left: auto; font-weight: 400; font-size: .85rem; color: var(--soft);
  font-variant-numeric: tabular-nums; }
.plot { position: relative; height: 230px; margin: 6px 4px 22px 54px; }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.plot span { position: absolute; font-size: 12px; line-height: 1; color: var(--soft); white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.plot .y { right: calc(100% + 8px); transform: translateY(-50%); }
.plot .x { top: calc(100% + 8px); transform: translateX(-50%); }
.plot .end { transform: translateX(-100%); }
path { fill: none; vector-effect: non-scaling-stroke; }
.grid { stroke: var(--rule); }
.line { stroke-width: 1.8; stroke-linejoin: round; }
.raw { stroke-width: 1; opacity: .35; }
.dashed { stroke-dasharray: 5 4; }
.dots { stroke-width: 6; stroke-linecap: round; }
.band { stroke: none; opacity: .2; }
.mark { stroke: var(--soft); stroke-dasharray: 2 3; opacity: .7; }
.mark.skip, .mark.warn, .mark.error { stroke: var(--bad); }
.cursor { stroke: var(--soft); }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
.line, .raw, .dots { stroke: var(--c); } .band { fill: var(--c); }
.chip { display: inline-block; width: .7em; height: .7em; border-radius: 2px; background: var(--c); margin-right: 6px; }
.key { display: inline-block; margin: 0 16px 4px 0; font-size: .85rem; color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
tr:last-child > * { border-bottom: 0; }
th { font-weight: 600; white-space: nowrap; }
thead th { color: var(--soft); font-weight: 500; }
td { overflow-wrap: anywhere; min-width: 5em; }
.short td { white-space: nowrap; }
.short td:last-child { white-space: normal; min-width: 11em; }
.kind { white-space: nowrap; }
td.bad { color: var(--bad); }
.bar { display: flex; height: 22px; border-radius: 4px; overflow: hidden; margin: 4px 0 10px; background: var(--rule); }
.bar i { background: var(--c); }
summary { cursor: pointer; font-weight: 600; }
details[open] > summary { margin-bottom: 10px; }
@media (max-width: 560px) {
  body { padding: 12px; font-size: 14px; }
  figure, .card { padding: 12px; }
  .plot { height: 190px; margin-left: 46px; }
  .side th { white-space: normal; overflow-wrap: anywhere; }
}
@media print { body { background: none; } figure, .card { break-inside: avoid; } }
)css";

// Reads values from the drawn lines, so that the page does not store them twice.
const char* const kReportScript = R"js(
for (const plot of document.querySelectorAll('.plot')) {
  const svg = plot.querySelector('svg'), out = plot.parentNode.querySelector('output');
  const [x0, x1, y0, y1] = ['x0', 'x1', 'y0', 'y1'].map(k => Number(plot.dataset[k]));
  const [, , w, h] = svg.getAttribute('viewBox').split(' ').map(Number);
  const lines = [...svg.querySelectorAll('.line')].map(p => ({ label: p.dataset.label,
    points: p.getAttribute('d').slice(1).split('L').map(s => s.split(' ').map(Number)) }));
  const cursor = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  cursor.setAttribute('class', 'cursor');
  plot.addEventListener('pointermove', e => {
    const box = svg.getBoundingClientRect(), x = (e.clientX - box.left) / box.width * w;
    if (x < 0 || x > w) return;
    const near = lines.map(l => [l.label, l.points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a)]);
    cursor.setAttribute('d', `M${near[0][1][0]} 0V${h}`);
    svg.append(cursor);
    const at = x0 + near[0][1][0] / w * (x1 - x0), name = plot.dataset.x;
    const value = name === 'step' ? Math.round(at) : Number(('logX' in plot.dataset ? 10 ** at : at).toPrecision(4));
    out.textContent = `${name} ${value}: ` + near.map(([label, p]) =>
      (near.length > 1 ? label + ' ' : '') + (y1 - p[1] / h * (y1 - y0)).toPrecision(4)).join(', ');
  });
  plot.addEventListener('pointerleave', () => { cursor.remove(); out.textContent = ''; });
}
)js";

}  // namespace athanor
