// GemmRunner::try_all(): times all configurations of cuBLASLt for one product, within a time limit, and compares them
// with the choice of training's search. Choices are not changed.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <string>

#include "cuda/gemm/algorithms.h"
#include "cuda/gemm/own_product.h"
#include "cuda/gemm/timer.h"
namespace athanor::cuda {
namespace {

constexpr int kAnswers = 128;                    // heuristic answers, which are tried first
constexpr size_t kFinalists = 8;                 // varied, and timed in turns with the choice
constexpr double kGridShare = 0.7;               // of the time; the rest is for variations of the fastest
constexpr double kHopeless = 3, kLoading = 5e3;  // x the fastest; microseconds for loading a kernel
constexpr double kWorthAnother = 1.3;            // x the fastest: timed again, since one launch may be disturbed

}  // namespace

GemmRunner::Candidate GemmRunner::choice_of(const GemmProblem& p) {
  const Plan& plan = plan_of(p);
  return {.in_parts = plan.in_parts, .own = plan.own, .algorithm = plan.algorithm};
}

ProductMethod GemmRunner::method_of(const GemmProblem& p, const Candidate& candidate) const {
  if (candidate.own) return own_method(p);
  return describe_algorithm(lt_, candidate.algorithm, check(describe(p), candidate.algorithm).waves);
}

LibraryProduct GemmRunner::multiplied(const ScaledGemm& op) const {
  const bool native = NativeProduct(op, capability_).possible;
  return native ? native_product(op, nullptr) : LibraryProduct(decoded_product(op, nullptr));
}

ProductTime GemmRunner::time(const ScaledGemm& op, cudaStream_t stream) { return time(multiplied(op), false, stream); }

ProductTime GemmRunner::time(const LibraryProduct& product, bool recompute, cudaStream_t stream) {
  const GemmProblem p = problem_of(product);
  const Candidate choice = choice_of(p);
  ProductTime time;
  {
    Timer timer(*this, product, recompute, stream);
    time.seconds = time.product_seconds = 1e-6 * timer.in_turns({&choice, 1}).front();
    require(timer.refusal(), "a trial failed", p);
  }
  if (!choice.in_parts) {
    time.method = method_of(p, choice);
    return time;
  }
  in_parts(product.op, [&]<class Part>(const Part& part) {
    if constexpr (std::is_same_v<Part, Gemm>) {
      LibraryProduct alone = product;
      alone.op = part;
      const ProductTime found = this->time(alone, false, stream);
      time.product_seconds = std::min(time.seconds, found.seconds);
      time.method = found.method;
    }
  });
  time.method.in_parts = true;
  return time;
}

// Tries candidates one after the other, each once, and keeps the fastest.
class GemmRunner::ExhaustiveSearch {
 public:
  ExhaustiveSearch(GemmRunner& runner, const LibraryProduct& product, bool recompute, double seconds,
                   cudaStream_t stream)
      : runner_(runner), timer_(runner, product, recompute, stream), seconds_(seconds), stream_(stream) {}

  ProductTrial run(const Candidate& choice) {
    const GemmProblem& p = timer_.problem();
    if (p.epilogue != Epilogue::none) offer({.in_parts = true});
    if (own_takes(p, runner_.capability_)) offer({.own = true});
    if (can_fuse(p)) {
      for (const auto& answer : answers()) offer({.algorithm = answer.algo});
      const auto all = list_algorithms(runner_.lt_, runner_.handle_.get(), p);
      bool all_seen = offer_all(grid_of(runner_.lt_, all), kGridShare);
      for (const Finalist& finalist : std::vector<Finalist>(finalists_))
        if (!finalist.candidate.in_parts && !finalist.candidate.own)
          all_seen &= offer_all(neighbours_of(runner_.lt_, all, finalist.candidate.algorithm), 1);
      trial_.complete = all_seen && !all.empty();
    } else {
      trial_.complete = true;
    }
    finish(choice);
    return trial_;
  }

 private:
  struct Finalist {
    Candidate candidate;
    double microseconds;
  };

  bool time_left(double share) const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count() < share * seconds_;
  }

  Answers answers() const {
    try {
      return runner_.ask(timer_.problem(), timer_.plan(), kAnswers);
    } catch (const Error&) {  // list_algorithms() may still find some
      return {};
    }
  }

  // Returns false if the time was over before all were tried.
  bool offer_all(const std::vector<cublasLtMatmulAlgo_t>& algorithms, double share) {
    for (const cublasLtMatmulAlgo_t& algorithm : algorithms) {
      if (!time_left(share)) return false;
      if (runner_.check(timer_.plan(), algorithm).usable) offer({.algorithm = algorithm});
    }
    return true;
  }

  void offer(const Candidate& candidate) {
    if (!candidate.in_parts && !candidate.own &&
        !seen_.insert(std::string(reinterpret_cast<const char*>(&candidate.algorithm), sizeof candidate.algorithm))
             .second)
      return;
    const double microseconds = time_once(candidate);
    if (microseconds == Timer::kNever) {
      ++trial_.failed;
      return;
    }
    ++trial_.tried;
    const auto place = std::upper_bound(finalists_.begin(), finalists_.end(), microseconds,
                                        [](double x, const Finalist& y) { return x < y.microseconds; });
    finalists_.insert(place, {candidate, microseconds});
    if (finalists_.size() > kFinalists) finalists_.pop_back();
  }

  // A failure that leaves the GPU unusable ends the search; any other rejects the candidate.
  double time_once(const Candidate& candidate) {
    try {
      const double loading = timer_.microseconds(candidate, 1);
      if (!finalists_.empty() && loading > std::max(kLoading, kHopeless * finalists_.front().microseconds))
        return loading;
      const double once = timer_.microseconds(candidate, 1);
      if (finalists_.empty() || once > kWorthAnother * finalists_.front().microseconds) return once;
      return std::min(once, timer_.microseconds(candidate, 2));
    } catch (const Error&) {
      (void)cudaGetLastError();
      if (cudaStreamSynchronize(stream_) != cudaSuccess) throw;
      return Timer::kNever;
    }
  }

  void finish(const Candidate& choice) {
    std::vector<Candidate> last = {choice};
    for (const Finalist& finalist : finalists_) last.push_back(finalist.candidate);
    const std::vector<double> times = timer_.in_turns(last);
    if (times.front() == Timer::kNever) runner_.require(timer_.refusal(), "a trial failed", timer_.problem());
    const size_t best = static_cast<size_t>(std::min_element(times.begin(), times.end()) - times.begin());
    trial_.chosen = described(choice, times.front());
    trial_.best = described(last[best], times[best]);
  }

  ProductTime described(const Candidate& candidate, double microseconds) const {
    ProductTime time{.seconds = 1e-6 * microseconds, .product_seconds = 1e-6 * microseconds};
    if (candidate.in_parts)
      time.method = {.in_parts = true, .words = "in parts"};
    else
      time.method = runner_.method_of(timer_.problem(), candidate);
    return time;
  }

  GemmRunner& runner_;
  Timer timer_;
  double seconds_;
  cudaStream_t stream_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::set<std::string> seen_;  // bytes of algorithms
  std::vector<Finalist> finalists_;
  ProductTrial trial_;
};

ProductTrial GemmRunner::try_all(const LibraryProduct& product, bool recompute, double seconds, cudaStream_t stream) {
  const Candidate choice = choice_of(problem_of(product));
  return with_context("trying all algorithms of a matrix product",
                      [&] { return ExhaustiveSearch(*this, product, recompute, seconds, stream).run(choice); });
}

}  // namespace athanor::cuda
