// Trains a tiny model for some steps on ranks that are threads, and checks what all ranks must agree on.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "checkpoint/layout.h"
#include "comm/threads.h"
#include "config/config.h"
#include "cpu/make_cpu.h"
#include "tests/temp_dir.h"
#include "tests/tiny_model.h"
#include "tests/train/device_memory_ops.h"
#include "tests/train/harness.h"
#include "train/checkpointer.h"

namespace athanor::ranks {

inline constexpr int64_t kDocuments = 4;  // documents per sequence, with Setting::documents
inline constexpr int64_t kSequences = 96, kLength = 7,
                         kVocab = 40;  // kSequences: per global batch; divisible by ranks times accumulation

inline ModelConfig tiny(ModelType type, bool tied, int64_t hidden = 16, int64_t intermediate = 24) {
  ModelConfig m = testing::tiny_model(
      type,
      {.vocab = kVocab, .hidden = hidden, .heads = 4, .kv_heads = 2, .intermediate = intermediate, .positions = 8});
  m.tie_word_embeddings = tied;
  return m;
}

struct Setting {
  ModelType type = ModelType::llama;
  bool tied = false;
  bool bare_end = false;  // athanor: no bias of the head and no skip connection to it
  const char* precision = "fp32";
  DType master = DType::f32;
  int replicas = 1, shards = 1, stage = 0;
  int64_t accumulation = 1;
  Recompute::Granularity recompute = Recompute::Granularity::none;
  std::vector<std::string> frozen = {};
  int64_t lora = 0;  // LoRA rank of adapters of `targets`
  std::vector<std::string> targets = {"all-linear"};
  LoraVariant variant = LoraVariant::lora;
  double dropout = 0;   // dropout of the adapters
  bool nf4 = false;     // frozen layers are stored in NF4
  bool masked = false;  // some targets are ignored, a different number on every rank
  DType moments = DType::f32, gradients = DType::f32;
  double clip = 0.5, lr = 3e-3, eps = 1e-8;
  int64_t leaves = 0;  // logical shards of rank-invariant sums, with micro-batches of two sequences; 0: off
  int64_t sequences = kSequences;
  int64_t step = sequences;  // sequences per step, at most those planned
  RuleName rule = RuleName::adamw;
  std::vector<ParamGroup> groups = {};  // inserted before the default groups
  double ema = 0;                       // decay of the EMA of the weights; evaluations then use the EMA
  int64_t tail = 0;                     // equal-weight average of the weights after this step; evaluations then use the
                                        // average; 0: off
  double qk_clip = 0, update_clip = 0;
  int tensor = 1;
  bool sequence = false;  // sequence parallelism
  bool beside = false;    // overlapped all-reduces, with outputs computed in pieces
  bool pieces = false;    // sequence parallelism exchanges rows in pieces even without `beside`
  int64_t kv_heads = 0;   // 0: the default of the family
  int64_t vocab = kVocab;
  double z_loss = 0;
  double depth = 0;               // stochastic depth
  double hidden_dropout = 0;      // dropout of elements of the stream
  std::vector<float> ahead = {};  // weights of tokens further ahead
  double softcap = 0;
  int context = 1;
  bool ring = false;  // ring attention instead of an all-gather of keys and values
  int64_t heads = 4, hidden = 16, intermediate = 24;
  bool keep_quantized = true, high_head = true;
  int64_t length = kLength, window = 0;  // length: tokens per sequence; window: 0 for full attention
  bool documents = false;                // several documents per sequence, and tokens outside all documents
  bool teacher = false;                  // distill from a teacher of another size
  ModelType teacher_type = ModelType::llama;
  int64_t teacher_window = 0;  // 0 for full attention
  int64_t top_k = 0;           // top-k of its cached logits; 0: the teacher itself is run
  DistillLoss distill = DistillLoss::kl;
  int workers = 1;
  OuterOptions outer = {};
  bool background = false;  // delayed deltas are sent by a thread
  int64_t freeze = 0;       // steps with uncompressed gradients of onebit_adam and onebit_lamb
  int64_t offload = 0;  // elements per chunk of master weights and optimizer states in host memory; 0: kept in device
                        // memory
  bool offload_inputs = false;
  int64_t host_units = 0;  // units whose weights and gradients are in host memory
  double balance = 0.001;  // router_aux_loss_coef of models with experts
  AuxLossScope scope = {};
  int experts = 1;      // ranks of the shards that hold different experts
  double srste = -1;    // decay of pruned weights in 2:4 SR-STE; below 0: dense
  double capacity = 0;  // moe.expert_capacity_factor
  PackedTraffic packed = {};
  double room = 0;  // moe.expert_buffer_factor
  int ranks() const { return mesh().ranks(); }
  MeshSizes mesh() const {
    return {.copies = replicas,
            .shards = shards,
            .context = context,
            .tensor = tensor,
            .experts = experts,
            .workers = workers,
            .delayed = outer.delay > 0};
  }

