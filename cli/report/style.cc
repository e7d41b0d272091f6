#include "cli/report/style.h"

#include <string>

#include "common/base/check.h"

namespace trainyard::cli {

// Layer colours after Okabe and Ito, "Color Universal Design" (2008): told apart by the
// colour-blind.
const char* const kReportStyle = R"(
:root { color-scheme: light dark; --ink: #1b2530; --soft: #5f6c79; --line: #dfe4e9; --paper: #f6f8fa; --card: #ffffff;
  --a: #0b63b5; --b: #c2410c; --mark: #b91c1c; --band: #b91c1c1f; --good: #15803d; --bad: #b91c1c;
  --s0: #e69f00; --s1: #0072b2; --s2: #56b4e9; --s3: #d55e00; --s4: #009e73; --s5: #cc79a7; --s6: #8a6fd1; --s7: #9aa5b1; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf0; --soft: #9aa7b4; --line: #2c3640; --paper: #0e1318; --card: #161d24;
    --a: #64b0f4; --b: #fb923c; --mark: #f87171; --band: #f8717129; --good: #4ade80; --bad: #f87171;
    --s0: #f0b93a; --s1: #3f9ae0; --s2: #8fd0f5; --s3: #f08a4b; --s4: #2fc79a; --s5: #e3a1c6; --s6: #ab97ea; --s7: #75818d; }
}
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1320px; margin: 0 auto; padding: 24px 20px 48px; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 14px; margin-bottom: 14px; }
h1 { font-size: 1.5em; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.05em; margin: 28px 0 10px; }
.outcome { font-weight: 600; color: var(--soft); overflow-wrap: anywhere; }
.outcome.good { color: var(--good); } .outcome.bad { color: var(--bad); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 0 0 10px; }
.figures div, figure, .panel { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.figures div { padding: 8px 12px; }
dt { color: var(--soft); font-size: .85em; } dd { margin: 0; font-size: 1.2em; font-weight: 600; font-variant-numeric: tabular-nums; }
dd small { display: block; font-size: .7em; font-weight: 400; color: var(--soft); }
.paths { color: var(--soft); font-size: .9em; margin: 0 0 4px; overflow-wrap: anywhere; }
.paths code { color: var(--ink); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 12px; margin-top: 14px; }
figure { margin: 0; padding: 12px 14px 6px; }
figcaption { font-weight: 600; } figcaption span { font-weight: 400; color: var(--soft); font-size: .9em; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 4px 0 0; padding: 0; font-size: .85em; color: var(--soft); }
.legend li::before { content: ''; display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; background: var(--c); }
svg { display: block; width: 100%; height: auto; margin-top: 6px; }
.narrow { display: none; }
@media (max-width: 600px) { .wide { display: none; } .narrow { display: block; } body { padding: 16px 12px 32px; } }
svg text { fill: var(--soft); font-family: system-ui, sans-serif; font-size: 12px; font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--line); }
svg .curve { fill: none; stroke: var(--c); stroke-width: 1.6; stroke-linejoin: round; }
svg .dot { fill: var(--c); }
svg .layer { fill: var(--c); } svg rect.layer { stroke: var(--card); stroke-width: .6; }
svg .ink { fill: var(--ink); font-weight: 600; } svg .card { fill: var(--card); } svg .dark { fill: #1b2530; } svg .wait { fill: var(--line); }
svg .band { fill: var(--band); }
svg .mark line { stroke: var(--mark); stroke-dasharray: 4 3; } svg .mark circle { fill: var(--mark); }
.a { --c: var(--a); } .b { --c: var(--b); }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); } .s3 { --c: var(--s3); }
.s4 { --c: var(--s4); } .s5 { --c: var(--s5); } .s6 { --c: var(--s6); } .s7 { --c: var(--s7); } .good { --c: var(--good); }
.panel { padding: 12px 14px; margin-top: 12px; overflow-x: auto; }
.share { display: flex; height: 18px; border-radius: 4px; overflow: hidden; margin: 8px 0; }
.share i { background: var(--c); min-width: 1px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td { padding: 2px 18px 2px 0; vertical-align: top; overflow-wrap: anywhere; }
th { padding: 2px 18px 2px 0; text-align: left; font-weight: 400; color: var(--soft); white-space: nowrap; }
td:first-child { color: var(--soft); white-space: nowrap; }
.events td:nth-child(2) { white-space: nowrap; }
@media (max-width: 600px) { .events td { display: inline; padding: 0 8px 0 0; } .events tr { display: block; padding: 2px 0; } }
)";

std::string_view light_colour(std::string_view name) {
  const std::string_view style = kReportStyle;
  const std::string declared = "--" + std::string(name) + ": ";
  const size_t at = style.find(declared);  // those of light mode come first
  TRAINYARD_CHECK(at != std::string_view::npos);
  const size_t begin = at + declared.size();
  return style.substr(begin, style.find(';', begin) - begin);
}

}  // namespace trainyard::cli
