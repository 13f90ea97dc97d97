// The kernels of cuda/embedding.cu and cuda/index_sort.cu run the op cases, and difficult sums by token: runs of one
// token over many blocks, both ends of the vocabulary, several radix passes.
#include <numeric>

#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class EmbeddingKernels : public KernelTest {};

TEST_F(EmbeddingKernels, AcceptsAnyAlignment) {
  for (const char* op : {EmbeddingFwd::kName, EmbeddingBwd::kName}) needs_no_alignment(op, vocab_part_cases, 5);
  for (const char* op : {EmbeddingFwd::kName, EmbeddingBwd::kName, GatherRows::kName, ScatterRows::kName})
    needs_no_alignment(op, embedding_cases, 7);
}

void examine_tokens(const std::string& name, int64_t vocab, int64_t columns, const std::vector<double>& tokens,
                    const VocabPart& part = {}) {
  Examiner examine(make_cuda_backend, {.threads = {1, 2}});
  const int64_t n = int64_t(tokens.size());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    OpCase<EmbeddingBwd> c{cat(name, " ", dtype),
                           {.dwte = tensor(DType::f32, {vocab, columns}),
                            .dy = tensor(dtype, {n, columns}),
                            .tokens = tensor(DType::i32, {n}),
                            .part = part}};
    c.values["tokens"] = listed(tokens);
    examine(c);
  }
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

TEST_F(EmbeddingKernels, OneTokenMatchesReference) { examine_tokens("one", 3, 8, std::vector<double>(300, 2)); }

TEST_F(EmbeddingKernels, FrequentAndRareTokensMatchReference) {
  std::vector<double> tokens;  // token 0 more than half of the time; runs that end at a block's edge and near it
  for (int i = 0; i < 400; ++i) tokens.push_back(i % 2 ? 0 : 1 + i % 16 * (i % 3) / 2);
  examine_tokens("frequent", 40, 40, tokens);
}

// Runs that belong entirely to another rank, or end with its tokens; also no runs, and all.
TEST_F(EmbeddingKernels, VocabularyPartsSkipTokensOfOtherRanks) {
  std::vector<double> tokens;
  for (int i = 0; i < 100; ++i) tokens.push_back(i % 3 ? 100 + i % 2 : i % 8);
  for (const auto& [first, count] : {std::pair{0, 8}, {3, 5}, {100, 40}, {101, 1}, {60, 40}, {0, 140}})
    examine_tokens(cat("part from ", first), std::max(count, 40), 40, tokens, {first, count, 140});
}

// Positions need one radix digit, tokens two shorter ones: tokens need the larger scratch memory.
TEST_F(EmbeddingKernels, ScratchCoversLongerDigitsOfPositions) {
  constexpr int64_t kRows = 70, kColumns = 8;
  Examiner examine(make_cuda_backend, {.threads = {2}});
  OpCase<EmbeddingBwd> c{"positions",
                         {.dwte = tensor(DType::f32, {600, kColumns}),
                          .dwpe = tensor(DType::f32, {300, kColumns}),
                          .dy = tensor(DType::f32, {kRows, kColumns}),
                          .tokens = tensor(DType::i32, {kRows}),
                          .positions = tensor(DType::i32, {kRows})}};
  c.values = {{"tokens", below(600)}, {"positions", constant(299)}};
  examine(c);
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

// 2^17 rows: two passes of nine bits. Tokens at both ends, and neighbours that differ in a single digit.
TEST_F(EmbeddingKernels, EndsOfALargeVocabularyMatchReference) {
  std::vector<double> tokens;
  for (int i = 0; i < 70; ++i)
    for (const double t : {131071, 0, 511, 512, 130560, 1}) tokens.push_back(t);
  examine_tokens("large", 131072, 1, tokens);
}

// More rows than one tile of the sort. Sums are in row order: bit-identical to sequential sums.
TEST_F(EmbeddingKernels, SumsAreInRowOrder) {
  constexpr int64_t kRows = 4500, kVocab = 600;
  OpCase<EmbeddingBwd> c{"order",
                         {.dwte = tensor(DType::f32, {kVocab, 1}),
                          .dy = tensor(DType::f32, {kRows, 1}),
                          .tokens = tensor(DType::i32, {kRows})}};
  c.values["tokens"] = below(kVocab);
  c.values["dwte"] = constant(0);
  c.values["dy"] = [](uint64_t, int64_t i) { return i % 5 == 4 ? 1e7 : 1 + double(i % 7) / 8; };
  Examiner examine(make_cuda_backend, {.threads = {2}});
  const auto results = examine.backend_results(c);
  const auto got = decoded(DType::f32, result(results, "dwte").after);
  const auto tokens = result(results, "tokens").before;
  const auto dy = decoded(DType::f32, result(results, "dy").before);
  const auto* token = reinterpret_cast<const int32_t*>(tokens.data());
  int at_most_a_block = 0;
  for (int64_t t = 0; t < kVocab; ++t) {
    float sum = 0, terms = 0;
    for (int64_t i = 0; i < kRows; ++i)
      if (token[i] == t) sum += float(dy[size_t(i)]), ++terms;
    ASSERT_NEAR(got[size_t(t)], sum, 4 + 1e-6 * sum) << t;  // where a block boundary splits the sum
    at_most_a_block += got[size_t(t)] == double(sum);
  }
  EXPECT_GT(at_most_a_block, kVocab / 3);  // a sum of about eight rows is mostly within one block
}

#ifdef ATHANOR_EMULATED_GPU
TEST(EmbeddingKernelsBudget, AccessesAreCoalesced) {
  const AccessBudget budget;
  std::vector<int32_t> rows(64);
  for (int i = 0; i < 64; ++i) rows[size_t(i)] = i % 3 ? 7 : i * 37 % 64;
  const Tensor index = budget.indices(rows), y = budget.tensor(DType::bf16, {64, 256});
  const Tensor wte = budget.tensor(DType::bf16, {64, 256});
  EXPECT_EQ(budget.check(EmbeddingFwd{.y = y, .tokens = index, .wte = wte},
                         EmbeddingFwd{.y = y, .tokens = index, .positions = index, .wte = wte, .wpe = wte},
                         EmbeddingFwd{.y = y, .tokens = index, .wte = wte, .part = {0, 64, 128}},
                         EmbeddingBwd{.dwte = budget.tensor(DType::f32, {64, 256}), .dy = y, .tokens = index}),
            "");
}
#endif
}  // namespace
}  // namespace athanor
