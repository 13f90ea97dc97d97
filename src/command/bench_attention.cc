// athanor bench attention: forward and backward of attention for several lengths, head sizes and kinds of masks, with
// the program's own kernels and, on a GPU, with cuDNN's: rates, and whether results are bit-identical across runs.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/checksum.h"
#include "base/format.h"
#include "command/command.h"
#include "command/machine.h"
#include "ops/basic.h"
#include "perf/best_seconds.h"

namespace athanor {
namespace {

struct BenchAttentionArgs {
  std::string device = "auto", precision = "bf16";
  std::vector<double> lengths = {1024, 4096, 8192, 32768}, head_dims = {64, 128};
  int64_t tokens = 32768, hidden = 2048;
  bool rope = false, json = false;
};

enum class Mask { causal, documents, window, sparse };
constexpr Mask kMasks[] = {Mask::causal, Mask::documents, Mask::window, Mask::sparse};
const char* name_of(Mask m) {
  constexpr const char* kNames[] = {"causal", "documents", "window", "sparse"};
  return kNames[size_t(m)];
}

struct Problem {
  int64_t length, head_dim;
  Mask mask;
  int64_t sequences, heads;
  DType dtype;
  bool rope;  // backward applies the inverse RoPE to dQ and dK

  int64_t rows() const { return sequences * length; }
  int64_t window() const { return mask == Mask::window ? std::max<int64_t>(1, length / 8) : 0; }
  SparsePattern sparse() const {
    if (mask != Mask::sparse) return {};
    const int64_t group = std::max<int64_t>(8, length / 8);
    return {.group = group, .summary = group / 8};
  }
  std::vector<Span> spans() const {
    return documents_to_measure(sequences, length, mask == Mask::documents ? length : 1);
  }
  // Number of query-key pairs inside the mask.
  double pairs() const {
    double sum = 0;
    for (const Span& span : spans()) {
      const double n = span.q_len, w = std::min<double>(double(window()), n);
      sum += window() > 0 ? w * (w + 1) / 2 + (n - w) * w : visible_pairs(sparse(), span.q_len) + n / 2;
    }
    return sum;
  }
  // FLOPs of two GEMMs forward or five backward; recomputation in backward is not counted twice.
  double flops(bool backward) const { return (backward ? 10 : 4) * pairs() * double(heads * head_dim); }
};

struct AttentionTime {
  double seconds = 0;
  bool repeated = false;  // a second run was bit-identical
};
struct Side {
  std::string why_not;  // empty: measured
  AttentionTime forward, backward;
};
struct AttentionRow {
  Problem problem;
  Side own;
  std::optional<Side> cudnn;  // only on a GPU
};

// The tensors of a forward and a backward op, laid out as in training: Q, K and V in one packed QKV tensor.
class AttentionBench {
 public:
  AttentionBench(Backend backend, const Problem& p) : backend_(backend) {
    const int64_t n = p.rows(), cols = p.heads * p.head_dim;
    const std::vector<Span> spans = p.spans();
    Tensor qkv, dqkv;
    plan_.add(MemoryKind::inputs, "qkv", p.dtype, {n, 3 * cols}, &qkv);
    plan_.add(MemoryKind::inputs, "dqkv", p.dtype, {n, 3 * cols}, &dqkv);
    plan_.add(MemoryKind::inputs, "y", p.dtype, {n, cols}, &forward_.y);
    plan_.add(MemoryKind::inputs, "dy", p.dtype, {n, cols}, &backward_.dy);
    plan_.add(MemoryKind::inputs, "lse", DType::f32, {n, p.heads}, &forward_.lse);
    plan_.add(MemoryKind::inputs, "spans", DType::i32, {int64_t(spans.size()), kSpanWords}, &forward_.spans);
    if (p.rope) {
      plan_.add(MemoryKind::inputs, "cos_sin", DType::f32, {p.length, p.head_dim}, &backward_.cos_sin);
      plan_.add(MemoryKind::inputs, "positions", DType::i32, {n}, &backward_.positions);
    }
    const auto connect = [&] {
      forward_.q = part(qkv, 0), forward_.k = part(qkv, 1), forward_.v = part(qkv, 2);
      backward_.dq = part(dqkv, 0), backward_.dk = part(dqkv, 1), backward_.dv = part(dqkv, 2);
      backward_.y = forward_.y, backward_.lse = forward_.lse, backward_.spans = forward_.spans;
      backward_.q = forward_.q, backward_.k = forward_.k, backward_.v = forward_.v;
    };
    forward_.shape = {.heads = p.heads,
                      .kv_heads = p.heads,
                      .head_dim = p.head_dim,
                      .window = p.window(),
                      .scale = float(1 / std::sqrt(double(p.head_dim))),
                      .sparse = p.sparse()};
    backward_.shape = forward_.shape;
    connect();
    if (const size_t bytes = std::max(backend_.ops.scratch(forward_), backend_.ops.scratch(backward_)))
      plan_.add(MemoryKind::inputs, "scratch", DType::u8, {int64_t(bytes)}, &scratch_);
    plan_.require_fits(backend_.device.capacity(Mem::device), 0);
    plan_.commit(backend_.device);
    connect();
    uint64_t stream = 0;
    for (const Tensor& t : {qkv, backward_.dy, backward_.cos_sin})
      if (t) backend_.ops.run(RandomNormal{.x = t.view({t.numel()}), .stream = ++stream, .std = 1}, nullptr);
    backend_.device.copy(forward_.spans.data, spans.data(), forward_.spans.bytes(), Stream::compute);
    if (p.rope) {
      const std::vector<int32_t> positions = positions_to_measure(n, p.length);
      backend_.device.copy(backward_.positions.data, positions.data(), backward_.positions.bytes(), Stream::compute);
      backend_.device.sync();
    }
    results_ = {forward_.y, forward_.lse};
    gradients_ = {dqkv};
  }
  // Reason why the program's own kernels run instead of cuDNN's, on a GPU.
  std::string why_not_cudnn() const {
    std::string words =
        backend_.tuning->describe_attention({.gemms = {}, .forward = {&forward_, 1}, .backward = {&backward_, 1}});
    return words.find("own kernels") == std::string::npos ? "" : words;
  }
  Side measure() {
    Side side;
    side.forward = measure(forward_, results_);
    side.backward = measure(backward_, gradients_);
    return side;
  }

