// The fake cuDNN: attention forward and backward against plain double loops, causal or not, for both types and grouped
// heads, and what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention_graph.h"
#include "base/error.h"
#include "cuda/libraries/open.h"
#include "libraries/cudnn/fake_cudnn.h"
#include "libraries/simple_machine.h"
#include "random_values.h"

namespace emu::fakes {
namespace {

class Cudnn : public testing::Test {
 protected:
  void SetUp() override {
    stream = machine.make_stream();
    ASSERT_EQ(cudnn.cudnnCreate(&handle), CUDNN_STATUS_SUCCESS);
    ASSERT_EQ(cudnn.cudnnSetStream(handle, stream), CUDNN_STATUS_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(cudnn.cudnnDestroy(handle), CUDNN_STATUS_SUCCESS);
    EXPECT_TRUE(fake.leaks().empty());
  }
  cudnnStatus_t build(const AttentionShape& shape) { return AttentionGraph(cudnn, handle, shape).build(); }

  SimpleMachine machine;
  FakeCudnn fake{machine.machine()};
  athanor::CudnnTable cudnn = fake.table();
  cudnnHandle_t handle = nullptr;
  cudaStream_t stream = nullptr;
};

// Inputs, outputs and the reference of one attention problem. Memory is [batch, token, head, dim].
struct Problem {
  AttentionShape s;
  Values q, k, v, o, stats, d_o, dq, dk, dv, sum, workspace;
  float scale, minus_infinity = -std::numeric_limits<float>::infinity(), one = 1;
  std::vector<double> p;  // reference probabilities, [b, h, i, j]

  explicit Problem(const AttentionShape& shape) : s(shape), scale(1 / std::sqrt(static_cast<float>(shape.dim))) {
    int64_t tokens = s.batch * s.tokens;
    Element type = s.type == CUDNN_DATA_HALF ? Element::kF16 : Element::kBf16;
    q = Values::random(type, tokens * s.row_q(), 1);
    k = Values::random(type, tokens * s.row_kv(), 2);
    v = Values::random(type, tokens * s.row_kv(), 3);
    d_o = Values::random(type, tokens * s.row_q(), 4);
    o = Values(type, tokens * s.row_q());
    dq = Values(type, tokens * s.row_q());
    dk = Values(type, tokens * s.row_kv());
    dv = Values(type, tokens * s.row_kv());
    stats = Values(Element::kF32, tokens * s.heads);
    sum = Values(Element::kF32, tokens * s.heads);
    workspace = Values(Element::kU8, 1 << 20);
  }
  int64_t at(int64_t b, int64_t token, int64_t head, int64_t heads, int64_t d) const {
    return ((b * s.tokens + token) * heads + head) * s.dim + d;
  }
  double& prob(int64_t b, int64_t h, int64_t i, int64_t j) {
    return p[static_cast<size_t>(((b * s.heads + h) * s.tokens + i) * s.tokens + j)];
  }
  int64_t stats_at(int64_t b, int64_t h, int64_t i) const { return (b * s.heads + h) * s.tokens + i; }

  cudnnStatus_t run(const AttentionGraph& graph) {
    std::vector<int64_t> ids{kQ, kK, kV, kO, kStats, kDO, kDQ, kDK, kDV, kSum, kScale, kMinusInfinity, kOne};
    std::vector<void*> pointers{q.data(),  k.data(),  v.data(),   o.data(), stats.data(),    d_o.data(), dq.data(),
                                dk.data(), dv.data(), sum.data(), &scale,   &minus_infinity, &one};
    return graph.execute(ids, pointers, workspace.data());
  }

  void check_forward() {
    p.assign(static_cast<size_t>(s.batch * s.heads * s.tokens * s.tokens), 0.0);
    int64_t group = s.heads / s.kv_heads;
    for (int64_t b = 0; b < s.batch; ++b) {
      const int64_t n = s.tokens;
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t i = 0; i < n; ++i) {
          int64_t last = s.causal ? i + 1 : n;
          double total = 0;
          for (int64_t j = 0; j < last; ++j) {
            double dot = 0;
            for (int64_t d = 0; d < s.dim; ++d)
              dot += q[at(b, i, h, s.heads, d)] * k[at(b, j, h / group, s.kv_heads, d)];
            total += prob(b, h, i, j) = std::exp(dot * scale);
          }
          for (int64_t j = 0; j < last; ++j) prob(b, h, i, j) /= total;
          ASSERT_NEAR(stats[stats_at(b, h, i)], std::log(total), 1e-4);
          for (int64_t d = 0; d < s.dim; ++d) {
            double want = 0;
            for (int64_t j = 0; j < last; ++j) want += prob(b, h, i, j) * v[at(b, j, h / group, s.kv_heads, d)];
            ASSERT_NEAR(o[at(b, i, h, s.heads, d)], want, 0.01) << b << " " << h << " " << i << " " << d;
          }
        }
      }
    }
  }

