#include "data/order.h"

#include <utility>

namespace athanor {
namespace {

// True if all fraction * period are integers, up to rounding error.
bool divides(const std::vector<double>& fractions, int64_t period) {
  return std::all_of(fractions.begin(), fractions.end(), [&](double f) {
    const double share = f * double(period);
    return std::round(share) >= 1 && std::abs(share - std::round(share)) < 1e-9 * double(period);
  });
}

}  // namespace

std::vector<int64_t> Blend::shares_of(const std::vector<double>& weights) {
  CHECK(!weights.empty(), "blend of no sources");
  double total = 0;
  for (double w : weights) {
    if (!(w > 0) || !std::isfinite(w))
      throw Error(
          cat("data source weight: expected a positive number, got ", w, ": leave a source out to weigh it zero"),
          Exit::usage);
    total += w;
  }
  if (!std::isfinite(total)) throw Error("data source weights: their sum is not finite", Exit::usage);
  std::vector<double> fractions;
  for (double w : weights) fractions.push_back(w / total);

  int64_t period = int64_t(weights.size());
  while (period <= kExact && !divides(fractions, period)) ++period;
  std::vector<int64_t> shares;
  if (period <= kExact) {
    for (double f : fractions) shares.push_back(std::llround(f * double(period)));
    const int64_t common = std::accumulate(shares.begin(), shares.end(), int64_t{0}, std::gcd<int64_t, int64_t>);
    for (int64_t& s : shares) s /= common;
    return shares;
  }
  for (size_t i = 0; i < fractions.size(); ++i) {
    shares.push_back(std::llround(fractions[i] * double(kPeriod)));
    if (shares[i] < 1)
      throw Error(cat("data source weight ", weights[i], " is less than 1/", kPeriod, " of all weights (", total,
                      "): give it more or leave the source out"),
                  Exit::usage);
  }
  return shares;
}

// Sample j of a source with s of p samples must be given in one of the slots [floor(j*p/s), ceil((j+1)*p/s)).
void Blend::schedule() {
  struct Due {
    int64_t given = 0, release = 0, deadline = 0;
  };
  std::vector<Due> due(shares_.size());
  const auto advance = [&](Due& d, int64_t share) {
    d.release = d.given * period_ / share;
    d.deadline = ((d.given + 1) * period_ + share - 1) / share;
  };
  for (size_t i = 0; i < due.size(); ++i) advance(due[i], shares_[i]);
  picks_.reserve(size_t(period_));
  for (int64_t slot = 0; slot < period_; ++slot) {
    size_t best = due.size();
    for (size_t i = 0; i < due.size(); ++i)
      if (due[i].release <= slot && (best == due.size() || due[i].deadline < due[best].deadline)) best = i;
    CHECK(best < due.size() && due[best].deadline > slot, "no source is due in slot ", slot, " of ", period_);
    picks_.push_back({int64_t(best), due[best].given++});
    advance(due[best], shares_[best]);
  }
}

std::vector<int64_t> Blend::given(int64_t n) const {
  std::vector<int64_t> counts;
  for (const int64_t share : shares_) counts.push_back(n / period_ * share);
  for (int64_t slot = 0; slot < n % period_; ++slot) ++counts[size_t(picks_[size_t(slot)].source)];
  return counts;
}

Mixture::Mixture(const std::vector<MixtureStage>& stages) {
  CHECK(!stages.empty() && stages.front().from == 0, "mixture of ", stages.size(), " stages");
  for (const MixtureStage& stage : stages) {
    CHECK(stages_.empty() || stage.from >= stages_.back().from, "a stage from sample ", stage.from);
    add(stage, stages_.empty() ? std::vector<int64_t>(stage.weights.size()) : given(stage.from));
  }
}

void Mixture::add(const MixtureStage& stage, std::vector<int64_t> before) {
  std::vector<double> weights;
  std::vector<int64_t> sources;
  for (size_t i = 0; i < stage.weights.size(); ++i) {
    if (stage.weights[i] == 0) continue;
    weights.push_back(stage.weights[i]);
    sources.push_back(int64_t(i));
  }
  stages_.push_back({stage.from, Blend(weights), std::move(sources), std::move(before)});
}

const Mixture::Stage& Mixture::stage_of(int64_t n) const {
  CHECK(n >= 0, "sample number ", n);
  const auto after = std::ranges::upper_bound(stages_, n, {}, &Stage::from);
  return *(after - 1);
}

Mixture::Pick Mixture::operator()(int64_t n) const {
  const Stage& stage = stage_of(n);
  const Pick pick = stage.blend(n - stage.from);
  const int64_t source = stage.sources[size_t(pick.source)];
  return {source, stage.before[size_t(source)] + pick.position};
}

std::vector<int64_t> Mixture::given(int64_t n) const {
  const Stage& stage = stage_of(n);
  std::vector<int64_t> counts = stage.before;
  const std::vector<int64_t> here = stage.blend.given(n - stage.from);
  for (size_t i = 0; i < here.size(); ++i) counts[size_t(stage.sources[i])] += here[i];
  return counts;
}

std::vector<int64_t> Mixture::shares(size_t stage) const {
  const Stage& at = stages_[stage];
  std::vector<int64_t> shares(at.before.size());
  for (size_t i = 0; i < at.sources.size(); ++i) shares[size_t(at.sources[i])] = at.blend.shares()[i];
  return shares;
}

}  // namespace athanor
