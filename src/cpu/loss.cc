// Softmax cross-entropy per row of logits: one sweep for the maximum and the sum of exponentials (online, block by
// block [Milakov & Gimelshein 2018]), one sweep that writes the gradient while the row is still in the L2 cache.
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/targets.h"
#include "cpu/vec.h"

namespace athanor {
namespace {

using simd::Vec;

constexpr int64_t kBlock = 2048;  // logits per step of the online sum: read twice from the L1 cache
constexpr float kInf = std::numeric_limits<float>::infinity();

// Sums over all vocabulary shards; null if this rank has the whole vocabulary.
struct PartSums {
  VocabPart part = {};
  const float *max = nullptr, *sums = nullptr, *at_target = nullptr;  // [n]; null: not sharded
};

float base_of(float max) { return max == -kInf ? 0 : max; }  // -inf - -inf would be NaN

struct LogSum {
  float base;  // maximum logit; 0 if all are -inf
  double sum;  // sum of exp(logit - base)
};

// A row of logits, or a block of one.
template <class T>
struct Logits {
  T* x;
  int64_t n;
};

// The soft-cap of logits: identity, or softcap * tanh(logits / softcap); slope: its derivative.
struct NoCap {
  explicit NoCap(float) {}
  template <int L>
  ATHANOR_INLINE Vec<L> operator()(const Vec<L>& x) const {
    return x;
  }
  template <int L>
  ATHANOR_INLINE float one(float x) const {
    return x;
  }
};
struct SoftCap {
  float cap;
  explicit SoftCap(float c) : cap(c) {}
  template <int L>
  ATHANOR_INLINE Vec<L> operator()(const Vec<L>& x) const {
    return cap * simd::tanh(x / cap).value;
  }
  template <int L>
  ATHANOR_INLINE float one(float x) const {
    simd::Float<L> value, slope;
    simd::tanh<L>(simd::Float<L>{} + x / cap, value, slope);
    return cap * value[0];
  }
  template <int L>
  ATHANOR_INLINE float slope_of_one(float x) const {
    simd::Float<L> value, slope;
    simd::tanh<L>(simd::Float<L>{} + x / cap, value, slope);
    return slope[0];
  }
};

template <int L, class T>
ATHANOR_INLINE float largest(const Logits<T>& row, float max) {
  Vec<L> most = simd::broadcast<L>(max);
  simd::for_columns<L, T>(
      row.n, [&](auto at) ATHANOR_INLINE_LAMBDA { most = simd::max(at.or_else(at.load(row.x), -kInf), most); });
  return simd::max(most);
}

template <int L, class T, class Cap>
ATHANOR_INLINE float sum_of_exp(const Logits<T>& row, float base, const Cap& cap) {
  Vec<L> sum = simd::broadcast<L>(0);
  simd::for_columns<L, T>(row.n, [&](auto at) ATHANOR_INLINE_LAMBDA {
    sum += simd::exp_nonpositive(at.or_else(cap(at.load(row.x)) - base, -kInf));
  });
  return simd::sum(sum);
}

template <int L, class T, class Cap>
ATHANOR_INLINE LogSum log_sum(const Logits<T>& row, const Cap& cap) {
  float max = -kInf;
  LogSum s{0, 0};
  for (int64_t begin = 0; begin < row.n; begin += kBlock) {
    const Logits<T> block{row.x + begin, std::min(kBlock, row.n - begin)};
    const float block_max = largest<L>(block, max), capped_max = cap.template one<L>(block_max);
    if (s.sum > 0 && block_max > max) s.sum *= std::exp(double(cap.template one<L>(max)) - double(capped_max));
    max = block_max;
    s.base = base_of(capped_max);
    s.sum += double(sum_of_exp<L>(block, s.base, cap));
  }
  return s;
}

// Additional targets of each row, and the weight of each in the loss.
struct Ahead {
  const int32_t* targets = nullptr;  // [n, count]; negative: none
  const float* weights = nullptr;    // [count]
  int64_t count = 0;
  VocabPart part = {};
};

struct XentRows {
  float* losses;
  const int32_t* targets;
  int64_t vocab, padded;
  float scale;  // factor of the gradient
  bool grad;
  float z_loss, softcap;
  PartSums of_all;
  Ahead ahead;
};

// The additional targets of one row; their logits are read before the gradient overwrites them.
template <class T>
class RowAhead {
 public:
  RowAhead(const Ahead& a, const T* x, int64_t row) {
    for (int64_t j = 0; j < a.count; ++j) {
      const int32_t token = a.targets[row * a.count + j];
      if (token < 0) continue;
      total_ += double(a.weights[j]);
      if (const int32_t column = a.part.row(token); column >= 0) add(column, a.weights[j], to_float(x[column]));
    }
  }
  double total() const { return total_; }  // sum of weights
  // Calls set(column, logit, sum of the weights of the targets with this token).
  template <class Set>
  void each(const Set& set) const {
    for (int k = 0; k < count_; ++k) set(targets_[k].column, targets_[k].logit, targets_[k].weight);
  }

