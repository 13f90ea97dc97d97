#include "perf/described_gpu.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "cuda/scratch.h"

namespace athanor {
namespace {

// Rates of causal attention on Hopper in TFLOP/s, as published for cuDNN 9.19 and FlashAttention 3; head size 64
// backward and sequences of 1024 are extrapolated.
constexpr std::array<double, 4> kLengths = {1024, 2048, 4096, 8192};
struct PublishedRates {
  std::array<double, 4> forward, backward;
};
constexpr PublishedRates kHeads64 = {{288, 371, 420, 460}, {215, 290, 355, 395}};
constexpr PublishedRates kHeads128 = {{410, 484, 591, 644}, {290, 370, 474, 541}};
constexpr double kGemmsThere = 795e12, kPlainThere = 67e12;  // FLOP/s of the GPU on which these rates were measured
constexpr double kMultiprocessorsThere = 132;

// Returns seconds per attention score of a head without overlap: 4 D FLOP in two GEMMs, and an exponential. An SM
// computes 16 exponentials per clock and has 128 f32 units, 64 before compute capability 8.6, that count twice [CUDA
// programming guide, throughput of instructions]. So a GPU whose GEMM rate is low relative to its rate of exponentials
// runs attention at a larger fraction of the GEMM rate [Shah et al. 2024, FlashAttention-3, section 3.2: an H100 has
// 3.9 T exponentials and 989 TFLOP/s].
double seconds_of_score(double gemms, double plain, int capability, double head_dim) {
  const double exponentials = plain / (2 * (capability < 86 ? 64 : 128)) * 16;
  return 4 * head_dim / gemms + 1 / exponentials;
}

double rate_at(const std::array<double, 4>& rates, double length) {
  if (length <= kLengths.front()) return rates.front();
  for (size_t i = 1; i < kLengths.size(); ++i)
    if (length <= kLengths[i])
      return std::lerp(rates[i - 1], rates[i], (length - kLengths[i - 1]) / (kLengths[i] - kLengths[i - 1]));
  return rates.back();
}

class DescribedDevice final : public Device {
  static constexpr size_t kContext = size_t{512} << 20;

 public:
  explicit DescribedDevice(const GpuSpec& gpu) : gpu_(gpu) {}
  std::string description() const override { return cat(gpu_.title, ", described"); }
  int64_t dimension_multiple() const override { return 64; }
  void* allocate(size_t, Mem) override { throw Error(cat(description(), ": has no memory to allocate")); }
  void release(void*, size_t, Mem) override {}
  void copy(void*, const void*, size_t, Stream) override { throw Error(cat(description(), ": has no memory to copy")); }
  // Memory that is free once a process has its context: 78.6 of 79.1 GiB on an H100.
  size_t capacity(Mem kind) const override {
    return kind == Mem::device ? gpu_.memory_bytes - kContext : SIZE_MAX;  // host memory is not described
  }
  size_t allocated() const override { return 0; }
  double peak_flops(DType inputs) const override {
    return is_code(inputs) ? gpu_.sustained(gpu_.quantized_flops) : gpu_.gemm_flops / (inputs == DType::f32 ? 2 : 1);
  }
  double peak_plain_flops() const override { return gpu_.sustained(gpu_.f32_flops); }
  double peak_bytes() const override { return gpu_.copy_bytes; }
  int64_t multiprocessors() const override { return gpu_.multiprocessors; }

 private:
  const GpuSpec& gpu_;
};

// Scratch sizes are those of the CUDA backend, except for cuDNN's attention, whose sizes are an estimate, since only
// the library knows its plans. Attention has cuDNN's rates, so it does not fuse the inverse RoPE rotation of gradients.
struct Sizes {
  int capability;
  int64_t tokens;  // see describe()
  size_t most = cuda::kMostAutomaticScratch;

