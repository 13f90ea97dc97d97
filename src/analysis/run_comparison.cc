#include "analysis/run_comparison.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/format.h"
#include "base/json.h"

namespace athanor {
namespace {

using Json = nlohmann::ordered_json;

std::string precision_of(const RunRecords& run) {
  for (const auto& [key, value] : run.config)
    if (key == "precision") return value;
  return run.name;
}

double share(int64_t part, int64_t all) { return all ? double(part) / double(all) : 0; }

// max() that propagates NaN.
double larger(double a, double b) { return std::isnan(a) || std::isnan(b) ? kUnknown : std::max(a, b); }

std::vector<ComparedStep> common_steps(const RunRecords& run, const RunRecords& reference) {
  std::vector<ComparedStep> steps;
  auto other = reference.steps.begin();
  for (const StepMetrics& m : run.steps) {
    while (other != reference.steps.end() && other->step < m.step) ++other;
    if (other == reference.steps.end()) break;
    if (other->step != m.step) continue;
    steps.push_back({.step = m.step, .loss = m.loss, .reference = other->loss, .gap = 0});
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    double mine = 0, theirs = 0;
    for (size_t k = i + 1 - std::min(i + 1, kComparisonSmoothing); k <= i; ++k)
      mine += steps[k].loss, theirs += steps[k].reference;
    steps[i].gap = mine / theirs - 1;
  }
  return steps;
}

void compare_valid(RunComparison& report, const RunRecords& run, const RunRecords& reference) {
  for (const EvalMetrics& a : run.evals)
    for (const EvalMetrics& b : reference.evals) {
      if (a.name != "valid" || b.name != "valid" || a.step != b.step || a.step < report.valid_step) continue;
      report.valid_step = a.step;
      report.valid_loss = a.loss, report.valid_reference = b.loss, report.valid_gap = a.loss / b.loss - 1;
    }
}

std::string percent(double fraction) {
  return std::isfinite(fraction) ? format_text("%+.3f%%", 100 * fraction) : "not a number";
}

void find_alarms(RunComparison& report) {
  const auto gap = [&](const char* what, double value) {
    if (!(value <= report.limits.gap))  // also true for NaN
      report.alarms.push_back(cat("gap of the ", what, " to ", report.reference, ": ", percent(value), ", above ",
                                  percent(report.limits.gap)));
  };
  gap("smoothed training loss", report.steps.back().gap);
  if (report.valid_step >= 0) gap("held-out loss", report.valid_gap);
  const auto rounding = [&](const QuantizedCourse& q, const char* what, double worst, double limit) {
    if (worst > limit)
      report.alarms.push_back(cat(q.layer, " ", q.operand, " (", q.dtype, "): up to ", format_percent(worst),
                                  " of the values ", what, ", above ", format_percent(limit)));
  };
  for (const QuantizedCourse& q : report.operands) {
    rounding(q, "saturate", q.worst_saturated, report.limits.saturated);
    rounding(q, "underflow to zero", q.worst_underflowed, report.limits.underflowed);
    if (!std::isfinite(q.amax))
      report.alarms.push_back(cat(q.layer, " ", q.operand, " (", q.dtype, "): held Inf or NaN"));
  }
}

}  // namespace

std::vector<QuantizedCourse> quantized_courses(const RunRecords& run) {
  std::vector<QuantizedCourse> all;
  std::map<std::pair<std::string, std::string>, size_t> at;
  for (const QuantizedMetrics& m : run.quantized) {
    const auto [place, is_new] = at.try_emplace({m.layer, m.operand}, all.size());
    if (is_new) all.push_back({.layer = m.layer, .operand = m.operand, .dtype = m.dtype, .records = {}});
    QuantizedCourse& q = all[place->second];
    q.values += m.values, q.saturated += m.saturated, q.underflowed += m.underflowed;
    q.amax = larger(q.amax, m.amax);
    q.worst_saturated = std::max(q.worst_saturated, share(m.saturated, m.values));
    q.worst_underflowed = std::max(q.worst_underflowed, share(m.underflowed, m.values));
    q.records.push_back(m);
  }
  return all;
}

std::vector<QuantizedCourse> by_operand(const std::vector<QuantizedCourse>& courses) {
  std::vector<QuantizedCourse> sums;
  for (const QuantizedCourse& q : courses) {
    auto sum = std::find_if(sums.begin(), sums.end(), [&](const auto& s) { return s.operand == q.operand; });
    if (sum == sums.end()) sum = sums.insert(sum, {.layer = q.layer, .operand = q.operand, .dtype = q.dtype});
    if (q.worst_underflowed > sum->worst_underflowed) sum->layer = q.layer;
    sum->values += q.values, sum->saturated += q.saturated, sum->underflowed += q.underflowed;
    sum->amax = larger(sum->amax, q.amax);
    sum->worst_saturated = std::max(sum->worst_saturated, q.worst_saturated);
    sum->worst_underflowed = std::max(sum->worst_underflowed, q.worst_underflowed);
  }
  std::sort(sums.begin(), sums.end(), [](const auto& a, const auto& b) { return a.operand < b.operand; });
  return sums;
}

RunComparison compare_runs(const RunRecords& run, const RunRecords& reference, const ComparisonLimits& limits) {
  RunComparison report{.precision = precision_of(run),
                       .reference = precision_of(reference),
                       .steps = common_steps(run, reference),
                       .operands = quantized_courses(run),
                       .limits = limits,
                       .alarms = {}};
  if (report.steps.empty())
    throw Error(cat("compare: ", run.name, " and ", reference.name, " have no step in common; train both first"),
                Exit::usage);
  compare_valid(report, run, reference);
  find_alarms(report);
  return report;
}

std::string comparison_json(const RunComparison& report) {
  Json json = {{"precision", report.precision}, {"reference", report.reference}};
  json["limits"] = {
      {"gap", report.limits.gap}, {"saturated", report.limits.saturated}, {"underflowed", report.limits.underflowed}};
  json["alarms"] = report.alarms;
  json["valid"] = Json();
  if (report.valid_step >= 0)
    json["valid"] = {{"step", report.valid_step},
                     {"loss", report.valid_loss},
                     {"reference_loss", report.valid_reference},
                     {"gap", report.valid_gap}};
  json["smoothing_steps"] = kComparisonSmoothing;
  json["steps"] = Json::array();
  for (const ComparedStep& s : report.steps)
    json["steps"].push_back({{"step", s.step}, {"loss", s.loss}, {"reference_loss", s.reference}, {"gap", s.gap}});
  json["operands"] = Json::array();
  for (const QuantizedCourse& q : report.operands) {
    Json course = Json::array();
    for (const QuantizedMetrics& m : q.records)
      course.push_back({{"step", m.step},
                        {"saturated", share(m.saturated, m.values)},
                        {"underflowed", share(m.underflowed, m.values)},
                        {"amax", m.amax}});
    json["operands"].push_back({{"layer", q.layer},
                                {"operand", q.operand},
                                {"dtype", q.dtype},
                                {"values", q.values},
                                {"saturated", q.saturated_share()},
                                {"underflowed", q.underflowed_share()},
                                {"amax", q.amax},
                                {"course", std::move(course)}});
  }
  return json_text(json, 1) + "\n";
}

std::string comparison_summary(const RunComparison& report) {
  const auto row = [&](const char* what, double loss, double reference, double gap) {
    return format_text("%-24s %18.4f %18.4f  %s\n", what, loss, reference, percent(gap).c_str());
  };
  std::string text =
      format_text("%-24s %18s %18s  %s\n", "loss", report.precision.c_str(), report.reference.c_str(), "gap");
  const ComparedStep& last = report.steps.back();
  text += row(cat("training, step ", last.step).c_str(), last.loss, last.reference, last.loss / last.reference - 1);
  text += cat("smoothed over ", kComparisonSmoothing, " steps: gap ", percent(last.gap), "\n");
  if (report.valid_step >= 0)
    text += row(cat("held out, step ", report.valid_step).c_str(), report.valid_loss, report.valid_reference,
                report.valid_gap);
  if (report.operands.empty()) return text;
  text += format_text("\n%-10s %-8s %10s %11s %10s  %s\n", "operand", "dtype", "saturated", "underflowed", "amax",
                      "most underflowed in a record");
  for (const QuantizedCourse& q : by_operand(report.operands))
    text += format_text("%-10s %-8s %9.4f%% %10.4f%% %10.4g  %.4f%% %s\n", q.operand.c_str(), q.dtype.c_str(),
                        100 * q.saturated_share(), 100 * q.underflowed_share(), q.amax, 100 * q.worst_underflowed,
                        q.layer.c_str());
  return text;
}

}  // namespace athanor
