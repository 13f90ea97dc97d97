// Engine: one model with its optimizer on one device: plans all memory by dry runs of its own code, then runs
// micro-batches, optimizer steps and evaluations. Knows nothing of files, logs or clocks beyond a phase clock.
#pragma once
#include <memory>
#include <span>

#include "metrics/step_table.h"
#include "model/model.h"
#include "ops/decorate.h"
#include "optim/optimizer.h"

namespace athanor {

struct EngineOptions {
  Recipe recipe;
  Recompute recompute;
  int64_t seq_length = 0;                // T
  int64_t micro_batch_size = 0;          // sequences at once
  int64_t global_batch_size = 0;         // sequences per optimizer step
  int64_t loss_chunk_rows = 0;           // 0: as many rows of logits as fit into kLogitsBudget
  std::vector<Span> documents = {};      // what sees what in a micro-batch; none: every sequence is one document
  std::vector<std::string> frozen = {};  // parameters that are not trained: parts of their names
  bool training = true;                  // false: weights and evaluation only
  uint64_t seed = 0;
  AdamWOptions adamw;
  Schedule schedule;
  LossScaling scaling;
  double loss_scale = 1;  // initial
  double clip_grad = 0;
};

// Device, ops and mesh of one rank; outlives the engine.
struct Backend {
  Device& device;
  Ops& ops;
  ProcessMesh& mesh;
};

class Engine {
 public:
  static constexpr size_t kLogitsBudget = size_t{256} << 20;  // bytes of logits at once

  Engine(const ModelConfig&, const EngineOptions&, Backend);

  const EngineOptions& options() const { return options_; }
  const MemoryPlan& memory();  // records the dry runs on first use
  const Arena& arena() const { return arena_; }
  Model& model() { return *model_; }
  int64_t micro_batches() const { return options_.global_batch_size / options_.micro_batch_size; }
  int64_t launches_per_micro_batch() const { return int64_t(micro_costs_.size()); }
  // Sum of the rooflines of a step's ops: no step is faster. Known once memory() is.
  double least_step_seconds(const Ceilings&) const;

  void commit();          // the one allocation
  void init_weights();    // from the seed
  void refresh_values();  // compute copies of the weights, after masters were loaded

  // tokens, targets: [micro_batch_size * T]; target -1 is ignored. The clock is moved through forward and backward.
  void micro_batch(std::span<const int32_t> tokens, std::span<const int32_t> targets, PhaseClock&);
  // Norm, skip decision, clipping, AdamW; returns the scalars of the finished step.
  StepState finish_step();
  // Forgets the micro-batches since the last step.
  void discard_step();
  // Sum of the token losses of one micro-batch; changes nothing.
  double evaluate(std::span<const int32_t> tokens, std::span<const int32_t> targets);

  StepState read_state();
  void write_state(const StepState&);
  // Logits [N, V] of a micro-batch's tokens, on the host; for comparisons. want_logits() comes before memory().
  void want_logits();
  std::vector<float> logits(std::span<const int32_t> tokens);

  // Replaces the ops that run (not the plan): decorators that check or trace.
  void set_ops(Ops& ops) { ops_ = &ops; }

 private:
  Ctx context(Ops& ops, Tape* tape);
  void record_phases();
  void run_micro_batch(Ctx, PhaseClock*);
  void run_evaluation(Ctx);
  void run_optimizer(Ctx);
  void run_logits(Ctx, std::vector<float>* out);
  void load(std::span<const int32_t> tokens, std::span<const int32_t> targets);
  Classifier head() const;
  Tensor scalar(size_t offset, DType dtype) const;

  EngineOptions options_;
  Backend backend_;
  Ops* ops_;
  Arena arena_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Optimizer> optimizer_;
  Batch batch_;
  Tensor losses_;      // [N] f32
  Tensor state_;       // StepState
  Tensor eval_sum_;    // [1] f64
  Tensor logit_rows_;  // [N] i32: 0, 1, 2, ...
  bool want_logits_ = false, recorded_ = false;
  std::vector<Cost> micro_costs_, update_costs_;  // of each launch
  MemoryPlan memory_;
};

}  // namespace athanor
