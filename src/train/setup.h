// From a config to the objects of a run: engine options, datasets, and a micro-batch size that fits in memory.
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

// What ranks share out. With 0 and a rule for whole matrices (Muon) the same as with 1: copies of all of it would get
// every update from its owner instead of a share of them, and all gradients.
int zero_stage(const Config&);
// The mesh for this many ranks. Throws Error(usage) if they are not divisible as configured.
MeshSizes mesh_sizes(const Config&, int ranks);

// Opens and checks all shards of a list of sources. (training_data.cc)
Dataset open_dataset(const std::vector<DataSource>&, const Config&, const std::vector<MixtureStage>& stages = {});

// train_data with its stages, in windows or packed, and with fill-in-the-middle, as the config says.
Dataset open_training_data(const Config&);

// How often the run goes through each entry of train_data, for logs.
std::string epochs_of_sources(const Config&, const Dataset& train);

// How windows become rows; determines the end-of-document token if the config omits it and it is needed.
PackingOptions packing_options(const Config&, const Dataset& train);

// Memory available to the plan: memory_limit_gib, or the device's capacity; the run-time reserve is added to the plan.
size_t memory_capacity(const Config&, const Device&);
// Of pinned host memory, for what is offloaded; SIZE_MAX: unknown.
size_t host_memory_capacity(const Config&, const Device&);
size_t runtime_reserve(const Config&, const Device&);
// Where capacity depends on what other programs hold of a GPU: a line that says how much they have; else empty.
// Micro-batch, recomputation and kernels are chosen by what is left, and bits follow from these choices.
std::string memory_of_others(const Config&, const Device&);
bool saves_in_background(const Config&, const Device&);
// Host memory that a training run takes, besides the plan, for the copy that saves in the background write.
size_t save_copy_bytes(const Config&, const Device&, const Engine&);
// What a run takes of memory_capacity() besides the plan: the reserve, and that copy where it is in the same memory.
size_t memory_beside_plan(const Config&, const Device&, const Engine&);

// An engine whose plan fits in memory, not yet committed. micro_batch_size 0: chosen among the divisors of the global
// batch up to a token limit, together with the recomputation mode, at least the configured one, by the modelled step
// time (perf/roofline.h). A given size gets the least recomputation that fits. Recomputation changes no bit. The choice
// depends on config, device and ranks only. (make_engine.cc; the limit for GPUs has not been measured yet.)
constexpr int64_t kAutoTokens = 8192, kAutoTokensOnGpu = 131072;
// With more ranks in a ring a dry run takes seconds, and hops wait for their latency: they gather keys if that fits.
constexpr int kMostInRing = 512;
std::unique_ptr<Engine> make_engine(const Config&, Backend, bool training, InferenceWeights = {});

// Before commit(): times algorithms and epilogues of the engine's products, and attention kernels, within the
// configured time, skips those in the user's cache, and adds the results to it.
void search_products(const Config&, Engine&, Tuning&);
// All ranks take the choices of rank 0, so that their products round alike.
void share_choices(const Backend&);
// "attention: " and whose kernels compute the engine's, and why; "" where there is no choice.
std::string attention_words(Engine&, Tuning*);

// Operations per token for MFU.
FlopCount flops_per_token(Model&, int64_t seq_length);
FlopCount flops_per_token(Engine&, int64_t seq_length);  // with the forward pass of a teacher that is run
FlopCount attention_flops_per_token(const ModelConfig&, int64_t seq_length);  // of all layers

// The denominator of MFU: the configured peak, else most_flops, an upper bound for the device; if that is unknown (0)
// the data sheet's, else a measured product's.
double mfu_peak(const Config&, Backend, DType compute, double most_flops);
// Peak rates, measured in a tenth of a second: a large product of random values, a copy larger than the caches; with
// `codes` also products of 8-bit codes, where the GPU multiplies them, and of f32.
Ceilings measure_ceilings(Backend, DType compute, bool codes = false);
// Peak rates from the data sheet if the device is known.
Ceilings ceilings(Backend, DType compute, bool codes = false);

}  // namespace athanor
