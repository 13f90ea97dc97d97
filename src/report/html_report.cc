#include "report/html_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "analysis/lr_finder.h"
#include "analysis/run_comparison.h"
#include "base/crypto.h"
#include "base/error.h"
#include "base/format.h"
#include "base/median.h"
#include "report/chart.h"

namespace athanor {
namespace {

constexpr int kColors = 8;

std::string text_of(double value, const char* format = "%.4g") {
  return std::isfinite(value) ? format_text(format, value) : "-";
}

std::string utc(double seconds) { return seconds == 0 ? "-" : format_time(seconds, TimeZone::utc); }

double median_of_finite(std::vector<double> values) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  return values.empty() ? kUnknown : median(std::move(values));
}

std::vector<double> column(const RunRecords& run, double (*value)(const StepMetrics&)) {
  std::vector<double> out;
  for (const StepMetrics& m : run.steps) out.push_back(value(m));
  return out;
}

double step_of(const StepMetrics& m) { return double(m.step); }

std::string value_of(const std::vector<std::pair<std::string, std::string>>& lines, std::string_view key) {
  for (const auto& [name, value] : lines)
    if (name == key) return value;
  return "";
}

std::string chip(size_t run) { return cat("<i class=\"chip c", run % kColors, "\"></i>"); }

std::string base64(std::span<const uint8_t> bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (i + k < bytes.size() ? bytes[i + k] : 0u);
    for (size_t k = 0; k < 4; ++k) out += i + k > bytes.size() ? '=' : kDigits[group >> (18 - 6 * k) & 63];
  }
  return out;
}

// Hash of a text as used in a Content-Security-Policy [CSP Level 3, hash-source].
std::string hash_source(std::string_view text) { return "sha256-" + base64(sha256(text)); }

// CSS rules that place elements by their attribute, like data-at="top:5%", because a policy with hashes forbids style
// attributes. Text from runs cannot contain such an attribute, since its quotes are escaped.
std::string placements(std::string_view html) {
  constexpr std::string_view kAttribute = " data-at=\"";
  std::set<std::string_view> all;
  for (size_t at = html.find(kAttribute); at != html.npos; at = html.find(kAttribute, at)) {
    at += kAttribute.size();
    all.insert(html.substr(at, html.find('"', at) - at));
  }
  std::string rules;
  for (const std::string_view rule : all) rules += cat("[data-at=\"", rule, "\"]{", rule, "}\n");
  return rules;
}

// Width of the running mean: a fortieth of the curve, which keeps its shape; 1 (no mean) for few records.
size_t mean_width(size_t records) { return records < 100 ? 1 : std::max<size_t>(5, records / 40) | 1; }

// A quantity plotted per step.
struct Curve {
  const char* title;
  const char* unit;
  double (*value)(const StepMetrics&);
  bool from_zero;
  std::string (*format)(double);
  bool noisy = false;  // draw a running mean
};

class Page {
 public:
  Page(std::span<const RunRecords> runs, const ReportOptions& options) : runs_(runs), options_(options) {}

  // The browser runs only scripts and styles with these hashes, so text from a run cannot inject any.
  std::string head(const std::string& title) const {
    const std::string style = kReportStyle + placements(out_);
    std::string text =
        cat("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; base-uri 'none'; form-action "
            "'none'; "
            "style-src '",
            hash_source(style), "'; script-src '", hash_source(kReportScript), "'\">\n");
    if (options_.refresh_seconds > 0)
      text += cat("<meta http-equiv=\"refresh\" content=\"", options_.refresh_seconds, "\">\n");
    return cat(text, "<title>", html_text(title), "</title><style>", style, "</style></head>");
  }

