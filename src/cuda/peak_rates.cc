#include "cuda/peak_rates.h"

namespace athanor::cuda {
namespace {

// NVIDIA's data sheets, without sparsity, sums in f32, TFLOP/s. The first name that is part of the GPU's name counts.
struct Row {
  std::string_view name;
  double half, tf32;
};
constexpr Row kRows[] = {{"B200", 2250, 1125},      {"H200 NVL", 835.5, 417.7},
                         {"GH200", 989.4, 494.7},   {"H200", 989.4, 494.7},
                         {"H100 PCIe", 756, 378},   {"H100 NVL", 835.5, 417.7},
                         {"H100", 989.4, 494.7},    {"A100", 312, 156},
                         {"A40", 149.7, 74.8},      {"RTX A6000", 154.8, 77.4},
                         {"A10", 125, 62.5},        {"L40S", 362, 183},
                         {"L40", 181, 90.5},        {"L4", 121, 60},
                         {"RTX 3090", 71.2, 35.6},  {"RTX 4090", 165.2, 82.6},
                         {"RTX 5090", 209.5, 104.8}};

}  // namespace

double peak_rate(std::string_view gpu_name, DType inputs) {
  for (const Row& row : kRows)
    if (gpu_name.find(row.name) != std::string_view::npos) return (inputs == DType::f32 ? row.tf32 : row.half) * 1e12;
  return 0;
}
}  // namespace athanor::cuda