  std::string name() const {
    return cat(name_of(type), tied ? " tied " : " ", precision, " stage ", stage, " ranks ", replicas, "x", shards,
               " accumulation ", accumulation, " recompute ", int(recompute), " scope ", int(scope), " leaves ", leaves,
               sequence ? " sequence " : " tensor ", tensor,
               beside   ? " beside"
               : pieces ? " pieces"
                        : "",
               " vocabulary ", vocab, " context ", context, ring ? " ring" : "", " length ", length, " window ", window,
               documents ? " documents" : "", ahead.empty() ? "" : cat(" ahead ", ahead.size()),
               teacher
                   ? cat(" teacher ", name_of(teacher_type), " window ", teacher_window, " ", top_k, " ", int(distill))
                   : "",
               gradients == DType::bf16 ? " gradients bf16" : "", offload > 0 ? cat(" offload ", offload) : "",
               host_units > 0 ? cat(" host units ", host_units) : "", srste >= 0 ? " 2:4" : "",
               experts > 1 ? cat(" experts ", experts) : "", capacity > 0 ? cat(" capacity ", capacity) : "",
               packed.gradients ? " packed gradients" : "", packed.weights ? " packed weights" : "",
               room > 0 ? cat(" room ", room) : "",
               outer.steps > 0 ? cat(" workers ", workers, " rounds of ", outer.steps, " delay ", outer.delay,
                                     " deltas ", int(outer.deltas))
                               : "",
               freeze > 0 ? cat(" workers ", workers, " frozen at ", freeze) : "");
  }
};

inline ModelConfig tiny(const Setting& s) {
  ModelConfig m = tiny(s.type, s.tied, s.hidden, s.intermediate);
  m.num_attention_heads = s.heads;
  if (has_latent_attention(s.type))
    m.initializer_range = 0.2;  // attention is far from uniform
  else
    m.head_dim = s.hidden / s.heads;
  if (s.type == ModelType::gpt2 || has_latent_attention(s.type)) m.num_key_value_heads = s.heads;
  if (s.kv_heads > 0) m.num_key_value_heads = s.kv_heads;
  m.vocab_size = s.vocab;
  m.final_logit_softcapping = s.softcap;
  if (s.bare_end) m.lm_head_bias = false, m.skip_from.back() = -1, m.skip_lambdas.back() = 0;
  m.sliding_window = s.window;
  if (m.num_experts > 0) m.router_aux_loss_coef = s.balance;
  if (s.length != kLength) m.layer_types.clear();  // context-parallel ranks need one window
  m.max_position_embeddings = std::max(m.max_position_embeddings, s.length);
  return m;
}

inline TeacherOptions teacher_of(const Setting& s) {
  ModelConfig m = tiny(s.teacher_type, false, 24, 40);
  if (s.teacher_window > 0) m.sliding_window = s.teacher_window;
  m.vocab_size = s.vocab;
  m.max_position_embeddings = std::max(m.max_position_embeddings, s.length);
  return {.model = m, .top_k = s.top_k, .loss = s.distill, .temperature = 2, .ce_weight = 0.5};
}

// Fills in a teacher's weights, the same on every rank.
inline void fill_teacher(const ParamStore& params, Device& device) {
  for (const auto& unit : params.units()) {
    const Tensor& to = unit->weights();
    by_float(to.dtype, [&]<class T>() {
      std::vector<T> values(size_t(to.numel()));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = from_float<T>(float(random_bits(3, stream_of(unit->name), i) % 1000) / 2500 - 0.2f);
      device.copy(to.data, values.data(), to.bytes(), Stream::compute);
    });
    device.sync();
  }
}

inline EngineOptions options(const Setting& s) {
  EngineOptions o;
  o.recipe = make_recipe(s.precision, s.master);
  o.recipe.gradients = s.gradients;
  o.recompute = {s.recompute, 1};
  o.seq_length = s.length;
  o.documents_per_sequence = s.documents ? kDocuments : 1;
  o.micro_batch_size = s.leaves > 0 ? 2 : s.sequences / (s.accumulation * s.replicas * s.shards * s.workers);
  o.global_batch_size = s.sequences;
  o.zero_stage = s.stage;
  o.save_block_bytes = 1000;  // small, so that tensors span several blocks
  o.sequence_parallel = s.sequence;
  if (s.beside) o.overlaps_sums = true;
  if (s.beside || s.pieces) o.least_piece = 1;
  o.context_method = s.ring ? ContextMethod::ring : ContextMethod::gather;
  o.logical_shards = s.leaves;
  o.seed = o.optimizer.seed = 5;
  o.optimizer.m = o.optimizer.v = s.moments;
  o.optimizer.rule = s.rule;
  o.optimizer.eps = s.eps;
  o.optimizer.groups = s.groups;
  o.optimizer.ema_decay = s.ema;
  o.optimizer.update_clip_threshold = s.update_clip;
  o.optimizer.qk_clip_threshold = s.qk_clip;
  if (s.freeze > 0) o.optimizer.freeze_step = s.freeze;
  o.optimizer.min_8bit_size = 256;
  o.optimizer.tail_average_start = s.tail;
  o.eval_averages = s.ema > 0 || s.tail > 0;
  o.outer = s.outer;
  o.offload_inputs = s.offload_inputs;
  o.host_units = s.host_units;
  if (s.offload > 0) o.states_home = {.mem = Mem::pinned, .stretch = s.offload};
  std::ranges::copy(default_groups(s.rule), std::back_inserter(o.optimizer.groups));
  o.schedule = {.style = DecayStyle::constant, .lr = s.lr, .min_lr = s.lr};
  o.clip_grad = s.clip;
  o.expert_capacity_factor = s.capacity;
  o.aux_loss_scope = s.scope;
  o.packed = s.packed;
  o.expert_buffer_factor = s.room;
  o.z_loss = s.z_loss;
  o.ahead_weights = s.ahead;
  o.depth.rate = float(s.depth);
  o.hidden_dropout = float(s.hidden_dropout);
  o.keep_quantized = s.keep_quantized, o.high_layers.head = s.high_head;
  o.frozen = s.frozen;
  if (s.teacher) o.teacher = teacher_of(s);
  o.lora.rank = s.lora, o.lora.dropout = s.dropout, o.lora.variant = s.variant;
  o.lora.targets = s.targets;
  if (s.nf4) o.lora.base = BasePrecision::nf4;
  if (s.srste >= 0)
    o.pruning = PruningOptions{
        .method = PruneMethod::srste, .decay = s.srste, .pattern = PrunePattern::two_of_four, .exclude = {"*o_proj*"}};
  if (o.recipe.loss_scaling) {
    o.scaling = {.dynamic = true, .window = 2, .hysteresis = 1, .min_scale = 1};
    o.loss_scale = 256;
  }
  return o;
}

// Calls body(engine, mesh, cpu) on every rank of a setting, with initial weights.
template <class Body>
void on_ranks(const Setting& s, const EngineOptions& o, Body&& body, const ModelConfig& model) {
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    ProcessMesh mesh(std::move(world), s.mesh());
    Engine engine(model, o, {*cpu.device, *cpu.ops, mesh});
    engine.commit();
    engine.init_weights();
    body(engine, mesh, cpu);
  });
}
template <class Body>
void on_ranks(const Setting& s, const EngineOptions& o, Body&& body) {
  on_ranks(s, o, body, tiny(s));
}
template <class Body>
void on_ranks(const Setting& s, Body&& body) {
  on_ranks(s, options(s), body);
}

