#include "perf/roofline.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/format.h"
#include "engine/engine.h"

namespace athanor {
namespace {

// Partial sums of splits along K are written and read once, in f32. `most` is the rate of a GEMM with M = N = K = 8192,
// so fractions are relative to that GEMM's.
double tiled_seconds(const Launch& gemm, const Tiling& tiling, const Roofline& limits) {
  const auto m = double(gemm.shape[0]), n = double(gemm.shape[1]), k = double(gemm.inner);
  const double yardstick = filling({.rows = 128, .cols = 256}, 8192, 8192, 8192, limits).all();
  const double share = std::min(1.0, filling(tiling, m, n, k, limits, gemm.epilogue_bytes).all() / yardstick);
  return gemm.cost.flops / (limits.most.flops * share) + partial_sum_bytes(tiling, m, n) / limits.most.bytes;
}

// Prints four digits, and no exponent for larger numbers.
std::string milliseconds(double seconds) {
  const double ms = seconds * 1e3;
  return format_text(ms < 1e4 ? "%.4g ms" : "%.0f ms", ms);
}

void append_row(std::string& out, const std::string& name, const OpRow& row, double steps, double step_seconds) {
  out += format_text("%-28s %8.0f %10s %10s %10.3f", name.c_str(), double(row.launches) / steps,
                     format_count(row.cost.flops / steps).c_str(), format_count(row.cost.bytes / steps).c_str(),
                     row.least / steps * 1e3);
  if (step_seconds > 0 && row.seconds == 0) out += format_text(" %10s", "-");  // none of its launches was observed
  if (step_seconds > 0 && row.seconds > 0)
    out += format_text(" %10.3f %6.1f%% %9s %9s %8.1f%% %9.3f", row.seconds / steps * 1e3,
                       100 * row.seconds / steps / step_seconds, format_count(row.cost.flops / row.seconds).c_str(),
                       format_count(row.cost.bytes / row.seconds).c_str(), 100 * row.least / row.seconds,
                       row.lost() / steps * 1e3);
  out += "\n";
}

}  // namespace

Roofline Roofline::of(Factors factors) const {
  Roofline own = *this;
  own.most = {most.flops_of(factors), most.bytes};
  own.pipeline *= own.most.flops / most.flops;
  own.epilogue_byte *= own.most.flops / most.flops;
  return own;
}

bool multiplies(const Engine& engine, Factors factors) {
  return std::ranges::any_of(engine.micro_launches(), [&](const Launch& launch) { return launch.factors == factors; });
}

std::string rates_in_words(const Ceilings& most, const Engine& engine) {
  std::string out = cat("GEMMs ", format_count(most.flops), " FLOP/s");
  for (const auto& [factors, words] : {std::pair{Factors::quantized, ", in FP8 "},
                                       {Factors::fp4_values, ", in FP4 "},
                                       {Factors::floats, ", of dequantized values "}})
    if (multiplies(engine, factors)) out += cat(words, format_count(most.flops_of(factors)), " FLOP/s");
  return cat(out, ", copies ", format_count(most.bytes), " B/s");
}

Filling filling(const Tiling& tiling, double m, double n, double k, const Roofline& limits, double epilogue_bytes) {
  const auto sms = double(limits.multiprocessors);
  const double tiles = tiling.tiles(m, n), waves = std::ceil(tiles / sms), cut = k / tiling.cuts;
  return {.edges = m * n * tiling.cuts / (tiles * tiling.rows * tiling.cols),
          .wave = tiles / (sms * waves),
          .pipeline = cut / (cut + limits.pipeline + limits.epilogue_byte * epilogue_bytes / (m * n))};
}

double partial_sum_bytes(const Tiling& tiling, double m, double n) {
  return tiling.cuts > 1 ? 8.0 * tiling.cuts * m * n : 0;
}

Tiling best_tiling(const Launch& gemm, const Roofline& all) {
  const Roofline limits = all.of(gemm.factors);
  Tiling best;
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](double rows, double cols) {
    for (const int cuts : {1, 2, 3, 4, 6, 8, 12}) {
      const Tiling tiling{.rows = rows, .cols = cols, .cuts = double(cuts)};
      const double seconds = tiled_seconds(gemm, tiling, limits);
      if (seconds < least) best = tiling;
      least = std::min(least, seconds);
    }
  };
  consider(128, 256), consider(256, 128);
  if (limits.square_tiles) consider(128, 128);
  return best;
}