  void check_backward() {
    int64_t group = s.heads / s.kv_heads;
    std::vector<double> wq(static_cast<size_t>(q.size()), 0.), wk(static_cast<size_t>(k.size()), 0.), wv = wk;
    for (int64_t b = 0; b < s.batch; ++b) {
      const int64_t n = s.tokens;
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t i = 0; i < n; ++i) {
          double row = 0;
          std::vector<double> dp(static_cast<size_t>(n), 0.);
          for (int64_t j = 0; j < n; ++j) {
            for (int64_t d = 0; d < s.dim; ++d) {
              double up = d_o[at(b, i, h, s.heads, d)];
              dp[static_cast<size_t>(j)] += up * v[at(b, j, h / group, s.kv_heads, d)];
              wv[static_cast<size_t>(at(b, j, h / group, s.kv_heads, d))] += prob(b, h, i, j) * up;
            }
            row += prob(b, h, i, j) * dp[static_cast<size_t>(j)];
          }
          for (int64_t j = 0; j < n; ++j) {
            double ds = prob(b, h, i, j) * (dp[static_cast<size_t>(j)] - row) * scale;
            for (int64_t d = 0; d < s.dim; ++d) {
              wq[static_cast<size_t>(at(b, i, h, s.heads, d))] += ds * k[at(b, j, h / group, s.kv_heads, d)];
              wk[static_cast<size_t>(at(b, j, h / group, s.kv_heads, d))] += ds * q[at(b, i, h, s.heads, d)];
            }
          }
        }
      }
    }
    expect_near(dq, wq, "dq");
    expect_near(dk, wk, "dk");
    expect_near(dv, wv, "dv");
  }

  static void expect_near(const Values& got, const std::vector<double>& want, const char* name) {
    for (int64_t i = 0; i < got.size(); ++i) {
      const double value = want[static_cast<size_t>(i)];
      ASSERT_NEAR(got[i], value, 0.02 + 0.02 * std::abs(value)) << name << " " << i;
    }
  }
};

TEST_F(Cudnn, EveryFunctionOfTheTableIsThere) {
  for_each_function(cudnn, [](const char* name, auto function) { EXPECT_NE(function, nullptr) << name; });
  EXPECT_EQ(cudnn.cudnnGetVersion(), static_cast<size_t>(CUDNN_VERSION));
}

TEST_F(Cudnn, AttentionForwardAndBackward) {
  for (int bits = 0; bits < 8; ++bits) {
    AttentionShape shape{.causal = (bits & 1) != 0};
    if (bits & 2) shape.type = CUDNN_DATA_HALF;
    if (bits & 4) shape.kv_heads = 2;
    SCOPED_TRACE(testing::Message() << "bits " << bits);
    Problem problem(shape);
    AttentionGraph forward(cudnn, handle, shape);
    ASSERT_EQ(forward.build(), CUDNN_STATUS_SUCCESS) << fake.last_refusal();
    ASSERT_EQ(problem.run(forward), CUDNN_STATUS_SUCCESS) << fake.last_refusal();
    ASSERT_TRUE(machine.synchronize(stream));
    problem.check_forward();
    shape.backward = problem.s.backward = true;
    AttentionGraph backward(cudnn, handle, shape);
    ASSERT_EQ(backward.build(), CUDNN_STATUS_SUCCESS) << fake.last_refusal();
    ASSERT_LE(backward.workspace(), problem.workspace.size());
    ASSERT_EQ(problem.run(backward), CUDNN_STATUS_SUCCESS) << fake.last_refusal();
    ASSERT_TRUE(machine.synchronize(stream));
    problem.check_backward();
  }
}

TEST_F(Cudnn, OneTokenAndManyTokens) {
  for (int64_t tokens : {1, 2, 77}) {
    AttentionShape shape{.batch = 1, .tokens = tokens, .dim = 8};
    Problem problem(shape);
    AttentionGraph forward(cudnn, handle, shape);
    ASSERT_EQ(forward.build(), CUDNN_STATUS_SUCCESS) << fake.last_refusal();
    ASSERT_EQ(problem.run(forward), CUDNN_STATUS_SUCCESS) << fake.last_refusal();
    ASSERT_TRUE(machine.synchronize(stream));
    problem.check_forward();
  }
}

TEST_F(Cudnn, SupportFollowsTheDevice) {
  auto on = [&](int major, int minor, AttentionShape shape) {
    machine.describe_devices({.major = major, .minor = minor, .multiprocessors = 100});
    return build(shape);
  };
  AttentionShape wide{.dim = 256}, wide_backward{.dim = 256, .backward = true};
  EXPECT_EQ(on(7, 5, {}), CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH);
  for (int major : {8, 9, 10, 12}) EXPECT_EQ(on(major, 0, wide), CUDNN_STATUS_SUCCESS) << major;
  EXPECT_EQ(on(9, 0, wide_backward), CUDNN_STATUS_SUCCESS);
  for (int major : {8, 10, 12}) EXPECT_EQ(on(major, 0, wide_backward), CUDNN_STATUS_NOT_SUPPORTED_SHAPE) << major;
}