// The teacher on a separate rank, which computes its top-k logits.
class LoneTeacher {
 public:
  explicit LoneTeacher(const Setting& s, int64_t micro_batch_size)
      : cpu_(make_cpu({.threads = 1})),
        mesh_(make_single(*cpu_.device), {}),
        engine_(teacher_of(s).model,
                {.recipe = make_recipe(s.precision, DType::f32),
                 .seq_length = s.length,
                 .micro_batch_size = micro_batch_size,
                 .global_batch_size = micro_batch_size,
                 .training = false},
                {*cpu_.device, *cpu_.ops, mesh_}) {
    engine_.want_top_logits(s.top_k, s.vocab, float(teacher_of(s).temperature));
    engine_.commit();
    fill_teacher(engine_.model().params(), *cpu_.device);
  }
  const Engine::TopLogitsOfBatch& logits(std::span<const int32_t> tokens) { return top_ = engine_.top_logits(tokens); }

 private:
  CpuBackend cpu_;
  ProcessMesh mesh_;
  Engine engine_;
  Engine::TopLogitsOfBatch top_;
};

// Appends sequence number `sample` of the data; a rank that is given other samples cannot get the right loss. `masked`:
// the later in the batch, the fewer targets.
inline void append_sample(int64_t sample, std::vector<int32_t>& tokens, std::vector<int32_t>& targets,
                          bool masked = false, int64_t vocab = kVocab, int64_t length = kLength) {
  const int64_t ignored = masked ? sample % kSequences * length / kSequences : 0;
  for (int64_t t = 0; t < length; ++t) {
    const auto at = uint64_t(sample * length + t);
    tokens.push_back(int32_t(random_bits(1, stream_of("tokens"), at) % uint64_t(vocab)));
    targets.push_back(t < ignored ? -1 : int32_t(random_bits(1, stream_of("targets"), at) % uint64_t(vocab)));
  }
}

