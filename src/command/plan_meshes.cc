#include "command/plan_meshes.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "command/plan_ranks.h"
#include "metrics/format.h"
#include "train/setup.h"

namespace athanor {
namespace {

constexpr int kMostContext = 64;  // sizes that are tried

struct Way {
  int copies = 1, shards = 1, context = 1, tensor = 1;
};

struct Found {
  Way way;
  Prediction p;
};

std::string to_text(const Way& w) {
  return cat("copies ", w.copies, ", shards ", w.shards, ", context ", w.context, ", tensor ", w.tensor);
}

// Tensor parallelism stays within a machine, whose links its sums need; copies are those of the configuration, one, or
// one per machine.
std::vector<Way> ways(const Config& c, int ranks, int nodes) {
  std::vector<Way> all;
  for (int tensor = 1; tensor <= std::max(1, ranks / nodes); ++tensor)
    for (int context = 1; context <= kMostContext; ++context) {
      if (ranks % (tensor * context) != 0) continue;
      const int groups = ranks / (tensor * context);
      if (zero_stage(c) == 0) {
        all.push_back({groups, 1, context, tensor});
        continue;
      }
      std::vector<int> copies = {1, int(c.data_parallel_replicate_size), nodes};
      std::sort(copies.begin(), copies.end());
      copies.erase(std::unique(copies.begin(), copies.end()), copies.end());
      for (const int n : copies)
        if (groups % n == 0) all.push_back({n, groups / n, context, tensor});
    }
  return all;
}

Config divided(const Config& config, const Way& w) {
  Config c = config;
  c.tensor_parallel_size = w.tensor, c.context_parallel_size = w.context;
  c.sequence_parallel = config.sequence_parallel && w.tensor > 1;
  c.data_parallel_replicate_size = zero_stage(c) > 0 ? w.copies : 1;
  c.data_parallel_shard_size = 0;
  return c;
}

bool is_configured(const Config& c, const Way& w) {
  return w.tensor == c.tensor_parallel_size && w.context == c.context_parallel_size &&
         (zero_stage(c) == 0 || w.copies == c.data_parallel_replicate_size);
}

// Seconds that the step gets longer by for what is sent to ranks that share parameters.
double exposed_by_data(const Prediction& p) { return p.exposed - p.traffic.tensor.waits - p.traffic.context.waits; }

void print_table(const std::vector<Found>& all, double tokens) {
  std::printf("%7s %6s %7s %6s %11s %9s %10s %10s %10s %10s %10s %10s %10s %9s  %s\n", "copies", "shards", "context",
              "tensor", "micro", "memory", "to copies", "to shards", "context", "tensor", "compute ms", "exposed ms",
              "step ms", "tokens/s", "keys");
  for (const auto& [w, p] : all) {
    const StepTraffic& t = p.traffic;
    const auto bytes = [](double n) { return format_bytes(uint64_t(std::max(0.0, n))); };
    std::printf(
        "%7d %6d %7d %6d %5lld x %-4lld %8s %10s %10s %10s %10s %10.2f %10.2f %10.2f %9s  %s\n", w.copies, w.shards,
        w.context, w.tensor, static_cast<long long>(p.micro_batch_size), static_cast<long long>(p.micro_batches),
        format_bytes(p.memory).c_str(), bytes(t.between_copies).c_str(),
        bytes(t.bytes() - t.between_copies - t.context.bytes - t.tensor.bytes).c_str(), bytes(t.context.bytes).c_str(),
        bytes(t.tensor.bytes).c_str(), p.compute * 1e3, p.exposed * 1e3, p.step() * 1e3,
        format_count(tokens / p.step()).c_str(), w.context == 1 ? "-" : std::string(name_of(p.context.method)).c_str());
  }
}

void print_memory(const std::vector<Found>& all) {
  std::vector<size_t> kinds;
  for (size_t k = 0; k < size_t(kMemoryKinds); ++k)
    if (std::any_of(all.begin(), all.end(), [&](const Found& f) { return f.p.memory_by_kind[k] > 0; }))
      kinds.push_back(k);
  std::printf("\nmemory of a rank\n%7s %6s %7s %6s", "copies", "shards", "context", "tensor");
  for (const size_t k : kinds) std::printf(" %12s", name_of(MemoryKind(k)));
  for (const auto& [w, p] : all) {
    std::printf("\n%7d %6d %7d %6d", w.copies, w.shards, w.context, w.tensor);
    for (const size_t k : kinds) std::printf(" %12s", format_bytes(p.memory_by_kind[k]).c_str());
  }
  std::printf("\n");
}

// What computing does not hide; of a block in one micro-batch beside what is sent there, embedding and head included.
void print_waits(const std::vector<Found>& all, int64_t blocks) {
  std::printf(
      "\nms that a rank waits for what is sent: in a step; in a block of a micro-batch, of the ms that it takes\n");
  std::printf("%7s %6s %7s %6s %10s %10s %10s %20s %20s\n", "copies", "shards", "context", "tensor", "to shards",
              "context", "tensor", "context in a block", "tensor in a block");
  for (const Found& found : all) {
    const Prediction& p = found.p;
    const Way& w = found.way;
    const auto in_a_block = [&](double exposed, double sent) {
      const double ms = 1e3 / double(blocks * p.micro_batches);
      char text[64];
      std::snprintf(text, sizeof text, "%.3f of %.3f", exposed * ms, sent * ms);
      return std::string(sent > 0 ? text : "-");
    };
    const StepTraffic& t = p.traffic;
    std::printf("%7d %6d %7d %6d %10.2f %10.2f %10.2f %20s %20s\n", w.copies, w.shards, w.context, w.tensor,
                exposed_by_data(p) * 1e3, t.context.waits * 1e3, t.tensor.waits * 1e3,
                in_a_block(t.context.waits, t.context.seconds).c_str(),
                in_a_block(t.tensor.waits, t.tensor.seconds).c_str());
  }
}

// What of a longer step of `other` is longer most.
std::string difference(const Prediction& best, const Prediction& other) {
  struct Part {
    double seconds;
    const char* what;
  };
  const Part parts[] = {
      {other.compute - best.compute, "computing"},
      {exposed_by_data(other) - exposed_by_data(best), "sending gradients and weights that nothing hides"},
      {other.traffic.context.waits - best.traffic.context.waits, "sending keys and values"},
      {other.traffic.tensor.waits - best.traffic.tensor.waits, "sums between products"}};
  std::string text;
  for (const Part& part : parts)
    if (std::abs(part.seconds) * 1e3 >= 0.005)
      text += cat(text.empty() ? "" : ", ", part.seconds > 0 ? "+" : "-", format_duration(std::abs(part.seconds)), " ",
                  part.what);
  return text.empty() ? "the same time; the one above takes less memory or comes first" : text;
}

}  // namespace

void print_meshes(const Config& config, const GpuSpec& gpu, int ranks, int nodes) {
  const log::Level level = config.log_level;
  log::configure({.level = std::max(level, log::Level::warn)});  // what a plan decides is told for the configured one
  std::vector<Found> all;
  std::map<std::string, std::vector<Way>> refused;  // by the reason
  for (const Way& w : ways(config, ranks, nodes)) {
    try {
      Config c = divided(config, w);
      validate(c);
      all.push_back({w, predict(c, gpu, ranks, nodes)});
    } catch (const Error& e) {
      refused[e.what()].push_back(w);
    }
  }
  log::configure({.level = level});
  std::stable_sort(all.begin(), all.end(), [](const Found& a, const Found& b) {
    return a.p.step() != b.p.step() ? a.p.step() < b.p.step() : a.p.memory < b.p.memory;
  });
  std::printf("\nways to divide %d ranks on %d %s, the shortest step first; sent by a rank in a step\n", ranks, nodes,
              nodes == 1 ? "node" : "nodes");
  print_table(all, double(config.global_batch_size * config.seq_length));
  if (!all.empty()) print_memory(all);
  if (!all.empty()) print_waits(all, config.model.num_hidden_layers);
  std::printf("\n");
  for (const auto& [why, which] : refused)
    std::printf("not possible: %s%s: %s\n", to_text(which[0]).c_str(),
                which.size() == 1 ? "" : cat(" and ", which.size() - 1, " more").c_str(), why.c_str());
  if (all.empty()) return;
  const Prediction& best = all[0].p;
  std::printf(
      "best: %s: a step computes for %.2f ms, and waits for %.2f ms: %.2f for gradients and weights, %.2f for keys and "
      "values, %.2f for sums between products\n",
      to_text(all[0].way).c_str(), best.compute * 1e3, best.exposed * 1e3, exposed_by_data(best) * 1e3,
      best.traffic.context.waits * 1e3, best.traffic.tensor.waits * 1e3);
  if (all[0].way.context > 1)
    std::printf("%s", context_text(best.context, [&](ContextMethod other) {
                        Config c = divided(config, all[0].way);
                        c.context_parallel_method = other;
                        validate(c);
                        return predict(c, gpu, ranks, nodes).context;
                      }).c_str());
  if (all.size() > 1) std::printf("next: %s: %s\n", to_text(all[1].way).c_str(), difference(best, all[1].p).c_str());
  for (size_t i = 2; i < all.size(); ++i)
    if (is_configured(config, all[i].way))
      std::printf("as configured: %s: %s\n", to_text(all[i].way).c_str(), difference(best, all[i].p).c_str());
  if (all[0].way.tensor * all[0].way.context > 1)
    for (const Found& f : all)
      if (f.way.tensor * f.way.context == 1) {
        std::printf("best without tensor and context, which are unverified on GPUs: %s: %s\n", to_text(f.way).c_str(),
                    difference(best, f.p).c_str());
        break;
      }
}

}  // namespace athanor