  std::string html() {
    std::string title = options_.title;
    if (title.empty())
      for (const RunRecords& run : runs_) title += cat(title.empty() ? "" : ", ", run.name);
    out_ = cat("<body>\n<h1>", html_text(title), "</h1>\n");
    out_ += cat("<p class=\"lead\">", runs_.size() == 1 ? "A training run" : cat(runs_.size(), " training runs"),
                " as of ", utc(latest()), " UTC</p>\n");
    for (const Chart& chart : options_.charts) out_ += chart_html(chart);
    summary();
    curves();
    breakdown();
    memory_plan();
    rounding();
    experts();
    pruned();
    events();
    configuration("Configuration", &RunRecords::config);
    configuration("Hardware and software", &RunRecords::environment);
    out_ += cat("<script>", kReportScript, "</script>\n</body></html>\n");
    return head(title) + std::move(out_);
  }

 private:
  double latest() const {
    double time = 0;
    for (const RunRecords& run : runs_) {
      if (!run.steps.empty()) time = std::max(time, run.steps.back().time);
      if (!run.events.empty()) time = std::max(time, run.events.back().time);
    }
    return time;
  }

  static std::string best_eval(const RunRecords& run) {
    const EvalMetrics best = best_valid(run);
    return std::isfinite(best.loss_error) ? cat(text_of(best.loss), " ± ", text_of(best.loss_error))
                                          : text_of(best.loss);
  }

  void summary() {
    out_ += "<div class=\"card scroll\"><table class=\"short\"><thead><tr>";
    for (const char* head : {"run", "state", "steps", "tokens", "loss", "best valid", "tokens/s", "MFU", "memory",
                             "time in steps", "skipped", "hardware"})
      out_ += cat("<th>", head, "</th>");
    out_ += "</tr></thead><tbody>\n";
    for (size_t i = 0; i < runs_.size(); ++i) summary_row(i);
    out_ += "</tbody></table></div>\n";
  }

  void summary_row(size_t i) {
    const RunRecords& run = runs_[i];
    const StepMetrics last = run.steps.empty() ? StepMetrics{} : run.steps.back();
    double seconds = 0;
    for (const StepMetrics& m : run.steps) seconds += m.step_ms * 1e-3;
    const std::string state = run.failed()  ? cat("error: ", run.events.back().text)
                              : run.ended() ? run.events.back().text
                              : last.step > 0
                                  ? cat("step ", last.step, ", ", format_duration(last.eta_seconds), " to go")
                                  : "starting";
    const auto speed = column(run, [](const StepMetrics& m) { return m.tokens_per_second; });
    const auto mfu = column(run, [](const StepMetrics& m) { return m.mfu; });
    out_ += cat("<tr><th>", chip(i), html_text(run.name), "</th>");
    for (const std::string& cell :
         {state, cat(last.step, " of ", last.total_steps), format_count(double(last.consumed_tokens)),
          text_of(last.loss), best_eval(run), format_count(median_of_finite(speed)),
          format_percent(median_of_finite(mfu)), format_bytes(last.memory_planned), format_duration(seconds),
          cat(last.skipped_steps), value_of(run.environment, "cpu_model")})
      out_ += cat("<td>", html_text(cell), "</td>");
    out_ += "</tr>\n";
    if (run.unreadable_lines > 0)
      out_ += cat("<tr><td></td><td class=\"bad\" colspan=\"11\">", run.unreadable_lines,
                  " lines of metrics.jsonl could not be read</td></tr>\n");
  }

