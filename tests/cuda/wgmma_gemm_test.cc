// GEMMs by the program's own WGMMA kernel around its tile sizes, compared with the reference, and bit for bit with the
// separate SwiGLU kernel; and its supported shapes. On a GPU of compute capability 9.0, or the emulated one.
#include "cuda/gemm/wgmma_gemm.h"

#include <gmock/gmock.h>

#include <cmath>

#include "cuda/autotune.h"
#include "cuda/scratch.h"
#include "ops/decorate.h"
#include "tests/cuda/kernel_test.h"
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/runtime/control.h"
#endif

namespace athanor {
namespace {

constexpr int kCapability = 90;

// Runs GEMMs with SwiGLU with the kernel, and checks that y is what the separate op computes from the stored z. For its
// gradient, and with RoPE, checks all results against the library's GEMM followed by the separate op, with sums that
// need no rounding.
class OwnGemms final : public Decorated<OwnGemms> {
 public:
  explicit OwnGemms(TestBackend backend) : backend_(std::move(backend)) {}
  const Ops& inner() const { return *backend_.ops; }
  template <class Op>
  void on(const Op& op, void* scratch) {
    if constexpr (std::is_same_v<Op, Gemm>) {
      CHECK(cuda::wgmma_takes(problem_of(op), kCapability), "the kernel refuses ", problem_of(op));
      const bool backward = op.epilogue == Epilogue::swiglu_gradient;
      const std::vector<std::byte> before = backward ? read(op.aux) : std::vector<std::byte>();
      next_schedule();
      cuda::run_by_wgmma(op, nullptr);
      if (op.epilogue == Epilogue::rope)
        compare_rotated(op);
      else
        backward ? compare_gradient(op, before) : compare(op);
    } else {
      backend_.ops->run(op, scratch);
    }
  }