 private:
  struct Target {
    int32_t column;
    float logit;
    double weight;
  };
  void add(int32_t column, float weight, float logit) {
    for (int k = 0; k < count_; ++k)
      if (targets_[k].column == column) {
        targets_[k].weight += double(weight);
        return;
      }
    targets_[count_++] = {column, logit, double(weight)};
  }
  Target targets_[kMaxTokensAhead];
  int count_ = 0;
  double total_ = 0;
};

// loss = log sum exp(x) - x[target]; with grad, x becomes scale (softmax(x) (1 + z) - onehot(target)), where
// z = 2 z_loss log sum exp(x). With a cap, x is capped first and the gradient is multiplied by the cap's slope.
template <class Cap>
struct CrossEntropyRows {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* logits, const XentRows& a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Logits<T> row{logits + i * a.padded, a.vocab};
      if (a.targets[i] >= 0) {
        a.losses[i] = loss_of<L>(row, i, a);
      } else {
        a.losses[i] = 0;
        if (a.grad) std::memset(row.x, 0, size_t(a.padded) * sizeof(T));
      }
    }
  }

  template <int L, class T>
  static ATHANOR_INLINE float loss_of(const Logits<T>& row, int64_t i, const XentRows& a) {
    const Cap cap(a.softcap);
    const PartSums& all = a.of_all;
    int32_t target = a.targets[i];
    LogSum s{0, 0};
    double logit = 0;
    if (all.max) {
      target = all.part.row(target);
      s = {base_of(cap.template one<L>(all.max[i])), double(all.sums[i])};
      logit = double(all.at_target[i]);
    } else {
      s = log_sum<L>(row, cap);
      logit = double(cap.template one<L>(to_float(row.x[target]))) - double(s.base);
    }
    const double loss = std::log(s.sum) - logit;
    if (a.grad) {
      const RowAhead<T> ahead(a.ahead, row.x, i);
      write_gradient<L>(row, target, s, loss, ahead, a);
    }
    return float(loss);
  }

  // target -1: another vocabulary shard has the target
  template <int L, class T>
  static ATHANOR_INLINE void write_gradient(const Logits<T>& row, int32_t target, const LogSum& s, double loss,
                                            const RowAhead<T>& ahead, const XentRows& a) {
    const double of_z_loss = a.z_loss == 0 ? 0 : 2 * double(a.z_loss) * (double(s.base) + std::log(s.sum));
    const double z = of_z_loss + ahead.total();
    const float factor = float(double(a.scale) * (1 + z) / s.sum);
    double at_target = std::expm1(-loss) + z * std::exp(-loss);  // softmax = e^-loss
    if constexpr (std::is_same_v<Cap, NoCap>) {
      simd::for_columns<L, T>(row.n, [&](auto at) ATHANOR_INLINE_LAMBDA {
        at.store(row.x, simd::exp_nonpositive(at.load(row.x) - s.base) * factor);
      });
    } else {
      if (target >= 0) at_target *= double(Cap(a.softcap).template slope_of_one<L>(to_float(row.x[target])));
      simd::for_columns<L, T>(row.n, [&](auto at) ATHANOR_INLINE_LAMBDA {
        const simd::Tanh<L> t = simd::tanh(at.load(row.x) / a.softcap);
        at.store(row.x, simd::exp_nonpositive(a.softcap * t.value - s.base) * factor * t.slope);
      });
    }
    if (target >= 0) row.x[target] = from_float<T>(float(double(a.scale) * at_target));
    ahead.each([&](int32_t column, float logit, double weight) ATHANOR_INLINE_LAMBDA {
      const Cap cap(a.softcap);
      double slope = 1;
      if constexpr (!std::is_same_v<Cap, NoCap>) slope = double(cap.template slope_of_one<L>(logit));
      const double softmax = std::exp(double(cap.template one<L>(logit)) - double(s.base)) / s.sum;
      const double hot = weight + (column == target ? 1 : 0);
      row.x[column] = from_float<T>(float(double(a.scale) * slope * ((1 + z) * softmax - hot)));
    });
    std::memset(row.x + row.n, 0, size_t(a.padded - row.n) * sizeof(T));
  }
};

// Arguments of RowMax, which writes max, and of LogitSums, which reads max and writes sums.
struct PartRows {
  float *max = nullptr, *sums = nullptr, *at_target = nullptr;  // [n]
  const int32_t* targets = nullptr;
  VocabPart part = {};
  int64_t columns = 0, padded = 0;
  float softcap = 0;
};

