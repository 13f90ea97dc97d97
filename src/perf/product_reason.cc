#include "perf/product_reason.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace athanor {
namespace {

constexpr double kWorthTelling = 0.97;  // shares above it are not reported
constexpr double kUnexplained = 0.9;    // measured below this fraction of the explained rate, another cause must exist
constexpr double kShortLaunch = 10e-6;  // seconds; a kernel start takes 2 to 3e-6 of them

struct Loss {
  double share;  // of the rate that remains
  std::string words;
};

template <class... Values>
std::string text(const char* format, Values... values) {
  char out[200];
  std::snprintf(out, sizeof out, format, values...);
  return out;
}

long percent(double share) { return std::lround(100 * share); }

void add_tile_losses(std::vector<Loss>& losses, const ProductFacts& f, const Roofline& limits) {
  const Tiling& t = f.tiling;
  if (limits.multiprocessors <= 0 || t.rows <= 0) return;
  const auto sms = double(limits.multiprocessors);
  const Filling share = filling(t, f.m, f.n, f.k, limits);
  const double tiles = t.tiles(f.m, f.n), waves = tiles / sms;
  if (tiles < sms)
    losses.push_back(
        {share.wave, text("%.0f tiles of %.0fx%.0f for %.0f multiprocessors", tiles, t.rows, t.cols, sms)});
  else
    losses.push_back(
        {share.wave, text("%.2f waves of %.0fx%.0f tiles: the last one is not full", waves, t.rows, t.cols)});
  losses.push_back({share.edges, text("tiles of %.0fx%.0f reach over the edges", t.rows, t.cols)});
  const double usual = filling({.rows = 128, .cols = 256}, 8192, 8192, 8192, limits).pipeline;
  losses.push_back(
      {std::min(1.0, share.pipeline / usual), text("K of %.0f is short for a tile's pipeline", f.k / t.cuts)});
  losses.push_back(
      {filling(t, f.m, f.n, f.k, limits, f.epilogue_bytes).pipeline / share.pipeline,
       text("the epilogue reads or writes %.0f more bytes for each result", f.epilogue_bytes / f.m / f.n)});
  const double computing = f.cost.flops / limits.most.flops;
  const double adding = partial_sum_bytes(t, f.m, f.n) / limits.most.bytes;
  losses.push_back({computing / (computing + adding), text("%.0f cuts of K are added up in memory", t.cuts)});
}

std::vector<Loss> losses_of(const ProductFacts& f, const Roofline& limits) {
  std::vector<Loss> losses;
  const double intensity = f.cost.flops / f.cost.bytes, needed = limits.most.flops / limits.most.bytes;
  if (intensity < needed)
    losses.push_back(
        {intensity / needed, text("bound by memory: %.3g FLOP per byte, %.3g are needed", intensity, needed)});
  losses.push_back({1 - f.epilogue_seconds / f.seconds, f.codes ? "codes or scales are prepared by kernels of their own"
                                                                : "the epilogue is a kernel of its own"});
  add_tile_losses(losses, f, limits);
  std::erase_if(losses, [](const Loss& loss) { return loss.share > kWorthTelling; });
  std::stable_sort(losses.begin(), losses.end(), [](const Loss& x, const Loss& y) { return x.share < y.share; });
  return losses;
}

}  // namespace

std::string why_slow(const ProductFacts& f, const Roofline& limits) {
  std::string out;
  double explained = 1;
  for (const Loss& loss : losses_of(f, limits)) {
    out += cat(out.empty() ? "" : "; ", loss.words, " (", percent(loss.share), " %)");
    explained *= loss.share;
  }
  if (f.seconds < kShortLaunch) {
    out += cat(out.empty() ? "" : "; ", text("it lasts %.1f us, so that starting it counts", 1e6 * f.seconds));
    return out;
  }
  const double measured = f.cost.flops / f.seconds / limits.most.flops;
  if (measured < kUnexplained * explained)
    out += cat(out.empty() ? "not explained by its sizes"
                           : cat("; these leave ", percent(explained), " %, the rest is not explained"));
  return out;
}

}  // namespace athanor
