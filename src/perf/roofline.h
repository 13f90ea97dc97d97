// The model of the limit: what every op of a step takes at least, given what a device does at most. Steps are compared
// with it op by op, and work on speed is ordered by what is lost.
#pragma once
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "ops/decorate.h"

namespace athanor {

class Engine;

struct Roofline {
  Ceilings most;
  // Where they are known, as of described GPUs; 0: ops are bound by `most` alone.
  double attention_forward = 0, attention_backward = 0;  // FLOP/s of causal attention, for the head size of the run
  int64_t multiprocessors = 0;                           // products come in tiles, shared out among so many
};

// Bounds that no launch beats: both rates of `most`, and where they are given, the rate of attention and the rounding
// of products up to whole waves of tiles.
double least_seconds(const Launch&, const Roofline&);

// How a product is cut: d into tiles, K into cuts that are computed side by side and added up.
struct Tiling {
  double rows = 0, cols = 0;  // of a tile; 0: not known
  double cuts = 1;
  double tiles(double m, double n) const { return std::ceil(m / rows) * std::ceil(n / cols) * cuts; }
};

// Shares of the multiprocessors' time that go into results, 1 at most: tiles reach over the edges of d, the last wave
// of tiles takes as long as a full one, and a tile's pipeline fills and drains, which costs as much as 192 of K. (192
// and the tiles of best_tiling() are a fit to rates published for cuBLASLt on Hopper, not measured by this program.)
struct Filling {
  double edges, wave, pipeline;
  double all() const { return edges * wave * pipeline; }
};
Filling filling(const Tiling&, double m, double n, double k, double multiprocessors);
double partial_sum_bytes(const Tiling&, double m, double n);  // written and read once, in f32

// Of tiles of 128 x 256 and turned ones, with up to 12 cuts, that by which a product should take least.
Tiling best_tiling(const Launch& product, const Roofline&);

// Launches of one op, or of one op and shape.
struct OpRow {
  int64_t launches = 0;
  Shape shape = {};   // of the launch added last
  int64_t inner = 0;  // likewise: K of a product
  Cost cost;
  double least = 0;    // seconds
  double seconds = 0;  // measured; 0: only planned
  void add(const Launch&, const Roofline&, int64_t times = 1);
  double lost() const { return seconds - least; }
};

std::string row_name(const Launch&, bool by_shape);

// Of one optimizer step of a planned engine, not measured.
std::map<std::string, OpRow> planned_rows(const Engine&, const Roofline&, bool by_shape = false);

// Those with most time lost first; of planned ones, those that take longest.
std::vector<std::pair<std::string, OpRow>> ordered(const std::map<std::string, OpRow>&);

// Of these, seconds of the end of a step: norm, clipping and the optimizer.
double least_update_seconds(const Engine&, const Roofline&);

double least_sum(const std::map<std::string, OpRow>&);
double measured_sum(const std::map<std::string, OpRow>&);

// Lines of text: bytes, FLOPs and the limit of each row, for measured ones also rates, share of the step and gap.
// `steps`: how many steps the rows are of; `step_seconds`: what one of these very steps took, 0 for planned rows. What
// no op explains of it is told too.
std::string op_table(const std::map<std::string, OpRow>&, double steps, double step_seconds);

}  // namespace athanor
