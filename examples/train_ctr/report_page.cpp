#include "report_page.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "memory_limit.hpp"
#include "output_file.hpp"
#include "prediction_bins.hpp"
#include "svg_chart.hpp"

namespace ctr {

namespace {

constexpr const char* style = R"(
:root{color-scheme:light dark;--page:#fff;--text:#1b1f24;--faint:#5b6470;--line:#d5dae0;--card:#f6f7f9;
--c0:#0b61c4;--c1:#c2410c;--c2:#15803d;--c3:#7e22ce;--c4:#a16207;--c5:#0f766e;--c6:#be123c;--c7:#475569}
@media (prefers-color-scheme:dark){:root{--page:#14171b;--text:#e6e9ed;--faint:#a3acb8;--line:#39414b;
--card:#1d2127;--c0:#6cb0ff;--c1:#ff9d66;--c2:#5fd38a;--c3:#c99bff;--c4:#e8c04f;--c5:#57d3c6;--c6:#ff8099;
--c7:#a9b6c6}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1rem;background:var(--page);color:var(--text);
font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.5rem}h2{font-size:1.25rem;margin-top:2rem}h3{font-size:1rem}
nav ul{display:flex;flex-wrap:wrap;gap:.25rem 1rem;padding:0;list-style:none}
a{color:var(--c0)}
a:focus-visible,summary:focus-visible,.wide:focus-visible{outline:3px solid var(--c1);outline-offset:2px}
.grid{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr))}
figure{margin:0;padding:.75rem;background:var(--card);border-radius:.5rem;min-width:0}
figcaption{font-weight:600}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--faint);font:13px system-ui,sans-serif}
.grid line,line.grid{stroke:var(--line)}line.axis{stroke:var(--faint)}
line.diagonal{stroke:var(--faint);stroke-dasharray:5 4}
path{fill:none;stroke-width:2}
.s0{--c:var(--c0)}.s1{--c:var(--c1)}.s2{--c:var(--c2)}.s3{--c:var(--c3)}
.s4{--c:var(--c4)}.s5{--c:var(--c5)}.s6{--c:var(--c6)}.s7{--c:var(--c7)}
path[class^=s]{stroke:var(--c)}circle,rect{fill:var(--c)}i{background:var(--c)}
.legend{display:flex;flex-wrap:wrap;gap:.1rem .9rem;margin:.25rem 0;font-size:.85rem}
.legend i{display:inline-block;width:.8rem;height:.8rem;margin-right:.3rem;border-radius:2px}
.wide{overflow-x:auto}.wide table{border-collapse:collapse}
details .wide{max-height:20rem;overflow:auto}
th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child{text-align:left}
td.words{white-space:normal;overflow-wrap:anywhere;min-width:8rem}
@media (max-width:40rem){svg text{font-size:19px}}
pre{overflow-x:auto;padding:.75rem;background:var(--card);border-radius:.5rem}
.warning{border-left:4px solid var(--c1);padding-left:.75rem}
)";

std::string row(const std::string& name, const std::vector<std::string>& cells) {
  std::string made = "<tr><th scope=\"row\">" + escaped(name) + "</th>";
  for (const std::string& cell : cells) {
    made += (cell.size() > 20 ? "<td class=\"words\">" : "<td>") + escaped(cell) + "</td>";
  }
  return made + "</tr>";
}
std::string table(const std::string& name, const std::vector<std::string>& head, const std::string& rows) {
  std::string made = "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"" + escaped(name) +
                     "\"><table><thead><tr>";
  for (const std::string& cell : head) made += "<th scope=\"col\">" + escaped(cell) + "</th>";
  return made + "</tr></thead><tbody>" + rows + "</tbody></table></div>\n";
}
std::string count(index_t number) { return std::to_string(number); }