struct LargestOfRows {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* logits, const PartRows& a, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) a.max[i] = largest<L>(Logits<T>{logits + i * a.padded, a.columns}, -kInf);
  }
};

template <class Cap>
struct SumsOfRows {
  template <int L, class T>
  static ATHANOR_INLINE void run(T* logits, const PartRows& a, int64_t begin, int64_t end) {
    const Cap cap(a.softcap);
    for (int64_t i = begin; i < end; ++i) {
      T* row = logits + i * a.padded;
      const float base = base_of(cap.template one<L>(a.max[i]));
      double sum = 0;
      for (int64_t from = 0; from < a.columns; from += kBlock)
        sum += double(sum_of_exp<L>(Logits<T>{row + from, std::min(kBlock, a.columns - from)}, base, cap));
      const int32_t target = a.targets[i] < 0 ? -1 : a.part.row(a.targets[i]);
      a.sums[i] = float(sum);
      a.at_target[i] = target < 0 ? 0 : cap.template one<L>(to_float(row[target])) - base;
    }
  }
};

}  // namespace

void CpuOps::run(const CrossEntropy& op, void*) {
  const int64_t n = op.logits.rows(), padded = op.logits.cols();
  require_targets(op.kName, op.targets, op.part ? op.part.total : op.vocab);
  PartSums of_all;
  if (op.part) of_all = {op.part, flat<float>(op.max), flat<float>(op.sums), flat<float>(op.sums) + n};
  Ahead ahead;
  if (op.ahead) {
    require_targets("cross_entropy.ahead", op.ahead, op.part ? op.part.total : op.vocab);
    ahead = {flat<int32_t>(op.ahead), flat<float>(op.ahead_weights), op.ahead.cols(), op.part};
  }
  const XentRows rows{.losses = flat<float>(op.losses),
                      .targets = flat<int32_t>(op.targets),
                      .vocab = op.vocab,
                      .padded = padded,
                      .scale = op.grad ? *op.scale.as<float>() * op.inv_count : 0,
                      .grad = op.grad,
                      .z_loss = op.z_loss,
                      .softcap = op.softcap,
                      .of_all = of_all,
                      .ahead = ahead};
  by_float(op.logits.dtype, [&]<class T>() {
    T* logits = flat<T>(op.logits);
    pool_.parallel_ranges(n, row_grain(padded), [&](int64_t begin, int64_t end) {
      if (op.softcap > 0)
        simd::dispatch<CrossEntropyRows<SoftCap>>(logits, rows, begin, end);
      else
        simd::dispatch<CrossEntropyRows<NoCap>>(logits, rows, begin, end);
    });
  });
}

void CpuOps::run(const RowMax& op, void*) {
  const int64_t padded = op.x.cols();
  const PartRows rows{.max = flat<float>(op.max), .columns = op.columns, .padded = padded};
  by_float(op.x.dtype, [&]<class T>() {
    T* x = flat<T>(op.x);
    pool_.parallel_ranges(op.x.rows(), row_grain(padded),
                          [&](int64_t begin, int64_t end) { simd::dispatch<LargestOfRows>(x, rows, begin, end); });
  });
}

void CpuOps::run(const LogitSums& op, void*) {
  const int64_t n = op.logits.rows(), padded = op.logits.cols();
  require_targets(op.kName, op.targets, op.part.total);
  float* sums = flat<float>(op.sums);
  const PartRows rows{.max = flat<float>(op.max),
                      .sums = sums,
                      .at_target = sums + n,
                      .targets = flat<int32_t>(op.targets),
                      .part = op.part,
                      .columns = op.part.count,
                      .padded = padded,
                      .softcap = op.softcap};
  by_float(op.logits.dtype, [&]<class T>() {
    T* logits = flat<T>(op.logits);
    pool_.parallel_ranges(n, row_grain(padded), [&](int64_t begin, int64_t end) {
      if (op.softcap > 0)
        simd::dispatch<SumsOfRows<SoftCap>>(logits, rows, begin, end);
      else
        simd::dispatch<SumsOfRows<NoCap>>(logits, rows, begin, end);
    });
  });
}

void CpuOps::run(const SourceLosses& op, void*) {
  auto* sums = op.sums.as<double>();
  const auto *targets = op.targets.as<int32_t>(), *sources = op.sources.as<int32_t>();
  const auto* losses = op.losses.as<float>();
  for (int64_t i = 0; i < op.losses.numel(); ++i) {
    if (targets[i] < 0) continue;
    double* sum = sums + sources[op.rows.sequence(i)];
    sum[0] += SourceLosses::rounded(losses[i]);
    sum[op.sums.cols()] += 1;
  }
}

}  // namespace athanor
