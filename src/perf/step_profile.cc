#include "perf/step_profile.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/log.h"
#include "metrics/record.h"
#include "perf/label_ops.h"
#include "perf/timed_ops.h"

namespace athanor {
namespace {

// Number of unmeasured steps at the start: in the first, libraries build plans; in the second, graphs are captured.
constexpr int64_t kPreparing = 1, kPreparingGraphs = 2;

bool communicates(const DeviceWork& a) { return a.name.rfind("nccl", 0) == 0; }  // NCCL's kernels: ncclDevKernel_...

// Returns the kind of an NCCL kernel: AllReduce for ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...).
std::string kind_of(const std::string& kernel) {
  const size_t from = kernel.find('_') + 1;  // 0 if there is no underscore
  return kernel.substr(from, kernel.find_first_of("_(", from) - from);
}

using Spans = std::vector<std::pair<int64_t, int64_t>>;  // [begin, end) in ns

// Returns the union of intervals, in order.
Spans united(Spans spans) {
  std::sort(spans.begin(), spans.end());
  Spans all;
  for (const auto& [begin, end] : spans)
    if (all.empty() || begin > all.back().second)
      all.emplace_back(begin, end);
    else
      all.back().second = std::max(all.back().second, end);
  return all;
}

double seconds_of(const Spans& disjoint) {
  int64_t sum = 0;
  for (const auto& [begin, end] : disjoint) sum += end - begin;
  return double(sum) * 1e-9;
}

// Returns the seconds of activity `a` that none of the disjoint spans covers.
double uncovered_seconds(const DeviceWork& a, const Spans& disjoint) {
  int64_t rest = a.end - a.begin;
  auto at = std::upper_bound(disjoint.begin(), disjoint.end(), a.begin,
                             [](int64_t t, const auto& span) { return t < span.second; });
  for (; at != disjoint.end() && at->first < a.end; ++at)
    rest -= std::min(a.end, at->second) - std::max(a.begin, at->first);
  return double(rest) * 1e-9;
}

std::string row_of(const DeviceWork& a, const LabelOps& labels) {
  return a.label > 0 ? labels.row_of(a.label) : cat("[", a.name, "]");
}

std::string number(double x, int digits) {
  if (std::isnan(x)) return "-";
  return format_text("%.*f", digits, x);
}

// The table sums over kinds of collectives; only the log separates them.
std::string communication_table(const std::vector<CommunicationRow>& rows, const Network& network) {
  if (rows.empty()) return "";
  std::string out = format_text("\n%-24s %-14s %9s %11s %11s %11s\n", "collectives of", "group", "calls", "exposed ms",
                                "modelled ms", "ms");
  for (const CommunicationRow& row : rows)
    out += format_text("%-24s %-14s %9s %11s %11s %11s\n", row.of.layer.empty() ? "whole step" : row.of.layer.c_str(),
                       row.of.group.empty() ? "?" : row.of.group.c_str(), number(row.calls, 1).c_str(),
                       number(row.exposed * 1e3, 4).c_str(), number(row.modelled * 1e3, 4).c_str(),
                       number(row.seconds * 1e3, 4).c_str());
  return out +
         format_text(
             "modelled: exposed by the model of docs/distributed.md, at %.4g GB/s to ranks of the same machine and "
             "%.4g GB/s to others\n\n",
             network.link_bytes / 1e9, network.network_bytes / 1e9);
}

}  // namespace

Occupation occupation(std::span<const DeviceWork> activities) {
  if (activities.empty()) return {};
  Spans all, computing;
  int64_t first = INT64_MAX, last = INT64_MIN;
  for (const DeviceWork& a : activities) {
    first = std::min(first, a.begin);
    last = std::max(last, a.end);
    all.emplace_back(a.begin, a.end);
    if (!communicates(a)) computing.emplace_back(a.begin, a.end);
  }
  const double busy = seconds_of(united(std::move(all)));
  computing = united(std::move(computing));
  Occupation o{.window = double(last - first) * 1e-9, .busy = busy, .exposed = busy - seconds_of(computing)};
  for (const DeviceWork& a : activities) {
    if (!communicates(a)) continue;
    const double seconds = uncovered_seconds(a, computing);
    o.exposed_by[kind_of(a.name)] += seconds;
    o.exposed_by_label[a.label] += seconds;
  }
  return o;
}

std::vector<DeviceWork> without_waits(std::vector<DeviceWork> activities) {
  std::stable_sort(activities.begin(), activities.end(),
                   [](const DeviceWork& a, const DeviceWork& b) { return a.begin < b.begin; });
  std::map<int64_t, int64_t> ended;  // keys: stream
  for (DeviceWork& a : activities) {
    if (communicates(a) || a.name == "copy" || a.name == "fill") continue;
    int64_t& before = ended.try_emplace(a.stream, a.begin).first->second;
    a.begin = std::min(std::max(a.begin, before), a.end);
    before = std::max(before, a.end);
  }
  return activities;
}

StepProfile::StepProfile(Engine& engine, Backend backend, Options options)
    : engine_(engine), backend_(backend), options_(std::move(options)) {
  if (!options_.profiler) {
    use_events();
    return;
  }
  source_ = options_.profiler->description();
  labels_ = std::make_unique<LabelOps>(backend_.ops, *options_.profiler, options_.by_shape);
  watch_collectives(options_.profiler);
  preparing_ = kPreparingGraphs;
  engine_.set_ops(*labels_, CaptureOps::yes);
}

StepProfile::~StepProfile() { engine_.set_ops(backend_.ops, labels_ ? CaptureOps::yes : CaptureOps::no); }

// Discards earlier measurements: kernel times and event times must not mix.
void StepProfile::use_events() {
  if (!options_.why_events.empty())
    log::warn("profile: ops are launched one by one, without CUDA graphs, and timed by events around each: ",
              options_.why_events);
  source_ = "events";
  timed_ = std::make_unique<TimedOps>(
      backend_.ops, backend_.device,
      TimedOps::Options{.limits = options_.limits, .by_shape = options_.by_shape, .trace = options_.trace});
  engine_.set_ops(*timed_);
  watch_collectives(nullptr);
  labels_.reset();
  kernel_rows_.clear();
  occupied_ = {};
  lost_ = steps_ = 0;
  seconds_ = 0;
  preparing_ = kPreparing;
}

void StepProfile::watch_collectives(Profiler* profiler) {
  collectives_.reset();  // before the next one is created, because the watch has one observer
  if (options_.collectives)
    collectives_ = std::make_unique<CollectiveTimes>(*options_.collectives, profiler, backend_.device.unified());
}

void StepProfile::end_step(double seconds) {
  const bool count = preparing_ == 0;
  preparing_ = std::max<int64_t>(0, preparing_ - 1);
  settle(count);
  if (!count || preparing_ > 0) return;
  ++steps_;
  seconds_ += seconds;
}

void StepProfile::skip() { settle(false); }

void StepProfile::settle(bool count) {
  if (collectives_) collectives_->settle(count);
  if (timed_) return timed_->settle(count);
  backend_.device.sync();
  DeviceLog log = options_.profiler->take();
  log.done = without_waits(std::move(log.done));
  if (!log.problem.empty()) {
    options_.why_events = log.problem;
    return use_events();
  }
  if (options_.trace) write_spans(log);
  if (count) add(log);
}

void StepProfile::add(const DeviceLog& log) {
  // Graph replays launch nothing on the host, so launch counts come from the plan.
  for (const auto& [name, planned] : planned_rows(engine_, options_.limits, options_.by_shape)) {
    OpRow& row = kernel_rows_[name];
    row.launches += planned.launches;
    row.cost.flops += planned.cost.flops;
    row.cost.bytes += planned.cost.bytes;
    row.least += planned.least;
  }
  for (const DeviceWork& a : log.done) {
    OpRow& row = kernel_rows_[row_of(a, *labels_)];
    row.seconds += double(a.end - a.begin) * 1e-9;
    if (a.label <= 0) ++row.launches;
  }
  const Occupation step = occupation(log.done);
  add_collectives(log, step);
  occupied_.window += step.window;
  occupied_.busy += step.busy;
  occupied_.exposed += step.exposed;
  for (const auto& [kind, seconds] : step.exposed_by) occupied_.exposed_by[kind] += seconds;
  lost_ += log.lost;
}

void StepProfile::add_collectives(const DeviceLog& log, const Occupation& step) {
  if (!collectives_) return;
  for (const auto& [label, exposed] : step.exposed_by_label) {
    int64_t kernels = 0, ns = 0;
    for (const DeviceWork& a : log.done)
      if (communicates(a) && a.label == label) ++kernels, ns += a.end - a.begin;
    collectives_->add(label, {.calls = kernels, .exposed = exposed, .seconds = double(ns) * 1e-9});
  }
}

std::map<CollectiveKey, CollectiveRow> StepProfile::collectives() const {
  std::map<CollectiveKey, CollectiveRow> all;
  if (!collectives_) return all;
  const ParamStore& params = engine_.model().params();
  for (const auto& [key, row] : collectives_->rows()) all[{layer_of(params, key.subject), key.group, key.kind}] += row;
  return all;
}

// A device with unified memory communicates and computes one after the other, so nothing is hidden.
std::map<LayerGroup, double> StepProfile::modelled_communication() const {
  const Roofline& limits = options_.limits;
  const bool alternates = backend_.device.unified();
  const double compute = alternates ? 0 : least_sum(planned_rows(engine_, limits));
  const double gemms = alternates ? 0 : min_update_gemm_seconds(engine_, limits);
  return step_traffic(engine_, backend_.mesh, backend_.network, alternates ? nullptr : &limits)
      .exposed_by_layer(compute, double(engine_.micro_batches()), gemms);
}

std::vector<CommunicationRow> StepProfile::communication() const {
  std::map<LayerGroup, CollectiveRow> measured;
  for (const auto& [key, row] : collectives()) measured[{key.subject, key.group}] += row;
  const std::map<LayerGroup, double> modelled = modelled_communication();
  std::map<LayerGroup, CommunicationRow> all;
  const double none = measured.empty() ? kUnknown : 0;
  for (const auto& [of, seconds] : modelled) all[of] = {of, none, none, none, seconds};
  for (const auto& [of, row] : measured) {
    const auto found = modelled.find(of);
    const auto steps = double(steps_);
    all[of] = {of, double(row.calls) / steps, row.exposed / steps, row.seconds / steps,
               found == modelled.end() ? kUnknown : found->second};
  }
  std::vector<CommunicationRow> rows;
  const auto add = [&](const std::string& layer) {
    for (const auto& [of, row] : all)
      if (of.layer == layer) rows.push_back(row);
  };
  for (const auto& unit : engine_.model().params().units()) add(unit->name);
  add("");
  return rows;
}

void StepProfile::write_spans(const DeviceLog& log) {
  const auto now = TraceWriter::Clock::now();
  const int64_t now_there = options_.profiler->now();
  const auto here = [&](int64_t ns) { return now + std::chrono::nanoseconds(ns - now_there); };
  for (const DeviceWork& a : log.done)
    options_.trace->complete(
        {.name = row_of(a, *labels_), .category = a.name, .tid = a.stream, .begin = here(a.begin), .end = here(a.end)});
}

const std::map<std::string, OpRow>& StepProfile::rows() const { return timed_ ? timed_->rows() : kernel_rows_; }

std::string StepProfile::table(double step_seconds) const {
  if (steps_ == 0) return "profile: no step counted; the first ones prepare\n";
  std::string out =
      op_table(rows(), double(steps_), step_seconds) + communication_table(communication(), backend_.network);
  if (timed_ && options_.why_events.empty()) return out;
  if (timed_)
    return out +
           "times: events around every op, launched one by one, not kernels under CUDA graphs (there was a "
           "warning)\n";
  out += format_text(
      "times: kernels, by %s\nbetween the first and the last kernel of a step the GPU was idle %.1f %% of the "
      "time; communication that no computing hid: %.4g ms\n",
      source_.c_str(), 100 * occupied_.idle(), occupied_.exposed / double(steps_) * 1e3);
  for (const auto& [kind, seconds] : occupied_.exposed_by)
    out += format_text("of %s: %.4g ms\n", kind.c_str(), seconds / double(steps_) * 1e3);
  if (lost_ > 0) out += cat(lost_, " records of activities were lost: times are too low\n");
  return out;
}

}  // namespace athanor
