// Products of codes by the program's own kernel, against the reference: around its tiles, with every kind of scales,
// types and results; how sums are kept; what it takes; that a search offers it and a file brings it back. On a GPU of
// compute capability 9.0, or the emulated one.
#include "cuda/gemm/wgmma_codes.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "cuda/scratch.h"
#include "cuda/trial.h"
#include "ops/decorate.h"
#include "tests/cuda/kernel_test.h"
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/libraries/cublaslt/fake_cublaslt.h"
#include "emulator/runtime/control.h"
#endif

namespace athanor {
namespace {

constexpr int kCapability = 90;
constexpr Blocks kMatrix{}, kRow{1, 0}, kRow128{1, 128}, kSquare{128, 128};

// The problem whose choice decides how the op is computed on a GPU of compute capability 9.0.
GemmProblem problem_of_codes(const ScaledGemm& op) {
  const cuda::NativeProduct native(op, kCapability);
  CHECK(native.possible, "the library has no such product");
  Gemm g = op.product;
  const int64_t m = g.m(), n = g.n(), k = g.k();
  if (g.ta) g.a = {nullptr, g.a.dtype, {m, k}};
  if (!g.tb) g.b = {nullptr, g.b.dtype, {n, k}};
  g.ta = false, g.tb = true;
  GemmProblem p = problem_of(g);
  if (!g.a.data) p.align_a = kMostAlign;
  if (!g.b.data) p.align_b = kMostAlign;
  p.scales_a = native.a, p.scales_b = native.b;
  p.fast = op.fast;
  return p;
}

// Has products of codes computed by the kernel, as a file of choices that says so; and looks whether SwiGLU, and its
// largest magnitude, are what the separate op makes of the stored z.
class OwnCodes final : public Decorated<OwnCodes> {
 public:
  OwnCodes(TestBackend backend, int threads) : backend_(std::move(backend)), threads_(threads) {}
  const Ops& inner() const { return *backend_.ops; }
  template <class Op>
  void on(const Op& op, void* scratch) {
    if constexpr (std::is_same_v<Op, ScaledGemm>) {
      const GemmProblem p = problem_of_codes(op);
      CHECK(cuda::wgmma_takes_codes(p, kCapability), "the kernel refuses ", p);
      const auto own = make_gemm_runner();
      const std::string choices = to_json(own->key(), {{cat(p), {.algorithm = {}, .microseconds = 1, .own = true}}});
      CHECK(own->import_choices(choices).empty(), "the choices are not taken");
#ifdef ATHANOR_EMULATED_GPU
      static uint64_t seed = 0;
      emu::seed(++seed);
      emu::set_threads(threads_);
#endif
      const cuda::DeviceMemory room(own->scratch(op));
      own->run(op, room.data(), nullptr);
      CUDA_CHECK(cudaDeviceSynchronize());
      if (own->export_choices() != choices) throw Error("the product was of another problem: " + own->export_choices());
      if (op.product.epilogue == Epilogue::swiglu) compare(op);
    } else {
      backend_.ops->run(op, scratch);
    }
  }

