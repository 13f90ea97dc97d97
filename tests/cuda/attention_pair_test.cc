// Compares the two attention implementations of the CUDA backend, cuDNN's and the program's own, forward and backward,
// on the same inputs. Dense: sequences of one length. Packed: documents of different lengths in a sequence. Windows:
// both. On a GPU all lengths up to 16k, on the emulated one short ones.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "cuda/attention/cudnn_attention.h"
#include "cuda/libraries/open.h"
#include "cuda/libraries/specs.h"
#include "ops/compare.h"
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

#ifdef ATHANOR_EMULATED_GPU
constexpr int64_t kHeadSizes[] = {64, 80}, kLengths[] = {1, 37}, kGroups[] = {1, 4};
constexpr int64_t kWindows[] = {5};
const std::vector<std::vector<int>> kDocuments = {{20, 1, 12}};
#else
constexpr int64_t kHeadSizes[] = {64, 80, 96, 128, 256}, kGroups[] = {1, 4, 8};
constexpr int64_t kLengths[] = {1, 2, 17, 128, 1000, 1024, 2048, 4096, 8192, 16384};
constexpr int64_t kWindows[] = {127, 1024};
const std::vector<std::vector<int>> kDocuments = {{1000, 1, 23}, {4096, 64, 700, 2048, 8192}, {16384, 1}};
#endif

struct Problem {
  std::vector<int> documents;  // lengths of consecutive documents
  int64_t group, head_dim, window = 0;
  DType dtype = DType::bf16;
  int64_t rows() const { return std::accumulate(documents.begin(), documents.end(), int64_t{0}); }
  std::string name() const {
    return cat(documents.size(), " documents of ", rows(), " rows together, 8/", 8 / group, "x", head_dim,
               window > 0 ? cat(", a window of ", window) : "");
  }
};

// All tensors of a forward and a backward pass. Q, K and V are packed in one tensor, as in the model.
class Pair {
 public:
  Pair(TestBackend& backend, const Problem& p) : backend_(backend), p_(p) {
    const int64_t n = p.rows(), qc = kHeads * p.head_dim, kc = qc / p.group, packed = qc + 2 * kc;
    const auto rows = [&](int64_t cols, int64_t stride = 0) { return allocate(p.dtype, {n, cols}, stride); };
    const Tensor qkv = rows(packed), dqkv = rows(packed);
    fwd_ = {.y = rows(qc),
            .lse = allocate(DType::f32, {n, kHeads}),
            .q = part(qkv, 0, qc),
            .k = part(qkv, qc, kc),
            .v = part(qkv, qc + kc, kc),
            .spans = allocate(DType::i32, {int64_t(p.documents.size()), kSpanWords}),
            .shape = {kHeads, kHeads / p.group, p.head_dim, p.window, float(1 / std::sqrt(double(p.head_dim)))}};
    bwd_ = {.dq = part(dqkv, 0, qc),
            .dk = part(dqkv, qc, kc),
            .dv = part(dqkv, qc + kc, kc),
            .dy = rows(qc),
            .y = fwd_.y,
            .lse = fwd_.lse,
            .q = fwd_.q,
            .k = fwd_.k,
            .v = fwd_.v,
            .spans = fwd_.spans,
            .shape = fwd_.shape};
    for (const Tensor& t : {qkv, bwd_.dy})
      backend_.ops->run(RandomNormal{.x = t.view({t.numel()}), .seed = ++seed_}, nullptr);
    std::vector<Span> spans;
    int row = 0;
    for (const int length : p_.documents) spans.push_back({row, length, row, length, 0, 0}), row += length;
    backend_.device->copy(fwd_.spans.data, spans.data(), spans.size() * sizeof(Span), Stream::compute);
    backend_.device->sync();
  }
  ~Pair() {
    for (const auto& [memory, bytes] : memory_) backend_.device->release(memory, bytes, Mem::device);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  // Results of one implementation, on the host: y, lse, dq, dk, dv.
  using Results = std::vector<std::vector<std::byte>>;
  Results own() {
    backend_.ops->run(fwd_, nullptr);
    backend_.ops->run(bwd_, scratch(backend_.ops->scratch(bwd_)));
    return results();
  }
  // Returns empty results if cuDNN does not support the problem; `why` gets the reason.
  Results cudnn(std::string& why) {
    const auto& all = p_.documents;
    const bool alike = std::equal(all.begin() + 1, all.end(), all.begin());
    cuda::CudnnAttention attention(library(), nullptr, {.tokens = alike ? all[0] : p_.rows(), .documents = !alike});
    if (!attention.supports(fwd_, &why) || !attention.supports(bwd_, &why)) return {};
    attention.run(fwd_, scratch(attention.scratch(fwd_)));
    attention.run(bwd_, scratch(attention.scratch(bwd_)));
    return results();
  }
  void expect_near(const Results& own, const Results& cudnn) const {
    const char* names[] = {"y", "lse", "dq", "dk", "dv"};
    const std::array<Tensor, 5> outputs = {fwd_.y, fwd_.lse, bwd_.dq, bwd_.dk, bwd_.dv};
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (p_.rows() == int64_t(p_.documents.size()) && names[i][0] == 'd' && names[i][1] != 'v') {
        // One key per query: scores have no effect, so dQ and dK are rounding errors of zero.
        for (const auto* side : {&own[i], &cudnn[i]})
          for (const double x : decoded(p_.dtype, *side))
            EXPECT_LT(std::abs(x), kZero) << p_.name() << ": " << names[i];
        continue;
      }
      Tensor a = outputs[i], b = outputs[i];
      a.data = const_cast<std::byte*>(own[i].data()), b.data = const_cast<std::byte*>(cudnn[i].data());
      a.row_stride = b.row_stride = 0;
      const Tolerance t = tolerance_of(p_.dtype);  // tolerance of each from the exact result; the two may differ by
                                                   // twice that
      const athanor::Difference d = compare(a, b);
      EXPECT_TRUE(d.within({4 * t.nmse, 2 * t.peak}))
          << p_.name() << ", seed " << seed_ << ": " << names[i] << " nmse " << d.nmse << ", peak " << d.peak
          << "; worst is element " << d.at << ": own " << d.got << ", cuDNN " << d.want;
    }
  }

