// Requirements on the other options in a run that trains adapters of a frozen model.
#include "config/config.h"
#include "config/require.h"

namespace athanor {

void validate_adapters(const Config& c) {
  require(c.lora_rank > 0 || c.base_precision == BasePrecision::none,
          "lora.base_precision: ", name_of(c.base_precision),
          " stores weights that are not trained, and lora.rank is 0, which trains all of them; set lora.rank above 0 "
          "to train adapters on top of them, or lora.base_precision to none");
  if (c.lora_rank == 0) return;
  const std::string rank = cat("lora.rank: ", c.lora_rank);
  require(!c.init_from.empty(), rank,
          " trains adapters of a model, and init_from names none; give it a folder of weights, or set lora.rank to 0");
  require(!c.lora_targets.empty(), "lora.targets: names no layer, expected some for lora.rank ", c.lora_rank,
          ", such as [\"all-linear\"]");
  require(!low_precision(c.precision), rank, " is not supported with precision ", name_of(c.precision),
          "; take bf16, fp16, tf32 or fp32");
  require(c.base_precision == BasePrecision::none || c.tensor_parallel_size == 1,
          "lora.base_precision: ", name_of(c.base_precision), " is not supported with tensor_parallel_size ",
          c.tensor_parallel_size,
          ", which would cut its blocks; set tensor_parallel_size to 1 and share weights with zero_stage 3 or "
          "pipeline_parallel_size, or set lora.base_precision to none");
  require(c.lora_dropout == 0 || c.context_parallel_size == 1, "lora.dropout: ", c.lora_dropout,
          " is not supported with context_parallel_size ", c.context_parallel_size,
          "; set lora.dropout to 0, or context_parallel_size to 1");
  require(!updates_by(c, RuleName::schedule_free_adamw), rank,
          " is not supported with optimizer schedule_free_adamw; take adamw with averaging.ema_decay or "
          "averaging.tail_start");
  require(c.qk_clip_threshold == 0, rank, " is not supported with qk_clip_threshold ", c.qk_clip_threshold,
          ": it scales the frozen weights of queries and keys; set it to 0");
  require(c.mup_base_width == 0, rank, " is not supported with mup_base_width ", c.mup_base_width,
          ": the model has been initialized; set it to 0");
}

}  // namespace athanor
