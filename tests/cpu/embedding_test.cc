// Row moves: values, repeated and hostile indices, strided views, order of sums.
#include "tests/cpu/host_tensor.h"

namespace athanor {
namespace {

std::vector<int32_t> random_indices(int64_t n, int64_t limit, uint64_t seed) {
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (size_t i = 0; i < out.size(); ++i) out[i] = int32_t(random_bits(seed, 5, i) % uint32_t(limit));
  return out;
}

TEST(Embedding, ForwardAddsTheRowsOfBothTables) {
  for (DType type : kFloats)
    for (int64_t c : {1, 13, 96}) {
      const int64_t n = 37, vocab = 11, positions = 5;
      const HostTensor wte = HostTensor::normal(type, {vocab, c}, 1), wpe = HostTensor::normal(type, {positions, c}, 2);
      const HostTensor tok = HostTensor::indices(random_indices(n, vocab, 3));
      const HostTensor pos = HostTensor::indices(random_indices(n, positions, 4));
      HostTensor y(type, {n, c}), both(type, {n, c});
      run_op(EmbeddingFwd{y.t, tok.t, {}, wte.t, {}});
      run_op(EmbeddingFwd{both.t, tok.t, pos.t, wte.t, wpe.t});
      for (int64_t i = 0; i < n * c; ++i) {
        const double token = wte[int64_t(tok[i / c]) * c + i % c];
        EXPECT_EQ(y[i], token);
        expect_near(both[i], token + wpe[int64_t(pos[i / c]) * c + i % c], tolerance(type), "y", i);
      }
    }
}

// The sum of an element runs over rows in order, in f32: exactly the plain loop.
TEST(Embedding, BackwardSumsInRowOrder) {
  for (DType type : kFloats)
    for (int64_t c : {1, 30, 200})
      for (int64_t vocab : {1, 7, 300}) {
        const int64_t n = 260, positions = 9;
        const HostTensor dy = HostTensor::normal(type, {n, c}, 1);
        const HostTensor tok = HostTensor::indices(random_indices(n, vocab, 3));
        const HostTensor pos = HostTensor::indices(random_indices(n, positions, 4));
        const HostTensor start = HostTensor::normal(DType::f32, {vocab, c}, 5);
        HostTensor dwpe(DType::f32, {positions, c}), expected_wpe = dwpe, expected = start;
        for (int64_t i = 0; i < n * c; ++i) {
          const float d = float(dy[i]);
          expected.t.as<float>()[int64_t(tok[i / c]) * c + i % c] += d;
          expected_wpe.t.as<float>()[int64_t(pos[i / c]) * c + i % c] += d;
        }
        for (int threads : {1, 2, 5}) {
          HostTensor dwte = start, only = start;
          for (int64_t i = 0; i < positions * c; ++i) dwpe.set(i, 0);
          run_op(EmbeddingBwd{dwte.t, dwpe.t, dy.t, tok.t, pos.t}, threads);
          run_op(EmbeddingBwd{only.t, {}, dy.t, tok.t, {}}, threads);
          EXPECT_EQ(dwte.bytes(), expected.bytes());
          EXPECT_EQ(only.bytes(), expected.bytes());
          EXPECT_EQ(dwpe.bytes(), expected_wpe.bytes());
        }
      }
}

TEST(Embedding, IndicesOutsideTheTableAreNamed) {
  const HostTensor table = HostTensor::normal(DType::f32, {4, 3}, 1);
  HostTensor y(DType::f32, {2, 3}), grad(DType::f32, {4, 3});
  for (int32_t bad : {4, -1, INT32_MAX, INT32_MIN}) {
    const HostTensor tok = HostTensor::indices({1, bad}), good = HostTensor::indices({0, 3});
    const auto message = [&](auto&& op) {
      try {
        run_op(op);
      } catch (const Error& e) {
        return std::string(e.what());
      }
      return std::string("no error");
    };
    const std::string value = cat("[1] = ", bad, " is outside the table of 4 rows");
    EXPECT_EQ(message(EmbeddingFwd{y.t, tok.t, {}, table.t, {}}), "embedding_fwd: tokens" + value);
    EXPECT_EQ(message(EmbeddingFwd{y.t, good.t, tok.t, table.t, table.t}), "embedding_fwd: positions" + value);
    EXPECT_EQ(message(EmbeddingBwd{grad.t, {}, y.t, tok.t, {}}), "embedding_bwd: tokens" + value);
    EXPECT_EQ(message(GatherRows{y.t, table.t, tok.t}), "gather_rows: rows" + value);
    EXPECT_EQ(message(ScatterRows{grad.t, y.t, tok.t}), "scatter_rows: rows" + value);
  }
}

TEST(Rows, GatherAndScatterSupportStridedViews) {
  for (DType type : kFloats) {
    const HostTensor packed = HostTensor::normal(type, {9, 40}, 1);
    const HostTensor rows = HostTensor::indices({8, 0, 3, 5});
    const HostTensor again = HostTensor::indices({8, 8, 3, 8});
    HostTensor y(type, {4, 7}), cache = HostTensor::normal(type, {9, 7}, 2);
    const HostTensor before = cache;
    run_op(GatherRows{y.t, packed.t.columns(20, 27), again.t});
    for (int64_t i = 0; i < 4 * 7; ++i) EXPECT_EQ(y[i], packed[int64_t(again[i / 7]) * 40 + 20 + i % 7]);
    run_op(ScatterRows{cache.t, packed.t.slice(2, 6).columns(1, 8), rows.t});
    for (int64_t r = 0; r < 9; ++r) {
      int64_t from = -1;
      for (int64_t i = 0; i < 4; ++i)
        if (rows[i] == double(r)) from = i;
      for (int64_t c = 0; c < 7; ++c)
        EXPECT_EQ(cache[r * 7 + c], from < 0 ? before[r * 7 + c] : packed[(2 + from) * 40 + 1 + c]);
    }
  }
}

TEST(Rows, AcceptZeroRows) {
  const HostTensor table = HostTensor::normal(DType::f32, {4, 3}, 1), none = HostTensor::indices({});
  HostTensor y(DType::f32, {0, 3});
  run_op(EmbeddingFwd{y.t, none.t, {}, table.t, {}});
  run_op(GatherRows{y.t, table.t, none.t});
}

}  // namespace
}  // namespace athanor