 private:
  std::vector<std::byte> read(const Tensor& t) {
    backend_.device->sync();
    std::vector<std::byte> bytes(t.bytes());
    backend_.device->copy(bytes.data(), t.data, bytes.size(), Lane::compute);
    return bytes;
  }
  void compare(const ScaledGemm& op) {
    SwigluFwd apart{.y = op.product.aux, .gu = op.product.d, .amax = op.amax};
    const cuda::DeviceMemory y(apart.y.bytes()), amax(sizeof(float));
    apart.y.data = y.data();
    if (apart.amax) apart.amax.data = amax.data();
    backend_.ops->run(apart, nullptr);
    if (read(apart.y) != read(op.product.aux)) throw Error("y is not SwiGLU of the z that was stored, to the bit");
    if (op.amax && read(apart.amax) != read(op.amax)) throw Error("amax is not the largest magnitude of y");
  }
  TestBackend backend_;
  int threads_;
};

struct Codes {
  int64_t m = 16, n = 16, k = 16;
  Blocks a_blocks = kMatrix, b_blocks = kMatrix;  // as if the terms were in the rows
  DType d = DType::bf16, a = DType::f8_e4m3, b = DType::f8_e4m3;
  bool ta = false, tb = true, accumulate = false, fast = false, bias = false, add = false;
  bool swiglu = false, amax = false;
};

OpCase<ScaledGemm> product(const Codes& c, const Init& a_scales = uniform(0.001, 0.01)) {
  const Shape a = c.ta ? Shape{c.k, c.m} : Shape{c.m, c.k}, b = c.tb ? Shape{c.n, c.k} : Shape{c.k, c.n};
  ScaledGemm op{
      .product = {.d = tensor(c.d, {c.m, c.n}), .a = tensor(c.a, a), .b = tensor(c.b, b), .ta = c.ta, .tb = c.tb},
      .a_blocks = c.ta ? turned(c.a_blocks) : c.a_blocks,
      .b_blocks = c.tb ? c.b_blocks : turned(c.b_blocks),
      .fast = c.fast};
  op.a_scales = tensor(DType::f32, op.a_blocks.grid(a));
  op.b_scales = tensor(DType::f32, op.b_blocks.grid(b));
  op.product.accumulate = c.accumulate;
  if (c.bias) op.product.bias = tensor(c.d, {c.n});
  if (c.add) op.product.epilogue = Epilogue::add, op.product.aux = op.product.d;
  if (c.swiglu) op.product.epilogue = Epilogue::swiglu, op.product.aux = tensor(c.d, {c.m, c.n / 2});
  if (c.amax) op.amax = tensor(DType::f32, {1});
  return {cat(c.m, "x", c.n, "x", c.k, " of ", c.a, " ", c.b, " by ", c.a_blocks.rows, "x", c.a_blocks.cols, " ",
              c.b_blocks.rows, "x", c.b_blocks.cols, " ", c.d, c.accumulate ? " accumulate" : "", c.fast ? " fast" : "",
              c.bias ? " bias" : "", c.add ? " add" : "", c.swiglu ? " swiglu" : "", c.amax ? " amax" : "",
              c.ta ? " ta" : "", c.tb ? " tb" : ""),
          op,
          {{"a_scales", a_scales}, {"b_scales", uniform(0.001, 0.01)}}};
}

TestBackend own_backend(int threads) {
  const TestBackend backend = make_cuda_backend(threads);
  return {backend.device, std::make_shared<OwnCodes>(backend, threads)};
}

class WgmmaCodes : public KernelTest {
 protected:
  static void agree(const std::vector<Codes>& all, const Init& a_scales = uniform(0.001, 0.01)) {
    Examiner examine(own_backend, {.threads = {2}});
    for (const Codes& c : all) examine(product(c, a_scales));
    EXPECT_TRUE(examine.findings().empty()) << examine.report();
  }
};

// The kinds of scales that the kernel tells apart: those of a and of b.
constexpr std::pair<Blocks, Blocks> kKinds[] = {{kMatrix, kMatrix}, {kRow, kRow},       {kMatrix, kRow},
                                                {kRow, kMatrix},    {kRow128, kSquare}, {kRow128, kRow128}};

// Every kind with every result, in all orders in memory and pairs of types.
TEST_F(WgmmaCodes, ScalesResultsAndTypes) {
  std::vector<Codes> all;
  int number = 0;
  for (const auto& [a, b] : kKinds)
    for (const bool fast : {false, true}) {
      if (fast && a == kRow128) continue;
      for (int result = 0; result < 6; ++result, ++number) {
        Codes c{.m = 48, .n = 80, .k = 144, .a_blocks = a, .b_blocks = b, .fast = fast};
        c.d = result < 3 ? DType::bf16 : DType::f32;
        c.bias = result == 1 || result == 2;
        c.add = result == 2 || result == 5;
        c.accumulate = result == 4;
        c.ta = number & 1, c.tb = number % 3 != 0;
        if (number % 5 == 1) c.a = DType::f8_e5m2;
        if (number % 5 == 3) c.b = DType::f8_e5m2;
        all.push_back(c);
      }
    }
  agree(all);
}

// Around rows of a warp, of half a warpgroup, of a tile; columns of a tile, and of a cluster's two; steps along k, and
// the slots of the ring.
TEST_F(WgmmaCodes, SizesAroundTiles) {
  std::vector<Codes> all{{.m = 16, .n = 16, .k = 16},    {.m = 80, .n = 144, .k = 128},  {.m = 144, .n = 64, .k = 272},
                         {.m = 256, .n = 128, .k = 112}, {.m = 272, .n = 272, .k = 144}, {.m = 64, .n = 16, .k = 656},
                         {.m = 208, .n = 160, .k = 528}};
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& kind = kKinds[i % 3 ? 3 + i % 3 : 1];
    all[i].a_blocks = kind.first, all[i].b_blocks = kind.second;
    all[i].d = i % 2 ? DType::f32 : DType::bf16;
    all[i].fast = i == 0;
  }
  all.push_back({.m = 272, .n = 144, .k = 656, .a_blocks = kRow128, .b_blocks = kSquare, .d = DType::f32});
  all.push_back({.m = 64, .n = 272, .k = 656, .a_blocks = kRow128, .b_blocks = kRow128, .accumulate = false});
  all.push_back({.m = 64, .n = 32, .k = 656, .fast = true});
  agree(all);
}

// Gates and ups around tiles of 64 columns each, whose scales lie in other squares.
TEST_F(WgmmaCodes, Swiglu) {
  const auto gated = [](int64_t m, int64_t half, int64_t k, const std::pair<Blocks, Blocks>& kind) {
    const bool squares = kind.second == kSquare;
    return Codes{.m = m,
                 .n = 2 * half,
                 .k = k,
                 .a_blocks = kind.first,
                 .b_blocks = kind.second,
                 .fast = !squares,
                 .swiglu = true,
                 .amax = half % 128 != 0};
  };
  const auto &matrix = kKinds[0], &rows = kKinds[1], &squares = kKinds[4];
  // z of about 1, so that y depends on all of silu.
  agree({gated(16, 16, 16, matrix), gated(80, 80, 144, rows), gated(272, 144, 128, matrix), gated(64, 48, 656, rows),
         gated(144, 128, 272, rows), gated(256, 64, 112, squares), gated(272, 192, 272, squares),
         gated(48, 320, 656, squares)},
        uniform(0.1, 1));
}

// What is not finite in a matrix reaches all results of its block.
TEST_F(WgmmaCodes, NaNScalesReachResults) {
  const Init some = listed({0.01, 0.02, std::numeric_limits<double>::quiet_NaN(), 0.01, 0.005, 0.01, 0.02});
  std::vector<Codes> all;
  for (const auto& [a, b] : kKinds)
    if (!(a == kMatrix)) all.push_back({.m = 32, .n = 16, .k = 272, .a_blocks = a, .b_blocks = b});
  Codes gated{.m = 32, .n = 32, .k = 272, .a_blocks = kRow, .b_blocks = kRow, .fast = true};
  gated.swiglu = gated.amax = true;
  all.push_back(gated);
  agree(all, some);
  agree({{.d = DType::f32, .accumulate = true}}, constant(std::numeric_limits<double>::quiet_NaN()));
}

#ifdef ATHANOR_EMULATED_GPU
// Few multiprocessors: the pair of blocks takes several tiles, in several bands.
TEST_F(WgmmaCodes, MoreTilesThanBlocks) {
  emu::GpuModel small = emu::gpu_h200();
  small.multiprocessors = 3;
  emu::simulate({small});
  agree({{.m = 272, .n = 272, .k = 144, .a_blocks = kRow128, .b_blocks = kRow128},
         {.m = 2064, .n = 272, .k = 16, .a_blocks = kRow, .b_blocks = kRow, .fast = true},
         {.m = 272, .n = 272, .k = 144, .a_blocks = kRow128, .b_blocks = kSquare, .d = DType::f32, .accumulate = true},
         {.m = 2064, .n = 288, .k = 16, .fast = true, .swiglu = true, .amax = true}});
  emu::simulate({emu::gpu_h200()});
}

// The largest relative difference of results from the reference, where tensor cores keep 14 bits of sums.
double worst_of(const Codes& c) {
  emu::GpuModel few = emu::gpu_h200();
  few.code_sum_bits = 14;
  emu::simulate({few});
  double worst = 0;
  {
    Examiner examine(own_backend, {.threads = {1}});
    OpCase<ScaledGemm> one = product(c);
    one.values["a"] = one.values["b"] = uniform(0.5, 1);
    const std::vector<Result> got = examine.backend_results(one), want = examine.reference_results(one);
    const std::vector<double> x = decoded(c.d, got[0].after), y = decoded(c.d, want[0].after);
    for (size_t i = 0; i < y.size(); ++i) worst = std::max(worst, std::abs(x[i] / y[i] - 1));
  }
  emu::simulate({emu::gpu_h200()});
  return worst;
}

// Sums of 128 terms are four additions of 32, each within 2^-13; fast ones grow with their errors.
TEST_F(WgmmaCodes, SumsArePromotedEvery128Terms) {
  Codes c{.k = 4096, .d = DType::f32};
  for (const auto& [a, b] : {kKinds[1], kKinds[4], kKinds[5]}) {
    c.a_blocks = a, c.b_blocks = b;
    EXPECT_LT(worst_of(c), 4 * 0x1p-13);
  }
  c.a_blocks = c.b_blocks = kRow, c.fast = true;
  EXPECT_GT(worst_of(c), 8 * 0x1p-13);
}
#endif

// By the op and the GPU alone.
TEST_F(WgmmaCodes, WhatItTakes) {
  const auto takes = [](const Codes& c, int capability = kCapability) {
    ScaledGemm op = product(c).op;
    GemmProblem p = problem_of_codes(op);
    p.align_a = p.align_b = p.align_d = kMostAlign;
    return cuda::wgmma_takes_codes(p, capability);
  };
  for (const auto& [a, b] : kKinds) EXPECT_TRUE(takes({.a_blocks = a, .b_blocks = b}));
  for (const int other : {80, 89, 100, 120}) EXPECT_FALSE(takes({}, other)) << other;
  EXPECT_FALSE(takes({.a_blocks = kSquare, .b_blocks = kRow128}));  // no recipe has it
  EXPECT_FALSE(takes({.d = DType::f16}));
  GemmProblem p = problem_of_codes(product({}).op);
  p.align_a = p.align_b = p.align_d = kMostAlign;
  EXPECT_TRUE(cuda::wgmma_takes_codes(p, kCapability));
  const auto without = [&](auto change) {
    GemmProblem other = p;
    change(other);
    return cuda::wgmma_takes_codes(other, kCapability);
  };
  EXPECT_FALSE(without([](GemmProblem& q) { q.m = 8; }));
  EXPECT_FALSE(without([](GemmProblem& q) { q.stride_d = 24; }));
  EXPECT_FALSE(without([](GemmProblem& q) { q.align_d = 8; }));
  EXPECT_FALSE(without([](GemmProblem& q) { q.a = q.b = DType::f8_e5m2; }));
  EXPECT_FALSE(without([](GemmProblem& q) { q.epilogue = Epilogue::gelu; }));
  EXPECT_FALSE(without([](GemmProblem& q) { q.accumulate = true; }));  // in bf16
  EXPECT_FALSE(without([](GemmProblem& q) { q.d = DType::f32, q.bias = true; }));

  const auto fuses = [](const Codes& c, int capability = kCapability) {
    return cuda::own_codes_fuse(product(c).op, capability);
  };
  const Codes gated{.n = 32, .fast = true, .swiglu = true}, squares{.n = 128, .a_blocks = kRow128, .b_blocks = kSquare};
  EXPECT_TRUE(fuses(gated));
  for (const int other : {80, 89, 100, 120}) EXPECT_FALSE(fuses(gated, other)) << other;
  const auto without_of = [&](Codes c, auto change) {
    change(c);
    return fuses(c);
  };
  EXPECT_FALSE(without_of(gated, [](Codes& c) { c.swiglu = false; }));
  EXPECT_FALSE(without_of(gated, [](Codes& c) { c.fast = false; }));
  EXPECT_FALSE(without_of(gated, [](Codes& c) { c.n = 48; }));
  EXPECT_FALSE(without_of(gated, [](Codes& c) { c.bias = true; }));
  EXPECT_FALSE(without_of(gated, [](Codes& c) { c.b = DType::f8_e5m2; }));
  EXPECT_TRUE(without_of(squares, [](Codes& c) { c.swiglu = true; }));
  EXPECT_FALSE(without_of(squares, [](Codes& c) { c.swiglu = true, c.n = 192; }));
  EXPECT_FALSE(without_of(squares, [](Codes& c) { c.swiglu = true, c.b_blocks = kRow128; }));
}

// An op whose tensors have memory.
ScaledGemm placed(ScaledGemm op, Device& device) {
  for (Tensor* t : {&op.product.d, &op.product.a, &op.product.b, &op.a_scales, &op.b_scales})
    t->data = device.allocate(t->bytes(), Mem::device);
  return op;
}

#ifdef ATHANOR_EMULATED_GPU
// The search offers it beside the library, keeps the faster one, and a file brings it back.
TEST_F(WgmmaCodes, SearchAndFile) {
  const TestBackend backend = make_cuda_backend(1);
  const ScaledGemm op = placed(product({.m = 32, .n = 48, .k = 64}).op, *backend.device);
  auto& fake = emu::fakes::Installed<emu::fakes::FakeCublasLt>::get();
  std::string text;
  for (const bool faster : {true, false}) {
    const auto one = make_gemm_runner(), two = make_gemm_runner();
    fake.set_time([&](const cublasLtMatmulAlgo_t&, uint32_t) { return faster ? 1e6 : 1e-3; });
    const auto report = one->search({}, 600, nullptr, {&op, 1});
    const ProductTime time = one->time(op, nullptr);
    fake.set_time(nullptr);
    EXPECT_EQ(report.codes, 1);
    EXPECT_EQ(report.own_codes, faster);
    EXPECT_EQ(one->export_choices().find("\"own\": true") != std::string::npos, faster);
    EXPECT_EQ(time.method.words == cuda::wgmma_codes_method().words, faster) << time.method.words;
    EXPECT_EQ(two->import_choices(one->export_choices()), "");
    const cuda::DeviceMemory scratch(two->scratch(op));
    std::string launched;
    emu::tell_launches([&](const std::string& kernel, const auto&) { launched += kernel; });  // and runs none
    two->run(op, scratch.data(), nullptr);
    emu::tell_launches({});
    EXPECT_EQ(launched.find("codes_wgmma<") != std::string::npos, faster) << launched;
    EXPECT_EQ(two->export_choices(), one->export_choices());
  }
}
#endif

// Before a search, products are the library's first answer, as ever.
TEST_F(WgmmaCodes, NotWithoutASearch) {
  const TestBackend backend = make_cuda_backend(1);
  const ScaledGemm op = placed(product({}).op, *backend.device);
  const auto runner = make_gemm_runner();
  const cuda::DeviceMemory scratch(runner->scratch(op));
  runner->run(op, scratch.data(), nullptr);
  EXPECT_EQ(runner->export_choices().find("\"own\""), std::string::npos);
  EXPECT_NE(runner->export_choices().find("\"algorithm\""), std::string::npos);
}

TEST_F(WgmmaCodes, AFileCannotAskItForWhatItHasNot) {
  const TestBackend backend = make_cuda_backend(1);
  const ScaledGemm op = placed(product({.a_blocks = kSquare, .b_blocks = kRow128}).op, *backend.device);
  const auto runner = make_gemm_runner();
  const std::string words = cat(problem_of_codes(op));
  EXPECT_EQ(runner->import_choices(to_json(runner->key(), {{words, {.algorithm = {}, .own = true}}})), "");
  const cuda::DeviceMemory scratch(runner->scratch(op));
  try {
    runner->run(op, scratch.data(), nullptr);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("is not usable"));
    EXPECT_THAT(e.what(), testing::HasSubstr("delete the file"));
  }
}

}  // namespace
}  // namespace athanor