  void curves() {
    out_ += "<h2>Curves</h2>\n";
    if (runs_.size() > 1) {
      out_ += "<p>";
      for (size_t i = 0; i < runs_.size(); ++i)
        out_ += cat("<span class=\"key\">", chip(i), html_text(runs_[i].name), "</span>");
      out_ += "</p>\n";
    }
    const auto loss = [](const StepMetrics& m) { return m.loss; };
    const Curve others[] = {
        {"Learning rate", "", [](const StepMetrics& m) { return m.learning_rate; }, true, nullptr},
        {"Gradient norm", "before clipping", [](const StepMetrics& m) { return m.grad_norm; }, true, nullptr, true},
        {"Throughput", "tokens/s", [](const StepMetrics& m) { return m.tokens_per_second; }, true, format_count, true},
        {"MFU", "of the peak, causal count", [](const StepMetrics& m) { return m.mfu; }, true, format_percent},
    };
    out_ += "<div class=\"grid2\">\n";
    curve({"Training loss", "nats", loss, false, nullptr, true}, 0, true);
    source_losses();
    validation();
    accuracies();
    lr_finders();
    curve({"Training loss, later part", "nats, after the first quarter", loss, false, nullptr, true}, 0.25, true);
    for (const Curve& c : others) curve(c, 0, false);
    memory();
    const Curve optional[] = {
        {"Gradient noise scale", "tokens", [](const StepMetrics& m) { return m.noise_scale.value_or(kUnknown); }, true,
         format_count},
        {"Largest attention score", "before the softmax",
         [](const StepMetrics& m) { return m.max_attention_logit.value_or(kUnknown); }, true, nullptr},
        {"GPU power", "W", [](const StepMetrics& m) { return m.gpu_watts.value_or(kUnknown); }, true, nullptr},
        {"GPU temperature", "°C", [](const StepMetrics& m) { return m.gpu_celsius.value_or(kUnknown); }, false,
         nullptr},
        {"GPU clock", "MHz, multiprocessors", [](const StepMetrics& m) { return m.gpu_sm_mhz.value_or(kUnknown); },
         false, nullptr},
    };
    const auto known = [](const Curve& c) {
      return [&c](const RunRecords& run) { return !run.steps.empty() && std::isfinite(c.value(run.steps.back())); };
    };
    for (const Curve& c : optional)
      if (std::any_of(runs_.begin(), runs_.end(), known(c))) curve(c, 0, false);
    out_ += "</div>\n";
  }

  // Charts of runs that are learning-rate range tests.
  void lr_finders() {
    Chart chart{.title = "Range test: loss, smoothed", .unit = "nats"};
    chart.x_name = "learning rate";
    chart.log_x = true;
    for (size_t i = 0; i < runs_.size(); ++i) {
      const RunRecords& run = runs_[i];
      if (!run.ended() || !run.events.back().suggested_rate) continue;
      LrFinder test;
      ChartLine line{.label = run.name, .color = int(i % kColors), .x = {}, .y = {}};
      for (const StepMetrics& m : run.steps)
        if (!test.add(m.learning_rate, m.loss)) break;
      for (const double rate : test.rates()) line.x.push_back(std::log10(rate));
      line.y = test.smoothed();
      chart.lines.push_back(std::move(line));
      const double rate = *run.events.back().suggested_rate;
      chart.marks.push_back({std::log10(rate), "suggestion", cat(run.name, ": ", rate)});
      chart.note += cat(chart.note.empty() ? "" : "; ", run.name, ": the loss falls fastest at ", rate);
    }
    out_ += chart_html(chart);
  }

  // Plots a curve; from: fraction of each run at which the plot begins.
  void curve(const Curve& c, double from, bool marks) {
    Chart chart{.title = c.title,
                .unit = c.unit,
                .note = {},
                .lines = {},
                .marks = {},
                .from_zero = c.from_zero,
                .format = c.format};
    for (size_t i = 0; i < runs_.size(); ++i) {
      ChartLine line{.label = runs_[i].name, .color = int(i % kColors), .x = {}, .y = {}};
      const std::vector<StepMetrics>& steps = runs_[i].steps;
      for (size_t k = size_t(from * double(steps.size())); k < steps.size(); ++k) {
        line.x.push_back(double(steps[k].step));
        line.y.push_back(c.value(steps[k]));
      }
      line.mean_over = c.noisy ? mean_width(line.x.size()) : 1;
      if (line.mean_over > 1) chart.note = "Pale: every record; line: running mean.";
      chart.lines.push_back(std::move(line));
    }
    if (marks) add_marks(chart);
    out_ += chart_html(chart);
  }

