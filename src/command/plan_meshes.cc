#include "command/plan_meshes.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <variant>

#include "base/error.h"
#include "base/format.h"
#include "command/plan_ranks.h"
#include "command/quiet_log.h"
#include "cpu/thread_pool.h"
#include "train/setup.h"

namespace athanor {
namespace {

constexpr int kMostContext = 64;  // largest context-parallel size that is tried

struct Way {
  int copies = 1, shards = 1, context = 1, tensor = 1;
  bool sequence_parallel = false;  // with tensor above 1
  bool operator==(const Way&) const = default;
};

struct Found {
  Way way;
  Prediction p;
};

std::string to_text(const Way& w) {
  return cat("copies ", w.copies, ", shards ", w.shards, ", context ", w.context, ", tensor ", w.tensor,
             w.sequence_parallel ? " with sequence_parallel" : "");
}

// The configured mesh; nullopt if the ranks do not divide as configured.
std::optional<Way> configured(const Config& c, int ranks) {
  try {
    const MeshSizes sizes = mesh_sizes(c, ranks);
    return Way{sizes.copies * sizes.workers, sizes.shards, sizes.context, sizes.tensor, c.sequence_parallel};
  } catch (const Error&) {
    return std::nullopt;  // the plan ends with this error
  }
}

std::vector<Way> ways(const Config& c, const Cluster& on) {
  std::vector<Way> all;
  const auto add = [&](const Way& w) {
    if (std::find(all.begin(), all.end(), w) == all.end()) all.push_back(w);
  };
  for (int tensor = 1; tensor <= on.ranks / on.nodes; ++tensor)
    for (int context = 1; context <= kMostContext; ++context) {
      const int together = int(c.pipeline_parallel_size) * tensor * context;
      if (!on.network.within_machines(tensor, 1) || on.ranks % together != 0) continue;
      const int groups = on.ranks / together;
      // The number of workers of local updates affects training, so it is not varied.
      const auto configured_copies = int(c.data_parallel_replicate_size);
      const auto replicas = copies_are_workers(c) ? std::vector{configured_copies}
                            : zero_stage(c) == 0  ? std::vector{groups}
                                                  : std::vector{1, configured_copies, on.nodes};
      for (const int copies : replicas)
        for (const bool sequence : {false, true})
          if (groups % copies == 0 && (tensor > 1 || !sequence))
            add({copies, groups / copies, context, tensor, sequence});
    }
  if (const auto way = configured(c, on.ranks)) add(*way);
  return all;
}

// Describes which meshes ways() tries.
std::string limits_of_ways(const Config& c, const Cluster& on) {
  return cat("tried: tensor_parallel_size with all ranks of a group on one node, without and with sequence_parallel; ",
             "context_parallel_size up to ", kMostContext,
             copies_are_workers(c)
                 ? "; data_parallel_replicate_size copies, the workers of local_updates.steps or of the optimizer"
             : zero_stage(c) == 0 ? ""
                                  : "; one copy, one per node, or data_parallel_replicate_size",
             configured(c, on.ranks) ? "; and what is configured" : "", "\n");
}

Config divided(const Config& config, const Way& w) {
  Config c = config;
  c.tensor_parallel_size = w.tensor, c.context_parallel_size = w.context;
  c.sequence_parallel = w.sequence_parallel;
  if (!copies_are_workers(c)) c.data_parallel_replicate_size = zero_stage(c) > 0 ? w.copies : 1;
  c.data_parallel_shard_size = 0;
  return c;
}

const char* sequence_word(const Way& w) { return w.tensor == 1 ? "-" : w.sequence_parallel ? "yes" : "no"; }

// Bytes that a rank sends per step, by group.
struct Sent {
  double copies, shards, context, tensor;
};

// Bytes sent by parallelism. Without sharding, gradients count as sent to replicas; expert-parallel ranks count as
// shards.
Sent sent_to(const StepTraffic& t, const Way& w, bool share_out) {
  Sent sent{t.bytes_of("copies") + t.bytes_of("expert_copies") + t.bytes_of("workers"),
            t.bytes_of("shards") + t.bytes_of("expert_shards") + t.bytes_of("experts"), t.bytes_of("context"),
            t.bytes_of("tensor")};
  const int data = w.copies * w.shards * w.context;  // 1: only ranks with the same sequences are left
  (data == 1                               ? sent.tensor
   : share_out && w.shards * w.context > 1 ? sent.shards
                                           : sent.copies) += t.bytes_of("data_parallel") + t.bytes_of("world");
  return sent;
}

void print_table(const std::vector<Found>& all, const Config& c) {
  const auto tokens = double(c.global_batch_size * c.seq_length);
  std::printf("%7s %6s %7s %6s %8s %11s %9s %10s %10s %10s %10s %10s %10s %10s %9s  %s\n", "copies", "shards",
              "context", "tensor", "sequence", "micro", "memory", "to copies", "to shards", "context", "tensor",
              "compute ms", "exposed ms", "step ms", "tokens/s", "keys");
  for (const auto& [w, p] : all) {
    const auto bytes = [](double n) { return format_bytes(uint64_t(n)); };
    const Sent sent = sent_to(p.traffic, w, zero_stage(c) > 0);
    std::printf("%7d %6d %7d %6d %8s %5lld x %-4lld %8s %10s %10s %10s %10s %10.2f %10.2f %10.2f %9s  %s\n", w.copies,
                w.shards, w.context, w.tensor, sequence_word(w), static_cast<long long>(p.micro_batch_size),
                static_cast<long long>(p.micro_batches), format_bytes(p.memory).c_str(), bytes(sent.copies).c_str(),
                bytes(sent.shards).c_str(), bytes(sent.context).c_str(), bytes(sent.tensor).c_str(), p.compute * 1e3,
                p.exposed * 1e3, p.step() * 1e3, format_count(tokens / p.step()).c_str(),
                w.context == 1 ? "-" : std::string(name_of(p.context.method)).c_str());
  }
}

void print_memory(const std::vector<Found>& all) {
  std::vector<size_t> kinds;
  for (size_t k = 0; k < size_t(kMemoryKinds); ++k)
    if (std::any_of(all.begin(), all.end(), [&](const Found& f) { return f.p.memory_by_kind[k] > 0; }))
      kinds.push_back(k);
  std::printf("\nmemory of a rank\n%7s %6s %7s %6s %8s", "copies", "shards", "context", "tensor", "sequence");
  for (const size_t k : kinds) std::printf(" %12s", name_of(MemoryKind(k)));
  for (const auto& [w, p] : all) {
    std::printf("\n%7d %6d %7d %6d %8s", w.copies, w.shards, w.context, w.tensor, sequence_word(w));
    for (const size_t k : kinds) std::printf(" %12s", format_bytes(p.memory_by_kind[k]).c_str());
  }
  std::printf("\n");
}

// Prints the exposed communication: per step, and per block and micro-batch next to the time of what is sent there,
// with embedding and head included.
void print_waits(const std::vector<Found>& all, int64_t blocks) {
  std::printf(
      "\nms that a rank waits for what is sent: in a step; in a block of a micro-batch, of the ms that it takes\n");
  std::printf("%7s %6s %7s %6s %8s %10s %10s %10s %20s %20s\n", "copies", "shards", "context", "tensor", "sequence",
              "to shards", "context", "tensor", "context in a block", "tensor in a block");
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
    std::printf("%7d %6d %7d %6d %8s %10.2f %10.2f %10.2f %20s %20s\n", w.copies, w.shards, w.context, w.tensor,
                sequence_word(w), p.waits.data * 1e3, p.waits.context * 1e3, p.waits.tensor * 1e3,
                in_a_block(t.context.waits, t.context.seconds).c_str(),
                in_a_block(t.tensor.waits, t.tensor.seconds).c_str());
  }
}

// How the parts of the step of `other` differ from those of the best.
std::string difference(const Prediction& best, const Prediction& other) {
  struct Part {
    double seconds;
    const char* what;
  };
  const Part parts[] = {{other.compute - best.compute, "computing"},
                        {other.waits.data - best.waits.data, "sending gradients and weights that nothing hides"},
                        {other.waits.context - best.waits.context, "sending keys and values"},
                        {other.waits.tensor - best.waits.tensor, "sums of ranks that share products"},
                        {other.waits.experts - best.waits.experts, "sending rows to experts and back"},
                        {other.waits.stages - best.waits.stages, "waiting for other stages"}};
  std::string text;
  for (const Part& part : parts)
    if (std::abs(part.seconds) * 1e3 >= 0.005)
      text += cat(text.empty() ? "" : ", ", part.seconds > 0 ? "+" : "-", format_duration(std::abs(part.seconds)), " ",
                  part.what);
  return text.empty() ? "the same time; the one above takes less memory or comes first" : text;
}

// Explains what makes the best mesh the best.
void explain(const std::vector<Found>& all, const Config& config, const Cluster& on) {
  const Prediction& best = all[0].p;
  std::printf(
      "best: %s: a step computes for %.2f ms, and waits for %.2f ms: %.2f for gradients and weights, %.2f for keys and "
      "values, %.2f for sums of ranks that share products%s%s\n",
      to_text(all[0].way).c_str(), best.compute * 1e3, best.exposed * 1e3, best.waits.data * 1e3,
      best.waits.context * 1e3, best.waits.tensor * 1e3,
      best.waits.experts == 0 ? "" : cat(", ", format_duration(best.waits.experts), " for rows of experts").c_str(),
      config.pipeline_parallel_size == 1 ? ""
                                         : cat(", ", format_duration(best.waits.stages), " for other stages").c_str());
  if (all[0].way.context > 1)
    std::printf("%s", context_text(best.context, all[0].way.context, [&](ContextMethod other) {
                        Config c = divided(config, all[0].way);
                        c.context_parallel_method = other;
                        validate(c);
                        return predict(c, on).context;
                      }).c_str());
  if (all.size() > 1) std::printf("next: %s: %s\n", to_text(all[1].way).c_str(), difference(best, all[1].p).c_str());
  const auto own = configured(config, on.ranks);
  for (size_t i = 2; i < all.size(); ++i)
    if (own == all[i].way)
      std::printf("as configured: %s: %s\n", to_text(all[i].way).c_str(), difference(best, all[i].p).c_str());
  if (all[0].way.tensor * all[0].way.context > 1)
    for (const Found& f : all)
      if (f.way.tensor * f.way.context == 1) {
        std::printf("best without tensor and context, which are unverified on GPUs: %s: %s\n", to_text(f.way).c_str(),
                    difference(best, f.p).c_str());
        break;
      }
}

}  // namespace