  size_t of_scores(const AttentionBwd& op) const {  // two bytes per score
    const double keys =
        tokens > 0 ? double(tokens) : double(op.q.rows()) / double(std::max<int64_t>(1, op.spans.rows()));
    return size_t(double(op.q.rows()) * double(op.shape.heads) * keys * 2);
  }
  template <class Op>
  size_t scratch(const Op& op) const {
    size_t own = 0;
    if constexpr (std::is_same_v<Op, ScaledGemm>)
      own = cuda::scratch(op, cuda::NativeGemm(op, capability));
    else
      own = cuda::scratch(op);
    if constexpr (std::is_same_v<Op, AttentionBwd>)
      if (of_scores(op) <= most) own = std::max(own, of_scores(op));
    return own;
  }
  bool fuses(const Gemm& op) const { return cuda::own_gemm_takes(problem_of(op), capability); }
  bool fuses(const GroupedGemm& op) const { return cuda::grouped_gemm_takes(op, capability); }
};

class DescribedOps final : public Decorated<DescribedOps>, public Tuning {
 public:
  DescribedOps(const GpuSpec& gpu, int64_t tokens) : sizes_{.capability = gpu.capability, .tokens = tokens} {}
  template <class Op>
  void on(const Op&, void*) {
    refuse(Op::kName);
  }
  const Sizes& inner() const { return sizes_; }

  size_t wanted_scratch(const Tunable& ops) override {
    size_t wanted = 0;
    for (const AttentionBwd& op : ops.backward) wanted = std::max(wanted, sizes_.of_scores(op));
    return wanted > sizes_.most ? wanted : 0;
  }
  size_t allow_scratch(size_t bytes) override { return std::exchange(sizes_.most, bytes); }
  std::string search(const Tunable&, double) override { refuse("a search"); }
  std::string export_choices() const override { return ""; }
  std::string import_choices(const std::string&) override { return "a described GPU has no choices"; }
  GemmTime time(const Gemm&, bool) override { refuse("a GEMM"); }
  GemmTime time(const ScaledGemm&) override { refuse("a GEMM"); }
  std::string describe_quantized(const Tunable& ops) override {
    const auto native = [&](const ScaledGemm& op) { return cuda::NativeGemm(op, sizes_.capability).possible; };
    return cuda::describe_quantized(ops.of_quantized, std::ranges::count_if(ops.of_quantized, native),
                                    sizes_.capability);
  }
  ScaledGemmPlan plan_scaled_gemm(const ScaledGemm& op) const override {
    return cuda::plan_scaled_gemm(op, cuda::NativeGemm(op, sizes_.capability));
  }
  bool transposes_quantized() const override { return cuda::transposes_quantized(sizes_.capability); }
  std::string key() const override { return "described"; }

 private:
  [[noreturn]] static void refuse(const char* what) { throw Error(cat(what, ": a described GPU cannot run kernels")); }
  Sizes sizes_;
};

}  // namespace

Roofline limits_of(const GpuSpec& gpu, int64_t head_dim, int64_t seq_length, const Recipe& recipe) {
  const double gemms =
      recipe.compute != DType::f32 ? gpu.gemm_flops : gpu.sustained(recipe.tf32 ? gpu.tf32_flops : gpu.f32_flops);
  const PublishedRates& rates = head_dim < 128 ? kHeads64 : kHeads128;
  const double dim = head_dim < 128 ? 64 : 128;
  const double share = 1e12 * seconds_of_score(kGemmsThere, kPlainThere, 90, dim) /
                       seconds_of_score(gpu.gemm_flops, gpu.f32_flops, gpu.capability, dim);
  // Filling a pipeline and writing a tile take time, so an SM reaches a lower rate with a smaller K.
  const double speed = gemms / double(gpu.multiprocessors) / (kGemmsThere / kMultiprocessorsThere);
  return {.most = {gemms, gpu.copy_bytes, gpu.sustained(gpu.quantized_flops), gpu.sustained(gpu.f32_flops)},
          .attention_forward = std::min(gemms, share * rate_at(rates.forward, double(seq_length))),
          .attention_backward = std::min(gemms, share * rate_at(rates.backward, double(seq_length))),
          .multiprocessors = gpu.multiprocessors,
          .host_bytes = gpu.host_bytes,
          .pipeline = 192 * speed,
          .epilogue_byte = 32 * speed,
          .square_tiles = gpu.capability < 90};
}

DescribedBackend describe(const GpuSpec& gpu, int64_t tokens) {
  auto ops = std::make_unique<DescribedOps>(gpu, tokens);
  Tuning* tuning = ops.get();
  return {std::make_unique<DescribedDevice>(gpu), std::move(ops), tuning};
}

}  // namespace athanor