  // Marks skipped steps, alarms and restarts; checkpoints are only in the list of events.
  void add_marks(Chart& chart) const {
    constexpr size_t kMost = 60;  // more would be unreadable
    for (const RunRecords& run : runs_)
      for (auto e = run.events.rbegin(); e != run.events.rend() && chart.marks.size() < kMost; ++e)
        if (e->kind == EventKind::skip || e->kind == EventKind::warn || e->kind == EventKind::error ||
            e->kind == EventKind::resume || e->kind == EventKind::restart || e->kind == EventKind::branch)
          chart.marks.push_back(
              {double(e->step), std::string(to_string(e->kind)), cat(to_string(e->kind), ": ", e->text)});
    if (!chart.marks.empty())
      chart.note += cat(chart.note.empty() ? "" : " ",
                        "Vertical lines: resumes and branches; in red, alarms, errors and skipped steps.");
  }

  // Training loss by source, for runs with several sources.
  void source_losses() {
    Chart chart{.title = "Training loss by source", .unit = "nats"};
    for (size_t i = 0; i < runs_.size(); ++i) {
      std::map<std::string, ChartLine> sources;
      for (const StepMetrics& m : runs_[i].steps)
        for (const auto& [name, loss] : m.source_losses) {
          sources[name].x.push_back(double(m.step));
          sources[name].y.push_back(loss);
        }
      for (auto& [name, line] : sources) line.mean_over = mean_width(line.x.size());
      add_sets(chart, sources, i);
    }
    out_ += chart_html(chart);
  }

  // Adds the lines of one run, by name. One run: a color per line; several runs: a color per run.
  void add_sets(Chart& chart, std::map<std::string, ChartLine>& sets, size_t run) const {
    int set = 0;
    for (auto& [name, line] : sets) {
      line.label = runs_.size() == 1 ? name : cat(runs_[run].name, " ", name);
      line.color = runs_.size() == 1 ? set % kColors : int(run % kColors);
      line.dashed = runs_.size() > 1 && set > 0;
      line.dots = line.x.size() <= 40;
      ++set;
      chart.lines.push_back(std::move(line));
    }
  }

  void validation() {
    Chart chart{.title = "Validation loss", .unit = "nats"};
    for (size_t i = 0; i < runs_.size(); ++i) {
      std::map<std::string, ChartLine> sets;
      for (const EvalMetrics& e : runs_[i].evals) {
        if (e.windows > 0 && e.name == "valid" && chart.note.empty())
          chart.note = e.windows == e.windows_all
                           ? cat("Of all ", e.windows_all, " windows of the held-out set, as athanor eval takes them.")
                           : cat("A sample: ", e.windows, " of the ", e.windows_all,
                                 " windows, spread over the held-out set; athanor eval takes all.");
        ChartLine& line = sets[e.name];
        line.x.push_back(double(e.step));
        line.y.push_back(e.loss);
      }
      add_sets(chart, sets, i);
    }
    out_ += chart_html(chart);
  }

  // Draws the accuracy of each evaluation of images or of multiple-choice questions.
  void accuracies() {
    Chart chart{.title = "Accuracy", .unit = "of images or questions"};
    for (size_t i = 0; i < runs_.size(); ++i) {
      std::map<std::string, ChartLine> sets;
      for (const EvalMetrics& e : runs_[i].evals) {
        if (!std::isfinite(e.accuracy)) continue;
        sets[e.name].x.push_back(double(e.step));
        sets[e.name].y.push_back(e.accuracy);
      }
      add_sets(chart, sets, i);
    }
    out_ += chart_html(chart);
  }

