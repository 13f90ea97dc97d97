#include "plan/rank_plan.h"

#include "base/error.h"
#include "base/format.h"
#include "config/choices.h"
#include "engine/engine.h"
#include "perf/traffic.h"
#include "train/setup.h"

namespace athanor {
namespace {

// Formats with enough digits to compare steps that take minutes.
std::string in_seconds(double seconds) {
  return format_text(seconds < 1 ? "%.4g ms" : "%.5g s", seconds < 1 ? seconds * 1e3 : seconds);
}

std::string to_text(const ContextFigures& f) {
  return cat(name_of(f.method), ": per block and micro-batch ", format_bytes(uint64_t(f.bytes)), " in ",
             int64_t(f.calls), f.method == ContextMethod::ring ? " hops" : " collectives", ", for which a step waits ",
             in_seconds(f.waits), "; a step of ", in_seconds(f.step), ", ", format_bytes(f.memory));
}

}  // namespace

ContextFigures context_figures(Engine& engine, const StepTraffic& traffic, double step) {
  const auto blocks = double(engine.model().config().num_hidden_layers);
  const bool ring = engine.options().context_method == ContextMethod::ring;
  const int64_t calls =
      ring ? int64_t(engine.micro_context_passes().all.size()) : engine.micro_context_sums().all().row_calls;
  return {.method = engine.options().context_method,
          .bytes = traffic.context.bytes / blocks / double(engine.micro_batches()),
          .calls = double(calls) / blocks,
          .waits = traffic.context.waits,
          .step = step,
          .memory = engine.memory().total()};
}

std::string context_text(const ContextFigures& chosen, int64_t ranks,
                         const std::function<ContextFigures(ContextMethod)>& other) {
  const ContextMethod method = chosen.method == ContextMethod::ring ? ContextMethod::gather : ContextMethod::ring;
  std::string text = cat("keys and values   ", to_text(chosen), "\n                  instead of ");
  if (method == ContextMethod::ring && ranks > kMostInRing)
    return text + cat("ring: not compared with more than ", kMostInRing, " ranks\n");
  try {
    return text + to_text(other(method)) + "\n";
  } catch (const Error& e) {
    return text + cat(name_of(method), ": ", e.what(), "\n");
  }
}

}  // namespace athanor
