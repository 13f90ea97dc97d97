// The options of optimizers and param groups, in the form of config_fields.cc.
#include "base/error.h"
#include "config/fields.h"
#include "config/fields_walk.h"

namespace athanor {
namespace {

using enum OnResume;

// Values that are not given are left out.
Json write_groups(const Config& in) {
  Json list = Json::array();
  for (const auto& group : in.param_groups) {
    Json& object = list.items.emplace_back(Json::object());
    for (const auto& field : param_group_fields()) {
      Json value = write_field(field, group);
      const bool given = to_line(value) != to_line(write_field(field, ParamGroupConfig{}));
      if (given || field.key == "match") object.set(std::string(field.key), std::move(value));
    }
  }
  return list;
}

Custom<Config> groups() {
  Custom<Config> list = list_of_objects<&Config::param_groups, param_group_fields, "list of groups">();
  list.write = write_groups;
  return list;
}

}  // namespace

std::vector<Field<Config>> optimizer_fields() {
  return {
      choice<&Config::optimizer>(
          "optimizer", refused,
          "update rule: adamw; adam = with coupled decay (L2); sgd; lion; muon for the matrices "
          "of hidden layers, with adamw for embeddings, head and vectors; normuon = muon with "
          "outputs of one size; adamw_8bit = adamw with 8-bit moments of matrices; lamb = "
          "steps of adamw scaled to the norm of each matrix and embedding, with adamw for vectors; schedule_free_adamw "
          "= adamw with an average of the weights, which evaluations "
          "read, in place of a decay of the learning rate; adafactor = factored second moments alone, updates clipped "
          "to "
          "a root mean square of 1; onebit_adam = adamw for freeze_step steps, then with the variance of that step and "
          "momentum that the data_parallel_replicate_size copies send each other in 1 bit per weight, and "
          "onebit_lamb = lamb so (docs/distributed.md)"),
      number("learning_rate", &Config::learning_rate, above(0), notice, "", "peak learning rate")
          .alias({"lr"})
          .required(),
      number("min_lr", &Config::min_lr, at_least(0), notice, "", "learning rate at the end of the decay")
          .alias({"min_decay_lr"})
          .unset_is("10 % of learning_rate; with 1cycle lr_warmup_init / 10000"),
      choice<&Config::lr_decay_style>(
          "lr_decay_style", notice,
          "course of the learning rate after the warm-up; WSD = constant, then a decay at the end; inverse_sqrt = "
          "learning_rate * sqrt(lr_warmup_iters / finished steps), not below min_lr; 1cycle = half a cosine up during "
          "the "
          "warm-up, "
          "then one down, while momentum goes down to low_momentum and up again; exponential = from lr_warmup_init to "
          "learning_rate by one factor each step, as `athanor lr-find` does"),
      number("lr_warmup_iters", &Config::lr_warmup_iters, at_least(0), notice, "steps",
             "linear warm-up; of 1cycle the rise, for which 0 = 30 % of lr_decay_iters")
          .alias({"warmup_iters", "warmup_steps", "lr_warmup_steps"}),
      number("lr_warmup_init", &Config::lr_warmup_init, at_least(0), notice, "",
             "learning rate that a warm-up starts at")
          .unset_is("0; with 1cycle learning_rate / 25"),
      number("lr_decay_iters", &Config::lr_decay_iters, at_least(0), notice, "steps",
             "step at which min_lr is reached, warm-up included; 0 = train_iters"),
      choice<&Config::lr_wsd_decay_style>("lr_wsd_decay_style", notice, "course of the decay of WSD"),
      number("lr_wsd_decay_iters", &Config::lr_wsd_decay_iters, at_least(0), notice, "steps",
             "length of the decay of WSD, which ends at lr_decay_iters; 0 = a tenth of lr_decay_iters, but 4 at least"),
      number("adam_beta1", &Config::adam_beta1, below(0, 1), notice, "", "decay of the first moment").alias({"beta1"}),
      number("adam_beta2", &Config::adam_beta2, below(0, 1), notice, "", "decay of the second moment").alias({"beta2"}),
      number("adam_eps", &Config::adam_eps, above(0), notice, "", "added to the root of the second moment")
          .alias({"eps"}),
      number("momentum_warmup_iters", &Config::momentum_warmup_iters, at_least(0), notice, "steps",
             "the decay of the first moment rises linearly from low_momentum to adam_beta1; 0 = constant"),
      number("low_momentum", &Config::low_momentum, below(0, 1), notice, "",
             "decay of the first moment at the start of its warm-up and at the peak of 1cycle"),
      number("weight_decay", &Config::weight_decay, at_least(0), notice, "",
             "decay of matrices and embeddings, with sgd and adam coupled (L2), else decoupled; norms and biases have "
             "none"),
      option("cautious_weight_decay", &Config::cautious_weight_decay, notice,
             "a weight decays only in steps that do not move it away from zero otherwise; not with adam and sgd"),
      number("sgd_momentum", &Config::sgd_momentum, below(0, 1), notice, "", "sgd: momentum; 0 = none, and no state"),
      option("sgd_nesterov", &Config::sgd_nesterov, notice, "sgd: Nesterov momentum").developer(),
      number("lion_beta1", &Config::lion_beta1, below(0, 1), notice, "", "lion: share of the average in the update")
          .developer(),
      number("lion_beta2", &Config::lion_beta2, below(0, 1), notice, "", "lion: decay of the average").developer(),
      number("muon_momentum", &Config::muon_momentum, below(0, 1), notice, "", "muon: decay of the average"),
      option("muon_nesterov", &Config::muon_nesterov, notice, "muon: Nesterov momentum").developer(),
      choice<&Config::muon_scale>(
          "muon_scale", notice,
          "muon: factor of an [out, in] matrix's update: match_rms = 0.2 sqrt(max(out, in)), with learning rate and "
          "decay of AdamW; original = sqrt(max(1, out / in)), with a learning rate of some 0.02; spectral = sqrt(out / "
          "in)"),
      choice<&Config::muon_coefficients>(
          "muon_coefficients", notice,
          "muon: polynomials of its five iterations; polar_express comes nearer to orthogonal")
          .developer(),
      number("normuon_beta2", &Config::normuon_beta2, below(0, 1), notice, "",
             "normuon: decay of the mean square of each output; the rest are muon's options")
          .developer(),
      number("min_8bit_size", &Config::min_8bit_size, at_least(1), refused, "elements",
             "adamw_8bit: matrices smaller than this have the moments of adamw")
          .developer(),
      number("update_clip_threshold", &Config::update_clip_threshold, at_least(0), notice, "",
             "adamw: update clipping: a tensor's update, before learning rate and decay, is scaled down to this root "
             "mean square (docs/optimizers.md); 1 is usual; 0 = off"),
      number("router_bias_update_rate", &Config::router_bias_update_rate, between(0, 1), free, "",
             "dots1: after each step the bias of every expert moves by this, up where fewer of the step's tokens than "
             "the mean over experts chose it, down where more did; 0 = it stays")
          .alias({"moe_router_bias_update_rate"}),
      number(
          "expert_capacity_factor", &Config::expert_capacity_factor, between(0, 1e3), notice, "",
          "experts: in training each expert takes at most this times tokens * num_experts_per_tok / num_experts of a "
          "sequence's choices, and drops those with the smallest router weights (docs/models.md); 0 = none is "
          "dropped")
          .alias({"moe_expert_capacity_factor"}),
      number("expert_buffer_factor", &Config::expert_buffer_factor, between(0, 1e3), free, "",
             "expert_parallel_size above 1: a rank sends each rank of other experts at most this times an equal share "
             "of its tokens' choices, and its buffers have room for that; a run that needs more ends "
             "(docs/distributed.md); 0 = there is room for any routing"),
      number("qk_clip_threshold", &Config::qk_clip_threshold, at_least(0), notice, "",
             "QK-clip: after an update the queries and keys of heads whose largest attention score in that step was "
             "above this are scaled down to it (docs/optimizers.md); 100 is usual; 0 = off"),
      number("ema_decay", &Config::ema_decay, below(0, 1), refused, "",
             "an average of the weights is kept beside them and saved with checkpoints (docs/optimizers.md): share of "
             "the average before in that after a step; 0.999 is usual; 0 = off"),
      number("tail_average_start", &Config::tail_average_start, at_least(0), refused, "steps",
             "the mean of the weights after each step beyond this one is kept beside them and saved with checkpoints "
             "(docs/optimizers.md); four fifths of train_iters are usual; 0 = off"),
      number("freeze_step", &Config::freeze_step, at_least(0), refused, "steps",
             "onebit_adam and onebit_lamb: steps that sum whole gradients, before the variance is frozen; 15 to 25 % "
             "of train_iters are usual"),
      number(
          "local_steps", &Config::local_steps, at_least(0), refused, "steps",
          "local updates (DiLoCo; with muon MuLoCo): the data_parallel_replicate_size copies train apart, and after "
          "so many steps their mean movement moves the weights that they share (docs/distributed.md); 30 is usual; 0 "
          "= off, every step sums over them"),
      number("outer_learning_rate", &Config::outer_learning_rate, above(0), notice, "",
             "local_steps: share of the mean movement that the shared weights take"),
      number("outer_momentum", &Config::outer_momentum, below(0, 1), refused, "",
             "local_steps: Nesterov momentum of the shared weights"),
      number("local_fragments", &Config::local_fragments, at_least(1), refused, "fragments",
             "local_steps: parts of the model that are averaged at different steps of a round, one after the other, "
             "so that less is sent at once")
          .developer(),
      number("outer_delay", &Config::outer_delay, at_least(0), refused, "steps",
             "local_steps: steps from the end of a round to the use of what workers send each other then, which is "
             "sent beside these steps (docs/distributed.md); 1 to 5 are usual"),
      number("outer_mixing", &Config::outer_mixing, below(0, 1), notice, "",
             "local_steps: share of its own weights that a worker keeps where it takes the shared ones; 0.5 is usual "
             "with outer_delay"),
      choice<&Config::outer_delta_dtype>(
          "outer_delta_dtype", notice,
          "local_steps: what workers send each other of each weight's movement: fp32, or "
          "fp4 = 4.5 bits (docs/distributed.md)"),
      number(
          "mup_base_width", &Config::mup_base_width, at_least(0), refused, "",
          "hidden_size at which learning rate and initializer_range were found: initial weights and rates of another "
          "hidden_size follow by muP (docs/optimizers.md); with muon muon_scale spectral is needed; 0 = off"),
      custom("param_groups", groups(), refused,
             "weights that are updated differently: the first group that fits a weight's name and role has it; behind "
             "those given, vectors do not decay, with muon and normuon embeddings and vectors have adamw, and with "
             "lamb vectors do"),
      choice<&Config::weight_decay_style>("weight_decay_style", notice,
                                          "course of weight_decay to end_weight_decay over lr_decay_iters"),
      number("end_weight_decay", &Config::end_weight_decay, at_least(0), notice, "",
             "weight decay from lr_decay_iters on, unless weight_decay_style is constant")
          .unset_is("weight_decay"),
      number(
          "hidden_dropout", &Config::hidden_dropout, below(0, 1), notice, "",
          "in training, elements of the embedding and of what attention and feed-forward layers add to the stream "
          "become 0 with this probability, and others count 1 / (1 - p) times; which follows from seed, step and the "
          "element's number in the step alone; 0 = off"),
      number(
          "stochastic_depth", &Config::stochastic_depth, below(0, 1), notice, "",
          "in training, attention and the feed-forward layer of the last block are left out for a sequence with this "
          "probability, each by itself, and count 1 / (1 - p) times elsewhere; which follows from seed, step and the "
          "sequence's number in the step alone; 0 = off"),
      choice<&Config::stochastic_depth_mode>(
          "stochastic_depth_mode", notice,
          "stochastic_depth: probability of block l of L: linear = l / L times that of the last; uniform = the same in "
          "all"),
      custom("multi_token_prediction",
             list_of_objects<&Config::multi_token_prediction, ahead_token_fields, "list of tokens further ahead">(),
             notice,
             "the head also predicts the second token ahead, the third, ..., up to 8, an entry for each; their losses "
             "are trained on and not shown; empty = the next token alone"),
      number("z_loss", &Config::z_loss, at_least(0), notice, "",
             "adds this times the square of log sum exp(logits) to what is trained, not to the losses shown: keeps "
             "logits from drifting; 1e-4 is usual; 0 = off"),
      number("clip_grad", &Config::clip_grad, at_least(0), notice, "",
             "largest global gradient norm; larger gradients are scaled down; 0 = off")
          .alias({"gradient_clipping", "max_norm", "grad_clip"}),
      number("max_skipped_steps", &Config::max_skipped_steps, at_least(1), free, "steps",
             "consecutive steps with a non-finite gradient, each skipped, after which the run stops")
          .developer(),
      number(
          "loss_spike_zscore", &Config::loss_spike_zscore, at_least(0), notice, "",
          "a step whose loss or gradient norm lies more than this many standard deviations above the mean of the last "
          "128 steps is skipped; 6 is usual; 0 = off")
          .alias({"spike_deviations"}),
      option(
          "rollback", &Config::rollback, notice,
          "after max_consecutive_spikes spikes or max_skipped_steps non-finite steps in a row, go back to the newest "
          "checkpoint from before them and leave out the data since; once in a run, then it stops"),
      number("max_consecutive_spikes", &Config::max_consecutive_spikes, between(1, kMaxCount), notice, "steps",
             "loss_spike_zscore: maximum number of steps skipped in a row; the next one is always taken")
          .alias({"max_spikes_in_row"}),
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

std::vector<Field<ParamGroupConfig>> param_group_fields() {
  using G = ParamGroupConfig;
  constexpr std::string_view kOwn = "the run's";
  return {
      option("match", &G::match, refused, "pattern of names in files (model.safetensors); * and ? as in a shell"),
      choice<&G::role>("role", refused, "weights of this role alone; head and positions are embeddings"),
      choice<&G::optimizer>("optimizer", refused, "update rule; inherit = the run's, with its options"),
      number("lr_factor", &G::lr_factor, at_least(0), refused, "", "times the learning rate of the run"),
      number("weight_decay", &G::weight_decay, at_least(0), refused, "", "decay").unset_is(kOwn),
      number("beta1", &G::beta1, below(0, 1), refused, "", "of adamw, adam, lamb, schedule_free_adamw and lion")
          .unset_is(kOwn),
      number("beta2", &G::beta2, below(0, 1), refused, "",
             "of adamw, adam, lamb, schedule_free_adamw, lion and normuon")
          .unset_is(kOwn),
      number("eps", &G::eps, above(0), refused, "", "of adamw, adam, lamb and schedule_free_adamw").unset_is(kOwn),
      number("momentum", &G::momentum, below(0, 1), refused, "", "of sgd, muon and normuon").unset_is(kOwn),
      option("frozen", &G::frozen, refused, "these weights stay what they are"),
  };
}

}  // namespace athanor
