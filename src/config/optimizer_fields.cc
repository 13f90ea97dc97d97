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
          "update rule: adamw; adam (coupled L2 decay); sgd; lion; muon (matrices of hidden layers; adamw for "
          "embeddings, head and vectors); normuon (muon with normalized outputs); adamw_8bit (8-bit moments of "
          "matrices); lamb (trust ratio per matrix and embedding; adamw for vectors); schedule_free_adamw (evaluations "
          "read an average of the weights, no learning-rate decay); adafactor (factored second moments, no first "
          "moment, update clipping); onebit_adam and onebit_lamb (after adam.freeze_step steps the variance is frozen "
          "and replicates exchange momentum in 1 bit per weight, docs/optimizers.md and docs/distributed.md)"),
      number("learning_rate", &Config::learning_rate, above(0), notice, "", "peak learning rate")
          .alias({"lr"})
          .required(),
      number("weight_decay", &Config::weight_decay, at_least(0), notice, "",
             "weight decay of matrices and embeddings; decoupled, with sgd and adam coupled (L2); norms and biases "
             "have none"),
      option("cautious_weight_decay", &Config::cautious_weight_decay, notice,
             "decay a weight only in steps whose update does not move it away from zero; not with adam and sgd"),
      number("clip_grad", &Config::clip_grad, at_least(0), notice, "",
             "maximum global gradient norm; larger gradients are scaled down; 0 = off")
          .alias({"gradient_clipping", "max_norm", "grad_clip"}),
      number("qk_clip_threshold", &Config::qk_clip_threshold, at_least(0), notice, "",
             "QK-clip: after each update, scale down the Q and K weights of heads whose maximum attention logit in the "
             "step exceeded this (docs/optimizers.md); 100 is usual; 0 = off"),
      number("mup_base_width", &Config::mup_base_width, at_least(0), refused, "",
             "muP: hidden_size at which learning_rate and initializer_range were tuned; both are transferred to the "
             "model's hidden_size (docs/optimizers.md); muon needs muon.scale spectral; 0 = off"),
      custom("param_groups", groups(), refused,
             "per-weight options: the first group whose pattern and role match applies; by default vectors do not "
             "decay, muon and normuon use adamw for embeddings and vectors, and lamb decays vectors"),
      number("adam.beta1", &Config::adam_beta1, below(0, 1), notice, "",
             "decay of the first moment; with schedule_free_adamw cannot change on resume")
          .alias({"beta1"}),
      number("adam.beta2", &Config::adam_beta2, below(0, 1), notice, "", "decay of the second moment").alias({"beta2"}),
      number("adam.eps", &Config::adam_eps, above(0), notice, "",
             "epsilon added to the square root of the second moment")
          .alias({"eps"}),
      choice<&Config::exp_avg_dtype>("adam.exp_avg_dtype", notice,
                                     "type of Adam's first moment; bf16 uses stochastic rounding"),
      choice<&Config::exp_avg_sq_dtype>("adam.exp_avg_sq_dtype", notice,
                                        "type of Adam's second moment; bf16 uses stochastic rounding, whose noise is "
                                        "about 1 % with adam.beta2 0.95 and 5 % with 0.999"),
      number("adam.update_clip_threshold", &Config::update_clip_threshold, at_least(0), notice, "",
             "adamw update clipping: limit the root mean square of a tensor's update, before learning rate and decay "
             "(docs/optimizers.md); 1 is usual; 0 = off"),
      number("adam.min_8bit_size", &Config::min_8bit_size, at_least(1), refused, "elements",
             "adamw_8bit: matrices with fewer elements keep fp32 moments")
          .developer(),
      number("adam.freeze_step", &Config::freeze_step, at_least(0), refused, "steps",
             "onebit_adam and onebit_lamb: warm-up steps with full gradient sums before the variance is frozen; 15 to "
             "25 % of train_iters are usual"),
      number("sgd.momentum", &Config::sgd_momentum, below(0, 1), notice, "",
             "momentum; 0 = none, without a state; cannot change from 0 on resume"),
      option("sgd.nesterov", &Config::sgd_nesterov, notice, "Nesterov momentum").developer(),
      number("lion.beta1", &Config::lion_beta1, below(0, 1), notice, "",
             "weight of the moving average in the update (the gradient has 1 minus this)")
          .developer(),
      number("lion.beta2", &Config::lion_beta2, below(0, 1), notice, "", "decay of the average").developer(),
      number("muon.momentum", &Config::muon_momentum, below(0, 1), notice, "", "decay of the average"),
      option("muon.nesterov", &Config::muon_nesterov, notice, "Nesterov momentum").developer(),
      choice<&Config::muon_scale>(
          "muon.scale", notice,
          "scale of an [out, in] matrix's update: match_rms = 0.2 sqrt(max(out, in)), for AdamW's learning rate and "
          "decay; original = sqrt(max(1, out / in)), for a learning rate of about 0.02; spectral = sqrt(out / in)"),
      choice<&Config::muon_coefficients>(
          "muon.coefficients", notice,
          "coefficients of the five Newton-Schulz iterations; polar_express comes closer to an orthogonal matrix")
          .developer(),
      number("muon.normuon_beta2", &Config::normuon_beta2, below(0, 1), notice, "",
             "normuon: decay of the mean square of each output; other options are muon's")
          .developer(),
      number("averaging.ema_decay", &Config::ema_decay, below(0, 1), refused, "",
             "decay of an exponential moving average of the weights, saved in checkpoints (docs/optimizers.md); 0.999 "
             "is usual; 0 = off"),
      number("averaging.tail_start", &Config::tail_average_start, at_least(0), refused, "steps",
             "keep the mean of the weights over all steps after this one, saved in checkpoints (docs/optimizers.md); "
             "four fifths of train_iters is usual; 0 = off"),
      choice<&Config::eval_weights>("averaging.eval_weights", free,
                                    "weights used in evaluations: the trained weights, or the average of "
                                    "averaging.ema_decay or averaging.tail_start (also written ema)"),
  };
}

