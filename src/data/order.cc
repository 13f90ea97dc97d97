#include "data/order.h"

namespace athanor {
namespace {

// Whether all weights * period are integers, up to the error of their division.
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

// Sample j of a source with s of p samples is due in the slots [floor(j*p/s), ceil((j+1)*p/s)).
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

}  // namespace athanor
