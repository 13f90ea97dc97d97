#include "perf/product_times.h"

#include "perf/best_seconds.h"

namespace athanor {

std::vector<ProductUse> products_of_step(Engine& engine) {
  engine.memory();  // the dry run names the products
  std::vector<ProductUse> products = distinct_products(engine.micro_products());
  for (ProductUse& use : products) {
    use.launches *= engine.micro_batches();
    use.within *= engine.micro_batches();
  }
  return products;
}

namespace {

// Gives a tensor of an op memory filled with random numbers.
class Operands {
 public:
  void add(Tensor& t) {
    if (!t) return;
    const int64_t elements = t.shape.rank == 2 ? t.rows() * t.stride() : t.numel();
    places_.push_back({&t, {}, elements});
  }
  void commit(Backend backend) {
    for (Place& place : places_)
      plan_.add(MemoryKind::inputs, "operand", place.target->dtype, {place.elements}, &place.memory);
    plan_.commit(backend.device);
    for (Place& place : places_) {
      place.target->data = place.memory.data;
      if (place.memory.dtype == DType::f16) place.memory.dtype = DType::bf16;  // any 16-bit numbers will do
      backend.ops.run(RandomNormal{.x = place.memory, .std = 0.02f}, nullptr);
    }
  }

 private:
  struct Place {
    Tensor* target;
    Tensor memory;
    int64_t elements;
  };
  std::vector<Place> places_;
  MemoryPlan plan_;
};

}  // namespace

ProductTime time_product(Backend backend, const ProductUse& use) {
  if (backend.tuning) return backend.tuning->time(use.op, use.recompute);
  Gemm op = use.op;
  Operands operands;
  for (Tensor* t : {&op.d, &op.a, &op.b, &op.bias, &op.aux}) operands.add(*t);
  operands.commit(backend);
  Tensor scratch;
  MemoryPlan plan;
  if (const size_t bytes = backend.ops.scratch(op)) {
    plan.add(MemoryKind::inputs, "scratch", DType::u8, {int64_t(bytes)}, &scratch);
    plan.commit(backend.device);
  }
  const double seconds = best_seconds(backend, op, scratch.data);
  return {.seconds = seconds, .product_seconds = seconds, .method = {.words = "the backend's own"}};
}

}  // namespace athanor