  void memory() {
    Chart chart{.title = "Memory",
                .unit = "GiB",
                .note = "Dashed: the plan, which is one allocation; line: what the process holds.",
                .lines = {},
                .marks = {},
                .from_zero = true};
    for (size_t i = 0; i < runs_.size(); ++i) {
      const auto gib = [](double bytes) { return bytes / double(size_t{1} << 30); };
      ChartLine used{.label = runs_[i].name, .color = int(i % kColors), .x = column(runs_[i], step_of), .y = {}};
      ChartLine plan = used;
      for (const StepMetrics& m : runs_[i].steps) {
        used.y.push_back(gib(double(m.memory_used)));
        plan.y.push_back(gib(double(m.memory_planned)));
      }
      plan.label += " plan";
      plan.dashed = true;
      chart.lines.push_back(std::move(used));
      chart.lines.push_back(std::move(plan));
    }
    out_ += chart_html(chart);
  }

  struct Share {
    const char* name;
    double value;
    std::string text;
  };

  // A stacked bar of the parts with a legend below.
  void bar(const RunRecords& run, const std::string& lead, const std::vector<Share>& shares) {
    double total = 0;
    for (const Share& share : shares) total += share.value;
    const auto part = [&](const Share& share) { return total > 0 ? share.value / total : 0; };
    out_ += cat("<div>", runs_.size() > 1 ? html_text(run.name) : "", " <small>", lead,
                "</small></div><div class=\"bar\">");
    for (size_t k = 0; k < shares.size(); ++k)
      out_ += cat("<i class=\"c", k % kColors, "\" data-at=\"flex:", text_of(part(shares[k]), "%.5f"), "\"></i>");
    out_ += "</div><div>";
    for (size_t k = 0; k < shares.size(); ++k)
      out_ += cat("<span class=\"key\"><i class=\"chip c", k % kColors, "\"></i>", shares[k].name, " ", shares[k].text,
                  ", ", format_percent(part(shares[k])), "</span>");
    out_ += "</div>";
  }

  void breakdown() {
    constexpr std::pair<const char*, double StepMetrics::*> kParts[] = {
        {"forward", &StepMetrics::forward_ms},
        {"backward", &StepMetrics::backward_ms},
        {"communication", &StepMetrics::communication_ms},
        {"optimizer", &StepMetrics::optimizer_ms},
        {"data", &StepMetrics::data_ms},
        {"other", &StepMetrics::other_ms}};
    out_ += "<h2>Where a step's time goes</h2>\n<div class=\"card\">";
    for (const RunRecords& run : runs_) {
      if (run.steps.empty()) continue;
      std::vector<Share> shares;
      double total = 0;
      for (const auto& [name, member] : kParts) {
        double mean = 0;
        for (const StepMetrics& m : run.steps)
          if (std::isfinite(m.*member)) mean += m.*member / double(run.steps.size());
        shares.push_back({name, mean, text_of(mean) + " ms"});
        total += mean;
      }
      bar(run, cat(text_of(total), " ms a step, mean of ", run.steps.size()), shares);
    }
    out_ += "</div>\n";
  }

  // The memory plan of the latest start or resume, next to the peak memory in use.
  void memory_plan() {
    constexpr std::pair<const char*, std::optional<int64_t> EventRecord::*> kKinds[] = {
        {"weights", &EventRecord::planned_weights},         {"masters", &EventRecord::planned_masters},
        {"gradients", &EventRecord::planned_gradients},     {"optimizer", &EventRecord::planned_optimizer},
        {"activations", &EventRecord::planned_activations}, {"inputs", &EventRecord::planned_inputs},
        {"constants", &EventRecord::planned_constants}};
    std::string before = "<h2>Where the memory goes</h2>\n<div class=\"card\">";
    for (const RunRecords& run : runs_) {
      const auto planned = std::find_if(run.events.rbegin(), run.events.rend(),
                                        [](const EventRecord& e) { return e.planned_weights.has_value(); });
      if (planned == run.events.rend()) continue;
      std::vector<Share> shares;
      uint64_t total = 0, most = 0;
      for (const auto& [name, member] : kKinds) {
        const auto bytes = uint64_t(std::max<int64_t>(0, ((*planned).*member).value_or(0)));
        if (bytes > 0) shares.push_back({name, double(bytes), format_bytes(bytes)});
        total += bytes;
      }
      for (const StepMetrics& m : run.steps) most = std::max(most, m.memory_used);
      out_ += std::exchange(before, "");
      bar(run, cat("plan ", format_bytes(total), most > 0 ? cat(", most in use ", format_bytes(most)) : ""), shares);
    }
    if (before.empty()) out_ += "</div>\n";
  }

