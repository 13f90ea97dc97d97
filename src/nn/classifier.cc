#include <algorithm>
#include <cmath>
#include <span>

#include "nn/layer_quantization.h"
#include "nn/linear_gemms.h"

namespace athanor {
namespace {

// Row maxima and sums over the columns of all ranks, for vocabulary-parallel CrossEntropy [Shoeybi et al. 2019,
// "Megatron-LM", section 3].
struct RowStats {
  Buffer all;        // [3, n] f32
  Tensor max, sums;  // rows of `all`: [n], [2, n]; over all ranks
};

RowStats row_stats(Ctx& c, const Tensor& logits, const Tensor& targets, const VocabPart& part, float softcap) {
  const int64_t n = logits.rows();
  RowStats s{.all = c.alloc("classifier.sums", DType::f32, {3, n}), .max = {}, .sums = {}};
  s.max = {s.all.t.at(0), DType::f32, {n}};
  s.sums = {s.all.t.at(n), DType::f32, {2, n}};
  c.run(RowMax{.max = s.max, .x = logits, .columns = part.count});
  c.tensor_sum(s.max, Reduce::max);
  c.run(
      LogitSums{.sums = s.sums, .logits = logits, .max = s.max, .targets = targets, .part = part, .softcap = softcap});
  c.tensor_sum(s.sums);
  return s;
}

Buffer view_of(const Tensor& t) {
  Buffer b;
  b.t = t;
  return b;
}

Linear head_layer(const ParamStore& params, Param w, Param b) {
  Linear layer = layer_of(params, w);
  layer.b = b;
  return layer;
}

// Computes rows [lo, hi) of the teacher's logits, for all tokens or for this rank's part of the vocabulary. Every rank
// has the teacher's whole head.
Buffer teacher_logits(Ctx& run_of_student, const Teacher& teacher, int64_t lo, int64_t hi, const VocabPart& part) {
  Ctx c = run_of_student;
  c.quantization = {};  // the student's: it is indexed by parameters of the student
  const Net n{c, teacher.params};
  const Linear layer = head_layer(teacher.params, teacher.w, teacher.b);
  Buffer v = c.alloc("classifier.teacher_logits", {hi - lo, part ? part.count : outputs_of(n, layer)});
  LinearGemm gemm =
      output_gemm(n, layer, v.t, operand_of(n, layer, Operand::forward_x, view_of(teacher.x.t.slice(lo, hi))));
  if (part) {
    gemm.op.b = gemm.op.b.slice(part.first, part.first + part.count);
    if (gemm.op.bias) gemm.op.bias = gemm.op.bias.slice(part.first, part.first + part.count);
  }
  run(c, gemm);
  return v;
}

// Reductions over the whole vocabulary that DistilledCrossEntropy needs on tensor-parallel ranks.
struct TeacherStats {
  Buffer all;        // [4, n] f32
  Tensor max, sums;  // views of `all`: [n] max of the teacher's logits, [3, n] DistillSums
};

TeacherStats teacher_stats(Ctx& c, const Tensor& v, const DistilledCrossEntropy& op) {
  const int64_t n = v.rows();
  TeacherStats s{.all = c.alloc("classifier.teacher_sums", DType::f32, {4, n}), .max = {}, .sums = {}};
  s.max = {s.all.t.at(0), DType::f32, {n}};
  s.sums = {s.all.t.at(n), DType::f32, {3, n}};
  c.run(RowMax{.max = s.max, .x = v, .columns = op.part.count});
  c.tensor_sum(s.max, Reduce::max);
  c.run(DistillSums{.sums = s.sums,
                    .logits = op.logits,
                    .teacher = v,
                    .max = op.max,
                    .teacher_max = s.max,
                    .targets = op.targets,
                    .part = op.part,
                    .kind = op.kind,
                    .temperature = op.temperature,
                    .softcap = op.softcap,
                    .teacher_softcap = op.teacher_softcap});
  c.tensor_sum(s.sums);
  return s;
}

// A chunk of rows [lo, hi): its logits [hi - lo, Vp], which become their gradient, and its slices of the per-row
// tensors.
struct Chunk {
  Tensor z, targets, losses;
  Tensor ahead;  // [hi - lo, m], optional
  int64_t lo, hi;
};

// Cross-entropy without distillation.
void run_losses(Ctx& c, const Chunk& at, const Classifier& head, const VocabPart& part, bool grad) {
  const RowStats stats = part ? row_stats(c, at.z, at.targets, part, head.softcap) : RowStats{};
  c.run(CrossEntropy{.logits = at.z,
                     .losses = at.losses,
                     .targets = at.targets,
                     .scale = head.loss_scale,
                     .inv_count = head.inv_count,
                     .vocab = part ? part.count : head.vocab,
                     .grad = grad,
                     .z_loss = head.z_loss,
                     .softcap = head.softcap,
                     .part = part,
                     .max = stats.max,
                     .sums = stats.sums,
                     .ahead = at.ahead,
                     .ahead_weights = at.ahead ? head.ahead_weights : Tensor{}});
}

void run_losses(Ctx& c, const Chunk& at, const Classifier& head, const Distillation& d, const Teacher& teacher,
                const VocabPart& part) {
  const Buffer v = teacher_logits(c, teacher, at.lo, at.hi, part);
  const RowStats stats = part ? row_stats(c, at.z, at.targets, part, head.softcap) : RowStats{};
  DistilledCrossEntropy op{.logits = at.z,
                           .teacher = v.t,
                           .losses = at.losses,
                           .divergences = d.divergences.slice(at.lo, at.hi),
                           .targets = at.targets,
                           .scale = head.loss_scale,
                           .inv_count = head.inv_count,
                           .vocab = part ? part.count : head.vocab,
                           .kind = d.kind,
                           .temperature = d.temperature,
                           .ce_weight = d.ce_weight,
                           .z_loss = head.z_loss,
                           .softcap = head.softcap,
                           .teacher_softcap = teacher.softcap,
                           .part = part,
                           .max = stats.max,
                           .sums = stats.sums};
  const TeacherStats of_teacher = part ? teacher_stats(c, v.t, op) : TeacherStats{};
  op.teacher_max = of_teacher.max, op.distill_sums = of_teacher.sums;
  c.run(op);
}

// Finds the ids [n, k] of the student's k largest logits, on a rank that has the whole vocabulary.
Buffer own_top_ids(Ctx& c, const Tensor& logits, int64_t vocab, int64_t k, float softcap) {
  const int64_t n = logits.rows();
  Buffer ids = c.alloc("classifier.top_ids", DType::i32, {n, k});
  const Buffer values = c.alloc("classifier.top_logits", DType::f32, {n, k});
  const Buffer rest = c.alloc("classifier.top_rest", DType::f32, {n});
  c.run(TopLogits{
      .ids = ids.t, .values = values.t, .rest = rest.t, .logits = logits, .vocab = vocab, .softcap = softcap});
  return ids;
}

// Distillation from cached logits. `part`: this rank's part of the vocabulary.
void run_losses(Ctx& c, const Chunk& at, const Classifier& head, const Distillation& d, const VocabPart& part) {
  const RowStats stats = row_stats(c, at.z, at.targets, part, head.softcap);
  TeacherLogits top{.ids = d.logits.ids.slice(at.lo, at.hi),
                    .values = d.logits.values.slice(at.lo, at.hi),
                    .rest = d.logits.rest.slice(at.lo, at.hi)};
  const int64_t n = at.hi - at.lo, k = top.ids.cols();
  Buffer own_ids;
  if (d.kind == DistillLoss::uld) {
    own_ids = own_top_ids(c, at.z, part.count, k, head.softcap);
    top.ids = own_ids.t;
  }
  const Buffer all = c.alloc("classifier.picked", DType::f32, {n * (k + 1)});
  const Tensor picked{all.t.data, DType::f32, {n, k}}, picked_rest = all.t.slice(n * k, n * (k + 1));
  c.run(PickLogits{.picked = picked,
                   .picked_rest = picked_rest,
                   .logits = at.z,
                   .ids = top.ids,
                   .max = stats.max,
                   .targets = at.targets,
                   .part = part,
                   .temperature = d.temperature,
                   .softcap = head.softcap});
  c.tensor_sum(all.t);
  c.run(CachedDistilledCrossEntropy{.logits = at.z,
                                    .losses = at.losses,
                                    .divergences = d.divergences.slice(at.lo, at.hi),
                                    .targets = at.targets,
                                    .scale = head.loss_scale,
                                    .ids = top.ids,
                                    .values = top.values,
                                    .rest = top.rest,
                                    .max = stats.max,
                                    .sums = stats.sums,
                                    .picked = picked,
                                    .picked_rest = picked_rest,
                                    .inv_count = head.inv_count,
                                    .part = part,
                                    .kind = d.kind,
                                    .temperature = d.temperature,
                                    .ce_weight = d.ce_weight,
                                    .z_loss = head.z_loss,
                                    .softcap = head.softcap});
}

}  // namespace

void classifier(Net n, Var x, const Batch& batch, const Classifier& head, Tensor losses, const Distillation* distills) {
  Ctx& c = n.c;
  const Linear layer = head_layer(n.params, head.w, head.b);
  const VocabPart vocab = n.params.vocab_part(head.w);
  const CollectiveSubject subject(n.params.spec(head.w).name);
  const Buffer all = vocab ? all_rows(c, x.keep()) : x.keep();
  const int64_t rows = all.t.rows();
  const bool grad = c.recording();
  CHECK(!distills || grad, "distillation is for training");
  CHECK(!distills || distills->kind != DistillLoss::uld || (!distills->teacher && !vocab),
        "sorted probabilities are compared with cached ones, on a rank that has the whole vocabulary");
  CHECK(!distills || !batch.ahead, "a teacher with targets further ahead");
  Buffer dx = grad ? c.alloc("classifier.dx", x.t().shape) : Buffer{};
  PartsOfRows parts = PartsOfRows::if_partial(c, dx.t, grad && vocab);
  for (int64_t lo = 0; lo < rows; lo += head.chunk_rows) {
    const int64_t hi = std::min(rows, lo + head.chunk_rows);
    const Tensor targets = batch.targets.slice(lo, hi);
    const Buffer part = view_of(all.t.slice(lo, hi));
    Buffer z = c.alloc("classifier.logits", {hi - lo, outputs_of(n, layer)});
    GemmOperand read = operand_of(n, layer, Operand::forward_x, part, grad);
    run(c, output_gemm(n, layer, z.t, read));
    const GemmOperand of_weight = grad ? operand_of_weight_gradient(n, layer, part, read) : GemmOperand{};
    read = {};
    const Chunk at{.z = z.t,
                   .targets = targets,
                   .losses = losses.slice(lo, hi),
                   .ahead = grad && batch.ahead ? batch.ahead.slice(lo, hi) : Tensor{},
                   .lo = lo,
                   .hi = hi};
    if (distills && distills->teacher)
      run_losses(c, at, head, *distills, *distills->teacher, vocab);
    else if (distills)
      run_losses(c, at, head, *distills, vocab ? vocab : VocabPart{.count = head.vocab, .total = head.vocab});
    else
      run_losses(c, at, head, vocab, grad);
    if (!grad) continue;
    const GemmOperand dz = run_weight_gradient(n, layer, z, of_weight);
    run(c, input_gradient_gemm(n, layer, parts.t().slice(lo, hi), dz));
  }
  if (!grad) return;
  parts.add_up(c);
  c.put(x.slot(), std::move(dx));
}

Buffer logits(Net n, Var x, Tensor rows, Param w, Param b) {
  Ctx& c = n.c;
  const Linear head = head_layer(n.params, w, b);
  CHECK(!n.params.vocab_part(w), "logits of a part of the vocabulary; they are not gathered");
  Buffer last = c.alloc("logits.x", {rows.shape[0], x.t().cols()});
  c.run(GatherRows{.y = last.t, .x = x.t(), .rows = rows});
  Buffer z = c.alloc("logits", DType::f32, {rows.shape[0], outputs_of(n, head)});
  run(c, output_gemm(n, head, z.t, operand_of(n, head, Operand::forward_x, last)));
  return z;
}

void top_logits(Net n, const Buffer& x, const Classifier& head, const TeacherLogits& out, float temperature) {
  Ctx& c = n.c;
  const Linear layer = head_layer(n.params, head.w, head.b);
  CHECK(!n.params.vocab_part(head.w), "top logits of a part of the vocabulary");
  for (int64_t lo = 0; lo < x.t.rows(); lo += head.chunk_rows) {
    const int64_t hi = std::min(x.t.rows(), lo + head.chunk_rows);
    const Buffer z = c.alloc("classifier.logits", {hi - lo, outputs_of(n, layer)});
    run(c, output_gemm(n, layer, z.t, operand_of(n, layer, Operand::forward_x, view_of(x.t.slice(lo, hi)))));
    c.run(TopLogits{.ids = out.ids.slice(lo, hi),
                    .values = out.values.slice(lo, hi),
                    .rest = out.rest.slice(lo, hi),
                    .logits = z.t,
                    .vocab = head.vocab,
                    .temperature = temperature,
                    .softcap = head.softcap});
  }
}

void read_logits(Device& device, const Tensor& z, float softcap, int64_t vocab, std::span<float> out) {
  CHECK(z.dtype == DType::f32 && z.contiguous() && int64_t(out.size()) == z.rows() * vocab, "logits ", z.shape,
        " read to ", out.size(), " of a vocabulary of ", vocab);
  for (int64_t r = 0; r < z.rows(); ++r)
    device.copy(out.data() + r * vocab, z.slice(r, r + 1).data, size_t(vocab) * sizeof(float), Stream::compute);
  device.sync();
  if (softcap > 0)
    for (float& x : out) x = softcap * std::tanh(x / softcap);
}

}  // namespace athanor