 private:
  static Tensor part(const Tensor& whole, int64_t index) {
    const int64_t cols = whole.cols() / 3;
    return {whole.at(index * cols), whole.dtype, {whole.rows(), cols}, whole.cols()};
  }
  template <class Op>
  AttentionTime measure(const Op& op, const std::vector<Tensor>& outputs) {
    backend_.ops.run(op, scratch_.data);
    const std::string first = bits(outputs);
    const double seconds = best_seconds(backend_, op, scratch_.data);
    return {seconds, bits(outputs) == first};
  }
  std::string bits(const std::vector<Tensor>& tensors) {
    Xxh3 sum;
    for (const Tensor& t : tensors) {
      host_.resize(t.bytes());
      backend_.device.copy(host_.data(), t.data, t.bytes(), Stream::compute);
      backend_.device.sync();
      sum.update(host_);
    }
    return sum.hex();
  }

  Backend backend_;
  MemoryPlan plan_;
  AttentionFwd forward_;
  AttentionBwd backward_;
  Tensor scratch_;
  std::vector<Tensor> results_, gradients_;
  std::vector<std::byte> host_;
};

Config config_for(const BenchAttentionArgs& args, CudaAttention attention, int64_t length) {
  Config config;
  config.device = device_of(args.device);
  config.attention = attention;
  config.seq_length = length;
  return config;
}

std::vector<Problem> problems_of(const BenchAttentionArgs& args) {
  std::vector<Problem> all;
  for (const double length_given : args.lengths)
    for (const double head_given : args.head_dims)
      for (const Mask mask : kMasks) {
        const auto length = int64_t(length_given), head_dim = int64_t(head_given);
        if (length < 1 || args.tokens % length != 0)
          throw Error(cat("bench attention: --tokens ", args.tokens, " is not a multiple of the length ", length),
                      Exit::usage);
        if (args.rope && head_dim % 2 != 0)
          throw Error(cat("bench attention: --rope needs an even head size, got ", head_dim), Exit::usage);
        if (head_dim < 1 || args.hidden % head_dim != 0)
          throw Error(cat("bench attention: --hidden ", args.hidden, " is not a multiple of the head size ", head_dim),
                      Exit::usage);
        all.push_back({length, head_dim, mask, args.tokens / length, args.hidden / head_dim,
                       args.precision == "fp16" ? DType::f16 : DType::bf16, args.rope});
      }
  return all;
}

// Errors such as too little memory, or a kernel that cannot run, affect only this problem.
Side measure(Backend backend, const Problem& p, CudaAttention asked) {
  try {
    AttentionBench bench(backend, p);
    const std::string why = asked == CudaAttention::cudnn ? bench.why_not_cudnn() : "";
    return why.empty() ? bench.measure() : Side{why, {}, {}};
  } catch (const Error& error) {
    return {error.what(), {}, {}};
  }
}

// A separate machine for each length, because cuDNN's plans are for one sequence length.
void add_cudnn(const BenchAttentionArgs& args, std::vector<AttentionRow>& rows) {
  for (auto first = rows.begin(); first != rows.end();) {
    const int64_t length = first->problem.length;
    const auto end = std::find_if(first, rows.end(), [&](const AttentionRow& r) { return r.problem.length != length; });
    try {
      Machine machine(config_for(args, CudaAttention::cudnn, length));
      for (auto row = first; row != end; ++row)
        row->cudnn = measure(machine.backend(), row->problem, CudaAttention::cudnn);
    } catch (const Error& error) {
      for (auto row = first; row != end; ++row) row->cudnn = Side{error.what(), {}, {}};
    }
    first = end;
  }
}

struct AttentionReport {
  std::string device;
  std::vector<AttentionRow> rows;
  double seconds = 0;

