// The options of the loss, dropout, steps with non-finite values or spikes, and experts, in the form of
// config_fields.cc.
#include "config/fields.h"
#include "config/fields_walk.h"

namespace athanor {
namespace {

using enum OnResume;

}  // namespace

std::vector<Field<Config>> loss_fields() {
  return {
      number("z_loss", &Config::z_loss, at_least(0), notice, "",
             "coefficient of (log sum exp(logits))^2 in the training loss (logged losses exclude it), which keeps "
             "logits from drifting; 1e-4 is usual; 0 = off"),
      custom("multi_token_prediction",
             list_of_objects<&Config::multi_token_prediction, ahead_token_fields, "list of tokens further ahead">(),
             notice,
             "multi-token prediction: the head also predicts the 2nd, 3rd, ... up to 8th next token, one entry per "
             "extra token; their losses are trained on but not logged; empty = off"),
      number("dropout.hidden", &Config::hidden_dropout, below(0, 1), notice, "",
             "dropout probability of elements of the embedding and of the outputs that attention and feed-forward "
             "layers add to the residual stream; kept elements are scaled by 1 / (1 - p); the mask depends only on "
             "seed, step and element index; 0 = off"),
      number("dropout.stochastic_depth", &Config::stochastic_depth, below(0, 1), notice, "",
             "stochastic depth: probability with which attention or feed-forward layer of the last block is skipped, "
             "drawn per sequence and layer; kept outputs are scaled by 1 / (1 - p); the mask depends only on seed, "
             "step and sequence index; 0 = off"),
      choice<&Config::stochastic_depth_mode>("dropout.stochastic_depth_mode", notice,
                                             "probability of block l of L: linear = l / L times "
                                             "dropout.stochastic_depth, uniform = the same in all blocks"),
      number("loss_spikes.zscore", &Config::loss_spike_zscore, at_least(0), notice, "",
             "skip a step whose loss or gradient norm is more than this many standard deviations above the mean of the "
             "last 128 steps; 6 is usual; 0 = off"),
      number("loss_spikes.max_consecutive", &Config::max_consecutive_spikes, between(1, kMaxCount), notice, "steps",
             "maximum number of consecutive steps skipped by loss_spikes.zscore; the next step is always taken"),
      option(
          "loss_spikes.rollback", &Config::rollback, notice,
          "after loss_spikes.max_consecutive spikes or loss_spikes.max_skipped_steps non-finite steps in a row, return "
          "to the newest checkpoint before them and skip the data since; at most once per run, then the run stops"),
      number("loss_spikes.max_skipped_steps", &Config::max_skipped_steps, at_least(1), free, "steps",
             "the run stops after this many consecutive steps with non-finite gradients, each of which is skipped")
          .developer(),
  };
}

std::vector<Field<Config>> expert_fields() {
  return {
      number("moe.router_bias_update_rate", &Config::router_bias_update_rate, between(0, 1), free, "",
             "dots1, deepseek_v3: step size of the router bias (load balancing without auxiliary loss): after each "
             "step the bias of "
             "an expert rises by this if it received fewer tokens than average, and falls if more; 0 = constant")
          .alias({"moe_router_bias_update_rate"}),
      choice<&Config::aux_loss_scope>(
          "moe.aux_loss_scope", notice,
          "tokens whose choices model.router_aux_loss_coef balances together: those of each sequence, of each "
          "micro-batch of a rank, or of the global batch, as far as it is processed (docs/models.md)"),
      number("moe.expert_capacity_factor", &Config::expert_capacity_factor, between(0, 1e3), notice, "",
             "capacity factor: in training, each expert takes at most this times tokens * num_experts_per_tok / "
             "num_experts of the choices of a sequence and drops those with the smallest router weights "
             "(docs/models.md); 0 = dropless")
          .alias({"moe_expert_capacity_factor"}),
      number("moe.expert_buffer_factor", &Config::expert_buffer_factor, between(0, 1e3), free, "",
             "with expert_parallel_size above 1: buffer for the rows sent to each expert rank, as a multiple of an "
             "equal share; a run that needs more ends with an error (docs/distributed.md); 0 = room for any routing"),
  };
}

std::vector<Field<AheadToken>> ahead_token_fields() {
  using A = AheadToken;
  return {
      number("weight", &A::weight, above(0), notice, "", "weight of this token's loss; the next token has weight 1")
          .required(),
      number("decay_start", &A::decay_start, at_least(0), notice, "",
             "step at which the weight starts to decrease linearly"),
      number("decay_end", &A::decay_end, at_least(0), notice, "",
             "step at which the weight reaches 0; 0 = constant weight"),
  };
}

}  // namespace athanor