/// The steps of the training, by one number of each.
template <class Number>
chart_series steps_of(const score& s, const std::string& name, const Number& number) {
  chart_series made{name, {}};
  for (const step_facts& step : s.steps) made.points.emplace_back(step.step, number(step));
  return made;
}
template <class Number>
chart_series passes_of(const score& s, const std::string& name, const Number& number) {
  chart_series made{name, {}};
  for (const evaluation& pass : s.passes) made.points.emplace_back(pass.step, number(pass));
  return made;
}

std::string curves(const score& s) {
  const std::string of = s.passes.empty() ? "test" : s.passes.front().of;
  chart losses{.title = "Log loss by step", .x = "step", .y = "log loss"};
  losses.series = {steps_of(s, "training", [](const step_facts& f) { return f.loss; }),
                   passes_of(s, of, [](const evaluation& p) { return p.found.log_loss; })};
  chart areas{.title = "AUC of the " + of + " rows by step", .x = "step", .y = "AUC"};
  areas.series = {passes_of(s, of, [](const evaluation& p) { return p.found.auc; })};
  chart rates{.title = "Learning rates by step", .x = "step", .y = "rate", .begins_at_zero = true};
  rates.series = {steps_of(s, "stacks", [](const step_facts& f) { return f.stack_rate; }),
                  steps_of(s, "rows", [](const step_facts& f) { return f.row_rate; })};
  std::string made = line_chart(losses) + line_chart(areas) + line_chart(rates);
  chart weights{.title = "Norms of the weights of layers", .x = "step", .y = "norm", .begins_at_zero = true};
  chart gradients{
      .title = "Norms of the gradients of layers", .x = "step", .y = "norm", .begins_at_zero = true};
  for (std::size_t l = 0; !s.steps.empty() && l < s.steps.front().layers.size(); ++l) {
    const std::string& name = s.steps.front().layers[l].name;
    weights.series.push_back(steps_of(s, name, [l](const step_facts& f) { return f.layers[l].weights; }));
    gradients.series.push_back(steps_of(s, name, [l](const step_facts& f) { return f.layers[l].gradient; }));
  }
  return made + line_chart(weights) + line_chart(gradients);
}

/// Of the rows that test.
std::string prediction_charts(const prediction_bins& of) {
  const prediction_bins::bin all = of.sum();
  if (all.rows() == 0) return {};
  std::string made;
  if (all.clicks > 0 && all.others > 0) {
    chart roc{.title = "ROC", .x = "false positive rate", .y = "true positive rate", .has_diagonal = true};
    chart_series line{"ROC", {{0, 0}}};
    prediction_bins::bin above;
    for (int b = prediction_bins::bins; b-- > 0;) {
      const prediction_bins::bin& bin = of.all()[static_cast<std::size_t>(b)];
      if (bin.rows() == 0) continue;
      above.add(bin);
      line.points.emplace_back(above.others / all.others, above.clicks / all.clicks);
    }
    roc.series = {line};
    made += line_chart(roc);
  }
  // Parts of about as many rows each.
  const double part_rows = std::floor(all.rows() / 20);
  chart calibration{.title = "Calibration: clicks among rows of similar predictions",
                    .x = "mean prediction",
                    .y = "share of clicks",
                    .has_diagonal = true};
  chart_series line{"calibration", {}};
  prediction_bins::bin part;
  for (std::size_t b = 0; b < of.all().size(); ++b) {
    part.add(of.all()[b]);
    if (part.rows() == 0 || (part.rows() < part_rows && b + 1 < of.all().size())) continue;
    line.points.emplace_back(part.predicted / part.rows(), part.clicks / part.rows());
    part = {};
  }
  calibration.series = {line};
  made += line_chart(calibration);
  constexpr int bars = 20;
  std::array<prediction_bins::bin, bars> by_probability{};
  for (int b = 0; b < prediction_bins::bins; ++b) {
    const auto bar = static_cast<std::size_t>(prediction_bins::probability(b) * bars);
    by_probability[std::min<std::size_t>(bar, bars - 1)].add(of.all()[static_cast<std::size_t>(b)]);
  }
  chart histogram{.title = "Predictions by label", .x = "prediction", .y = "share of the label's rows"};
  histogram.series = {{"clicks", {}}, {"others", {}}};
  std::vector<std::string> names;
  for (int b = 0; b < bars; ++b) {
    const prediction_bins::bin& bar = by_probability[static_cast<std::size_t>(b)];
    names.push_back(short_number((b + 0.5) / bars));
    const auto share = [](double of_bar, double rows) { return rows == 0 ? 0 : of_bar / rows; };
    histogram.series[0].points.emplace_back(b, share(bar.clicks, all.clicks));
    histogram.series[1].points.emplace_back(b, share(bar.others, all.others));
  }
  return made + bar_chart(histogram, names);
}