  bool ok() const {
    return std::all_of(rows.begin(), rows.end(), [](const AttentionRow& row) {
      const auto repeated = [](const Side& s) { return s.forward.repeated && s.backward.repeated; };
      const auto holds = [&](const std::optional<Side>& s) { return !s || !s->why_not.empty() || repeated(*s); };
      return row.own.why_not.empty() && repeated(row.own) && holds(row.cudnn);
    });
  }
};

AttentionReport measure(const BenchAttentionArgs& args) {
  const auto start = std::chrono::steady_clock::now();
  AttentionReport report;
  const std::vector<Problem> problems = problems_of(args);
  bool gpu = false;
  {
    Machine machine(config_for(args, CudaAttention::builtin, problems.front().length));
    report.device = machine.description();
    gpu = !machine.backend().device.unified();
    for (const Problem& p : problems)
      report.rows.push_back({p, measure(machine.backend(), p, CudaAttention::builtin), {}});
  }
  if (gpu) add_cudnn(args, report.rows);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

nlohmann::ordered_json to_json(const Problem& p, const Side& side) {
  if (!side.why_not.empty()) return {{"why_not", side.why_not}};
  const auto one = [&](const AttentionTime& m, bool backward) {
    return nlohmann::ordered_json{
        {"seconds", m.seconds}, {"flops", p.flops(backward) / m.seconds}, {"repeated", m.repeated}};
  };
  return {{"forward", one(side.forward, false)}, {"backward", one(side.backward, true)}};
}

nlohmann::ordered_json to_json(const AttentionReport& report) {
  nlohmann::ordered_json out = {{"device", report.device}, {"seconds", report.seconds}, {"ok", report.ok()}};
  out["rows"] = nlohmann::ordered_json::array();
  for (const AttentionRow& row : report.rows) {
    const Problem& p = row.problem;
    nlohmann::ordered_json entry = {
        {"length", p.length},        {"sequences", p.sequences},      {"head_dim", p.head_dim},
        {"heads", p.heads},          {"mask", name_of(p.mask)},       {"window", p.window()},
        {"group", p.sparse().group}, {"summary", p.sparse().summary}, {"rope", p.rope},
        {"own", to_json(p, row.own)}};
    if (row.cudnn) entry["cudnn"] = to_json(p, *row.cudnn);
    out["rows"].push_back(std::move(entry));
  }
  return out;
}

std::string text_of_mask(const Problem& p) {
  if (p.mask == Mask::window) return cat("a window of ", p.window());
  if (p.mask != Mask::sparse) return name_of(p.mask);
  return cat("sparse in groups of ", p.sparse().group, ", the last ", p.sparse().summary, " for all");
}

void print_side(const char* name, const Problem& p, const Side& side) {
  if (!side.why_not.empty()) {
    std::printf("  %-6s %s", name, side.why_not.c_str());
    return;
  }
  for (const bool backward : {false, true}) {
    const AttentionTime& m = backward ? side.backward : side.forward;
    std::printf("  %-6s %-8s %10.1f us %8sFLOP/s%s", backward ? "" : name, backward ? "backward" : "forward",
                1e6 * m.seconds, format_count(p.flops(backward) / m.seconds).c_str(),
                m.repeated ? "" : ", DIFFERENT BITS the second time");
  }
}

void print_text(const AttentionReport& report) {
  print(report.device, "\nFLOPs of what is seen: two GEMMs forward, five backward\n\n");
  for (const AttentionRow& row : report.rows) {
    const Problem& p = row.problem;
    print(p.sequences, " x ", p.length, " tokens, ", p.heads, " heads of ", p.head_dim, ", ", text_of_mask(p),
          p.rope ? ", gradients rotated back" : "", "\n");
    print_side("own", p, row.own);
    print("\n");
    if (!row.cudnn) continue;
    print_side("cuDNN", p, *row.cudnn);
    print("\n");
  }
}

Exit bench_attention(const BenchAttentionArgs& args) {
  const AttentionReport report = measure(args);
  args.json ? void(print(to_json(report).dump(2), "\n")) : print_text(report);
  return report.ok() ? Exit::done : Exit::error;
}

}  // namespace

void add_bench_attention(Cli& cli, Verb bench) {
  auto args = std::make_shared<BenchAttentionArgs>();
  Verb verb =
      bench.add_verb("attention", "attention with the built-in kernels and cuDNN: rates and bitwise repeatability");
  verb.add_option("--device", args->device, "device").check(one_of({"auto", "cpu", "cuda"})).show_default();
  verb.add_option("--precision", args->precision, "type of queries, keys and values")
      .check(one_of({"bf16", "fp16"}))
      .show_default();
  verb.add_option("--lengths", args->lengths, "sequence lengths").check(positive()).show_default();
  verb.add_option("--heads", args->head_dims, "head sizes").check(positive()).show_default();
  verb.add_option("--tokens", args->tokens, "total tokens of all sequences").check(positive()).show_default();
  verb.add_option("--hidden", args->hidden, "total width of all heads").check(positive()).show_default();
  verb.add_flag(
      "--rope", args->rope,
      "include RoPE in backward: gradients of queries and keys are rotated back, in an extra launch if needed");
  verb.add_flag("--json", args->json, "one JSON object");
  verb.on_chosen([&cli, args] { cli.action = [args] { return bench_attention(*args); }; });
}

}  // namespace athanor