void print_meshes(const Config& config, const Cluster& on) {
  const QuietLog quiet(config.log_level);
  const std::vector<Way> tried = ways(config, on);
  std::vector<std::variant<Prediction, std::string>> answers(tried.size());  // a prediction, or why the mesh is not
                                                                             // possible
  ThreadPool().parallel_for(int64_t(tried.size()), [&](int64_t i) {
    try {
      Config c = divided(config, tried[size_t(i)]);
      validate(c);
      answers[size_t(i)] = predict(c, on);
    } catch (const Error& e) {
      answers[size_t(i)] = e.what();
    }
  });
  std::vector<Found> all;
  std::map<std::string, std::vector<Way>> refused;  // keyed by the reason
  for (size_t i = 0; i < tried.size(); ++i)
    if (auto* p = std::get_if<Prediction>(&answers[i]))
      all.push_back({tried[i], std::move(*p)});
    else
      refused[std::get<std::string>(answers[i])].push_back(tried[i]);
  std::stable_sort(all.begin(), all.end(), [](const Found& a, const Found& b) {
    return a.p.step() != b.p.step() ? a.p.step() < b.p.step() : a.p.memory < b.p.memory;
  });
  std::printf(
      "\nways to divide %d ranks on %d %s at best, the shortest step first; sent by a rank in a step; sequence: "
      "sequence_parallel\n",
      on.ranks, on.nodes, on.nodes == 1 ? "node" : "nodes");
  print_table(all, config);
  if (!all.empty()) print_memory(all);
  if (!all.empty()) print_waits(all, config.model.num_hidden_layers);
  std::printf("\n%s", limits_of_ways(config, on).c_str());
  for (const auto& [why, which] : refused)
    std::printf("not possible: %s%s: %s\n", to_text(which[0]).c_str(),
                which.size() == 1 ? "" : cat(" and ", which.size() - 1, " more").c_str(), why.c_str());
  if (!all.empty()) explain(all, config, on);
}

}  // namespace athanor
