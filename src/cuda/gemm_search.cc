// GemmRunner::search(): the library's answers for a problem, each run on random numbers and timed by events.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "cuda/check.h"
#include "cuda/gemm.h"
#include "tensor/half.h"
namespace athanor::cuda {
namespace {

constexpr int kCandidates = 16;             // answers that are timed
constexpr int kRounds = 3;                  // each answer's best of so many; answers take turns, as clocks drift
constexpr double kRoundMicroseconds = 300;  // launches of a round last so long at least
constexpr int kMostLaunches = 30;           // of a round
constexpr double kLeastGain = 0.01;         // another answer than the first must be faster by so much
constexpr size_t kRandomBytes = size_t{256} << 10;  // then they repeat
constexpr int64_t kMostCopies = 8;
constexpr double kNever = std::numeric_limits<double>::infinity();  // the time of what the library then refuses

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) { CUDA_CHECK(cudaMalloc(&data_, std::max<size_t>(bytes, 1))); }
  ~DeviceMemory() { (void)cudaFree(data_); }  // also while an Error is on its way
  DeviceMemory(DeviceMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_ = nullptr;
};

class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    for (cudaEvent_t& event : events_) CUDA_CHECK(cudaEventCreate(&event));
  }
  ~Stopwatch() {
    for (cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  template <class Work>
  double microseconds(Work&& work) {
    CUDA_CHECK(cudaEventRecord(events_[0], stream_));
    work();
    CUDA_CHECK(cudaEventRecord(events_[1], stream_));
    CUDA_CHECK(cudaEventSynchronize(events_[1]));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]));
    return 1e3 * double(milliseconds);
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t events_[2] = {};
};

// One matrix (or bias) of a problem, with the alignment that it has in the problem. Random numbers, since a GPU is
// faster on zeros than on what a model holds.
class Matrix {
 public:
  Matrix(DType dtype, int64_t elements, int align)
      : memory_(static_cast<size_t>(elements) * size_of(dtype) + kMostAlign), offset_(align % kMostAlign) {
    const size_t bytes = static_cast<size_t>(elements) * size_of(dtype);
    std::vector<std::byte> block(std::min(bytes, kRandomBytes));
    by_float(dtype, [&]<class T>() {
      T* numbers = reinterpret_cast<T*>(block.data());
      for (size_t i = 0; i < block.size() / sizeof(T); ++i)
        numbers[i] = from_float<T>(2 * random_uniform(0, stream_of("gemm search"), i) - 1);
    });
    for (size_t at = 0; at < bytes; at += block.size())
      CUDA_CHECK(cudaMemcpy(data() + at, block.data(), std::min(block.size(), bytes - at), cudaMemcpyDefault));
  }
  char* data() const { return memory_.data() + offset_; }

 private:
  DeviceMemory memory_;
  int offset_;
};

}  // namespace

// The operands of an op, so many times over that a launch finds little of its own in the L2 cache.
class GemmRunner::Trial {
 public:
  Trial(const Gemm& op, size_t scratch_bytes) : op_(op), scratch_(scratch_bytes) {
    int device = 0, cache = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device));
    const GemmProblem p = problem_of(op);
    const int64_t a = op.a.rows() * p.stride_a, b = op.b.rows() * p.stride_b, d = p.m * p.stride_d;
    const int64_t with = op.with ? op.with.numel() : 0;
    const auto bytes = [](DType dtype, int64_t n) { return n * static_cast<int64_t>(size_of(dtype)); };
    const int64_t once = bytes(p.a, a) + bytes(p.b, b) + bytes(p.d, d) + bytes(op.with.dtype, with);
    const int64_t copies = std::clamp<int64_t>(div_ceil<int64_t>(2 * int64_t{cache}, once), 1, kMostCopies);
    for (int64_t i = 0; i < copies; ++i)
      copies_.push_back({{p.a, a, p.align_a},
                         {p.b, b, p.align_b},
                         {p.d, d, p.align_d},
                         {p.d, p.n, p.align_d},
                         {op.with.dtype, with, op.sums() ? kMostAlign : p.align_d}});
    CUDA_CHECK(cudaDeviceSynchronize());  // copies of pageable memory are not ordered before other streams
  }
  Gemm next() {
    const Copy& copy = copies_[turn_++ % copies_.size()];
    Gemm op = op_;
    op.a.data = copy.a.data();
    op.b.data = copy.b.data();
    op.d.data = copy.d.data();
    if (op.bias) op.bias.data = copy.bias.data();
    if (op.with) op.with.data = copy.with.data();
    return op;
  }
  void* scratch() const { return scratch_.data(); }

 private:
  struct Copy {
    Matrix a, b, d, bias, with;
  };
  Gemm op_;
  DeviceMemory scratch_;
  std::vector<Copy> copies_;
  size_t turn_ = 0;
};

// What computes a problem: an algorithm of the library, or the parts of its epilogue.
struct GemmRunner::Candidate {
  bool in_parts = false;
  cublasLtMatmulAlgo_t algorithm{};
};
struct GemmRunner::Timed {
  Candidate chosen;
  double first = 0, best = 0;  // microseconds of the first candidate and of the chosen one
};

