// The options of optimizers and param groups, in the form of config_fields.cc.
#include "base/error.h"
#include "config/fields.h"
#include "config/fields_walk.h"

namespace athanor {
namespace {

using enum OnResume;

// Omits values that are not given.
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
          "to a root mean square of 1; onebit_adam = adamw for adam.freeze_step steps, then with the variance of that "
          "step and momentum that the data_parallel_replicate_size copies send each other in 1 bit per weight, and "
          "onebit_lamb = lamb so (docs/distributed.md)"),
      number("learning_rate", &Config::learning_rate, above(0), notice, "", "peak learning rate")
          .alias({"lr"})
          .required(),
      number("weight_decay", &Config::weight_decay, at_least(0), notice, "",
             "decay of matrices and embeddings, with sgd and adam coupled (L2), else decoupled; norms and biases have "
             "none"),
      option("cautious_weight_decay", &Config::cautious_weight_decay, notice,
             "a weight decays only in steps that do not move it away from zero otherwise; not with adam and sgd"),
      number("clip_grad", &Config::clip_grad, at_least(0), notice, "",
             "largest global gradient norm; larger gradients are scaled down; 0 = off")
          .alias({"gradient_clipping", "max_norm", "grad_clip"}),
      number("qk_clip_threshold", &Config::qk_clip_threshold, at_least(0), notice, "",
             "QK-clip: after an update the queries and keys of heads whose largest attention score in that step was "
             "above this are scaled down to it (docs/optimizers.md); 100 is usual; 0 = off"),
      number(
          "mup_base_width", &Config::mup_base_width, at_least(0), refused, "",
          "hidden_size at which learning rate and initializer_range were found: initial weights and rates of another "
          "hidden_size follow by muP (docs/optimizers.md); with muon muon.scale spectral is needed; 0 = off"),
      custom("param_groups", groups(), refused,
             "weights that are updated differently: the first group that fits a weight's name and role has it; behind "
             "those given, vectors do not decay, with muon and normuon embeddings and vectors have adamw, and with "
             "lamb vectors do"),
      number("adam.beta1", &Config::adam_beta1, below(0, 1), notice, "", "decay of the first moment").alias({"beta1"}),
      number("adam.beta2", &Config::adam_beta2, below(0, 1), notice, "", "decay of the second moment").alias({"beta2"}),
      number("adam.eps", &Config::adam_eps, above(0), notice, "", "added to the root of the second moment")
          .alias({"eps"}),
      choice<&Config::exp_avg_dtype>("adam.exp_avg_dtype", notice,
                                     "type of Adam's first moment; bf16 is rounded at random, without bias"),
      choice<&Config::exp_avg_sq_dtype>("adam.exp_avg_sq_dtype", notice,
                                        "type of Adam's second moment; bf16 is rounded at random, without bias: its "
                                        "noise is some 1 % with adam.beta2 0.95, 5 % with 0.999"),
      number("adam.update_clip_threshold", &Config::update_clip_threshold, at_least(0), notice, "",
             "adamw: update clipping: a tensor's update, before learning rate and decay, is scaled down to this root "
             "mean square (docs/optimizers.md); 1 is usual; 0 = off"),
      number("adam.min_8bit_size", &Config::min_8bit_size, at_least(1), refused, "elements",
             "adamw_8bit: matrices smaller than this have the moments of adamw")
          .developer(),
      number("adam.freeze_step", &Config::freeze_step, at_least(0), refused, "steps",
             "onebit_adam and onebit_lamb: steps that sum whole gradients, before the variance is frozen; 15 to 25 % "
             "of train_iters are usual"),
      number("sgd.momentum", &Config::sgd_momentum, below(0, 1), notice, "", "momentum; 0 = none, and no state"),
      option("sgd.nesterov", &Config::sgd_nesterov, notice, "Nesterov momentum").developer(),
      number("lion.beta1", &Config::lion_beta1, below(0, 1), notice, "", "share of the average in the update")
          .developer(),
      number("lion.beta2", &Config::lion_beta2, below(0, 1), notice, "", "decay of the average").developer(),
      number("muon.momentum", &Config::muon_momentum, below(0, 1), notice, "", "decay of the average"),
      option("muon.nesterov", &Config::muon_nesterov, notice, "Nesterov momentum").developer(),
      choice<&Config::muon_scale>(
          "muon.scale", notice,
          "factor of an [out, in] matrix's update: match_rms = 0.2 sqrt(max(out, in)), with learning rate and decay of "
          "AdamW; original = sqrt(max(1, out / in)), with a learning rate of some 0.02; spectral = sqrt(out / in)"),
      choice<&Config::muon_coefficients>("muon.coefficients", notice,
                                         "polynomials of its five iterations; polar_express comes nearer to orthogonal")
          .developer(),
      number("muon.normuon_beta2", &Config::normuon_beta2, below(0, 1), notice, "",
             "normuon: decay of the mean square of each output; the rest are muon's options")
          .developer(),
      number("averaging.ema_decay", &Config::ema_decay, below(0, 1), refused, "",
             "an average of the weights is kept beside them and saved with checkpoints (docs/optimizers.md): share of "
             "the average before in that after a step; 0.999 is usual; 0 = off"),
      number("averaging.tail_start", &Config::tail_average_start, at_least(0), refused, "steps",
             "the mean of the weights after each step beyond this one is kept beside them and saved with checkpoints "
             "(docs/optimizers.md); four fifths of train_iters are usual; 0 = off"),
      choice<&Config::eval_weights>("averaging.eval_weights", free,
                                    "weights of the run's evaluations: those being trained, or with "
                                    "averaging.ema_decay or averaging.tail_start their average; ema = average"),
  };
}