  // Table of each matrix's quantization statistics, for runs with such records.
  void rounding() {
    std::string before =
        "<h2>Rounding to low precision</h2>\n<div class=\"card scroll\"><table><thead><tr><th></th>"
        "<th>operand</th><th>values</th><th>saturated</th><th>underflowed</th><th>amax</th>"
        "<th>most underflowed in a record</th></tr></thead><tbody>\n";
    for (size_t i = 0; i < runs_.size(); ++i)
      for (const QuantizedCourse& q : by_operand(quantized_courses(runs_[i]))) {
        out_ += cat(std::exchange(before, ""), "<tr><th>", chip(i), html_text(runs_[i].name), "</th>");
        for (const std::string& cell :
             {q.operand, q.dtype, text_of(100 * q.saturated_share()) + "%", text_of(100 * q.underflowed_share()) + "%",
              text_of(q.amax), cat(text_of(100 * q.worst_underflowed), "% ", q.layer)})
          out_ += cat("<td>", html_text(cell), "</td>");
        out_ += "</tr>\n";
      }
    if (before.empty()) out_ += "</tbody></table></div>\n";
  }

  // Table of each layer's newest routing record, for runs with experts.
  void experts() {
    std::string before =
        "<h2>Experts</h2>\n<div class=\"card scroll\"><table><thead><tr><th></th><th>step</th><th>layer</th>"
        "<th>share of the most chosen expert</th><th>of the least chosen</th><th>never chosen</th><th>entropy</th>"
        "<th>balance loss</th><th>dropped choices</th></tr></thead><tbody>\n";
    for (size_t i = 0; i < runs_.size(); ++i) {
      std::map<int64_t, const RoutingMetrics*> newest;  // by layer
      for (const RoutingMetrics& m : runs_[i].routing) newest[m.layer] = &m;
      for (const auto& [layer, m] : newest) {
        out_ += cat(std::exchange(before, ""), "<tr><th>", chip(i), html_text(runs_[i].name), "</th>");
        for (const std::string& cell :
             {cat(m->step), cat(layer), text_of(100 * m->largest_share) + "%", text_of(100 * m->smallest_share) + "%",
              cat(m->dead_experts), text_of(m->entropy), text_of(m->balance_loss),
              text_of(100 * m->dropped_share) + "%"})
          out_ += cat("<td>", cell, "</td>");
        out_ += "</tr>\n";
      }
    }
    if (before.empty()) out_ += "</tbody></table></div>\n";
  }

  // Table of each matrix's newest sparsity, for runs that prune.
  void pruned() {
    std::string before =
        "<h2>Pruned weights</h2>\n<div class=\"card scroll\"><table><thead><tr><th></th><th>after step</th>"
        "<th>matrix</th><th>weights</th><th>zeros</th><th>share</th></tr></thead><tbody>\n";
    for (size_t i = 0; i < runs_.size(); ++i) {
      std::vector<const PrunedMetrics*> newest;  // in the order of the model
      for (const PrunedMetrics& m : runs_[i].pruned) {
        if (!newest.empty() && newest.front()->step != m.step) newest.clear();
        newest.push_back(&m);
      }
      for (const PrunedMetrics* m : newest) {
        out_ += cat(std::exchange(before, ""), "<tr><th>", chip(i), html_text(runs_[i].name), "</th>");
        for (const std::string& cell : {cat(m->step), m->layer, cat(m->weights), cat(m->zeros),
                                        format_percent(double(m->zeros) / double(m->weights))})
          out_ += cat("<td>", html_text(cell), "</td>");
        out_ += "</tr>\n";
      }
    }
    if (before.empty()) out_ += "</tbody></table></div>\n";
  }

