#include "device/memory_plan.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/format.h"
#include "base/int.h"

namespace athanor {
namespace {

std::string mib(size_t bytes) { return format_text("%.1f MiB", double(bytes) / 1048576.0); }

}  // namespace

const char* name_of(MemoryKind kind) {
  constexpr const char* kNames[] = {"weights",     "masters", "gradients", "optimizer",
                                    "activations", "inputs",  "constants", "cache"};
  return kNames[static_cast<int>(kind)];
}

std::string MemoryPlan::knobs(MemoryKind kind) const {
  const auto holds = [&](MemoryKind of, DType dtype) {
    return std::any_of(lines_.begin(), lines_.end(), [&](const Line& l) { return l.kind == of && l.dtype == dtype; });
  };
  switch (kind) {
    case MemoryKind::weights:
      return cat("a smaller model", holds(kind, DType::f32) ? ", or precision \"bf16\"" : "",
                 total(MemoryKind::gradients) > 0 ? ", or zero_stage 3 over more ranks" : "", params_offload());
    case MemoryKind::masters:
      if (!holds(kind, DType::f32)) return "a smaller model, master_weights \"bf16\", or more ranks";
      return cat(holds(MemoryKind::weights, DType::f16) ? "precision \"bf16\" with " : "",
                 "master_weights \"split\" or \"bf16\", or more ranks");
    case MemoryKind::gradients:
      return cat("a smaller model, ", holds(kind, DType::f32) ? "grad_dtype \"bf16\", " : "",
                 "or zero_stage 2 or 3 over more ranks", params_offload());
    case MemoryKind::optimizer:
      return cat(holds(kind, DType::f32) ? "adam.exp_avg_dtype and adam.exp_avg_sq_dtype \"bf16\"" : "a smaller model",
                 ", or sharding over more ranks",
                 total(kind, Mem::pinned) == 0 ? ", on a GPU also offload.optimizer \"cpu\"" : "");
    case MemoryKind::activations:
      return cat("micro_batch_size, recompute_granularity, seq_length or loss_chunk_rows",
                 total(kind, Mem::pinned) == 0 ? ", on a GPU also offload.activations \"auto\"" : "");
    case MemoryKind::inputs:
      return "micro_batch_size";
    case MemoryKind::constants:
      return "max_position_embeddings";
    case MemoryKind::cache:
      return "fewer or shorter sequences";
  }
  return "";
}

const char* MemoryPlan::params_offload() const {
  const bool trains = total(MemoryKind::gradients) + total(MemoryKind::gradients, Mem::pinned) > 0;
  const size_t moved = total(MemoryKind::weights, Mem::pinned) + total(MemoryKind::gradients, Mem::pinned);
  return trains && moved == 0 ? ", on one GPU also offload.params \"auto\"" : "";
}

// Buffers may outlive the plan, e.g. when a step fails; without the arena's memory they poison nothing that another
// plan may own by then.
MemoryPlan::~MemoryPlan() {
  if (arena_ && memory_) arena_->commit(nullptr);
  if (memory_) device_->release(memory_, total_, Mem::device);
  if (host_memory_) device_->release(host_memory_, host_total_, Mem::pinned);
}

void MemoryPlan::add(MemoryKind kind, std::string name, DType dtype, Shape shape, Tensor* target, Mem where) {
  CHECK(!memory_, "the plan is committed; ", name, " comes too late");
  *target = {planned_address(), dtype, shape};
  const size_t bytes = round_up(target->bytes(), kArenaAlign);
  size_t& total = where == Mem::device ? total_ : host_total_;
  lines_.push_back({kind, std::move(name), dtype, bytes, target, total, where});
  total += bytes;
}

void MemoryPlan::add(Arena& arena) {
  CHECK(!memory_ && !arena_, "one arena per plan, before commit");
  arena_ = &arena;
  lines_.push_back(
      {MemoryKind::activations, "activations and scratch", DType::u8, arena.bytes(), nullptr, total_, Mem::device});
  total_ += arena.bytes();
}

size_t MemoryPlan::total(MemoryKind kind, Mem where) const {
  return std::accumulate(lines_.begin(), lines_.end(), size_t{0}, [&](size_t sum, const Line& l) {
    return sum + (l.kind == kind && l.where == where ? l.bytes : 0);
  });
}

void MemoryPlan::require_fits(size_t capacity, size_t reserve) const {
  if (total_ + reserve <= capacity) return;
  std::array<MemoryKind, kMemoryKinds> kinds;
  for (int k = 0; k < kMemoryKinds; ++k) kinds[size_t(k)] = static_cast<MemoryKind>(k);
  std::stable_sort(kinds.begin(), kinds.end(), [&](MemoryKind a, MemoryKind b) { return total(a) > total(b); });
  std::string text = cat("memory: the run needs ", mib(total_), " + ", mib(reserve), " reserve, but ", mib(capacity),
                         " may be used. Largest parts:");
  for (int k = 0; k < 3; ++k)
    if (const size_t bytes = total(kinds[size_t(k)]); bytes > 0)
      text += cat("\n  ", name_of(kinds[size_t(k)]), " ", mib(bytes), " (smaller with ", knobs(kinds[size_t(k)]), ")");
  throw Error(text, Exit::usage);
}

void MemoryPlan::require_host_fits(size_t capacity, size_t extra) const {
  if (host_total_ <= capacity && extra <= capacity - host_total_) return;
  const bool inputs = total(MemoryKind::activations, Mem::pinned) > 0,
             params = total(MemoryKind::weights, Mem::pinned) + total(MemoryKind::gradients, Mem::pinned) > 0,
             states = total(MemoryKind::optimizer, Mem::pinned) > 0 ||
                      (!params && total(MemoryKind::masters, Mem::pinned) > 0);
  std::string keys;
  for (const auto& [key, moves] :
       {std::pair{"offload.optimizer", states}, {"offload.activations", inputs}, {"offload.params", params}})
    if (moves) keys += cat(keys.empty() ? "" : " with ", key);
  std::string text = cat("memory: ", keys, " keeps ", mib(host_total_), " in pinned host memory",
                         extra > 0 ? cat(", and checkpoints take ", mib(extra), " there") : "", ", but ", mib(capacity),
                         " of host memory may be used. It holds:");
  for (const MemoryKind kind : {MemoryKind::weights, MemoryKind::gradients, MemoryKind::masters, MemoryKind::optimizer,
                                MemoryKind::activations})
    if (const size_t bytes = total(kind, Mem::pinned); bytes > 0)
      text += cat("\n  ", name_of(kind), " ", mib(bytes), " (smaller with ", knobs(kind), ")");
  if (extra > 0)
    text += "\n  checkpoints need none with checkpoint.async_save \"off\" and checkpoint.memory_interval 0";
  throw Error(text, Exit::usage);
}

void MemoryPlan::commit(Device& device) {
  CHECK(!memory_, "committed twice");
  device_ = &device;
  if (total_ > 0) memory_ = device.allocate(total_, Mem::device);
  if (host_total_ > 0) host_memory_ = device.allocate(host_total_, Mem::pinned);
  for (const Line& line : lines_) {
    char* at = static_cast<char*>(line.where == Mem::device ? memory_ : host_memory_) + line.offset;
    if (line.target)
      line.target->data = at;
    else
      arena_->commit(at, device.unified());
  }
}

}  // namespace athanor
