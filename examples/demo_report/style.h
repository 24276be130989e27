// The style sheet of demo.html: light and dark, for all widths from a phone up. It loads no other files.
#pragma once

namespace demo {

// Runs differ in colour and in the width or pattern of their line; no text relies on colour alone.
constexpr const char* kStyle = R"css(
:root {
  color-scheme: light dark;
  --paper: #fcfcfb; --card: #fff; --ink: #1b1f24; --soft: #57606a; --rule: #d8dcdf; --grid: #eceef0;
  --one: #9a6700; --one-fill: #e3a52b; --many: #0b5cad; --many-fill: #2f7ed8; --threads-fill: #8b949e; --good: #1a7f37;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #0f1318; --card: #161b22; --ink: #e6e9ec; --soft: #a3adb8; --rule: #30363d; --grid: #242a32;
    --one: #e3b341; --one-fill: #c08a1c; --many: #79b8ff; --many-fill: #3f8ae0; --threads-fill: #6e7681; --good: #56d364;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 47.5rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%;
}
h1 { font-size: 1.75rem; line-height: 1.2; letter-spacing: -.015em; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 3rem 0 .25rem; }
p { margin: .25rem 0 .75rem; max-width: 42rem; }
p.lead { color: var(--soft); font-size: 1.05rem; }
figure { margin: 1rem 0 0; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .5rem; max-width: 42rem; }
dl.figures { display: grid; grid-template-columns: repeat(4, 1fr); gap: .75rem; margin: 1.75rem 0 0; }
dl.figures > div {
  background: var(--card); border: 1px solid var(--rule); border-radius: .5rem; padding: .75rem .9rem;
  display: flex; flex-direction: column;
}
dl.figures dt { color: var(--soft); font-size: .85rem; line-height: 1.3; }
dl.figures dd { margin: 0; }
dl.figures dd.number { font-size: 1.6rem; font-weight: 650; line-height: 1.3; letter-spacing: -.01em; }
dl.figures dd.note { color: var(--soft); font-size: .8rem; line-height: 1.35; }
.good { color: var(--good); }
p.warning { border-left: 4px solid var(--one-fill); padding: .25rem 0 .25rem .9rem; margin: 1.25rem 0 0; }
svg { display: block; max-width: 100%; height: auto; overflow: visible; }
svg.narrow { display: none; }
svg text { fill: var(--ink); font-size: 13px; font-family: inherit; }
svg .tick, svg .axis { fill: var(--soft); font-size: 12px; }
svg .value { font-weight: 600; }
svg .middle { text-anchor: middle; }
svg .end { text-anchor: end; }
svg .grid { stroke: var(--grid); }
svg .mark { stroke: var(--rule); stroke-dasharray: 3 4; }
svg .wait { stroke: var(--soft); stroke-width: 1.5; }
svg .curve { fill: none; stroke-linejoin: round; stroke-linecap: round; }
svg .curve.one { stroke: var(--one-fill); stroke-width: 6; opacity: .55; }
svg .curve.many { stroke: var(--many); stroke-width: 1.75; }
svg .bar.one { fill: var(--one-fill); }
svg .bar.many { fill: var(--many-fill); }
svg .bar.threads, svg .bar.backward { fill: var(--threads-fill); }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: .75rem 0 .5rem; padding: 0; font-size: .9rem; }
ul.legend li { display: flex; align-items: center; gap: .5rem; }
ul.legend svg { flex: none; }
.scroll { overflow-x: auto; margin-top: 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem; }
th, td { text-align: right; padding: .4rem .5rem; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
td.names, th.names { text-align: left; white-space: normal; min-width: 12rem; padding-left: 1.25rem; }
thead th { color: var(--soft); font-weight: 500; vertical-align: bottom; }
tbody th { font-weight: 500; }
code, pre { font: .84rem/1.5 ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", monospace; }
pre {
  background: var(--card); border: 1px solid var(--rule); border-radius: .5rem; padding: .75rem .9rem; margin: .5rem 0;
  white-space: pre-wrap; overflow-wrap: anywhere;
}
dl.facts { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.25rem; font-size: .9rem; margin: .75rem 0; }
dl.facts dt { color: var(--soft); }
dl.facts dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 46rem) {
  body { padding: 1.5rem 1rem 3rem; }
  h1 { font-size: 1.45rem; }
  dl.figures { grid-template-columns: repeat(2, 1fr); }
  svg.wide { display: none; }
  svg.narrow { display: block; }
  th, td { padding: .4rem .5rem; }
}
@media (max-width: 24rem) { dl.facts { grid-template-columns: 1fr; gap: 0; } dl.facts dd { margin-bottom: .5rem; } }
@media print { body { max-width: none; } pre, dl.figures > div { break-inside: avoid; } }
)css";

}  // namespace demo
