// Roofline model: a lower bound for the time of every op of a step, given the device's peak rates. Measured steps are
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
  // Known for described GPUs; 0: only `most` bounds the ops.
  double attention_forward = 0, attention_backward = 0;  // FLOP/s of causal attention, for the head size of the run
  int64_t multiprocessors = 0;                           // tiles of products are distributed over them
  double host_bytes = 0;                                 // per second to or from host memory
  double pipeline = 192;      // cost of filling and draining a tile's pipeline, in elements of K
  double epilogue_byte = 32;  // cost of each byte per result that an epilogue reads or writes, in elements of K
  bool square_tiles = false;  // tiles of 128 x 128 are as fast as larger ones: GPUs without wgmma

  Roofline of(Factors) const;  // with `most.flops` of these products
};

// Whether a micro-batch of a planned engine has products with such factors.
bool multiplies(const Engine&, Factors);

// "products 795T FLOP/s, of codes 1.59P FLOP/s, copies 4.3T B/s": of codes where the run has such products.
std::string rates_in_words(const Ceilings&, const Engine&);

// Lower bounds for any launch: both rates of `most` and, where given, the attention rate and the rounding of products
// up to whole waves of tiles.
double least_seconds(const Launch&, const Roofline&);

// How a product is tiled: d into tiles, K into splits that are computed concurrently and summed.
struct Tiling {
  double rows = 0, cols = 0;  // size of a tile; 0: unknown
  double cuts = 1;
  double tiles(double m, double n) const { return std::ceil(m / rows) * std::ceil(n / cols) * cuts; }
};

// Shares of the multiprocessors' time that go into results, 1 at most: tiles reach over the edges of d, the last wave
// of tiles takes as long as a full one, and a tile's pipeline fills and drains, which costs as much as 192 of K; of
// products at another rate as long, so more of K; so does what an epilogue reads and writes, beside which nothing is
// multiplied. (192 and the tiles of best_tiling() are a fit to rates published for cuBLASLt on Hopper. 32: 32 KiB for a
// byte of each result of a tile, at 64 bytes a cycle, in which a tile is multiplied by 32 terms. Neither is measured by
// this program.)
struct Filling {
  double edges, wave, pipeline;
  double all() const { return edges * wave * pipeline; }
};
Filling filling(const Tiling&, double m, double n, double k, const Roofline&, double epilogue_bytes = 0);
double partial_sum_bytes(const Tiling&, double m, double n);  // written and read once, in f32

// The fastest predicted tiling among tiles of 128 x 256 and 256 x 128, and where `square_tiles` says so 128 x 128, with
// up to 12 splits of K.
Tiling best_tiling(const Launch& product, const Roofline&);

// Launches of one op, or of one op with one shape.
struct OpRow {
  int64_t launches = 0;
  Shape shape = {};   // shape of the launch added last
  int64_t inner = 0;  // K of that launch, if it is a GEMM
  Factors factors = Factors::matrices;
  Cost cost;
  double least = 0;    // seconds
  double seconds = 0;  // measured; 0: only planned
  void add(const Launch&, const Roofline&, int64_t times = 1);
  double lost() const { return seconds - least; }
};

std::string row_name(const Launch&, bool by_shape);

// Rows of one optimizer step of a planned engine; nothing is measured.
std::map<std::string, OpRow> planned_rows(const Engine&, const Roofline&, bool by_shape = false);

// Most lost time first; for planned rows, longest first.
std::vector<std::pair<std::string, OpRow>> ordered(const std::map<std::string, OpRow>&);

// Seconds of the end of a step within planned_rows(): norm, clipping and the optimizer.
double least_update_seconds(const Engine&, const Roofline&);
// Seconds of GEMMs within least_update_seconds().
double least_update_product_seconds(const Engine&, const Roofline&);

double least_sum(const std::map<std::string, OpRow>&);
double measured_sum(const std::map<std::string, OpRow>&);

// A text table: bytes, FLOPs and bound of each row; for measured rows also rates, share of the step and gap. `steps`:
// number of steps in the rows; `step_seconds`: time of one such step, 0 for planned rows. Also shows step time that no
// op explains.
std::string op_table(const std::map<std::string, OpRow>&, double steps, double step_seconds);

}  // namespace athanor
