#include "device/memory_plan.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>

#include "base/int.h"

namespace athanor {
namespace {

std::string mib(size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", double(bytes) / 1048576.0);
  return text;
}

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
                 total(MemoryKind::gradients) > 0 ? ", or zero_stage 3 over more ranks" : "");
    case MemoryKind::masters:
      if (!holds(kind, DType::f32)) return "a smaller model, master_weights \"bf16\", or more ranks";
      return cat(holds(MemoryKind::weights, DType::f16) ? "precision \"bf16\" with " : "",
                 "master_weights \"split\" or \"bf16\", or more ranks");
    case MemoryKind::gradients:
      return cat("a smaller model, ", holds(kind, DType::f32) ? "grad_dtype \"bf16\", " : "",
                 "or zero_stage 2 or 3 over more ranks");
    case MemoryKind::optimizer:
      return holds(kind, DType::f32) ? "exp_avg_dtype and exp_avg_sq_dtype \"bf16\", or sharding over more ranks"
                                     : "a smaller model, or sharding over more ranks";
    case MemoryKind::activations:
      return "micro_batch_size, recompute_granularity, seq_length or loss_chunk_rows";
    case MemoryKind::inputs:
      return "micro_batch_size";
    case MemoryKind::constants:
      return "max_position_embeddings";
    case MemoryKind::cache:
      return "fewer or shorter sequences";
  }
  return "";
}

MemoryPlan::~MemoryPlan() {
  if (memory_) device_->release(memory_, total_, Mem::device);
}

void MemoryPlan::add(MemoryKind kind, std::string name, DType dtype, Shape shape, Tensor* target) {
  CHECK(!memory_, "the plan is committed; ", name, " comes too late");
  *target = {planned_address(), dtype, shape};
  const size_t bytes = round_up(target->bytes(), kArenaAlign);
  lines_.push_back({kind, std::move(name), dtype, bytes, target, total_});
  total_ += bytes;
}

void MemoryPlan::add(Arena& arena) {
  CHECK(!memory_ && !arena_, "one arena per plan, before commit");
  arena_ = &arena;
  lines_.push_back({MemoryKind::activations, "activations and scratch", DType::u8, arena.bytes(), nullptr, total_});
  total_ += arena.bytes();
}

size_t MemoryPlan::total(MemoryKind kind) const {
  return std::accumulate(lines_.begin(), lines_.end(), size_t{0},
                         [&](size_t sum, const Line& l) { return sum + (l.kind == kind ? l.bytes : 0); });
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

void MemoryPlan::commit(Device& device) {
  CHECK(!memory_, "committed twice");
  device_ = &device;
  if (total_ == 0) return;
  memory_ = device.allocate(total_, Mem::device);
  for (const Line& line : lines_)
    if (line.target)
      line.target->data = static_cast<char*>(memory_) + line.offset;
    else
      arena_->commit(static_cast<char*>(memory_) + line.offset);
}

}  // namespace athanor
