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
             "adds this times the square of log sum exp(logits) to what is trained, not to the losses shown: keeps "
             "logits from drifting; 1e-4 is usual; 0 = off"),
      custom("multi_token_prediction",
             list_of_objects<&Config::multi_token_prediction, ahead_token_fields, "list of tokens further ahead">(),
             notice,
             "the head also predicts the second token ahead, the third, ..., up to 8, an entry for each; their losses "
             "are trained on and not shown; empty = the next token alone"),
      number("dropout.hidden", &Config::hidden_dropout, below(0, 1), notice, "",
             "in training, elements of the embedding and of what attention and feed-forward layers add to the stream "
             "become 0 with this probability, and others count 1 / (1 - p) times; which follows from seed, step and "
             "the element's number in the step alone; 0 = off"),
      number("dropout.stochastic_depth", &Config::stochastic_depth, below(0, 1), notice, "",
             "in training, attention and the feed-forward layer of the last block are left out for a sequence with "
             "this probability, each by itself, and count 1 / (1 - p) times elsewhere; which follows from seed, step "
             "and the sequence's number in the step alone; 0 = off"),
      choice<&Config::stochastic_depth_mode>("dropout.stochastic_depth_mode", notice,
                                             "dropout.stochastic_depth: probability of block l of L: linear = l / L "
                                             "times that of the last; uniform = the same in all"),
      number("loss_spikes.zscore", &Config::loss_spike_zscore, at_least(0), notice, "",
             "a step whose loss or gradient norm lies more than this many standard deviations above the mean of the "
             "last 128 steps is skipped; 6 is usual; 0 = off"),
      number("loss_spikes.max_consecutive", &Config::max_consecutive_spikes, between(1, kMaxCount), notice, "steps",
             "loss_spikes.zscore: maximum number of steps skipped in a row; the next one is always taken"),
      option(
          "loss_spikes.rollback", &Config::rollback, notice,
          "after loss_spikes.max_consecutive spikes or loss_spikes.max_skipped_steps non-finite steps in a row, go "
          "back to the newest checkpoint from before them and leave out the data since; once in a run, then it stops"),
      number("loss_spikes.max_skipped_steps", &Config::max_skipped_steps, at_least(1), free, "steps",
             "consecutive steps with a non-finite gradient, each skipped, after which the run stops")
          .developer(),
  };
}

std::vector<Field<Config>> expert_fields() {
  return {
      number("moe.router_bias_update_rate", &Config::router_bias_update_rate, between(0, 1), free, "",
             "dots1: after each step the bias of every expert moves by this, up where fewer of the step's tokens than "
             "the mean over experts chose it, down where more did; 0 = it stays")
          .alias({"moe_router_bias_update_rate"}),
      number(
          "moe.expert_capacity_factor", &Config::expert_capacity_factor, between(0, 1e3), notice, "",
          "in training each expert takes at most this times tokens * num_experts_per_tok / num_experts of a "
          "sequence's choices, and drops those with the smallest router weights (docs/models.md); 0 = none is dropped")
          .alias({"moe_expert_capacity_factor"}),
      number("moe.expert_buffer_factor", &Config::expert_buffer_factor, between(0, 1e3), free, "",
             "expert_parallel_size above 1: a rank sends each rank of other experts at most this times an equal share "
             "of its tokens' choices, and its buffers have room for that; a run that needs more ends "
             "(docs/distributed.md); 0 = there is room for any routing"),
  };
}

std::vector<Field<AheadToken>> ahead_token_fields() {
  using A = AheadToken;
  return {
      number("weight", &A::weight, above(0), notice, "", "factor of its loss; that of the next token has 1").required(),
      number("decay_start", &A::decay_start, at_least(0), notice, "", "step from which the weight falls, linearly"),
      number("decay_end", &A::decay_end, at_least(0), notice, "",
             "step from which the weight is 0; 0 = the weight does not fall"),
  };
}

}  // namespace athanor
