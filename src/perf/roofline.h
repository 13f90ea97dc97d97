// Roofline model: a lower bound for the time of each op of a step, given the device's peak rates. Measured steps are
// compared with it op by op, to find where most time is lost.
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
  // The members below are known for described GPUs; 0: ops are bounded only by `most`.
  double attention_forward = 0, attention_backward = 0;  // FLOP/s of causal attention for the run's head size
  int64_t multiprocessors = 0;                           // number of SMs over which GEMM tiles are distributed
  double host_bytes = 0;                                 // bytes per second to or from host memory
  double pipeline = 192;      // cost of filling and draining a tile's pipeline, in elements of K
  double epilogue_byte = 32;  // cost of each byte per output element that an epilogue reads or writes, in elements of K
  bool square_tiles = false;  // 128 x 128 tiles are as fast as larger ones: GPUs without wgmma

  Roofline of(Factors) const;  // roofline whose most.flops is the rate of GEMMs with these operands
};

// True if a micro-batch of a planned engine has GEMMs with operands of this kind.
bool multiplies(const Engine&, Factors);

// Returns text such as "GEMMs 795T FLOP/s, in FP8 1.59P FLOP/s, copies 4.3T B/s"; includes "in FP8" (quantized GEMMs)
// only if the run has them.
std::string rates_in_words(const Ceilings&, const Engine&);

// Returns a lower bound for any launch: both rates of `most` and, if given, the attention rate and the rounding of
// GEMMs up to whole waves of tiles.
double least_seconds(const Launch&, const Roofline&);

// Tiling of a GEMM: d is split into tiles, K into splits that are computed concurrently and summed.
struct Tiling {
  double rows = 0, cols = 0;  // size of a tile; 0: unknown
  double cuts = 1;
  double tiles(double m, double n) const { return std::ceil(m / rows) * std::ceil(n / cols) * cuts; }
};

// Fractions of the SMs' time that produce results, at most 1. Losses: tiles extend beyond the edges of d; the last wave
// of tiles takes as long as a full one; filling and draining a tile's pipeline costs as much as 192 of K (GEMMs at
// another rate: the same time, so more of K); and an epilogue's reads and writes do not overlap multiplication. (192
// and the tiles of best_tiling() are a fit to rates published for cuBLASLt on Hopper. epilogue_byte = 32: one byte per
// element of a tile is 32 KiB, which at 64 bytes per cycle takes as long as 32 of K. Neither is measured by this
// program.)
struct Filling {
  double edges, wave, pipeline;
  double all() const { return edges * wave * pipeline; }
};
Filling filling(const Tiling&, double m, double n, double k, const Roofline&, double epilogue_bytes = 0);
double partial_sum_bytes(const Tiling&, double m, double n);  // partial sums are written and read once, in f32

// Returns the fastest predicted tiling with tiles of 128 x 256 or 256 x 128, also 128 x 128 if `square_tiles`, and up
// to 12 splits of K.
Tiling best_tiling(const Launch& gemm, const Roofline&);

// Launches of one op, or of one op with one shape.
struct OpRow {
  int64_t launches = 0;
  Shape shape = {};   // shape of the launch added last
  int64_t inner = 0;  // K of that launch, if it is a GEMM
  Factors factors = Factors::matrices;
  Cost cost;
  double least = 0;    // lower bound, in seconds
  double seconds = 0;  // measured; 0: only planned
  void add(const Launch&, const Roofline&, int64_t times = 1);
  double lost() const { return seconds - least; }
};

std::string row_name(const Launch&, bool by_shape);

// Returns rows for one optimizer step of a planned engine; nothing is measured.
std::map<std::string, OpRow> planned_rows(const Engine&, const Roofline&, bool by_shape = false);

// Returns rows ordered by lost time, most first; planned rows by bound, longest first.
std::vector<std::pair<std::string, OpRow>> ordered(const std::map<std::string, OpRow>&);

// Returns the lower bound of the end of a step within planned_rows(), in seconds: norm, clipping and the optimizer.
double least_update_seconds(const Engine&, const Roofline&);
// Returns the lower bound of the GEMMs within least_update_seconds(), in seconds.
double min_update_gemm_seconds(const Engine&, const Roofline&);

double least_sum(const std::map<std::string, OpRow>&);
double measured_sum(const std::map<std::string, OpRow>&);

// Returns a text table: bytes, FLOPs and bound of each row; for measured rows also rates, fraction of the step and gap.
// `steps`: number of steps in the rows; `step_seconds`: time of one such step, 0 for planned rows. The table also shows
// step time that no op explains.
std::string op_table(const std::map<std::string, OpRow>&, double steps, double step_seconds);

}  // namespace athanor
