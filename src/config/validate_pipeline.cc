// Combinations of pipeline keys that cannot work, and values derived from other keys.
#include <algorithm>
#include <numeric>

#include "config/config.h"
#include "config/require.h"

namespace athanor {
namespace {

constexpr const char* kOneStage = ", or set pipeline_parallel_size to 1";

// Refuses options that are not yet supported with several stages.
void refuse_others(const Config& c) {
  const auto stages = cat(" with the ", c.pipeline_parallel_size, " stages of pipeline_parallel_size");
  require(c.zero_stage < 2, "zero_stage: ", c.zero_stage, stages,
          " is not supported, since ranks would reduce-scatter the gradients of each micro-batch; set it to 0 or 1",
          kOneStage);
  require(c.deterministic_reduction != DeterministicReduction::rank_invariant,
          "deterministic_reduction: rank_invariant", stages, " is not supported; set it to fixed_order", kOneStage);
  require(!c.log_noise_scale, "logging.noise_scale:", stages,
          " no rank has a micro-batch's whole gradient; set it to false", kOneStage);
  require(c.rampup_batch_size.start == 0 || c.pipeline_schedule != PipelineSchedule::interleaved,
          "rampup_batch_size: with pipeline.schedule interleaved fewer micro-batches may need more memory; leave it "
          "out, or take another pipeline.schedule");
}

void validate_layout(const Config& c) {
  const int64_t parts = c.pipeline_parallel_size * c.virtual_pipeline_size, layers = c.model.num_hidden_layers;
  const std::string sizes = c.virtual_pipeline_size > 1 ? cat("pipeline_parallel_size ", c.pipeline_parallel_size,
                                                              " times pipeline.virtual_size ", c.virtual_pipeline_size)
                                                        : cat("pipeline_parallel_size ", c.pipeline_parallel_size);
  require(parts <= layers, "pipeline_parallel_size: the model's ", layers,
          " blocks (num_hidden_layers) are fewer than the ", parts, " parts of ", sizes,
          ", and no part may be empty; make the product at most ", layers);
  const std::vector<int64_t>& layout = c.pipeline_layout;
  if (layout.empty()) return;
  require(int64_t(layout.size()) == parts, "pipeline.layout: ", layout.size(), " numbers for the ", parts, " parts of ",
          sizes, "; give one for each part");
  const int64_t sum = std::accumulate(layout.begin(), layout.end(), int64_t{0});
  require(sum == layers, "pipeline.layout: its numbers add up to ", sum, " blocks, the model has num_hidden_layers ",
          layers);
}

}  // namespace

void validate_pipeline(Config& c) {
  const bool interleaved = c.pipeline_schedule == PipelineSchedule::interleaved;
  if (c.pipeline_parallel_size == 1) {
    require(c.pipeline_layout.empty(),
            "pipeline.layout: there is one part with pipeline_parallel_size 1; leave it out");
    require(c.virtual_pipeline_size <= 1, "pipeline.virtual_size: ", c.virtual_pipeline_size,
            " parts of the model on each stage need several stages; leave it out, or set pipeline_parallel_size");
    c.virtual_pipeline_size = 1;
    return;
  }
  const bool v = c.pipeline_schedule == PipelineSchedule::zbv;
  if (c.virtual_pipeline_size == 0) c.virtual_pipeline_size = interleaved || v ? 2 : 1;
  require(!v || c.virtual_pipeline_size == 2, "pipeline.virtual_size: ", c.virtual_pipeline_size,
          " with pipeline.schedule zbv, which has 2 parts on each stage; leave it out");
  require(v || interleaved == (c.virtual_pipeline_size > 1), "pipeline.virtual_size: ", c.virtual_pipeline_size,
          " with pipeline.schedule ", name_of(c.pipeline_schedule),
          interleaved ? ", which needs 2 or more parts on each stage; set it to more, or take pipeline.schedule 1f1b"
                      : "; set pipeline.schedule to interleaved, or leave it out");
  refuse_others(c);
  require(!splits_backward(c.pipeline_schedule) || c.recompute_granularity != RecomputeGranularity::full,
          "recompute_granularity: full with pipeline.schedule ", name_of(c.pipeline_schedule),
          ", which would keep what is recomputed until the weights' gradients; set it to selective or none, or take ",
          "pipeline.schedule 1f1b");
  validate_layout(c);
}

}  // namespace athanor
