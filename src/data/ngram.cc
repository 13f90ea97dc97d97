#include "data/ngram.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <vector>

#include "base/error.h"

namespace athanor {
namespace {

constexpr int64_t kMaxVocab = int64_t{1} << 21;  // three ids fit into a 63-bit key
constexpr int kOrders = 3;

// Hash table of counts by 63-bit key: open addressing, linear probing, at most half full.
class CountTable {
  struct Slot {
    uint64_t key = 0;  // key + 1; 0 = free
    int64_t count = 0;
  };
  template <class Slots>
  static auto& find(Slots& slots, uint64_t key) {
    size_t at = size_t((key * 0x9E3779B97F4A7C15ull) >> 20);  // multiplicative hashing with the golden ratio
    for (;; ++at) {
      auto& slot = slots[at & (slots.size() - 1)];
      if (slot.key == 0 || slot.key == key + 1) return slot;
    }
  }

 public:
  CountTable() : slots_(1 << 12) {}
  void increment(uint64_t key) {
    Slot& slot = find(slots_, key);
    if (slot.key == 0) {
      slot.key = key + 1;
      ++used_;
    }
    ++slot.count;
    if (used_ * 2 > slots_.size()) grow();
  }
  double operator()(uint64_t key) const { return double(find(slots_, key).count); }

 private:
  void grow() {
    std::vector<Slot> larger(slots_.size() * 2);
    for (const Slot& s : slots_)
      if (s.key != 0) find(larger, s.key - 1) = s;
    slots_.swap(larger);
  }
  std::vector<Slot> slots_;
  size_t used_ = 0;
};

using Stretch = std::span<const int32_t>;  // consecutive tokens of a stream

class Counts {
 public:
  explicit Counts(int64_t vocab_size) : vocab_(uint64_t(vocab_size)), single_(vocab_) {}
  // Counts the n-grams within the run.
  void add(Stretch tokens) {
    total_ += double(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      const uint64_t c = uint64_t(tokens[i]);
      ++single_[c];
      if (i > 0) pair_.increment(uint64_t(tokens[i - 1]) * vocab_ + c);
      if (i > 1) triple_.increment((uint64_t(tokens[i - 2]) * vocab_ + uint64_t(tokens[i - 1])) * vocab_ + c);
    }
  }
  // Probability of c after a, b for each order; an unseen context uses the next lower order.
  std::array<double, kOrders> operator()(uint64_t a, uint64_t b, uint64_t c) const {
    std::array<double, kOrders> p;
    p[0] = (double(single_[c]) + 1) / (total_ + double(vocab_));
    p[1] = single_[b] > 0 ? pair_(b * vocab_ + c) / double(single_[b]) : p[0];
    const double context = pair_(a * vocab_ + b);
    p[2] = context > 0 ? triple_((a * vocab_ + b) * vocab_ + c) / context : p[1];
    return p;
  }

 private:
  uint64_t vocab_;
  double total_ = 0;
  std::vector<int64_t> single_;
  CountTable pair_, triple_;
};

// Calls fn with the probabilities of every token of the run that has two predecessors in it.
template <class Fn>
void each(const Counts& counts, Stretch tokens, Fn&& fn) {
  for (size_t i = 2; i < tokens.size(); ++i)
    fn(counts(uint64_t(tokens[i - 2]), uint64_t(tokens[i - 1]), uint64_t(tokens[i])));
}

using Weights = std::array<double, kOrders>;

double mix(const Weights& w, const std::array<double, kOrders>& p) { return w[0] * p[0] + w[1] * p[1] + w[2] * p[2]; }

// Fits the mixture weights by expectation maximization; orders above `orders` get weight 0.
Weights fit(const Counts& counts, std::span<const Stretch> held_out, int orders) {
  constexpr int kSteps = 12;       // the loss changes by less than 1e-3 well before
  constexpr double kFloor = 1e-3;  // minimum weight of the unigram, whose probability is never 0
  Weights w{};
  for (int i = 0; i < orders; ++i) w[size_t(i)] = 1.0 / orders;
  for (int step = 0; step < kSteps; ++step) {
    Weights share{};
    double seen = 0;
    for (const Stretch& run : held_out)
      each(counts, run, [&](const std::array<double, kOrders>& p) {
        const double total = mix(w, p);
        for (size_t i = 0; i < kOrders; ++i) share[i] += w[i] * p[i] / total;
        ++seen;
      });
    if (seen == 0) break;
    for (size_t i = 0; i < kOrders; ++i) w[i] = share[i] / seen;
    if (w[0] < kFloor) {
      for (double& x : w) x *= (1 - kFloor) / (1 - w[0]);
      w[0] = kFloor;
    }
  }
  return w;
}

// Holds out a twentieth of the tokens, in short runs from everywhere, because the end of a corpus is rarely
// representative. No n-gram spans the gap that a run leaves. A held-out run begins with the two tokens before it, so
// that all its own tokens have their original context.
struct Division {
  std::vector<Stretch> kept, held_out;
};
Division hold_out(Stretch tokens) {
  const size_t run = std::clamp<size_t>(tokens.size() / 2000, 3, 1000);
  Division parts;
  for (size_t begin = 0; begin < tokens.size(); begin += 20 * run) {
    const size_t held = std::min(begin + 19 * run, tokens.size()), end = std::min(held + run, tokens.size());
    parts.kept.push_back(tokens.subspan(begin, held - begin));
    if (held < end) parts.held_out.push_back(tokens.subspan(held - 2, end - held + 2));
  }
  return parts;
}

void require_tokens(const char* name, std::span<const int32_t> tokens, int64_t vocab_size) {
  if (tokens.size() < 3) throw Error(cat("n-grams: expected at least 3 ", name, " tokens, got ", tokens.size()));
  for (int32_t t : tokens)
    if (t < 0 || t >= vocab_size)
      throw Error(cat("n-grams: ", name, " token ", t, " is outside the vocabulary of ", vocab_size));
}

}  // namespace

NgramBaselines ngram_baselines(std::span<const int32_t> train, std::span<const int32_t> valid, int64_t vocab_size) {
  if (vocab_size < 1 || vocab_size > kMaxVocab)
    throw Error(cat("n-grams: expected a vocabulary of 1 to ", kMaxVocab, ", got ", vocab_size));
  require_tokens("training", train, vocab_size);
  require_tokens("validation", valid, vocab_size);

  Weights bigram, trigram;
  {
    const Division parts = hold_out(train);
    Counts counts(vocab_size);
    for (const Stretch& run : parts.kept) counts.add(run);
    bigram = fit(counts, parts.held_out, 2);
    trigram = fit(counts, parts.held_out, 3);
  }
  Counts counts(vocab_size);
  counts.add(train);
  NgramBaselines b{.uniform = std::log(double(vocab_size)),
                   .train_tokens = int64_t(train.size()),
                   .valid_tokens = int64_t(valid.size())};
  double seen = 0;
  each(counts, valid, [&](const std::array<double, kOrders>& p) {
    b.unigram -= std::log(p[0]);
    b.bigram -= std::log(mix(bigram, p));
    b.trigram -= std::log(mix(trigram, p));
    ++seen;
  });
  for (double* loss : {&b.unigram, &b.bigram, &b.trigram}) *loss /= seen;
  return b;
}

std::string to_string(const NgramBaselines& b) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(3) << "uniform " << b.uniform << ", unigram " << b.unigram << ", bigram "
      << b.bigram << ", interpolated trigram " << b.trigram << " nats per token (" << b.train_tokens << " training, "
      << b.valid_tokens << " validation tokens)";
  return out.str();
}

}  // namespace athanor
