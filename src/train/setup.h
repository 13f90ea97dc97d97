// From a config to the pieces of a run: engine options, datasets, the micro-batch size that memory allows.
#pragma once
#include <array>
#include <memory>
#include <optional>

#include "config/config.h"
#include "data/dataset.h"
#include "engine/engine.h"
#include "metrics/flops.h"

namespace athanor {

OptimizerOptions optimizer_options(const Config&);
EngineOptions engine_options(const Config&, bool training);

// The mesh of so many ranks. Throws Error(usage) if they do not divide as configured.
std::array<int, kAxes> mesh_sizes(const Config&, int ranks);

// Opens and checks all shards of a list of sources.
Dataset open_dataset(const std::vector<DataSource>&, const Config&);

// How windows become rows; finds out which token ends a document where the config does not say and needs to know.
PackingOptions packing_options(const Config&, const Dataset& train);

// Bytes the plan may use: memory_limit_gib, or what the device has; the run-time reserve comes on top of the plan.
size_t memory_capacity(const Config&, const Device&);
size_t runtime_reserve(const Config&);
bool saves_in_background(const Config&, const Device&);

// An engine whose plan fits, not yet committed. micro_batch_size 0: of all divisors of the global batch that keep a
// micro-batch within so many tokens (larger ones no longer gain speed), and of all ways to recompute from the
// configured one on, those whose steps take least by the model of perf/roofline.h. A given size gets the least
// recomputation that fits. Recomputation changes no bit. The choice is a function of config, device and ranks.
// (make_engine.cc; the number for GPUs is not measured yet.)
constexpr int64_t kAutoTokens = 8192, kAutoTokensOnGpu = 131072;
std::unique_ptr<Engine> make_engine(const Config&, Backend, bool training);

// Before commit(): tries algorithms and epilogues of the engine's products, and kernels of its attention, as long as
// the config allows, beyond what the user's cache knows, and adds them to it.
void search_products(const Config&, Engine&, Tuning&);

// Operations per token for MFU.
FlopCount flops_per_token(Model&, int64_t seq_length);

// The rate that MFU refers to: the config's, or else most_flops, which the device never exceeds; where that is not
// known (0) the data sheet's, or a product's.
double mfu_peak(const Config&, Backend, DType compute, double most_flops);
// What this device does at most, measured in a tenth of a second: a large product of random values, and a copy larger
// than its caches.
Ceilings measure_ceilings(Backend, DType compute);
// The same from the device's data sheet where that is known.
Ceilings ceilings(Backend, DType compute);

}  // namespace athanor