 private:
  static constexpr int64_t kHeads = 8;
  static constexpr double kZero = 1e-3;  // for inputs of size 1
  static const CudnnTable& library() {
    static const CudnnTable table = open_cudnn(search_places(library_specs())).call;
    return table;
  }
  Tensor allocate(DType dtype, const Shape& shape, int64_t stride = 0) {
    Tensor t{nullptr, dtype, shape, stride};
    t.data = hold(t.bytes());
    return t;
  }
  void* hold(size_t bytes) {
    void* memory = backend_.device->allocate(bytes, Mem::device);
    memory_.emplace_back(memory, bytes);
    return memory;
  }
  void* scratch(size_t bytes) { return bytes > 0 ? hold(bytes) : nullptr; }
  static Tensor part(const Tensor& whole, int64_t first, int64_t cols) {
    Tensor t{whole.at(first), whole.dtype, {whole.rows(), cols}, whole.cols()};
    return t;
  }
  Results results() {
    backend_.device->sync();
    Results out;
    for (const Tensor& t : {fwd_.y, fwd_.lse, bwd_.dq, bwd_.dk, bwd_.dv}) {
      const size_t row = size_t(t.cols()) * size_of(t.dtype), stride = size_t(t.stride()) * size_of(t.dtype);
      std::vector<std::byte> all(stride * size_t(t.rows() - 1) + row), packed(row * size_t(t.rows()));
      backend_.device->copy(all.data(), t.data, all.size(), Stream::compute);
      for (int64_t r = 0; r < t.rows(); ++r)
        std::memcpy(packed.data() + size_t(r) * row, all.data() + size_t(r) * stride, row);
      out.push_back(std::move(packed));
    }
    return out;
  }

  TestBackend& backend_;
  Problem p_;
  uint64_t seed_ = 0;
  AttentionFwd fwd_;
  AttentionBwd bwd_;
  std::vector<std::pair<void*, size_t>> memory_;
};

class AttentionPair : public KernelTest {
 protected:
  // Checks that every problem is either compared, or unsupported by cuDNN on this GPU.
  void compare_all(const std::vector<Problem>& problems) {
    TestBackend backend = make_cuda_backend(2);
    std::string left;
    int compared = 0;
    for (const Problem& p : problems) {
      Pair pair(backend, p);
      std::string why;
      const auto cudnn = pair.cudnn(why);
      if (cudnn.empty()) {
        left += cat("\n  ", p.name(), ": ", why);
        continue;
      }
      pair.expect_near(pair.own(), cudnn);
      ++compared;
    }
    RecordProperty("compared", compared);
    RecordProperty("left_to_own_kernels", left);
    EXPECT_GE(compared, int(problems.size()) / 2) << "cuDNN takes few of them:" << left;
  }
};

TEST_F(AttentionPair, MatchesCudnnOnDenseSequences) {
  std::vector<Problem> problems;
  for (const int64_t head_dim : kHeadSizes)
    for (const int64_t group : kGroups)
      for (const int64_t length : kLengths)
        problems.push_back({std::vector<int>(length < 4096 ? 2 : 1, int(length)), group, head_dim});
  compare_all(problems);
}

TEST_F(AttentionPair, MatchesCudnnOnPackedDocuments) {
  std::vector<Problem> problems;
  for (const int64_t head_dim : kHeadSizes)
    for (const int64_t group : kGroups)
      for (const auto& documents : kDocuments) problems.push_back({documents, group, head_dim});
  compare_all(problems);
}

TEST_F(AttentionPair, MatchesCudnnOnSlidingWindows) {
  std::vector<Problem> problems;
  for (const int64_t head_dim : kHeadSizes)
    for (const int64_t window : kWindows) {
      problems.push_back({{int(kLengths[std::size(kLengths) / 2])}, 4, head_dim, window});
      problems.push_back({kDocuments[0], 4, head_dim, window});
    }
  compare_all(problems);
}

}  // namespace
}  // namespace athanor