std::string time_and_importance(const score& s) {
  std::string made;
  if (s.samples > 0 && s.watch.total() > 0) {
    chart time{.title = "Time by part of a step", .x = "part", .y = "share", .begins_at_zero = true};
    time.series = {{"share", {}}};
    for (std::size_t p = 0; p < part_names.size(); ++p) {
      time.series[0].points.emplace_back(p, s.watch.seconds(p) / s.watch.total());
    }
    made += bar_chart(time, {part_names.begin(), part_names.end()});
  }
  if (s.importance.empty()) return made;
  chart slots{.title = "Rise of the log loss with a slot shuffled", .x = "slot", .y = "rise"};
  slots.series = {{"rise", {}}};
  std::vector<slot_importance> most = s.importance;
  std::stable_sort(most.begin(), most.end(),
                   [](const slot_importance& a, const slot_importance& b) { return a.rise > b.rise; });
  std::vector<std::string> names;
  for (std::size_t i = 0; i < most.size(); ++i) {
    names.push_back(most[i].slot);
    slots.series[0].points.emplace_back(i, most[i].rise);
  }
  return made + bar_chart(slots, names);
}

std::string sizes(const score& s) {
  std::string rows;
  if (s.tables) {
    const auto megabytes = [](index_t bytes) {
      return short_number(1e-6 * static_cast<double>(bytes)) + " MB";
    };
    rows += row("rows of tables with their state", {megabytes(s.tables->row_bytes)});
    if (s.has_raw_keys) {
      rows += row("index of keys", {megabytes(s.tables->index_bytes)});
      rows += row("filter of keys", {megabytes(s.tables->filter_bytes)});
      rows += row("keys with rows", {count(s.tables->keys)});
      rows += row("keys refused", {count(s.tables->refused)});
      rows += row("keys evicted", {count(s.tables->evicted)});
    }
  }
  for (const table_use& of : s.uses) {
    rows += row(of.name + ": rows that were stepped",
                {count(of.stepped) + " of " + count(of.rows) + ", " +
                 short_number(1e-6 * static_cast<double>(of.bytes)) + " MB"});
  }
  for (const layer_units& of : s.layers)
    rows += row("layer " + of.name + ": units that none of the first " + count(rows_for_units) +
                    " rows of the test switches on",
                {count(of.dead) + " of " + count(of.units)});
  rows += row("memory of the process at most", {count(peak_megabytes()) + " MB"});
  return table("sizes", {"", ""}, rows);
}

std::string label_of(const score& s, const options& o) {
  return s.name + (o.repeat > 1 ? ", seed " + std::to_string(s.seed) : "");
}

}  // namespace

