#include "device/gpu_specs.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "base/error.h"

namespace athanor {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr double kTera = 1e12;

// Sustained rates. H200: reached in measurements on random values. H100 and B200: estimated as 80 % of the data sheet's
// GEMM rate, which the H200 reaches. An A100 reaches 95 % of its own [Isaev et al. 2023, Calculon, GEMMs of 128 GFLOP
// and more]. An RTX 4090 is assumed to reach 100 %: its clock may exceed the data sheet's, and LLMQ trains at 84 % of
// it, all ops included. Memory rates other than the H200's are estimated as 90 % of the data sheet's.
constexpr double kGemms = 0.8, kCopies = 0.9;
constexpr double kPcie5 = 55e9, kPcie4 = 25e9;
// Memory: the total that PyTorch reports for such a GPU: 178.35, 139.8, 79.1, 79.15 and 23.65 GiB.
// Host copies: nvbandwidth's results for PCIe 5.0 x16 (55.6 GB/s, NVIDIA's own example of an H100) and 4.0 x16 (24.8
// GB/s, published for an A100); that both directions reach it at once is an assumption. FP8 and f32 rates: NVIDIA's
// data sheets of A100, H100, H200 and HGX B200, and its paper on the Ada architecture (FP8 with f32 sums), without
// sparsity.

constexpr GpuSpec kGpus[] = {
    {"GB200", 2500 * kTera, 1250 * kTera},
    {"B200", 2250 * kTera, 1125 * kTera, "b200", "B200", 182630 * kMiB, 148, kGemms * 2250 * kTera, kCopies * 8e12,
     900e9, 50e9, kPcie5, 100, 4500 * kTera, 75 * kTera},
    {"H200 NVL", 835.5 * kTera, 417.7 * kTera},
    {"GH200", 989.4 * kTera, 494.7 * kTera},
    {"H200", 989.4 * kTera, 494.7 * kTera, "h200", "H200 SXM", 143156 * kMiB, 132, 795 * kTera, 4.3e12, 450e9, 50e9,
     kPcie5, 90, 1979 * kTera, 67 * kTera},
    {"H100 PCIe", 756 * kTera, 378 * kTera},
    {"H100 NVL", 835.5 * kTera, 417.7 * kTera},
    {"H100", 989.4 * kTera, 494.7 * kTera, "h100", "H100 SXM", 80998 * kMiB, 132, kGemms * 989.4 * kTera,
     kCopies * 3.35e12, 450e9, 50e9, kPcie5, 90, 1979 * kTera, 67 * kTera},
    {"A100", 312 * kTera, 156 * kTera, "a100", "A100 SXM 80 GB", 81050 * kMiB, 108, 0.95 * 312 * kTera,
     kCopies * 2.039e12, 300e9, 25e9, kPcie4, 80, 0, 19.5 * kTera},
    {"A40", 149.7 * kTera, 74.8 * kTera},
    {"RTX A6000", 154.8 * kTera, 77.4 * kTera},
    {"A10", 125 * kTera, 62.5 * kTera},
    {"L40S", 362 * kTera, 183 * kTera},
    {"L40", 181 * kTera, 90.5 * kTera},
    {"L4", 121 * kTera, 60 * kTera},
    {"RTX 3090", 71.2 * kTera, 35.6 * kTera},
    {"RTX 4090", 165.2 * kTera, 82.6 * kTera, "rtx4090", "GeForce RTX 4090", 24217 * kMiB, 128, 165.2 * kTera,
     kCopies * 1.008e12, kPcie4, 12.5e9, kPcie4, 89, 330.3 * kTera, 82.6 * kTera},
    {"RTX 5090", 209.5 * kTera, 104.8 * kTera},
};

// True if the words of `name` occur in the text: those of "A40" do not occur in "NVIDIA RTX A4000".
bool has_words(std::string_view text, std::string_view name) {
  const auto in_word = [&](size_t at) {
    return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at]));
  };
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1))
    if (!(at > 0 && in_word(at - 1)) && !in_word(at + name.size())) return true;
  return false;
}

}  // namespace

const GpuSpec* find_gpu_named(std::string_view driver_name) {
  // A laptop's GPU is a smaller chip than the card of that name, and an instance of MIG is a part of a GPU.
  if (has_words(driver_name, "Laptop") || has_words(driver_name, "MIG")) return nullptr;
  const auto* const found =
      std::ranges::find_if(kGpus, [&](const GpuSpec& gpu) { return has_words(driver_name, gpu.name); });
  return found == std::end(kGpus) ? nullptr : found;
}

const GpuSpec& find_gpu(std::string_view key) {
  std::string known;
  for (const GpuSpec& gpu : kGpus) {
    if (!gpu.key) continue;
    if (gpu.key == key) return gpu;
    known += cat(known.empty() ? "" : ", ", gpu.key);
  }
  throw Error(cat("--gpu: no GPU named ", key, " is described; known are ", known), Exit::usage);
}

}  // namespace athanor
