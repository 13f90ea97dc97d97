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

// The operands of a problem, so many times over that a launch finds little of its own in the L2 cache.
class GemmRunner::Trial {
 public:
  Trial(const GemmProblem& p, size_t workspace_bytes) : workspace_(workspace_bytes) {
    int device = 0, cache = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device));
    const int64_t a = (p.ta ? p.k : p.m) * p.stride_a, b = (p.tb ? p.n : p.k) * p.stride_b, d = p.m * p.stride_d;
    const auto bytes = [](DType dtype, int64_t n) { return n * static_cast<int64_t>(size_of(dtype)); };
    const int64_t once = bytes(p.a, a) + bytes(p.b, b) + bytes(p.d, d);
    const int64_t copies = std::clamp<int64_t>(div_ceil<int64_t>(2 * int64_t{cache}, once), 1, kMostCopies);
    for (int64_t i = 0; i < copies; ++i)
      copies_.push_back({{p.a, a, p.align_a}, {p.b, b, p.align_b}, {p.d, d, p.align_d}, {p.d, p.n, p.align_d}});
    CUDA_CHECK(cudaDeviceSynchronize());  // copies of pageable memory are not ordered before other streams
  }
  Operands next() {
    const Copy& copy = copies_[turn_++ % copies_.size()];
    return {copy.a.data(), copy.b.data(), copy.bias.data(), copy.d.data(), workspace_.data()};
  }

 private:
  struct Copy {
    Matrix a, b, d, bias;
  };
  DeviceMemory workspace_;
  std::vector<Copy> copies_;
  size_t turn_ = 0;
};

struct GemmRunner::Timed {
  cublasLtMatmulAlgo_t algorithm{};
  double first = 0, best = 0;  // microseconds of the library's first answer and of the chosen one
};

GemmRunner::Timed GemmRunner::time_answers(const GemmProblem& p, cudaStream_t stream) {
  Trial trial(p, options_.workspace_bytes);
  Plan plan = describe(p);
  const Answers answers = ask(p, plan, kCandidates);
  Stopwatch watch(stream);
  const auto time = [&](const cublasLtMatmulHeuristicResult_t& answer, int launches) {
    plan.algorithm = answer.algo;
    return watch.microseconds([&] {
      for (int i = 0; i < launches; ++i) require(launch(p, plan, trial.next(), stream), "a trial failed", p);
    }) / launches;
  };
  std::vector<double> best(answers.size(), std::numeric_limits<double>::infinity());
  std::vector<int> launches(answers.size());
  for (size_t i = 0; i < answers.size(); ++i) {
    time(answers[i], 1);  // loads the kernel
    launches[i] = static_cast<int>(std::clamp(kRoundMicroseconds / time(answers[i], 1), 1.0, double{kMostLaunches}));
  }
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < answers.size(); ++i) best[i] = std::min(best[i], time(answers[i], launches[i]));
  size_t chosen = static_cast<size_t>(std::min_element(best.begin(), best.end()) - best.begin());
  if (best[chosen] > (1 - kLeastGain) * best[0]) chosen = 0;
  return {answers[chosen].algo, best[0], best[chosen]};
}

GemmRunner::SearchReport GemmRunner::search(std::span<const Gemm> ops, double seconds, cudaStream_t stream) {
  struct Work {
    GemmProblem problem;
    double flops = 0;
    int launches = 0;
  };
  std::map<GemmProblem, Work> distinct;
  for (const Gemm& op : ops) {
    if (op.d.numel() == 0 || op.k() == 0) continue;
    Work& work = distinct[problem_of(op)];
    work.problem = problem_of(op);
    work.flops += op.cost().flops;
    ++work.launches;
  }
  std::vector<Work> order;
  for (const auto& [problem, work] : distinct) order.push_back(work);
  std::stable_sort(order.begin(), order.end(), [](const Work& x, const Work& y) { return x.flops > y.flops; });

  SearchReport report{.problems = static_cast<int>(order.size())};
  const auto start = std::chrono::steady_clock::now();
  for (const Work& work : order) {
    const auto known = choices_.find(cat(work.problem));
    if (known != choices_.end() && known->second.microseconds > 0) continue;
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >= seconds) break;
    const Timed timed = with_context("choosing the algorithms of matrix products by trial (gemm search)",
                                     [&] { return time_answers(work.problem, stream); });
    choices_[cat(work.problem)] = {.algorithm = timed.algorithm, .microseconds = timed.best};
    plans_.erase(work.problem);
    ++report.timed;
    report.first_microseconds += work.launches * timed.first;
    report.best_microseconds += work.launches * timed.best;
  }
  return report;
}

}  // namespace athanor::cuda