std::vector<Field<Config>> schedule_fields() {
  return {
      number("schedule.min_lr", &Config::min_lr, at_least(0), notice, "", "learning rate at the end of the decay")
          .alias({"min_decay_lr"})
          .unset_is("10 % of learning_rate; with 1cycle schedule.lr_warmup_init / 10000"),
      choice<&Config::lr_decay_style>(
          "schedule.lr_decay_style", notice,
          "course of the learning rate after the warm-up; WSD = constant, then a decay at the end; inverse_sqrt = "
          "learning_rate * sqrt(schedule.lr_warmup_iters / finished steps), not below schedule.min_lr; 1cycle = half a "
          "cosine up during the warm-up, then one down, while momentum goes down to schedule.low_momentum and up "
          "again; exponential = from schedule.lr_warmup_init to learning_rate by one factor each step, as `athanor "
          "lr-find` does"),
      number("schedule.lr_warmup_iters", &Config::lr_warmup_iters, at_least(0), notice, "steps",
             "linear warm-up; of 1cycle the rise, for which 0 = 30 % of schedule.lr_decay_iters")
          .alias({"warmup_iters", "warmup_steps", "lr_warmup_steps"}),
      number("schedule.lr_warmup_init", &Config::lr_warmup_init, at_least(0), notice, "",
             "learning rate that a warm-up starts at")
          .unset_is("0; with 1cycle learning_rate / 25"),
      number("schedule.lr_decay_iters", &Config::lr_decay_iters, at_least(0), notice, "steps",
             "step at which schedule.min_lr is reached, warm-up included; 0 = train_iters"),
      choice<&Config::lr_wsd_decay_style>("schedule.lr_wsd_decay_style", notice, "course of the decay of WSD"),
      number("schedule.lr_wsd_decay_iters", &Config::lr_wsd_decay_iters, at_least(0), notice, "steps",
             "length of the decay of WSD, which ends at schedule.lr_decay_iters; 0 = a tenth of "
             "schedule.lr_decay_iters, but 4 at least"),
      number("schedule.momentum_warmup_iters", &Config::momentum_warmup_iters, at_least(0), notice, "steps",
             "the decay of the first moment rises linearly from schedule.low_momentum to adam.beta1; 0 = constant"),
      number("schedule.low_momentum", &Config::low_momentum, below(0, 1), notice, "",
             "decay of the first moment at the start of its warm-up and at the peak of 1cycle"),
      choice<&Config::weight_decay_style>(
          "schedule.weight_decay_style", notice,
          "course of weight_decay to schedule.end_weight_decay over schedule.lr_decay_iters"),
      number("schedule.end_weight_decay", &Config::end_weight_decay, at_least(0), notice, "",
             "weight decay from schedule.lr_decay_iters on, unless schedule.weight_decay_style is constant")
          .unset_is("weight_decay"),
  };
}

std::vector<Field<Config>> local_update_fields() {
  return {
      number("local_updates.steps", &Config::local_steps, at_least(0), refused, "steps",
             "local updates (DiLoCo; with muon MuLoCo): the data_parallel_replicate_size copies train apart, and after "
             "so many steps their mean movement moves the weights that they share (docs/distributed.md); 30 is usual; "
             "0 = off, every step sums over them"),
      number("local_updates.fragments", &Config::local_fragments, at_least(1), refused, "fragments",
             "parts of the model that are averaged at different steps of a round, one after the other, so that less is "
             "sent at once")
          .developer(),
      number("local_updates.outer_learning_rate", &Config::outer_learning_rate, above(0), notice, "",
             "share of the mean movement that the shared weights take"),
      number("local_updates.outer_momentum", &Config::outer_momentum, below(0, 1), refused, "",
             "Nesterov momentum of the shared weights"),
      number("local_updates.outer_delay", &Config::outer_delay, at_least(0), refused, "steps",
             "steps from the end of a round to the use of what workers send each other then, which is sent beside "
             "these steps (docs/distributed.md); 1 to 5 are usual"),
      number("local_updates.outer_mixing", &Config::outer_mixing, below(0, 1), notice, "",
             "share of its own weights that a worker keeps where it takes the shared ones; 0.5 is usual with "
             "local_updates.outer_delay"),
      choice<&Config::outer_delta_dtype>(
          "local_updates.outer_delta_dtype", notice,
          "what workers send each other of each weight's movement: fp32, or fp4 = 4.5 bits (docs/distributed.md)"),
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