std::vector<Field<Config>> schedule_fields() {
  return {
      number("schedule.min_lr", &Config::min_lr, at_least(0), notice, "", "learning rate at the end of the decay")
          .alias({"min_decay_lr"})
          .unset_is("10 % of learning_rate; with 1cycle schedule.lr_warmup_init / 10000"),
      choice<&Config::lr_decay_style>(
          "schedule.lr_decay_style", notice,
          "learning-rate schedule after the warm-up; WSD = constant, then a decay at the end; inverse_sqrt = "
          "learning_rate * sqrt(schedule.lr_warmup_iters / finished steps), at least schedule.min_lr; 1cycle = half a "
          "cosine up during the warm-up, then one down, with momentum going down to schedule.low_momentum and back; "
          "exponential = from schedule.lr_warmup_init to learning_rate by a constant factor per step, as in `athanor "
          "lr-find`"),
      number("schedule.lr_warmup_iters", &Config::lr_warmup_iters, at_least(0), notice, "steps",
             "linear warm-up; with 1cycle the rising phase, 0 = 30 % of schedule.lr_decay_iters, rounded up")
          .alias({"warmup_iters", "warmup_steps", "lr_warmup_steps"}),
      number("schedule.lr_warmup_init", &Config::lr_warmup_init, at_least(0), notice, "",
             "learning rate at the start of the warm-up")
          .unset_is("0; with 1cycle learning_rate / 25"),
      number("schedule.lr_decay_iters", &Config::lr_decay_iters, at_least(0), notice, "steps",
             "step at which schedule.min_lr is reached, including the warm-up; 0 = train_iters"),
      choice<&Config::lr_wsd_decay_style>("schedule.lr_wsd_decay_style", notice, "shape of the WSD decay"),
      number("schedule.lr_wsd_decay_iters", &Config::lr_wsd_decay_iters, at_least(0), notice, "steps",
             "length of the WSD decay, which ends at schedule.lr_decay_iters; 0 = a tenth of schedule.lr_decay_iters, "
             "at least 4"),
      number("schedule.momentum_warmup_iters", &Config::momentum_warmup_iters, at_least(0), notice, "steps",
             "steps over which the first-moment decay rises linearly from schedule.low_momentum to adam.beta1; 0 = "
             "constant"),
      number("schedule.low_momentum", &Config::low_momentum, below(0, 1), notice, "",
             "first-moment decay at the start of the momentum warm-up and at the peak of 1cycle"),
      choice<&Config::weight_decay_style>(
          "schedule.weight_decay_style", notice,
          "schedule of weight_decay towards schedule.end_weight_decay over schedule.lr_decay_iters"),
      number("schedule.end_weight_decay", &Config::end_weight_decay, at_least(0), notice, "",
             "weight decay after schedule.lr_decay_iters, unless schedule.weight_decay_style is constant")
          .unset_is("weight_decay"),
  };
}