cublasStatus_t GemmRunner::try_once(const Gemm& op, Plan& plan, const Candidate& candidate, void* scratch,
                                    cudaStream_t stream) {
  plan.algorithm = candidate.algorithm;
  if (!candidate.in_parts) return launch(op, plan, scratch, stream);
  run_in_parts(op, scratch, stream);
  return CUBLAS_STATUS_SUCCESS;
}

// again: the op is also needed again, which is cheap in parts only.
GemmRunner::Timed GemmRunner::time_candidates(const Gemm& op, bool again, cudaStream_t stream) {
  const GemmProblem p = problem_of(op);
  Trial trial(op, scratch(op));
  std::vector<Candidate> candidates;
  if (p.epilogue != Epilogue::none) candidates.push_back({.in_parts = true});
  Plan plan;
  if (can_fuse(p)) {
    plan = describe(p);
    for (const auto& answer : ask(p, plan, kCandidates)) candidates.push_back({.algorithm = answer.algo});
  }
  Stopwatch watch(stream);
  const auto time = [&](const Candidate& candidate, int launches) {
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    const double microseconds = watch.microseconds([&] {
      for (int i = 0; i < launches && status == CUBLAS_STATUS_SUCCESS; ++i) {
        Gemm one = trial.next();
        status = try_once(one, plan, candidate, trial.scratch(), stream);
        one.again = true;
        if (again && status == CUBLAS_STATUS_SUCCESS) status = try_once(one, plan, candidate, trial.scratch(), stream);
      }
    });
    if (status == CUBLAS_STATUS_SUCCESS) return microseconds / launches;
    if (p.epilogue == Epilogue::none) require(status, "a trial failed", p);
    return kNever;
  };
  std::vector<double> best(candidates.size(), kNever);
  std::vector<int> launches(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    time(candidates[i], 1);  // loads the kernel
    launches[i] = static_cast<int>(std::clamp(kRoundMicroseconds / time(candidates[i], 1), 1.0, double{kMostLaunches}));
  }
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < candidates.size(); ++i) best[i] = std::min(best[i], time(candidates[i], launches[i]));
  size_t chosen = static_cast<size_t>(std::min_element(best.begin(), best.end()) - best.begin());
  if (best[chosen] > (1 - kLeastGain) * best[0]) chosen = 0;
  return {candidates[chosen], best[0], best[chosen]};
}

namespace {

// A problem of the ops: how often they launch it, and how often it is the product within an epilogue's problem.
struct Work {
  Gemm op;
  double flops = 0;
  int launches = 0, within = 0;
  bool again = false;
};

// The most work first; a product comes before the problem whose part it is.
std::vector<Work> distinct_work(std::span<const Gemm> ops) {
  std::map<GemmProblem, Work> distinct;
  const auto add = [&](const Gemm& op, int Work::*count) {
    Work& work = distinct[problem_of(op)];
    work.op = op;
    work.op.again = false;
    work.flops += op.cost().flops;
    work.*count += 1;
  };
  for (const Gemm& op : ops) {
    if (op.d.numel() == 0 || op.k() == 0) continue;
    if (op.again) {
      distinct[problem_of(op)].again = true;
      continue;
    }
    add(op, &Work::launches);
    if (op.epilogue == Epilogue::none) continue;
    in_parts(op, [&]<class Part>(const Part& part) {
      if constexpr (std::is_same_v<Part, Gemm>) add(part, &Work::within);
    });
  }
  std::vector<Work> order;
  for (const auto& [problem, work] : distinct)
    if (work.op.d) order.push_back(work);
  std::stable_sort(order.begin(), order.end(), [](const Work& x, const Work& y) { return x.flops > y.flops; });
  return order;
}

}  // namespace

GemmRunner::SearchReport GemmRunner::search(std::span<const Gemm> ops, double seconds, cudaStream_t stream) {
  const std::vector<Work> order = distinct_work(ops);
  SearchReport report{.problems = static_cast<int>(order.size())};
  const auto start = std::chrono::steady_clock::now();
  for (const Work& work : order) {
    const GemmProblem p = problem_of(work.op);
    const auto known = choices_.find(cat(p));
    if (known != choices_.end() && known->second.microseconds > 0) continue;
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >= seconds) break;
    const Timed timed = with_context("choosing the algorithms of matrix products by trial (gemm search)",
                                     [&] { return time_candidates(work.op, work.again, stream); });
    const Candidate& chosen = timed.chosen;
    choices_[cat(p)] = {.algorithm = chosen.algorithm, .microseconds = timed.best, .in_parts = chosen.in_parts};
    plans_.erase(p);
    ++report.timed;
    report.epilogues += p.epilogue != Epilogue::none;
    report.fused += p.epilogue != Epilogue::none && !chosen.in_parts;
    report.first_microseconds += work.launches * timed.first + work.within * (timed.first - timed.best);
    report.best_microseconds += work.launches * timed.best;
  }
  return report;
}

}  // namespace athanor::cuda
