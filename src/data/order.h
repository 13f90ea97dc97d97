// The order of samples as pure functions without state, so a run can start at any sample and on any number of ranks.
// Permutation shuffles the windows of one source; Blend assigns samples to sources, Mixture by weights that
// change during a run.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace athanor {

// A pseudo-random bijection of [0, size), keyed by (seed, stream). A Feistel network over Z_a x Z_b, a*b >= size, with
// Philox as round function [Black & Rogaway 2002, "Ciphers with arbitrary finite domains", generalised Feistel]; values
// that land at or above size are sent through again (cycle walking). a*b < size + a + 1, so that is rare. Below kTabled
// elements, where such a network is measurably not uniform (some distances of neighbours are too frequent, and often
// one parity), it is a table, shuffled by [Knuth 1969, algorithm 3.4.2P].
class Permutation {
 public:
  Permutation(int64_t size, uint64_t seed, uint64_t stream) : size_(uint64_t(size)), seed_(seed), stream_(stream) {
    CHECK(size > 0, "permutation of ", size, " elements");
    a_ = uint64_t(std::ceil(std::sqrt(double(size_))));
    b_ = (size_ + a_ - 1) / a_;
    if (size_ < kTabled) shuffle();
  }

  int64_t operator()(int64_t index) const {
    CHECK(index >= 0 && uint64_t(index) < size_, "index ", index, " of a permutation of ", size_);
    if (size_ < kTabled) return table_[size_t(index)];
    uint64_t x = uint64_t(index);
    do x = once(x);
    while (x >= size_);
    return int64_t(x);
  }

 private:
  static constexpr int kRounds =
      8;  // minimum for pseudo-randomness is 4 [Luby & Rackoff 1988]; small domains need more
  static constexpr uint64_t kTabled = 128;

  void shuffle() {
    for (uint64_t i = 0; i < size_; ++i) {
      const uint64_t from = noise(0, i) % (i + 1);
      table_[i] = table_[from];
      table_[from] = uint8_t(i);
    }
  }

  uint64_t once(uint64_t x) const {
    uint64_t left = x % a_, right = x / a_;
    for (int round = 0; round < kRounds; round += 2) {
      left = (left + noise(round, right)) % a_;
      right = (right + noise(round + 1, left)) % b_;
    }
    return right * a_ + left;
  }
  // 63 bits: the sum above cannot overflow, and the bias of the remainder is below 2^-31 for every size below 2^63.
  uint64_t noise(int round, uint64_t half) const {
    const auto bits = philox(seed_, stream_, half << 3 | uint64_t(round));
    return (uint64_t(bits[0]) << 32 | bits[1]) >> 1;
  }

  uint64_t size_, seed_, stream_, a_ = 1, b_ = 1;
  std::array<uint8_t, kTabled> table_{};
};

// Which source sample n comes from, and how many samples that source gave before it. Weights become whole shares of a
// period (exactly when a period up to kExact divides them, as for 0.7 : 0.3; else rounded to 1/kPeriod of the total),
// and one period is scheduled by earliest deadline among the released [Baruah et al. 1996, "Proportionate progress",
// Pfair]: after any n samples each source has given share*n/period of them, within less than one. (Megatron's greedy
// rule, argmax(weight*n - taken), is simpler but lets a source lag by more than one once there are many.)
class Blend {
 public:
  struct Pick {
    int64_t source, position;
  };

  explicit Blend(const std::vector<double>& weights) : shares_(shares_of(weights)) {
    period_ = std::accumulate(shares_.begin(), shares_.end(), int64_t{0});
    schedule();
  }

  Pick operator()(int64_t n) const {
    CHECK(n >= 0, "sample number ", n);
    const Pick in_period = picks_[size_t(n % period_)];
    return {in_period.source, n / period_ * shares_[size_t(in_period.source)] + in_period.position};
  }

  // Samples of each source among the first n. [sources]
  std::vector<int64_t> given(int64_t n) const;
  const std::vector<int64_t>& shares() const { return shares_; }
  int64_t period() const { return period_; }

 private:
  static constexpr int64_t kExact = 1 << 12, kPeriod = 1 << 18;

  static std::vector<int64_t> shares_of(const std::vector<double>& weights);
  void schedule();

  std::vector<int64_t> shares_;  // [sources]
  int64_t period_ = 0;
  std::vector<Pick> picks_;  // [period]
};

// From sample `from` on, sources are blended by these weights; a source of weight 0 gives nothing.
struct MixtureStage {
  int64_t from = 0;
  std::vector<double> weights;  // [sources]
};

// Blends that follow each other: in every stage a source goes on with the sample after its last one. A mixture of one
// stage is a Blend.
class Mixture {
 public:
  using Pick = Blend::Pick;

  // The first stage begins with sample 0, the others in the order of `from`.
  explicit Mixture(const std::vector<MixtureStage>& stages);

  Pick operator()(int64_t n) const;
  // Samples of each source among the first n. [sources]
  std::vector<int64_t> given(int64_t n) const;

  size_t stages() const { return stages_.size(); }
  int64_t first_sample(size_t stage) const { return stages_[stage].from; }
  // A stage's period, and the samples of each source in it. [sources]
  int64_t period(size_t stage) const { return stages_[stage].blend.period(); }
  std::vector<int64_t> shares(size_t stage) const;

 private:
  struct Stage {
    int64_t from;
    Blend blend;                   // of the sources that have a weight
    std::vector<int64_t> sources;  // their numbers
    std::vector<int64_t> before;   // [all sources]: samples of each in earlier stages
  };
  void add(const MixtureStage&, std::vector<int64_t> before);
  const Stage& stage_of(int64_t n) const;

  std::vector<Stage> stages_;
};

}  // namespace athanor