double least_seconds(const Launch& launch, const Roofline& limits) {
  const Roofline own = limits.of(launch.factors);
  const double roofline = own.most.least_seconds(launch.cost), moving = launch.moved / own.most.bytes;
  const std::string_view op = launch.op;
  if (limits.multiprocessors > 0 && launch.inner > 0)
    return std::max(roofline, tiled_seconds(launch, best_tiling(launch, limits), own)) + moving;
  if (limits.attention_forward > 0 && op == AttentionFwd::kName)
    return std::max(roofline, launch.cost.flops / limits.attention_forward);
  if (limits.attention_backward > 0 && op == AttentionBwd::kName)
    return std::max(roofline, launch.cost.flops / limits.attention_backward);
  return roofline + moving;
}

void OpRow::add(const Launch& launch, const Roofline& limits, int64_t times) {
  launches += times;
  shape = launch.shape;
  inner = launch.inner;
  factors = launch.factors;
  cost.flops += double(times) * launch.cost.flops;
  cost.bytes += double(times) * (launch.cost.bytes + launch.moved);
  least += double(times) * least_seconds(launch, limits);
}

std::string row_name(const Launch& launch, bool by_shape) {
  if (!by_shape) return launch.op;
  std::string name = launch.op;
  for (int i = 0; i < launch.shape.rank; ++i) name += cat(i ? "x" : " ", launch.shape[i]);
  return launch.inner > 0 ? cat(name, "x", launch.inner) : name;
}

std::map<std::string, OpRow> planned_rows(const Engine& engine, const Roofline& limits, bool by_shape) {
  std::map<std::string, OpRow> rows;
  for (const Launch& launch : engine.micro_launches())
    rows[row_name(launch, by_shape)].add(launch, limits, engine.micro_batches());
  for (const Launch& launch : engine.update_launches()) rows[row_name(launch, by_shape)].add(launch, limits);
  return rows;
}

double least_update_seconds(const Engine& engine, const Roofline& limits) {
  double sum = 0;
  for (const Launch& launch : engine.update_launches()) sum += least_seconds(launch, limits);
  return sum;
}

double min_update_gemm_seconds(const Engine& engine, const Roofline& limits) {
  double sum = 0;
  for (const Launch& launch : engine.update_launches())
    if (launch.multiplies()) sum += least_seconds(launch, limits);
  return sum;
}

std::vector<std::pair<std::string, OpRow>> ordered(const std::map<std::string, OpRow>& rows) {
  std::vector<std::pair<std::string, OpRow>> out(rows.begin(), rows.end());
  const auto weight = [](const OpRow& row) { return row.seconds > 0 ? row.lost() : row.least; };
  std::stable_sort(out.begin(), out.end(),
                   [&](const auto& a, const auto& b) { return weight(a.second) > weight(b.second); });
  return out;
}

double least_sum(const std::map<std::string, OpRow>& rows) {
  double sum = 0;
  for (const auto& [name, row] : rows) sum += row.least;
  return sum;
}

double measured_sum(const std::map<std::string, OpRow>& rows) {
  double sum = 0;
  for (const auto& [name, row] : rows) sum += row.seconds;
  return sum;
}

std::string op_table(const std::map<std::string, OpRow>& rows, double steps, double step_seconds) {
  std::string out = format_text("%-28s %8s %10s %10s %10s", "op, per step", "launches", "FLOP", "bytes", "limit ms");
  if (step_seconds > 0)
    out += format_text(" %10s %7s %9s %9s %9s %9s", "ms", "share", "FLOP/s", "B/s", "of limit", "lost ms");
  out += "\n";
  for (const auto& [name, row] : ordered(rows)) append_row(out, name, row, steps, step_seconds);
  const double least = least_sum(rows) / steps, seconds = measured_sum(rows) / steps;
  out += format_text("limit of the step: %s", milliseconds(least).c_str());
  if (step_seconds > 0)
    out += format_text(
        "; ops take %s, %.1f %% of the step's %s\nbetween ops: %s (input, memory, the tape, launches, reading the "
        "result)",
        milliseconds(seconds).c_str(), 100 * seconds / step_seconds, milliseconds(step_seconds).c_str(),
        milliseconds(std::max(0.0, step_seconds - seconds)).c_str());
  return out + "\n";
}

}  // namespace athanor