  void events() {
    out_ += "<h2>Events</h2>\n";
    for (size_t i = 0; i < runs_.size(); ++i) {
      const RunRecords& run = runs_[i];
      const size_t shown = std::min(run.events.size(), options_.most_events);
      out_ +=
          cat("<details class=\"card\"", runs_.size() == 1 ? " open" : "", "><summary>", chip(i), html_text(run.name),
              ": ", run.events.size(), " events", shown < run.events.size() ? cat(", the newest ", shown) : "",
              "</summary><div class=\"scroll\"><table><thead><tr><th>time, UTC</th><th>step</th><th>event</th>"
              "<th>text</th></tr></thead><tbody>\n");
      for (size_t k = run.events.size() - shown; k < run.events.size(); ++k) {
        const EventRecord& e = run.events[k];
        const bool bad = e.kind == EventKind::skip || e.kind == EventKind::warn || e.kind == EventKind::error;
        out_ += cat("<tr><td>", utc(e.time), "</td><td>", e.step, "</td><td class=\"kind", bad ? " bad" : "", "\">",
                    to_string(e.kind), "</td><td>", html_text(e.text),
                    e.seconds > 0 ? cat(" (", format_duration(e.seconds), ")") : "", "</td></tr>\n");
      }
      out_ += "</tbody></table></div></details>\n";
    }
  }

  // Shows all keys. With several runs, only keys that differ are shown; the others can be expanded.
  void configuration(const char* title, std::vector<std::pair<std::string, std::string>> RunRecords::*lines) {
    std::vector<std::string> keys;
    std::set<std::string> known;
    for (const RunRecords& run : runs_)
      for (const auto& [key, value] : run.*lines)
        if (known.insert(key).second) keys.push_back(key);
    if (keys.empty()) return;
    const auto differs = [&](const std::string& key) {
      const std::string first = value_of(runs_.front().*lines, key);
      return std::any_of(runs_.begin(), runs_.end(),
                         [&](const RunRecords& r) { return value_of(r.*lines, key) != first; });
    };
    std::vector<std::string> same, different;
    for (const std::string& key : keys) (differs(key) ? different : same).push_back(key);
    out_ += cat("<h2>", title, "</h2>\n");
    if (!different.empty()) {
      out_ += "<div class=\"card scroll\">";
      key_table(different, lines, runs_.size());
      out_ += "</div>\n";
    }
    if (same.empty()) return;
    out_ += cat("<details class=\"card\"><summary>", runs_.size() == 1 ? "" : "Common to all runs: ", same.size(),
                " keys</summary><div class=\"scroll side\">");
    key_table(same, lines, 1);
    out_ += "</div></details>\n";
  }

  void key_table(const std::vector<std::string>& keys,
                 std::vector<std::pair<std::string, std::string>> RunRecords::*lines, size_t runs) {
    out_ += "<table>";
    if (runs > 1) {
      out_ += "<thead><tr><th>key</th>";
      for (size_t i = 0; i < runs; ++i) out_ += cat("<th>", chip(i), html_text(runs_[i].name), "</th>");
      out_ += "</tr></thead>";
    }
    out_ += "<tbody>\n";
    for (const std::string& key : keys) {
      out_ += cat("<tr><th>", html_text(key), "</th>");
      for (size_t i = 0; i < runs; ++i) out_ += cat("<td>", html_text(value_of(runs_[i].*lines, key)), "</td>");
      out_ += "</tr>\n";
    }
    out_ += "</tbody></table>";
  }

  std::span<const RunRecords> runs_;
  const ReportOptions& options_;
  std::string out_;
};

}  // namespace

std::string html_report(std::span<const RunRecords> runs, const ReportOptions& options) {
  CHECK(!runs.empty(), "a report of no run");
  return Page(runs, options).html();
}

}  // namespace athanor
