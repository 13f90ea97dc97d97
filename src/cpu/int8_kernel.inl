// The loops of int8_kernel.cc, for an instruction set that defines kRows (rows of a in registers), kBytes (bytes of a
// row per step), V, load(), dot(sum, w, a) and total(sum, sum of a's row).

template <int M, int N>
inline void step(V (&sum)[M][N], const int8_t* a, int64_t a_stride, const uint8_t* w, int64_t w_stride) {
  V wv[N];
#pragma GCC unroll 4
  for (int j = 0; j < N; ++j) wv[j] = load(w + j * w_stride);
#pragma GCC unroll 4
  for (int i = 0; i < M; ++i) {
    const V av = load(a + i * a_stride);
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) sum[i][j] = dot(sum[i][j], wv[j], av);
  }
}

// The last part of a row that does not fill kBytes is copied to a zero-padded buffer.
template <int M, int N>
void tile(const Int8Dots& p, int64_t i, int64_t j) {
  V sum[M][N] = {};
  const int8_t* a = p.a + i * p.k;
  const uint8_t* w = p.w + j * p.k;
  int64_t k = 0;
  for (; k + kBytes <= p.k; k += kBytes) step<M, N>(sum, a + k, p.k, w + k, p.k);
  if (k < p.k) {
    int8_t last_a[M * kBytes] = {};
    uint8_t last_w[N * kBytes] = {};
    for (int64_t c = k; c < p.k; ++c) {
      for (int r = 0; r < M; ++r) last_a[r * kBytes + c - k] = a[r * p.k + c];
      for (int r = 0; r < N; ++r) last_w[r * kBytes + c - k] = w[r * p.k + c];
    }
    step<M, N>(sum, last_a, kBytes, last_w, kBytes);
  }
  for (int r = 0; r < M; ++r)
    for (int c = 0; c < N; ++c) p.out[(i + r) * p.out_stride + j + c] = total(sum[r][c], p.sums[i + r]);
}

template <int N>
void columns(const Int8Dots& p, int64_t j) {
  int64_t i = 0;
  for (; i + kRows <= p.m; i += kRows) tile<kRows, N>(p, i, j);
  for (; i < p.m; ++i) tile<1, N>(p, i, j);
}

void dots(const Int8Dots& p) {
  int64_t j = 0;
  for (; j + 4 <= p.n; j += 4) columns<4>(p, j);
  for (; j < p.n; ++j) columns<1>(p, j);
}