// Sets the documents of samples [first, first + rows): each begins where the previous one ends, one has a single token,
// and the remaining tokens belong to none.
inline void set_documents(Engine& engine, int64_t first) {
  const int64_t rows = engine.options().micro_batch_size, length = engine.options().seq_length;
  std::vector<Span> spans;
  std::vector<int32_t> positions(size_t(rows * length), 0);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t at = 0;
    for (int64_t d = 0; d < kDocuments; ++d) {
      const auto random =
          int64_t(random_bits(1, stream_of("documents"), uint64_t((first + row) * kDocuments + d)) % 64);
      const int64_t size = d == 1 ? 1 : std::min(length - at, 1 + random % (length / 2));
      const auto begin = int32_t(row * length + at);
      if (at < length) spans.push_back({begin, int32_t(size), begin, int32_t(size), 0, 0});
      if (at >= length) spans.push_back({});
      for (int64_t i = 0; at < length && i < size; ++i) positions[size_t(begin + i)] = int32_t(i);
      at += size;
    }
  }
  engine.set_documents(std::move(spans), std::move(positions));
}

// Runs the micro-batches of one rank in one step, with the samples that the loader would give it.
inline void accumulate(Engine& engine, int64_t step, bool masked = false, LoneTeacher* teacher = nullptr) {
  PhaseClock clock;
  const int64_t rows = engine.options().micro_batch_size, micros = engine.step_micro_batches();
  const int64_t vocab = engine.model().config().vocab_size;
  for (int64_t m = 0; m < micros; ++m) {
    std::vector<int32_t> tokens, targets;
    const int64_t first = (step * micros * engine.ranks() + engine.micro_batch_order().number(m)) * rows;
    for (int64_t row = 0; row < rows; ++row)
      append_sample(first + row, tokens, targets, masked, vocab, engine.options().seq_length);
    if (engine.options().documents_per_sequence > 1) set_documents(engine, first);
    if (teacher) {
      const auto& top = teacher->logits(tokens);
      engine.set_teacher_logits({top.ids, top.values, top.rest});
    }
    engine.micro_batch(tokens, targets, clock);
  }
}

