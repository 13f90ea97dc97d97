// The order of samples as pure, stateless functions, so that a run can start at any sample and on any number of ranks.
// Permutation shuffles the windows of one source; Blend assigns samples to sources; Mixture does so with weights that
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

// A pseudo-random bijection of [0, size), keyed by (seed, stream): a Feistel network over Z_a x Z_b, a*b >= size, with
// Philox as round function [Black & Rogaway 2002, "Ciphers with arbitrary finite domains", generalised Feistel].
// Results at or above size are passed through the network again (cycle walking), which is rare because a*b < size + a +
// 1. Below kTabled elements such a network is measurably not uniform (some distances between neighbours and often one
// parity are too frequent); there it is a table, shuffled by [Knuth 1969, algorithm 3.4.2P].
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
  // 63 bits: the sums above cannot overflow, and the modulo bias is below 2^-31 for every size below 2^63.
  uint64_t noise(int round, uint64_t half) const {
    const auto bits = philox(seed_, stream_, half << 3 | uint64_t(round));
    return (uint64_t(bits[0]) << 32 | bits[1]) >> 1;
  }

  uint64_t size_, seed_, stream_, a_ = 1, b_ = 1;
  std::array<uint8_t, kTabled> table_{};
};

// Maps sample n to its source, and to the number of samples that source gave before. Weights become integer shares of a
// period (exactly if a period up to kExact divides them, as for 0.7 : 0.3; else rounded to 1/kPeriod of the total). One
// period is scheduled by earliest deadline first among the released samples [Baruah et al. 1996, "Proportionate
// progress", Pfair]: after any n samples, each source has given share*n/period samples, to within less than one.
// (Megatron's greedy rule, argmax(weight*n - taken), is simpler but lets a source lag by more than one if there are
// many sources.)
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

// From sample `from` on, sources are blended with these weights; a source of weight 0 gives no samples.
struct MixtureStage {
  int64_t from = 0;
  std::vector<double> weights;  // [sources]
};

// Consecutive blends: in every stage a source continues with the sample after its last one. A mixture with one stage
// equals a Blend.
class Mixture {
 public:
  using Pick = Blend::Pick;

  // Stages must be sorted by `from`; the first must begin at sample 0.
  explicit Mixture(const std::vector<MixtureStage>& stages);

  Pick operator()(int64_t n) const;
  // Samples of each source among the first n. [sources]
  std::vector<int64_t> given(int64_t n) const;

  size_t stages() const { return stages_.size(); }
  int64_t first_sample(size_t stage) const { return stages_[stage].from; }
  // A stage's period, and the number of samples of each source in one period. [sources]
  int64_t period(size_t stage) const { return stages_[stage].blend.period(); }
  std::vector<int64_t> shares(size_t stage) const;

 private:
  struct Stage {
    int64_t from;
    Blend blend;                   // blends the sources with non-zero weight
    std::vector<int64_t> sources;  // source numbers of the blend's sources
    std::vector<int64_t> before;   // [all sources]: samples given in earlier stages
  };
  void add(const MixtureStage&, std::vector<int64_t> before);
  const Stage& stage_of(int64_t n) const;

  std::vector<Stage> stages_;
};

}  // namespace athanor
