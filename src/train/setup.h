// Builds the objects of a run from its config: engine options, datasets, and a micro-batch size that fits in memory.
#pragma once
#include <array>
#include <memory>
#include <optional>

#include "config/config.h"
#include "data/augmentation.h"
#include "data/dataset.h"
#include "engine/engine.h"
#include "metrics/record.h"
#include "perf/flops.h"

namespace athanor {

OptimizerOptions optimizer_options(const Config&);
EngineOptions engine_options(const Config&, bool training);

// Returns the ZeRO stage. With 0 and a rule for whole matrices (Muon) stage 1 is used: otherwise each replica would
// receive all gradients, and each update from its owner instead of a shard of the updates.
int zero_stage(const Config&);
// Returns the mesh for this many ranks. Throws Error(usage) if the number is not divisible as configured.
MeshSizes mesh_sizes(const Config&, int ranks);

// Opens and checks all shards of a list of sources. (training_data.cc)
Dataset open_dataset(const std::vector<DataSource>&, const Config&, const std::vector<MixtureStage>& stages = {});

// Opens train_data with its stages, in windows or packed, and with fill-in-the-middle if configured.
Dataset open_training_data(const Config&);

// Returns the number of epochs over each entry of train_data, for logs.
std::string epochs_of_sources(const Config&, const Dataset& train);

// Returns the mean loss of each entry of train_data that had tokens in a step, from StepResult::source_sums.
NamedValues source_losses(const Config&, std::span<const double> sums);

// Returns the options that convert windows to rows. Determines the end-of-document token if the config omits it and it
// is needed.
PackingOptions packing_options(const Config&, const Dataset& train);

Augmentation augmentation(const Config&);

// Returns the bytes available to the plan: memory_limit_gib, or the device's capacity; the run-time reserve is added to
// the plan.
size_t memory_capacity(const Config&, const Device&);
// Returns the bytes of pinned host memory available for offloading; SIZE_MAX: unknown.
size_t host_memory_capacity(const Config&, const Device&);
size_t runtime_reserve(const Config&, const Device&);
// Returns a line on the GPU memory held by other programs if the capacity depends on it; else "". The free memory
// determines micro-batch, recomputation and kernels, and these choices affect the bits of the results.
std::string memory_of_others(const Config&, const Device&);
bool saves_in_background(const Config&, const Device&);
// Returns the host memory that a training run needs, in addition to the plan, for the copy that background saves write.
size_t save_copy_bytes(const Config&, const Device&, const Engine&);
// Returns a rank's share of the host memory for two checkpoints in memory, with the copies for the case of several
// machines; 0 without checkpoint.memory_interval.
size_t memory_checkpoint_bytes(const Config&, const Engine&);
size_t checkpoint_bytes(const Config&, const Device&, const Engine&);  // the sum of the two
// Returns the part of memory_capacity() that a run needs in addition to the plan: the reserve, and that of checkpoints
// if it is in the same memory.
size_t memory_outside_plan(const Config&, const Device&, const Engine&);

// Builds an engine whose plan fits in memory; it is not committed. micro_batch_size 0: chosen among the divisors of the
// global batch up to a token limit, together with the recomputation mode (at least the configured one), by the modelled
// step time (perf/roofline.h). A configured size gets the least recomputation that fits. Recomputation does not change
// results. The choice depends only on config, device and ranks. (make_engine.cc; the limit for GPUs has not been
// measured yet.)
constexpr int64_t kAutoTokens = 8192, kAutoTokensOnGpu = 131072;
// With more ranks than this in ring attention a dry run takes seconds, and hops are bound by latency: ranks gather keys
// instead if that fits.
constexpr int kMostInRing = 512;
std::unique_ptr<Engine> make_engine(const Config&, Backend, bool training, InferenceWeights = {});

// Autotunes before commit(): algorithms and epilogues of the engine's GEMMs, and attention kernels, within the
// configured time. Skips those in the user's cache, and adds the results to the cache.
void search_gemms(const Config&, Engine&, Tuning&);
// Sends the choices of rank 0 to all ranks, so that their GEMMs round identically.
void share_choices(const Backend&);
// Returns "attention: ", the chosen implementation, and why it was chosen; "" if there is no choice.
std::string attention_words(Engine&, Tuning*);

// Returns FLOPs per token for MFU.
FlopCount flops_per_token(Model&, int64_t seq_length);
FlopCount flops_per_token(Engine&, int64_t seq_length);  // includes the forward pass of a teacher that runs
FlopCount attention_flops_per_token(const ModelConfig&, int64_t seq_length);  // sum over all layers
// Returns the FLOPs per token of the step after `step` others, whose window sliding_window_schedule sets. last: those
// with the last window. Attention counts over whole sequences, also while a curriculum cuts them.
FlopCount flops_of_step(const Config&, const FlopCount& last, int64_t step);

// Returns the denominator of MFU: the configured peak, else most_flops, an upper bound for the device; if that is
// unknown (0) the data sheet's peak, else a measured GEMM's rate.
double mfu_peak(const Config&, Backend, DType compute, double most_flops);
// Returns peak rates, measured in a tenth of a second: a large GEMM of random values, and a copy larger than the
// caches; with `quantized` also GEMMs of FP8 values, if the device supports them, and of f32.
Ceilings measure_ceilings(Backend, DType compute, bool quantized = false);
// Returns peak rates from the data sheet if the device is known, else measured ones.
Ceilings ceilings(Backend, DType compute, bool quantized = false);

}  // namespace athanor
