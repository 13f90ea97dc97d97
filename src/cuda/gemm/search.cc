// GemmRunner::search() times the heuristic's results for a problem on random numbers. A candidate whose results differ
// from those of the first one is not used. GemmRunner::time() times the chosen one.
#include <algorithm>
#include <chrono>
#include <vector>

#include "base/log.h"
#include "cuda/gemm/algorithms.h"
#include "cuda/gemm/timer.h"
#include "cuda/gemm/wgmma_gemm.h"
namespace athanor::cuda {
namespace {

constexpr int kCandidates = 16;      // heuristic results to time
constexpr double kLeastGain = 0.01;  // required advantage over the first candidate

}  // namespace

struct GemmRunner::Timed {
  Candidate chosen;
  double first = 0, best = 0;  // microseconds of the first candidate and of the chosen one
};

GemmRunner::Candidate GemmRunner::choice_of(const GemmProblem& p) {
  const Plan& plan = plan_of(p);
  return {.in_parts = plan.in_parts, .own = plan.own, .algorithm = plan.algorithm};
}

GemmMethod GemmRunner::method_of(const Candidate& candidate) const {
  return {.words = candidate.own ? wgmma_method() : describe_algorithm(lt_, candidate.algorithm)};
}

GemmTime GemmRunner::time(const ScaledGemm& op, cudaStream_t stream) {
  const NativeGemm native = this->native(op);
  return time(native.possible ? native_gemm(op, native, nullptr) : LibraryGemm(decoded_gemm(op, native, nullptr)),
              false, stream);
}

GemmTime GemmRunner::time(const LibraryGemm& gemm, bool recompute, cudaStream_t stream) {
  const GemmProblem p = problem_of(gemm);
  const Candidate choice = choice_of(p);
  GemmTime time;
  {
    Timer timer(*this, gemm, recompute, stream);
    time.seconds = 1e-6 * timer.interleaved({&choice, 1}).front();
    require(timer.refusal(), "autotuning failed", p);
  }
  if (!choice.in_parts) {
    time.method = method_of(choice);
    return time;
  }
  in_parts(gemm.op, [&]<class Part>(const Part& part) {
    if constexpr (std::is_same_v<Part, Gemm>) {
      LibraryGemm alone = gemm;
      alone.op = part;
      time.method = method_of(choice_of(problem_of(alone)));
    }
  });
  time.method.in_parts = true;
  return time;
}

// recompute: the op is also recomputed, which is cheap only with a separate epilogue.
GemmRunner::Timed GemmRunner::time_candidates(const LibraryGemm& gemm, bool recompute, cudaStream_t stream) {
  Timer timer(*this, gemm, recompute, stream);
  const GemmProblem& p = timer.problem();
  std::vector<Candidate> candidates;
  if (p.epilogue != Epilogue::none) candidates.push_back({.in_parts = true});
  if (can_fuse(p))
    for (const auto& answer : ask(p, timer.plan(), kCandidates)) candidates.push_back({.algorithm = answer.algo});
  if (wgmma_takes(p, capability_)) candidates.push_back({.own = true});
  std::vector<double> best = timer.interleaved(candidates);
  if (p.epilogue == Epilogue::none) require(timer.refusal(), "autotuning failed", p);
  for (;;) {
    const size_t chosen = static_cast<size_t>(std::min_element(best.begin(), best.end()) - best.begin());
    if (chosen == 0 || best[chosen] > (1 - kLeastGain) * best[0]) return {candidates[0], best[0], best[0]};
    const std::string why = timer.difference(candidates[0], candidates[chosen]);
    if (why.empty()) return {candidates[chosen], best[0], best[chosen]};
    log::warn("GEMMs: ", method_of(candidates[chosen]).words, " was the fastest in autotuning of ", p,
              " and is not used, since its results are not those of the first candidate: ", why, "; please report it");
    best[chosen] = Timer::kNever;
  }
}

// Distinct GEMMs to autotune: quantized ones that the library computes, and plain ones, including those on dequantized
// operands.
std::vector<GemmRunner::Searched> GemmRunner::to_search(std::span<const Gemm> ops,
                                                        std::span<const ScaledGemm> of_quantized) {
  std::vector<Gemm> plain(ops.begin(), ops.end());
  std::map<GemmProblem, Searched> natives;
  const auto add = [&](const LibraryGemm& gemm, int64_t GemmUse::*count) {
    const GemmProblem p = problem_of(gemm);
    Searched& one = natives.try_emplace(p, Searched{gemm, {}}).first->second;
    one.use.op = gemm.op;
    one.use.*count += 1;
  };
  for (const ScaledGemm& op : of_quantized) {
    if (op.gemm.d.numel() == 0 || op.gemm.k() == 0) continue;
    const NativeGemm native = this->native(op);
    if (!native.possible) {
      plain.push_back(decoded_gemm(op, native, nullptr));
      continue;
    }
    LibraryGemm gemm = native_gemm(op, native, nullptr);
    add(gemm, &GemmUse::launches);
    if (gemm.op.epilogue == Epilogue::none) continue;
    gemm.op.epilogue = Epilogue::none;
    gemm.op.aux = {};
    add(gemm, &GemmUse::within);
  }
  std::vector<Searched> order;
  for (const GemmUse& use : distinct_gemms(plain)) order.push_back({use.op, use});
  for (const auto& [problem, one] : natives) order.push_back(one);
  std::stable_sort(order.begin(), order.end(),
                   [](const Searched& x, const Searched& y) { return x.use.flops() > y.use.flops(); });
  return order;
}

GemmRunner::SearchReport GemmRunner::search(std::span<const Gemm> ops, double seconds, cudaStream_t stream,
                                            std::span<const ScaledGemm> of_quantized) {
  const std::vector<Searched> order = to_search(ops, of_quantized);
  SearchReport report{.problems = static_cast<int>(order.size())};
  const auto start = std::chrono::steady_clock::now();
  for (const Searched& one : order) {
    const LibraryGemm& gemm = one.gemm;
    const GemmUse& use = one.use;
    const GemmProblem p = problem_of(gemm);
    const auto known = choices_.find(cat(p));
    if (known != choices_.end() && known->second.microseconds > 0) continue;
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >= seconds) break;
    const Timed timed = with_context("choosing the algorithms of GEMMs by autotuning (gemm search)",
                                     [&] { return time_candidates(gemm, use.recompute, stream); });
    const Candidate& chosen = timed.chosen;
    choices_[cat(p)] = {
        .algorithm = chosen.algorithm, .microseconds = timed.best, .in_parts = chosen.in_parts, .own = chosen.own};
    plans_.erase(p);
    ++report.timed;
    report.epilogues += p.epilogue != Epilogue::none;
    report.fused += p.epilogue != Epilogue::none && !chosen.in_parts;
    report.own += chosen.own;
    report.first_microseconds += double(use.launches) * timed.first + double(use.within) * (timed.first - timed.best);
    report.best_microseconds += double(use.launches) * timed.best;
  }
  return report;
}

}  // namespace athanor::cuda
