#include "command/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/format.h"
#include "command/quiet_log.h"
#include "plan/meshes.h"
#include "train/setup.h"

namespace athanor {
namespace {

const char* sequence_word(const MeshChoice& w) { return w.tensor == 1 ? "-" : w.sequence_parallel ? "yes" : "no"; }

void print_table(const std::vector<PlannedMesh>& all, const Config& c) {
  const auto tokens = double(c.global_batch_size * c.seq_length);
  std::printf("%12s %8s %4s %4s %8s %11s %9s %15s %11s %10s %10s %10s %10s %10s %9s  %s\n", "dp_replicate", "dp_shard",
              "cp", "tp", "sequence", "micro", "memory", "to dp_replicate", "to dp_shard", "to cp", "to tp",
              "compute ms", "exposed ms", "step ms", "tokens/s", "keys");
  for (const auto& [w, p] : all) {
    const auto bytes = [](double n) { return format_bytes(uint64_t(n)); };
    const SentBytes sent = sent_to(p.traffic, w, zero_stage(c) > 0);
    std::printf("%12d %8d %4d %4d %8s %5lld x %-4lld %8s %15s %11s %10s %10s %10.2f %10.2f %10.2f %9s  %s\n", w.copies,
                w.shards, w.context, w.tensor, sequence_word(w), static_cast<long long>(p.micro_batch_size),
                static_cast<long long>(p.micro_batches), format_bytes(p.memory).c_str(), bytes(sent.copies).c_str(),
                bytes(sent.shards).c_str(), bytes(sent.context).c_str(), bytes(sent.tensor).c_str(), p.compute * 1e3,
                p.exposed * 1e3, p.step() * 1e3, format_count(tokens / p.step()).c_str(),
                w.context == 1 ? "-" : std::string(name_of(p.context.method)).c_str());
  }
}

void print_memory(const std::vector<PlannedMesh>& all) {
  std::vector<size_t> kinds;
  for (size_t k = 0; k < size_t(kMemoryKinds); ++k)
    if (std::any_of(all.begin(), all.end(), [&](const PlannedMesh& f) { return f.p.memory_by_kind[k] > 0; }))
      kinds.push_back(k);
  std::printf("\nmemory of a rank\n%12s %8s %4s %4s %8s", "dp_replicate", "dp_shard", "cp", "tp", "sequence");
  for (const size_t k : kinds) std::printf(" %12s", name_of(MemoryKind(k)));
  for (const auto& [w, p] : all) {
    std::printf("\n%12d %8d %4d %4d %8s", w.copies, w.shards, w.context, w.tensor, sequence_word(w));
    for (const size_t k : kinds) std::printf(" %12s", format_bytes(p.memory_by_kind[k]).c_str());
  }
  print("\n");
}

// Prints the exposed communication: per step, and per block and micro-batch next to the transfer time there, with
// embedding and head included.
void print_waits(const std::vector<PlannedMesh>& all, int64_t blocks) {
  print(
      "\nexposed communication of a rank in ms: per step; per block and micro-batch, of the ms that the transfer "
      "takes\n");
  std::printf("%12s %8s %4s %4s %8s %11s %10s %10s %20s %20s\n", "dp_replicate", "dp_shard", "cp", "tp", "sequence",
              "to dp_shard", "to cp", "to tp", "cp per block", "tp per block");
  for (const PlannedMesh& found : all) {
    const Prediction& p = found.p;
    const MeshChoice& w = found.mesh;
    const auto in_a_block = [&](double exposed, double sent) {
      const double ms = 1e3 / double(blocks * p.micro_batches);
      return sent > 0 ? format_text("%.3f of %.3f", exposed * ms, sent * ms) : "-";
    };
    const StepTraffic& t = p.traffic;
    std::printf("%12d %8d %4d %4d %8s %11.2f %10.2f %10.2f %20s %20s\n", w.copies, w.shards, w.context, w.tensor,
                sequence_word(w), p.waits.data * 1e3, p.waits.context * 1e3, p.waits.tensor * 1e3,
                in_a_block(t.context.waits, t.context.seconds).c_str(),
                in_a_block(t.tensor.waits, t.tensor.seconds).c_str());
  }
}

// Differences between the parts of the step of `other` and those of the best mesh.
std::string difference(const Prediction& best, const Prediction& other) {
  struct Part {
    double seconds;
    const char* what;
  };
  const Part parts[] = {{other.compute - best.compute, "computing"},
                        {other.waits.data - best.waits.data, "sending gradients and weights that nothing hides"},
                        {other.waits.context - best.waits.context, "sending keys and values"},
                        {other.waits.tensor - best.waits.tensor, "sums of tensor parallelism"},
                        {other.waits.experts - best.waits.experts, "sending rows to experts and back"},
                        {other.waits.stages - best.waits.stages, "waiting for other stages"}};
  std::string text;
  for (const Part& part : parts)
    if (std::abs(part.seconds) * 1e3 >= 0.005)
      text += cat(text.empty() ? "" : ", ", part.seconds > 0 ? "+" : "-", format_duration(std::abs(part.seconds)), " ",
                  part.what);
  return text.empty() ? "the same time; the one above takes less memory or comes first" : text;
}

// Explains why the best mesh is the best.
void explain(const std::vector<PlannedMesh>& all, const Config& config, const Cluster& on) {
  const Prediction& best = all[0].p;
  std::printf(
      "best: %s: a step computes for %.2f ms, and waits for %.2f ms: %.2f for gradients and weights, %.2f for keys and "
      "values, %.2f for sums of tensor parallelism%s%s\n",
      to_text(all[0].mesh).c_str(), best.compute * 1e3, best.exposed * 1e3, best.waits.data * 1e3,
      best.waits.context * 1e3, best.waits.tensor * 1e3,
      best.waits.experts == 0 ? "" : cat(", ", format_duration(best.waits.experts), " for rows of experts").c_str(),
      config.pipeline_parallel_size == 1 ? ""
                                         : cat(", ", format_duration(best.waits.stages), " for other stages").c_str());
  if (all[0].mesh.context > 1)
    print(context_text(best.context, all[0].mesh.context, [&](ContextMethod other) {
      Config c = with_mesh(config, all[0].mesh);
      c.context_parallel_method = other;
      validate(c);
      return predict(c, on).context;
    }));
  if (all.size() > 1) print("next: ", to_text(all[1].mesh), ": ", difference(best, all[1].p), "\n");
  const auto own = configured_mesh(config, on.ranks);
  for (size_t i = 2; i < all.size(); ++i)
    if (own == all[i].mesh) print("as configured: ", to_text(all[i].mesh), ": ", difference(best, all[i].p), "\n");
  if (all[0].mesh.tensor * all[0].mesh.context > 1)
    for (const PlannedMesh& f : all)
      if (f.mesh.tensor * f.mesh.context == 1) {
        print("best without tensor and context, which are unverified on GPUs: ", to_text(f.mesh), ": ",
              difference(best, f.p), "\n");
        break;
      }
}

}  // namespace

void print_meshes(const Config& config, const Cluster& on) {
  const QuietLog quiet(config.log_level);
  const auto [all, refused] = plan_meshes(config, on);
  print("\nways to divide ", on.ranks, " ranks on ", on.nodes, " ", on.nodes == 1 ? "node" : "nodes",
        " by modelled step time; to X: bytes a rank sends per step; sequence: sequence_parallel\n");
  print_table(all, config);
  if (!all.empty()) print_memory(all);
  if (!all.empty()) print_waits(all, config.model.num_hidden_layers);
  print("\n", tried_meshes_text(config, on));
  for (const auto& [why, which] : refused)
    print("not possible: ", to_text(which[0]), which.size() == 1 ? "" : cat(" and ", which.size() - 1, " more"), ": ",
          why, "\n");
  if (!all.empty()) explain(all, config, on);
}

}  // namespace athanor