TEST_F(Cudnn, ShapesAndTypesOutsideOfAttention) {
  EXPECT_EQ(build({.dim = 12}), CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
  EXPECT_EQ(build({.dim = 264}), CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
  EXPECT_EQ(build({.type = CUDNN_DATA_FLOAT}), CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
  EXPECT_EQ(build({.heads = 4, .kv_heads = 3}), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
  cudnnBackendDescriptor_t none = nullptr;
  EXPECT_EQ(cudnn.cudnnBackendCreateDescriptor(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, &none),
            CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_NE(fake.last_refusal().find("not emulated"), std::string::npos);
}

TEST_F(Cudnn, ADecliningEngineIsPassedOver) {
  fake.decline_engines(1);
  AttentionGraph graph(cudnn, handle, {});
  ASSERT_EQ(graph.build(), CUDNN_STATUS_SUCCESS);
  EXPECT_GT(graph.workspace(), 0);
}

TEST_F(Cudnn, ExecutionChecksItsPointers) {
  AttentionShape shape{.backward = true};
  Problem problem(shape);
  AttentionGraph graph(cudnn, handle, shape);
  ASSERT_EQ(graph.build(), CUDNN_STATUS_SUCCESS);
  char* q = static_cast<char*>(problem.q.data());
  EXPECT_EQ(graph.execute({kQ}, {q}, problem.workspace.data()), CUDNN_STATUS_BAD_PARAM);
  EXPECT_NE(fake.last_refusal().find("no pointer for tensor"), std::string::npos);
  EXPECT_EQ(graph.execute({kQ, kK}, {q, q}, nullptr), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(graph.execute({kQ, kQ}, {q, q}, nullptr), CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES);
  EXPECT_EQ(graph.execute({kDO, kQ}, {q + 8, q + 8}, nullptr), CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
  EXPECT_EQ(graph.execute({kDO, kQ}, {nullptr, nullptr}, nullptr), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  problem.workspace = Values();
  EXPECT_EQ(problem.run(graph), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);  // no workspace
  EXPECT_EQ(machine.pending(stream), 0u);
}

TEST_F(Cudnn, PlannedFailuresAndStreams) {
  machine.fail_next("cudnnBackendExecute", 1, CUDNN_STATUS_EXECUTION_FAILED);
  Problem problem({});
  AttentionGraph graph(cudnn, handle, {});
  ASSERT_EQ(graph.build(), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(problem.run(graph), CUDNN_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(problem.run(graph), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(machine.pending(stream), 1u);  // queued, not computed
  EXPECT_TRUE(machine.synchronize(stream));
  EXPECT_EQ(cudnn.cudnnSetStream(nullptr, stream), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(cudnn.cudnnSetStream(handle, reinterpret_cast<cudaStream_t>(0x77)), CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH);
}

// Wrong use of tensor descriptors, status for status as the installed library (none of this needs a GPU).
TEST_F(Cudnn, DescriptorsAnswerAsTheRealLibrary) {
  athanor::CudnnTable real;
  try {
    real = athanor::open_cudnn(athanor::search_places({})).call;
  } catch (const athanor::Error& error) {
    GTEST_SKIP() << error.what();
  }
  std::vector<cudnnStatus_t> answers[2];
  for (int i : {0, 1}) {
    const athanor::CudnnTable& t = i ? real : cudnn;
    auto note = [&](cudnnStatus_t status) { answers[i].push_back(status); };
    cudnnBackendDescriptor_t d = nullptr;
    int64_t dims[] = {2, 4, 8, 64}, strides[] = {2048, 512, 64, 1}, id = 1, alignment = 3, count;
    cudnnDataType_t type = CUDNN_DATA_BFLOAT16;
    note(t.cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &d));
    note(t.cudnnBackendFinalize(d));
    note(t.cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_INT64, 1, &id));
    for (int64_t wrong : {0, 2})
      note(t.cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, wrong, &type));
    note(t.cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, nullptr));
    note(t.cudnnBackendSetAttribute(d, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    note(t.cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    note(t.cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims));
    note(t.cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 3, strides));
    note(t.cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id));
    note(t.cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment));
    note(t.cudnnBackendFinalize(d));  // three strides, alignment 3
    note(t.cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides));
    note(t.cudnnBackendFinalize(d));  // alignment 3
    note(t.cudnnBackendGetAttribute(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &count, &id));
    alignment = 16;
    note(t.cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment));
    note(t.cudnnBackendFinalize(d));
    note(t.cudnnBackendFinalize(d));  // twice
    note(t.cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id));
    note(t.cudnnBackendGetAttribute(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &count, &id));
    note(t.cudnnBackendDestroyDescriptor(d));
  }
  EXPECT_EQ(answers[0], answers[1]);
}

}  // namespace
}  // namespace emu::fakes
