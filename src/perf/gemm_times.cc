#include "perf/gemm_times.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "perf/best_seconds.h"

namespace athanor {

std::vector<GemmUse> gemms_of_step(Engine& engine) {
  engine.memory();  // the dry run records the GEMMs
  std::vector<GemmUse> gemms = distinct_gemms(engine.micro_gemms(), engine.micro_gemms_of_quantized());
  for (GemmUse& use : gemms) {
    use.launches *= engine.micro_batches();
    use.within *= engine.micro_batches();
  }
  return gemms;
}

namespace {

// Gives tensors of an op memory filled with random numbers; FP8 and FP4 values and their scales get arbitrary bytes.
class Operands {
 public:
  void add(Tensor& t) {
    if (!t) return;
    const int64_t elements = t.shape.rank == 2 ? t.rows() * t.stride() : t.numel();
    const bool bytes = size_of(t.dtype) == 1;
    places_.push_back({&t, {}, bytes ? div_ceil<int64_t>(elements, 2) : elements, bytes ? DType::bf16 : t.dtype});
  }
  void commit(Backend backend) {
    for (Place& place : places_) plan_.add(MemoryKind::inputs, "operand", place.dtype, {place.elements}, &place.memory);
    plan_.commit(backend.device);
    for (Place& place : places_) {
      place.target->data = place.memory.data;
      if (place.memory.dtype == DType::f16) place.memory.dtype = DType::bf16;  // any 16-bit numbers are good enough
      backend.ops.run(RandomNormal{.x = place.memory, .std = 0.02f}, nullptr);
    }
  }

 private:
  struct Place {
    Tensor* target;
    Tensor memory;
    int64_t elements;
    DType dtype;
  };
  std::vector<Place> places_;
  MemoryPlan plan_;
};

// op: its operands have memory.
template <class Op>
double seconds_of(Backend backend, const Op& op) {
  Tensor scratch;
  MemoryPlan plan;
  if (const size_t bytes = backend.ops.scratch(op)) {
    plan.add(MemoryKind::inputs, "scratch", DType::u8, {int64_t(bytes)}, &scratch);
    plan.commit(backend.device);
  }
  return best_seconds(backend, op, scratch.data);
}

GemmTime time_scaled_gemm(Backend backend, ScaledGemm op) {
  GemmTime time{.method = {.words = "the backend's own"}};
  if (backend.tuning) time = backend.tuning->time(op);
  Operands operands;
  Gemm& g = op.gemm;
  for (Tensor* t : {&g.d, &g.a, &g.b, &g.bias, &g.aux, &op.a_scales, &op.b_scales, &op.a_global, &op.b_global})
    operands.add(*t);
  operands.commit(backend);
  time.seconds = seconds_of(backend, op);
  return time;
}

}  // namespace

std::vector<GroupedGemmTime> time_grouped_gemms(Engine& engine, Backend backend) {
  engine.memory();  // the dry run records the GEMMs
  const auto problem = [](const GroupedGemm& op) {
    return std::tuple(op.role, op.rows(), op.experts(), op.outputs(), op.inputs(), op.d.dtype, bool(op.h));
  };
  std::vector<GroupedGemmTime> times;
  for (const GroupedGemm& op : engine.micro_grouped_gemms()) {
    auto same = std::ranges::find_if(times, [&](const auto& t) { return problem(t.op) == problem(op); });
    if (same == times.end()) same = times.insert(times.end(), {.op = op});
    same->launches += engine.micro_batches();
  }
  for (GroupedGemmTime& time : times) {
    GroupedGemm op = time.op;
    Operands operands;
    for (Tensor* t : {&op.d, &op.a, &op.b, &op.h, &op.weights}) operands.add(*t);
    operands.commit(backend);
    std::vector<int32_t> offsets(size_t(op.experts()) + 1), slots(size_t(op.rows()));
    for (size_t e = 0; e < offsets.size(); ++e) offsets[e] = int32_t(int64_t(e) * op.rows() / op.experts());
    std::iota(slots.begin(), slots.end(), 0);
    MemoryPlan indices;
    indices.add(MemoryKind::inputs, "offsets", DType::i32, op.offsets.shape, &op.offsets);
    if (op.h) indices.add(MemoryKind::inputs, "slots", DType::i32, op.slots.shape, &op.slots);
    indices.commit(backend.device);
    backend.device.copy(op.offsets.data, offsets.data(), op.offsets.bytes(), Stream::compute);
    if (op.h) backend.device.copy(op.slots.data, slots.data(), op.slots.bytes(), Stream::compute);
    time.seconds = seconds_of(backend, op);
    time.dense_seconds = seconds_of(backend, op.of_expert(0, 0, op.rows()));
  }
  std::ranges::stable_sort(times, std::ranges::greater{},
                           [](const GroupedGemmTime& t) { return double(t.launches) * t.op.cost().flops; });
  return times;
}

GemmTime time_gemm(Backend backend, const GemmUse& use) {
  if (use.quantized) return time_scaled_gemm(backend, *use.quantized);
  if (backend.tuning) return backend.tuning->time(use.op, use.recompute);
  Gemm op = use.op;
  Operands operands;
  for (Tensor* t : {&op.d, &op.a, &op.b, &op.bias, &op.aux}) operands.add(*t);
  operands.commit(backend);
  return {.seconds = seconds_of(backend, op), .method = {.words = "the backend's own"}};
}

}  // namespace athanor
