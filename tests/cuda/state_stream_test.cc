// Master weights and optimizer states that are streamed through GPU memory: on the emulated GPU, which detects
// unordered accesses, an update has none, and has some as soon as one of the streams skips its waits.
#ifdef ATHANOR_EMULATED_GPU
#include "param/state_stream.h"

#include <gtest/gtest.h>

#include <optional>

#include "cuda/make_cuda.h"
#include "emulator/emulator.h"
#include "optim/optimizer.h"

namespace athanor {
namespace {

// A device on which one stream ignores waits.
class Impatient final : public Device {
 public:
  Impatient(Device& inner, std::optional<Stream> stream) : inner_(inner), lane_(stream) {}
  std::string description() const override { return inner_.description(); }
  void* allocate(size_t bytes, Mem where) override { return inner_.allocate(bytes, where); }
  void release(void* memory, size_t bytes, Mem where) override { inner_.release(memory, bytes, where); }
  void copy(void* to, const void* from, size_t bytes, Stream stream) override { inner_.copy(to, from, bytes, stream); }
  std::unique_ptr<Event> record(Stream stream) override { return inner_.record(stream); }
  void wait(Stream stream, const Event& event) override {
    if (stream != lane_) inner_.wait(stream, event);
  }
  void sync() override { inner_.sync(); }
  size_t capacity(Mem where) const override { return inner_.capacity(where); }
  size_t allocated() const override { return inner_.allocated(); }

 private:
  Device& inner_;
  std::optional<Stream> lane_;
};

// Two steps of AdamW over six chunks.
emu::Fault fault_if(std::optional<Stream> never_waits) {
  (void)emu::take_report();
  static uint64_t order = 0;
  emu::seed(++order);
  CudaBackend cuda = make_cuda({});
  Impatient device(*cuda.device, never_waits);
  ProcessMesh mesh(make_single(device), {});
  const Recipe recipe = make_recipe("bf16", DType::i16);
  const Shape shape{48, 32};
  ParamStore params;
  params.declare({.name = "w", .shape = shape, .role = Role::matrix, .slices = {{"w.weight", shape, 0}}});
  Optimizer optimizer({}, params);
  Arena arena;
  Tensor state;
  MemoryPlan plan;
  params.plan(plan, recipe, true, optimizer.states(), {.states_home = {.mem = Mem::pinned, .stretch = 256}});
  plan.add(MemoryKind::inputs, "state", DType::u8, {int64_t(sizeof(StepState))}, &state);
  const auto step = [&](Ops& ops) {
    Ctx c{.ops = ops, .device = device, .arena = arena, .mesh = mesh, .recipe = recipe};
    optimizer.step(c, params, state);
  };
  PlanOps none(*cuda.ops);
  arena.record("step");
  step(none);
  arena.finish_recording();
  plan.add(arena);
  plan.commit(device);
  const StepState rates{.grad_scale = 1, .lr = 1e-3f, .corrections = {1, 1}};
  device.copy(state.data, &rates, sizeof rates, Stream::compute);
  device.sync();
  try {
    for (int i = 0; i < 2; ++i) {
      arena.begin("step");
      step(*cuda.ops);
      arena.end();
    }
    device.sync();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the emulator's report says more
  }
  return emu::take_report().fault;
}

TEST(StateStream, OrdersCopiesAndKernels) {
  for (int repetition = 0; repetition < 3; ++repetition) EXPECT_EQ(fault_if(std::nullopt), emu::Fault::kNone);
  for (const Stream stream : {Stream::compute, Stream::copy, Stream::copy_back}) {
    const emu::Fault fault = fault_if(stream);
    EXPECT_TRUE(fault == emu::Fault::kRace || fault == emu::Fault::kUninitialized || fault == emu::Fault::kInFlight)
        << "stream " << int(stream) << " does not wait, and the fault is " << emu::fault_name(fault);
  }
}

}  // namespace
}  // namespace athanor
#endif