struct Curve {
  std::vector<double> losses, norms;
  std::vector<double> distilled;                     // distillation loss of each step, with a teacher
  std::vector<float> scores;                         // maximum attention logit of each step, with qk_clip
  double evaluation = 0;                             // summed over the ranks
  std::vector<float> masters;                        // all of them, in file order
  std::vector<size_t> planned;                       // bytes in the plan, by rank
  size_t weights = 0, gradients = 0, optimizer = 0;  // bytes in the plan of rank 0
  size_t host = 0;                                   // bytes of host memory per rank
};

inline Curve train(const Setting& s, int64_t steps = 3) {
  Curve curve;
  std::mutex mutex;
  curve.planned.resize(size_t(s.ranks()));
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    ProcessMesh mesh(std::move(world), s.mesh());
    Engine engine(tiny(s), options(s), {*cpu.device, *cpu.ops, mesh});
    engine.commit();
    testing::DeviceMemoryOps in_device(*cpu.ops, engine.memory());
    if (s.offload > 0 || s.host_units > 0) engine.set_ops(in_device);
    engine.init_weights();
    engine.set_step_sequences(s.step);
    if (engine.teacher()) fill_teacher(engine.teacher()->params(), *cpu.device);
    std::optional<LoneTeacher> teacher;
    if (s.top_k > 0) teacher.emplace(s, engine.options().micro_batch_size);
    std::vector<double> losses, norms, distilled;
    std::vector<float> scores;
    for (int64_t step = 0; step < steps; ++step) {
      accumulate(engine, step, s.masked, teacher ? &*teacher : nullptr);
      engine.set_compressed(step >= s.freeze);
      const StepState state = engine.finish_step();
      if (engine.round_ends(step + 1)) engine.end_rounds(step + 1);
      losses.push_back(state.loss / state.loss_targets), norms.push_back(state.grad_norm);
      distilled.push_back(state.distill / state.loss_targets);
      scores.push_back(state.max_attention_logit);
    }
    std::vector<int32_t> tokens, targets;
    for (int64_t row = 0; row < engine.options().micro_batch_size; ++row)
      append_sample(row, tokens, targets, false, s.vocab, s.length);
    if (s.documents) set_documents(engine, 0);
    if (engine.has_averages()) engine.use_averages();
    const double evaluation = engine.evaluate(tokens, targets);
    if (engine.has_averages()) engine.use_weights();
    const auto masters = testing::all_masters(engine, *cpu.device);
    const std::lock_guard lock(mutex);
    if (curve.losses.empty()) {
      curve.losses = losses, curve.norms = norms, curve.distilled = distilled, curve.scores = scores,
      curve.masters = masters, curve.evaluation = evaluation;
      curve.weights = engine.memory().total(MemoryKind::weights) + engine.memory().total(MemoryKind::masters);
      curve.gradients = engine.memory().total(MemoryKind::gradients);
      curve.optimizer = engine.memory().total(MemoryKind::optimizer);
    }
    EXPECT_EQ(curve.losses, losses) << "all ranks report one loss";
    EXPECT_EQ(curve.norms, norms);
    EXPECT_EQ(curve.distilled, distilled);
    EXPECT_EQ(curve.scores, scores);
    EXPECT_EQ(curve.masters, masters);
    EXPECT_EQ(curve.evaluation, evaluation) << "all ranks have the same weights";
    curve.planned[size_t(mesh.world().rank())] = engine.memory().total();
    curve.host = engine.host_memory();
  });
  return curve;
}

inline void expect_same(const Curve& want, const Curve& got, double tolerance, const std::string& what) {
  ASSERT_EQ(want.losses.size(), got.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << what << " step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], 20 * tolerance * want.norms[i]) << what << " step " << i;
  }
  ASSERT_EQ(want.masters.size(), got.masters.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.masters.size(); ++i) {
    difference += std::pow(double(want.masters[i]) - double(got.masters[i]), 2);
    size += std::pow(double(want.masters[i]), 2);
  }
  EXPECT_LT(std::sqrt(difference / size), 100 * tolerance) << what;
}