 private:
  static void next_schedule() {
#ifdef ATHANOR_EMULATED_GPU
    static uint64_t seed = 0;
    emu::seed(++seed);
#endif
  }
  std::vector<std::byte> read(const Tensor& t) {
    backend_.device->sync();
    std::vector<std::byte> bytes(t.bytes());
    backend_.device->copy(bytes.data(), t.data, bytes.size(), Stream::compute);
    return bytes;
  }
  Tensor like(const Tensor& t) {
    Tensor other = t;
    other.data = backend_.device->allocate(t.bytes(), Mem::device);
    return other;
  }
  void release(const Tensor& t) { backend_.device->release(t.data, t.bytes(), Mem::device); }
  void compare(const Gemm& op) {
    const Tensor again = like(op.aux);
    backend_.ops->run(SwigluFwd{.y = again, .gu = op.d}, nullptr);
    const auto apart = read(again);
    release(again);
    if (read(op.aux) != apart) throw Error("y is not SwiGLU of the z that was stored, to the bit");
  }
  void compare_rotated(const Gemm& op) {
    Gemm apart = op;
    apart.d = like(op.d);
    const Tensor scratch = tensor(DType::u8, {int64_t(backend_.ops->scratch(apart))});
    const Tensor memory = like(scratch);
    backend_.ops->run(apart, memory.data);
    const bool same = read(op.d) == read(apart.d);
    for (const Tensor& t : {apart.d, memory}) release(t);
    if (!same) throw Error("heads are not rotated as by the separate op, to the bit");
  }
  void compare_gradient(const Gemm& op, const std::vector<std::byte>& before) {
    Gemm apart = op;
    apart.d = like(op.d), apart.aux = like(op.aux);
    const Tensor scratch = tensor(DType::u8, {int64_t(backend_.ops->scratch(apart))});
    const Tensor memory = like(scratch);
    backend_.device->copy(apart.aux.data, before.data(), before.size(), Stream::compute);
    backend_.ops->run(apart, memory.data);
    const bool same_y = read(op.d) == read(apart.d), same = read(op.aux) == read(apart.aux);
    for (const Tensor& t : {apart.d, apart.aux, memory}) release(t);
    if (!same_y) throw Error("y is not SwiGLU of gate and up, to the bit");
    if (!same) throw Error("the gradient of gate and up is not that of the separate op, to the bit");
  }
  TestBackend backend_;
};

struct Size {
  int64_t m, f, k, gap = 0;  // gap: elements between the rows of x and W
};

OpCase<Gemm> product(const Size& s, DType dtype) {
  const auto factor = [&](int64_t rows) { return tensor(dtype, {rows, s.k}, s.gap ? s.k + s.gap : 0); };
  Gemm op{.d = tensor(dtype, {s.m, 2 * s.f}), .a = factor(s.m), .b = factor(2 * s.f), .tb = true};
  op.epilogue = Epilogue::swiglu;
  op.aux = tensor(dtype, {s.m, s.f});
  // Gates of about 1, so that y depends on the whole of silu.
  return {cat(s.m, "x", 2 * s.f, "x", s.k, s.gap ? " strided " : " ", dtype),
          op,
          {{"b", normal(0, 1 / std::sqrt(double(s.k)))}}};
}

// Multiples of 1/64 up to 2: their dot products are exact in f32, but not in 16 bits.
double in_steps(uint64_t stream, int64_t i) {
  return double(int64_t(random_bits(kCaseSeed, stream, uint64_t(i)) % 257) - 128) / 64;
}
OpCase<Gemm> gradient(const Size& s, DType dtype) {
  const auto factor = [&](int64_t rows, int64_t columns) {
    return tensor(dtype, {rows, columns}, s.gap ? columns + s.gap : 0);
  };
  Gemm op{.d = tensor(dtype, {s.m, s.f}), .a = factor(s.m, s.k), .b = factor(s.k, s.f)};
  op.epilogue = Epilogue::swiglu_gradient;
  op.aux = tensor(dtype, {s.m, 2 * s.f});
  return {cat("gradient ", s.m, "x", s.f, "x", s.k, s.gap ? " strided " : " ", dtype),
          op,
          {{"a", in_steps}, {"b", in_steps}, {"aux", normal(0, 2)}}};
}

// s.f: columns, of which the last head or half is not rotated.
template <int HeadDim>
OpCase<Gemm> rotated(const Size& s, DType dtype) {
  constexpr int64_t kPositions = 11;
  const auto factor = [&](int64_t rows) { return tensor(dtype, {rows, s.k}, s.gap ? s.k + s.gap : 0); };
  Gemm op{.d = tensor(dtype, {s.m, s.f}), .a = factor(s.m), .b = factor(s.f), .tb = true};
  op.epilogue = Epilogue::rope;
  op.aux = tensor(DType::f32, {kPositions, HeadDim});
  op.positions = tensor(DType::i32, {s.m});
  op.rotated = (s.f - 1) / HeadDim * HeadDim;
  if (s.m % 2) op.bias = tensor(dtype, {s.f});
  return {cat("rope ", HeadDim, " ", s.m, "x", s.f, "x", s.k, s.gap ? " strided " : " ", dtype),
          op,
          {{"a", in_steps}, {"b", in_steps}, {"bias", in_steps}, {"positions", below(kPositions)}}};
}

class WgmmaGemm : public KernelTest {
 protected:
  using Make = OpCase<Gemm> (*)(const Size&, DType);
  static void agree(const std::vector<Size>& sizes, Make make = product) {
    Examiner examine(
        [](int threads) {
          const TestBackend backend = make_cuda_backend(threads);
          return TestBackend{backend.device, std::make_shared<OwnGemms>(backend)};
        },
        {.threads = {2}});
    int number = 0;
    for (const Size& s : sizes) examine(make(s, number++ % 2 ? DType::f16 : DType::bf16));
    EXPECT_TRUE(examine.findings().empty()) << examine.report();
  }
};

// Around the rows of a warp and of a tile, its columns, its K step, and the pipeline stages.
TEST_F(WgmmaGemm, SizesAroundTilesMatchReference) {
  agree({{1, 8, 8},
         {17, 24, 64},
         {64, 128, 72},
         {127, 120, 40},
         {128, 136, 256},
         {129, 64, 320},
         {145, 264, 328},
         {33, 256, 136},
         {70, 72, 200, 8},
         {260, 8, 16, 24}});
}

TEST_F(WgmmaGemm, GradientsAroundTilesMatchReference) {
  agree({{1, 8, 8},
         {17, 24, 64},
         {64, 256, 72},
         {127, 120, 40},
         {128, 264, 256},
         {129, 64, 320},
         {145, 328, 264},
         {33, 520, 136},
         {70, 72, 200, 8},
         {260, 16, 8, 24}},
        gradient);
}

TEST_F(WgmmaGemm, HeadsAroundTilesMatchReference) {
  const std::vector<Size> sizes = {{1, 136, 8},     {17, 192, 64},  {64, 256, 72},   {127, 264, 40},
                                   {128, 384, 256}, {145, 520, 72}, {33, 1152, 136}, {70, 200, 200, 8}};
  agree(sizes, rotated<64>);
  agree(sizes, rotated<128>);
}

#ifdef ATHANOR_EMULATED_GPU
// Few multiprocessors: each block processes several tiles, in several bands.
TEST_F(WgmmaGemm, MoreTilesThanBlocksMatchReference) {
  emu::GpuModel small = emu::gpu_h200();
  small.multiprocessors = 3;
  emu::simulate({small});
  agree({{300, 264, 72}, {2100, 136, 8}});
  agree({{300, 520, 72}, {2100, 264, 8}}, gradient);
  agree({{300, 520, 72}, {2100, 264, 8}}, rotated<64>);
  emu::simulate({emu::gpu_h200()});
}
#endif

// Support depends only on the op and the GPU, so that plans know it.
TEST_F(WgmmaGemm, SupportDependsOnlyOnOpAndGpu) {
  const Gemm op = product({64, 64, 64}, DType::bf16).op;
  const auto takes = [](const Gemm& g, int capability = kCapability) {
    return cuda::own_gemm_takes(problem_of(g), capability);
  };
  EXPECT_TRUE(takes(op));
  for (const int other : {80, 89, 100, 120}) EXPECT_FALSE(takes(op, other)) << other;
  Gemm no = op;
  no.epilogue = Epilogue::none, no.aux = {};
  EXPECT_FALSE(takes(no));
  EXPECT_FALSE(takes(product({64, 64, 64}, DType::f32).op));
  EXPECT_FALSE(takes(product({64, 60, 64}, DType::bf16).op));
  EXPECT_FALSE(takes(product({64, 64, 60}, DType::bf16).op));
  EXPECT_FALSE(takes(product({64, 64, 64, 4}, DType::bf16).op));
  no = op, no.bias = tensor(DType::bf16, {128});
  EXPECT_FALSE(takes(no));
  no = op, no.tb = false;
  EXPECT_FALSE(takes(no));
  const Gemm backward = gradient({64, 64, 64}, DType::bf16).op;
  EXPECT_TRUE(takes(backward));
  for (const int other : {80, 89, 100, 120}) EXPECT_FALSE(takes(backward, other)) << other;
  EXPECT_TRUE(takes(gradient({64, 72, 64}, DType::f16).op));
  EXPECT_FALSE(takes(gradient({64, 64, 64}, DType::f32).op));
  EXPECT_FALSE(takes(gradient({64, 60, 64}, DType::bf16).op));
  EXPECT_FALSE(takes(gradient({64, 64, 60}, DType::bf16).op));
  no = backward, no.tb = true;
  EXPECT_FALSE(takes(no));
  const Gemm with_rope = rotated<64>({65, 256, 64}, DType::bf16).op;
  EXPECT_TRUE(takes(with_rope) && with_rope.bias);
  for (const int other : {80, 89, 100, 120}) EXPECT_FALSE(takes(with_rope, other)) << other;
  EXPECT_TRUE(takes(rotated<128>({65, 256, 64}, DType::f16).op));
  EXPECT_FALSE(takes(rotated<96>({65, 256, 64}, DType::bf16).op));
  EXPECT_FALSE(takes(rotated<64>({65, 128, 64}, DType::bf16).op));
  EXPECT_FALSE(takes(rotated<64>({65, 256, 64}, DType::f32).op));
  no = op, no.a.data = op.a.at(1);  // alignment is known only at run time
  EXPECT_TRUE(takes(no));
  EXPECT_FALSE(cuda::wgmma_takes(problem_of(no), kCapability));
}

// The op with memory allocated for its tensors.
Gemm placed(Gemm op, Device& device) {
  for (Tensor* t : {&op.d, &op.a, &op.b, &op.aux})
    if (*t) t->data = device.allocate(t->bytes(), Mem::device);
  return op;
}

// Autotuning itself is tested in tests/cuda/train/fused_test.cc.
TEST_F(WgmmaGemm, FileRestoresTheChoice) {
  const TestBackend backend = make_cuda_backend(1);
  const Gemm op = placed(product({8, 8, 8}, DType::bf16).op, *backend.device);
  const auto one = make_gemm_runner(), two = make_gemm_runner();
  if (one->capability() != kCapability) GTEST_SKIP() << "needs a GPU of compute capability 9.0";
  EXPECT_TRUE(one->fuses(op));
  const cuda::DeviceMemory scratch(one->scratch(op));
  one->run(op, scratch.data(), nullptr);  // in parts, before autotuning
  std::string text = one->export_choices();
  const std::string parts = "\"in_parts\"";
  EXPECT_EQ(text.find("\"own\""), std::string::npos);
  text.replace(text.find(parts), parts.size(), "\"own\"");
  EXPECT_EQ(two->import_choices(text), "");
  two->run(op, scratch.data(), nullptr);
  EXPECT_EQ(two->export_choices(), text);
#ifdef ATHANOR_EMULATED_GPU
  std::string launched;
  emu::tell_launches([&](const std::string& kernel, const auto&) { launched += kernel; });
  two->run(op, scratch.data(), nullptr);
  emu::tell_launches({});
  EXPECT_THAT(launched, testing::HasSubstr("gemm_wgmma<__nv_bfloat16>"));
#endif
}

TEST_F(WgmmaGemm, FileWithUnsupportedGemmIsRefused) {
  const TestBackend backend = make_cuda_backend(1);
  Gemm plain = product({128, 128, 64}, DType::bf16).op;
  plain.epilogue = Epilogue::none, plain.aux = {};
  plain = placed(plain, *backend.device);
  const auto one = make_gemm_runner(), two = make_gemm_runner();
  const cuda::DeviceMemory scratch(one->scratch(plain));
  one->run(plain, scratch.data(), nullptr);
  std::string text = one->export_choices();
  const std::string algorithm = "\"algorithm\": ";
  text.replace(text.find(algorithm), algorithm.size(), "\"own\": true, \"was\": ");
  EXPECT_EQ(two->import_choices(text), "");
  try {
    two->run(plain, scratch.data(), nullptr);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("is not usable"));
    EXPECT_THAT(e.what(), testing::HasSubstr("delete the file"));
  }
}

}  // namespace
}  // namespace athanor
