// kernel_launches CONFIG.json [key=value ...]: every kernel of this program that an optimizer step of a config launches
// on an H200, at full size: ops get addresses without memory, the emulated GPU checks the launches and runs none. A
// line for each kind of launch: how many in a step, blocks, threads of a block, bytes of dynamic shared memory, kernel.
// Products are the library's and are not told, but those with SwiGLU that an own kernel can compute; what the library
// may fuse into them is launched apart, as before a search.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <tuple>

#include "config/config.h"
#include "cuda/cuda_ops.h"
#include "cuda/gemm/wgmma_product.h"
#include "cuda/libraries/open.h"
#include "cuda/libraries/specs.h"
#include "emulator/runtime/control.h"
#include "train/setup.h"

namespace athanor {
namespace {

// Device memory is a range of addresses, of which none is read or written.
class Addresses final : public Device {
 public:
  std::string description() const override { return "addresses of an H200"; }
  int64_t dimension_multiple() const override { return 64; }
  void* allocate(size_t bytes, Mem where) override {
    if (where != Mem::device) return std::calloc(bytes, 1);
    next_ += round_up<size_t>(bytes, kAlignment);
    return reinterpret_cast<void*>(next_ - round_up<size_t>(bytes, kAlignment));
  }
  void release(void* memory, size_t, Mem where) override {
    if (where != Mem::device) std::free(memory);
  }
  void copy(void*, const void*, size_t, Lane) override {}
  size_t capacity(Mem) const override { return emu::gpu_h200().memory_bytes; }
  size_t allocated() const override { return 0; }

 private:
  static constexpr size_t kAlignment = 4096;
  uintptr_t next_ = uintptr_t{1} << 44;
};

class KernelOps final : public Decorated<KernelOps> {
 public:
  const cuda::CudaOps& inner() const { return ops_; }
  template <class Op>
  void on(const Op& op, void* scratch) {
    if constexpr (std::is_same_v<Op, Gemm>) {
      if (cuda::wgmma_takes(problem_of(op), ops_.gemm().capability())) return cuda::run_by_wgmma(op, nullptr);
      in_parts(op, [&]<class Part>(const Part& part) {
        if constexpr (!std::is_same_v<Part, Gemm>) ops_.run(part, scratch);
      });
    } else {
      ops_.run(op, scratch);
    }
  }

 private:
  cuda::CudaOps ops_{nullptr, std::make_unique<cuda::GemmRunner>(open_cublaslt(search_places(library_specs())).call)};
};

using Kind = std::tuple<std::string, int64_t, int64_t, size_t>;  // kernel, blocks, threads, bytes

int64_t count(const dim3& d) { return int64_t(d.x) * d.y * d.z; }

std::map<Kind, int64_t> launches_of(const Config& config) {
  std::map<Kind, int64_t> found;
  int64_t times = 0;  // that what is launched now is launched in a step
  emu::tell_launches([&](const std::string& kernel, const emu::LaunchShape& s) {
    if (times > 0) found[{kernel, count(s.grid), count(s.block), s.shared_bytes}] += times;
  });
  Addresses device;
  KernelOps ops;
  ProcessMesh mesh(make_single(device), mesh_sizes(config, 1));
  const auto engine = make_engine(config, {device, ops, mesh}, true);
  engine->commit();
  const std::vector<int32_t> tokens(size_t(engine->options().micro_batch_size * config.seq_length));
  PhaseClock clock;
  times = engine->micro_batches();
  engine->micro_batch(tokens, tokens, clock);
  times = 1;
  engine->close_step(clock);
  std::printf("# %lld micro-batches of %lld sequences of %lld tokens\n",
              static_cast<long long>(engine->micro_batches()),
              static_cast<long long>(engine->options().micro_batch_size), static_cast<long long>(config.seq_length));
  emu::tell_launches({});
  return found;
}

}  // namespace
}  // namespace athanor

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw athanor::Error("usage: kernel_launches CONFIG.json [key=value ...]", athanor::Exit::usage);
    const std::vector<std::string> settings(argv + 2, argv + argc);
    const athanor::Config config = athanor::load_config(argv[1], settings);
    for (const auto& [kind, times] : athanor::launches_of(config)) {
      const auto& [kernel, blocks, threads, bytes] = kind;
      std::printf("%lld %lld %lld %zu %s\n", static_cast<long long>(times), static_cast<long long>(blocks),
                  static_cast<long long>(threads), bytes, kernel.c_str());
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "kernel_launches: %s\n", e.what());
    return 1;
  }
}