// All tensors in the files of a checkpoint, by name.
inline std::map<std::string, std::vector<std::byte>> tensors_of(const std::string& folder) {
  std::map<std::string, std::vector<std::byte>> all;
  for (const char* stem : {"model", "optimizer"}) {
    const WeightFiles files(folder, stem);
    for (const auto& [name, place] : files.tensors()) {
      auto& bytes = all[cat(stem, " ", name)];
      bytes.resize(size_t(place.entry->bytes));
      place.file->read(*place.entry, bytes);
    }
  }
  return all;
}

// Runs steps [from, to) from the initial weights or the checkpoint `load`, and saves the result in `save`. Returns the
// losses.
inline std::vector<double> run_part(const Setting& s, const std::string& load, int64_t from, int64_t to,
                                    const std::string& save) {
  std::vector<double> losses;
  std::mutex mutex;
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    ProcessMesh mesh(std::move(world), s.mesh());
    Engine engine(tiny(s), options(s), {*cpu.device, *cpu.ops, mesh});
    engine.commit();
    if (load.empty())
      engine.init_weights();
    else
      load_checkpoint(engine, *cpu.device, load);
    std::vector<double> mine;
    StepState last = engine.read_state();
    for (int64_t step = from; step < to; ++step) {
      accumulate(engine, step);
      engine.set_compressed(step >= s.freeze);
      last = engine.finish_step();
      if (engine.round_ends(step + 1)) engine.end_rounds(step + 1);
      mine.push_back(last.loss);
    }
    std::optional<RunLock> lock;
    if (mesh.world().rank() == 0) lock.emplace(save);
    RunState state{.step = to, .consumed_samples = to * s.sequences, .micro_batch_size = 1, .device = last};
    state.workers = engine.workers(), state.in_flight = engine.in_flight();
    Checkpointer saves(engine, *cpu.device, {.root = save, .lock = lock ? &*lock : nullptr, .control = &mesh.world()});
    saves.begin(state, "", {.resolved_config = "{}", .hf_config = hf_config_json(tiny(s), "float32")}, {});
    saves.finish();
    const std::lock_guard hold(mutex);
    losses = mine;
  });
  return losses;
}

// Checks that runs that stop after one of these steps and resume from their checkpoints end with bit-identical losses,
// weights and states to a run that does not stop.
inline void expect_exact_resume(const Setting& s, std::initializer_list<int64_t> stops, int64_t end) {
  const testing::TempDir dir;
  const std::string whole = dir / "whole";
  const std::vector<double> want = run_part(s, "", 0, end, whole);
  for (const int64_t at : stops) {
    const std::string part = dir / cat("part", at), then = dir / cat("then", at);
    run_part(s, "", 0, at, part);
    const std::vector<double> got = run_part(s, cat(part, "/", step_folder(at)), at, end, then);
    EXPECT_EQ(got.back(), want.back()) << s.name() << " from " << at;
    EXPECT_EQ(tensors_of(cat(then, "/", step_folder(end))), tensors_of(cat(whole, "/", step_folder(end))))
        << s.name() << " from " << at;
  }
}

inline void expect_equal(const Curve& want, const Curve& got, const std::string& what) {
  EXPECT_EQ(want.losses, got.losses) << what;
  EXPECT_EQ(want.norms, got.norms) << what;
  EXPECT_EQ(want.scores, got.scores) << what;
  EXPECT_EQ(want.masters, got.masters) << what;
}

// Repeating a run and recomputing its activations change no bit.
inline void expect_repetition_and_recomputation_change_no_bit(Setting s) {
  const Curve none = train(s);
  expect_equal(none, train(s), "twice");
  for (const auto recompute : {Recompute::Granularity::selective, Recompute::Granularity::full}) {
    s.recompute = recompute;
    expect_equal(none, train(s), s.name());
  }
}

// Bytes of activations that a rank plans.
inline size_t planned_activations(const Setting& s) {
  size_t bytes = 0;
  std::mutex mutex;
  on_ranks(s, [&](Engine& engine, ProcessMesh&, const CpuBackend&) {
    const std::lock_guard lock(mutex);
    bytes = engine.memory().total(MemoryKind::activations);
  });
  return bytes;
}

}  // namespace athanor::ranks
