// GEMMs with few rows of x, for kernel.inl: w is read once, in place, at memory bandwidth.

template <bool kTf32>
inline V load_as_f32(const float* p) {
  if constexpr (!kTf32) return load(p);
  float x[kLanes];
  for (int l = 0; l < kLanes; ++l) x[l] = round_tf32(p[l]);
  return load(x);
}
template <bool kTf32, class T>
inline V load_as_f32(const T* p) {
  return widen(p);
}

inline float sum_of(V v) {
  float sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += v[l];
  return sum;
}

template <class T>
constexpr int64_t kLine = 64 / int64_t(sizeof(T));  // elements of a cache line

// Software prefetch: memory is fastest when read sequentially and prefetched further ahead than the hardware does.
// Fetches the cache lines of a part in order, starting at one of its rows, then those of the next part.
template <class T>
class Ahead {
 public:
  Ahead(const FewRows& p, int64_t row)
      : at_(row < p.rows ? at<T>(p.w, p.row + row, p.column) : static_cast<const T*>(p.next)),
        next_(static_cast<const T*>(p.next)),
        columns_(p.columns),
        skip_(p.w.stride - p.columns),
        left_(p.columns),
        rows_(p.rows - row) {}
  template <int kLines>
  void fetch() {
#pragma GCC unroll 8
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(at_ + i * kLine<T>);
    at_ += kLines * kLine<T>, left_ -= kLines * kLine<T>;
    if (left_ > 0) return;
    at_ = --rows_ == 0 ? next_ : at_ + skip_;
    left_ += columns_;
  }

 private:
  const T *at_, *next_;
  int64_t columns_, skip_;
  int64_t left_, rows_;  // elements left in the row, and rows left in the part
};

template <int M>
struct DotRows {
  const FewRows& p;
  template <class T, bool kTf32>
  void run() const {
    constexpr int kChains = 4;  // independent sums, to hide the latency of FMA
    constexpr int64_t kStep = kChains * kLanes, kAhead = 16384 / int64_t(sizeof(T));
    const int64_t columns = p.columns, x_stride = p.x_stride;
    const float* x = p.x;
    Ahead<T> ahead(p, kAhead / columns);
    for (int64_t row = 0; row < p.rows; ++row) {
      const T* w = at<T>(p.w, p.row + row, p.column);
      V acc[M][kChains] = {};
      int64_t k = 0;
      for (; k + kStep <= columns; k += kStep) {
        ahead.template fetch<int(kStep / kLine<T>)>();
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c) {
          const V wv = load_as_f32<kTf32>(w + k + c * kLanes);
#pragma GCC unroll 4
          for (int i = 0; i < M; ++i) acc[i][c] = load(x + i * x_stride + k + c * kLanes) * wv + acc[i][c];
        }
      }
      for (int i = 0; i < M; ++i) {
        float sum = sum_of((acc[i][0] + acc[i][1]) + (acc[i][2] + acc[i][3]));
        for (int64_t l = k; l < columns; ++l) sum += x[i * x_stride + l] * as_f32<kTf32>(w[l]);
        p.out[i * p.out_stride + row] = sum;
      }
    }
  }
};

template <int M>
struct SumRows {
  const FewRows& p;
  template <int R, class T, bool kTf32>
  void some(int64_t row) const {
    const T* w = at<T>(p.w, p.row + row, p.column);
    Ahead<T> ahead(p, row + R);
    const int64_t stride = p.w.stride, columns = p.columns, out_stride = p.out_stride;
    float* out = p.out;
    V x[M][R];
    for (int i = 0; i < M; ++i)
      for (int r = 0; r < R; ++r) x[i][r] = V{} + p.x[i * p.x_stride + row + r];
    int64_t c = 0;
    for (; c + kLine<T> <= columns; c += kLine<T>) {
      ahead.template fetch<R>();
#pragma GCC unroll 8
      for (int64_t v = c; v < c + kLine<T>; v += kLanes) {
        V sum[M];
#pragma GCC unroll 4
        for (int i = 0; i < M; ++i) sum[i] = row == 0 ? V{} : load(out + i * out_stride + v);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const V wv = load_as_f32<kTf32>(w + r * stride + v);
#pragma GCC unroll 4
          for (int i = 0; i < M; ++i) sum[i] = x[i][r] * wv + sum[i];
        }
#pragma GCC unroll 4
        for (int i = 0; i < M; ++i) store(out + i * out_stride + v, sum[i]);
      }
    }
    for (; c < columns; ++c)
      for (int i = 0; i < M; ++i) {
        float sum = row == 0 ? 0.0f : out[i * out_stride + c];
        for (int r = 0; r < R; ++r) sum += p.x[i * p.x_stride + row + r] * as_f32<kTf32>(w[r * stride + c]);
        out[i * out_stride + c] = sum;
      }
  }
  template <class T, bool kTf32>
  void run() const {
    constexpr int kRows = 4;  // rows of w per pass over the sums; with more, w would be read less sequentially
    int64_t row = 0;
    for (; row + kRows <= p.rows; row += kRows) some<kRows, T, kTf32>(row);
    for (; row < p.rows; ++row) some<1, T, kTf32>(row);
  }
};

template <int M>
void dots(const FewRows& p) {
  by_source(p.w, DotRows<M>{p});
}
template <int M>
void sums(const FewRows& p) {
  by_source(p.w, SumRows<M>{p});
}
constexpr decltype(&dots<1>) kDots[] = {dots<1>, dots<2>, dots<3>, dots<4>};
constexpr decltype(&sums<1>) kSums[] = {sums<1>, sums<2>, sums<3>, sums<4>};