std::vector<Field<Config>> local_update_fields() {
  return {
      number("local_updates.steps", &Config::local_steps, at_least(0), refused, "steps",
             "local updates (DiLoCo; with muon MuLoCo): the data_parallel_replicate_size replicas train independently "
             "for this many steps per round, then their mean weight change updates the shared weights "
             "(docs/distributed.md); 30 is usual; 0 = off, gradients are summed in every step"),
      number("local_updates.fragments", &Config::local_fragments, at_least(1), refused, "fragments",
             "parts of the model averaged at different steps of a round, so that less is sent at once")
          .developer(),
      number("local_updates.outer_learning_rate", &Config::outer_learning_rate, above(0), notice, "",
             "outer learning rate: fraction of the mean weight change applied to the shared weights"),
      number("local_updates.outer_momentum", &Config::outer_momentum, below(0, 1), refused, "",
             "Nesterov momentum of the outer update"),
      number("local_updates.outer_delay", &Config::outer_delay, at_least(0), refused, "steps",
             "steps between the end of a round and the use of what workers exchange then, which is sent in the "
             "background of these steps (docs/distributed.md); 1 to 5 are usual"),
      number("local_updates.outer_mixing", &Config::outer_mixing, below(0, 1), notice, "",
             "fraction of its own weights that a worker keeps when it takes the shared ones; 0.5 is usual with "
             "local_updates.outer_delay"),
      choice<&Config::outer_delta_dtype>(
          "local_updates.outer_delta_dtype", notice,
          "type of the exchanged weight changes: fp32, or fp4 (4.5 bits per weight, docs/distributed.md)"),
  };
}

std::vector<Field<ParamGroupConfig>> param_group_fields() {
  using G = ParamGroupConfig;
  constexpr std::string_view kOwn = "the run's";
  return {
      option("match", &G::match, refused, "pattern of parameter names as in model.safetensors; * and ? as in a shell"),
      choice<&G::role>("role", refused, "only weights of this role; head and positions are embeddings"),
      choice<&G::optimizer>("optimizer", refused, "update rule; inherit = the run's rule and options"),
      number("lr_factor", &G::lr_factor, at_least(0), refused, "", "factor of the run's learning rate"),
      number("weight_decay", &G::weight_decay, at_least(0), refused, "", "decay").unset_is(kOwn),
      number("beta1", &G::beta1, below(0, 1), refused, "",
             "first-moment decay of adamw, adam, lamb, schedule_free_adamw and lion")
          .unset_is(kOwn),
      number("beta2", &G::beta2, below(0, 1), refused, "",
             "of adamw, adam, lamb, schedule_free_adamw, lion and normuon")
          .unset_is(kOwn),
      number("eps", &G::eps, above(0), refused, "", "of adamw, adam, lamb and schedule_free_adamw").unset_is(kOwn),
      number("momentum", &G::momentum, below(0, 1), refused, "", "momentum of sgd, muon and normuon").unset_is(kOwn),
      option("frozen", &G::frozen, refused, "do not train these weights"),
  };
}

}  // namespace athanor