std::string report_page(const std::vector<score>& scores, const data_facts& data, const options& o,
                        bool interrupted) {
  std::string contents, results, sections;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const score& s = scores[i];
    const std::string label = label_of(s, o), id = "model" + std::to_string(i + 1);
    results += row(label, {short_number(s.auc), short_number(s.log_loss), short_number(s.calibration),
                           short_number(s.group_auc), s.samples > 0 ? count(s.samples) : "-",
                           s.samples > 0 ? short_number(std::round(s.samples_per_second)) : "-"});
    std::string charts = curves(s) + prediction_charts(s.predictions) + time_and_importance(s);
    if (charts.empty()) continue;
    contents += "<li><a href=\"#" + id + "\">" + escaped(label) + "</a></li>";
    sections += "<section id=\"" + id + "\"><h2>" + escaped(label) + "</h2>\n";
    if (*s.no_auc != '\0') {
      sections +=
          "<p class=\"warning\">AUC is undefined: " + escaped(s.no_auc) + " among the rows that test.</p>";
    }
    if (is_overfit(s.passes) && s.kept_step == 0) {
      sections += "<p class=\"warning\">The last epoch is worse than the first.</p>";
    }
    if (s.kept_step > 0) {
      sections += "<p>Tested and saved as after step " + count(s.kept_step) + ", the best validation.</p>";
    }
    sections += "<div class=\"grid\">\n" + charts + "</div>\n<h3>Sizes</h3>\n" + sizes(s);
    if (!s.graph.empty()) {
      sections += "<h3>The step as a graph, and the time of its ops</h3>\n<pre tabindex=\"0\">" +
                  escaped(s.graph) + "</pre>\n";
    }
    sections += "</section>\n";
  }
  const auto source = [](const std::string& path, const char* other) { return path.empty() ? other : path; };
  std::string facts;
  facts += row("data", {!o.evaluate.empty() ? o.evaluate : source(o.data, "synthetic")});
  if (!o.test.empty()) facts += row("test", {o.test});
  if (!o.valid.empty()) facts += row("validation", {o.valid});
  if (o.evaluate.empty()) {
    facts += row("rows of the data", {count(data.rows)});
    facts += row("rows that train", {count(data.train_rows)});
  }
  if (data.valid_rows > 0) facts += row("rows that validate", {count(data.valid_rows)});
  facts += row("rows that test", {count(data.test_rows)});
  facts += row("rows skipped", {count(data.skipped.count)});
  for (const std::string& one : data.skipped.first) facts += row("skipped", {one});
  if (o.evaluate.empty()) facts += row("rows of tables", {count(data.table_rows)});
  std::string settings;
  if (o.evaluate.empty()) {
    for (const auto& [name, value] :
         {std::pair("seed", std::to_string(o.seed)), std::pair("batch size", count(o.batch_size)),
          std::pair("epochs", std::to_string(o.epochs)), std::pair("optimizer", o.optimizer),
          std::pair("L2", short_number(o.l2)), std::pair("schedule", o.schedule)}) {
      settings += row(name, {value});
    }
  }
  for (const auto& [name, value] :
       {std::pair("keys", o.keys), std::pair("arithmetic of dense layers", o.math),
        std::pair("threads", std::to_string(o.threads))}) {
    settings += row(name, {value});
  }
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
         "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
         "<link rel=\"icon\" href=\"data:,\"><title>train_ctr</title><style>" +
         std::string(style) +
         "</style></head><body>\n<header><h1>A run of train_ctr</h1>\n<nav aria-label=\"contents\"><ul>"
         "<li><a href=\"#results\">Results</a></li><li><a href=\"#data\">Data and settings</a></li>" +
         contents + "</ul></nav></header>\n<main>\n" +
         (interrupted
              ? "<p class=\"warning\">The run was interrupted: what follows is of the steps until then.</p>"
              : "") +
         "<section id=\"results\"><h2>Results</h2>\n" +
         table("results", {"model", "AUC", "log loss", "calibration", "group AUC", "samples", "samples/s"},
               results) +
         "</section>\n<section id=\"data\"><h2>Data and settings</h2>\n<div class=\"grid\">" +
         table("data", {"", ""}, facts) + table("settings", {"", ""}, settings) + "</div></section>\n" +
         sections + "</main></body></html>\n";
}

void write_report_page(const std::vector<score>& scores, const data_facts& data, const options& o,
                       bool interrupted) {
  std::error_code wrong;
  std::filesystem::create_directories(o.report, wrong);
  if (wrong) throw failure("cannot write " + o.report + ": " + wrong.message());
  write_file(std::filesystem::path(o.report) / "report.html", report_page(scores, data, o, interrupted));
}

}  // namespace ctr
