// Cases of ops on a vocabulary shard, which the CPU backend and the reference support: tokens and targets of this
// shard, of others, ignored ones, padding, and shards at both ends.
#include <cmath>
#include <utility>

#include "tests/ops/vocab_rows.h"

namespace athanor {
namespace {

constexpr double kMax = 11;  // above every logit of the cases

constexpr VocabRows kSizes[] = {{3, {0, 17, 30}, 17}, {130, {20, 33, 53}, 40}, {5, {700, 5000, 9000}, 5056}};

std::string name_of(const VocabRows& s, DType dt) { return cat(name_of(s), " ", dt); }

// As after the reductions over the ranks.
Init sums(const VocabRows& s, double softcap) {
  const auto capped = [softcap](double z) { return softcap > 0 ? softcap * std::tanh(z / softcap) : z; };
  return [=](uint64_t stream, int64_t i) {
    if (i < s.n) return uniform(0.05, 2)(stream, i);
    const int32_t row = target(s, i - s.n) < 0 ? -1 : s.part.row(target(s, i - s.n));
    return row < 0 ? uniform(-12, -4)(stream, i) : capped(logit(s, i - s.n, row)) - capped(kMax);
  };
}

void losses(Examiner& examine, const VocabRows& s, DType dt) {
  const Tensor z = tensor(dt, {s.n, s.padded}), rows = tensor(DType::f32, {s.n}), two = tensor(DType::f32, {2, s.n});
  const Tensor index = tensor(DType::i32, {s.n});
  examine(OpCase<RowMax>{name_of(s, dt), {.max = rows, .x = z, .columns = s.part.count}, {{"x", logits(s)}}, true});
  for (const float softcap : {0.0f, 5.0f})
    examine(
        OpCase<LogitSums>{cat(name_of(s, dt), " softcap ", softcap),
                          {.sums = two, .logits = z, .max = rows, .targets = index, .part = s.part, .softcap = softcap},
                          {{"logits", logits(s)}, {"max", constant(kMax)}, {"targets", targets(s)}}});
  for (const bool grad : {false, true})
    for (const auto& [z_loss, softcap] : {std::pair{0.0f, 0.0f}, {0.25f, 0.0f}, {0.0f, 5.0f}, {0.25f, 5.0f}}) {
      if (!grad && z_loss > 0) continue;
      OpCase<CrossEntropy> c{cat(name_of(s, dt), grad ? " grad" : "", " z loss ", z_loss, " softcap ", softcap),
                             {.logits = z,
                              .losses = rows,
                              .targets = index,
                              .inv_count = 1.0f / float(s.n + 3),
                              .vocab = s.part.count,
                              .grad = grad,
                              .z_loss = z_loss,
                              .softcap = softcap,
                              .part = s.part,
                              .max = rows,
                              .sums = two}};
      if (grad) c.op.scale = tensor(DType::f32, {1});
      c.values = {{"logits", logits(s)}, {"max", constant(kMax)}, {"targets", targets(s)}, {"scale", constant(8)}};
      c.values["sums"] = sums(s, double(softcap));
      examine(c);
      if (!grad) continue;
      c.name += " ahead";
      c.op.ahead = tensor(DType::i32, {s.n, 3}), c.op.ahead_weights = tensor(DType::f32, {3});
      c.values["ahead"] = [total = s.part.total](uint64_t stream, int64_t i) {
        return i % 4 == 3 ? -1.0 : below(total)(stream, i);
      };
      c.values["ahead_weights"] = uniform(0.1, 1);
      examine(c);
    }
}

// The teacher has other columns of padding.
void distillation(Examiner& examine, const VocabRows& s, DType dt, DistillLoss kind, float temperature, float softcap) {
  VocabRows of_teacher = s;
  of_teacher.padded = s.part.count + 3;
  const float teacher_softcap = 2 * softcap;
  const Tensor rows = tensor(DType::f32, {s.n}), three = tensor(DType::f32, {3, s.n}),
               index = tensor(DType::i32, {s.n});
  const Tensor z = tensor(dt, {s.n, s.padded}), v = tensor(dt, {s.n, of_teacher.padded});
  const std::string name = cat(name_of(s, dt), " ", kind == DistillLoss::kl ? "kl" : "reverse kl", " temperature ",
                               temperature, " softcap ", softcap);
  OpCase<DistillSums> sums_of{name,
                              {.sums = three,
                               .logits = z,
                               .teacher = v,
                               .max = rows,
                               .teacher_max = rows,
                               .targets = index,
                               .part = s.part,
                               .kind = kind,
                               .temperature = temperature,
                               .softcap = softcap,
                               .teacher_softcap = teacher_softcap}};
  sums_of.values = {{"logits", logits(s)},
                    {"teacher", logits(of_teacher)},
                    {"max", constant(kMax)},
                    {"teacher_max", constant(kMax - 1)},
                    {"targets", targets(s)}};
  examine(sums_of);
  OpCase<DistilledCrossEntropy> c{name,
                                  {.logits = z,
                                   .teacher = v,
                                   .losses = rows,
                                   .divergences = rows,
                                   .targets = index,
                                   .scale = tensor(DType::f32, {1}),
                                   .inv_count = 1.0f / float(s.n + 3),
                                   .vocab = s.part.count,
                                   .kind = kind,
                                   .temperature = temperature,
                                   .ce_weight = 0.25f,
                                   .z_loss = 0.25f,
                                   .softcap = softcap,
                                   .teacher_softcap = teacher_softcap,
                                   .part = s.part,
                                   .max = rows,
                                   .sums = tensor(DType::f32, {2, s.n}),
                                   .teacher_max = rows,
                                   .distill_sums = three},
                                  sums_of.values};
  c.values["scale"] = constant(8);
  c.values["sums"] = sums(s, double(softcap));
  c.values["distill_sums"] = uniform(0.5, 2);
  examine(c);
}

void embedding(Examiner& examine, const VocabRows& s, DType dt, bool positions) {
  constexpr int64_t kContext = 11, kColumns = 41;
  const std::string name = cat(name_of(s, dt), positions ? " wpe" : "");
  const Tensor index = tensor(DType::i32, {s.n}), rows = tensor(dt, {s.n, kColumns});
  OpCase<EmbeddingFwd> fwd{name, {.y = rows, .tokens = index, .wte = tensor(dt, {s.padded, kColumns}), .part = s.part}};
  OpCase<EmbeddingBwd> bwd{
      name, {.dwte = tensor(DType::f32, {s.padded, kColumns}), .dy = rows, .tokens = index, .part = s.part}};
  fwd.values = bwd.values = {{"tokens", below(s.part.total)}, {"positions", below(kContext)}};
  fwd.exact = true;  // one addition, one rounding
  if (positions) {
    fwd.op.wpe = tensor(dt, {kContext, kColumns});
    bwd.op.dwpe = tensor(DType::f32, {kContext, kColumns});
    fwd.op.positions = bwd.op.positions = index;
  }
  examine(fwd);
  examine(bwd);
  if (dt != DType::f32 || s.n != 3) return;
  Examiner::Pairs gradients{{"wte", "dwte"}};
  if (positions) gradients.push_back({"wpe", "dwpe"});
  examine.gradient(fwd, bwd, {{"y", "dy"}}, gradients);
}

}  // namespace

void vocab_part_cases(Examiner& examine) {
  for (DType dt : kFloats)
    for (const VocabRows& s : kSizes) {
      losses(examine, s, dt);
      for (const DistillLoss kind : {DistillLoss::kl, DistillLoss::reverse_kl})
        for (const float softcap : {0.0f, 5.0f}) distillation(examine, s, dt, kind, softcap > 0 ? 2.5f : 1.0f, softcap);
      for (const bool positions : {false, true}) embedding(examine, s, dt, positions);
    }
}

}  // namespace athanor
