#include "ops/gemm_problem.h"

#include <algorithm>
#include <map>
#include <ostream>
#include <string>
#include <type_traits>

namespace athanor {
namespace {

int alignment(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<int>(std::min<uintptr_t>(address & (~address + 1), kMostAlign));  // lowest set bit
}

const char* words_of(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none:
      return "";
    case Epilogue::add:
      return " + residual";
    case Epilogue::gelu:
      return ", gelu";
    case Epilogue::gelu_gradient:
      return ", gelu gradient";
    case Epilogue::sum_a:
      return ", sums of a";
    case Epilogue::sum_b:
      return ", sums of b";
    case Epilogue::swiglu:
      return ", swiglu";
    case Epilogue::swiglu_gradient:
      return ", swiglu gradient";
    case Epilogue::rope:
      return ", rope";
  }
  return "";
}

const char* words_of(ScaleLayout layout) {
  constexpr const char* kWords[] = {"none", "matrix", "rows", "blocks", "squares", "tiles32", "tiles16"};
  return kWords[static_cast<int>(layout)];
}

}  // namespace

GemmProblem problem_of(const Gemm& op) {
  GemmProblem p{.m = op.m(),
                .n = op.n(),
                .k = op.k(),
                .stride_d = op.d.stride(),
                .stride_a = op.a.stride(),
                .stride_b = op.b.stride(),
                .d = op.d.dtype,
                .a = op.a.dtype,
                .b = op.b.dtype,
                .ta = op.ta,
                .tb = op.tb,
                .bias = bool(op.bias),
                .accumulate = op.accumulate,
                .tf32 = op.tf32 && op.a.dtype == DType::f32,
                .epilogue = op.epilogue,
                .align_d = alignment(op.d.data),
                .align_a = alignment(op.a.data),
                .align_b = alignment(op.b.data)};
  // The problem has no field for the alignment of the bias, which is read together with d.
  if (op.bias) p.align_d = std::min(p.align_d, alignment(op.bias.data));
  if (op.aux && !op.sums()) p.align_d = std::min(p.align_d, alignment(op.aux.data));
  if (op.epilogue == Epilogue::rope) p.rotated = op.rotated, p.head_dim = op.aux.cols();
  return p;
}

std::ostream& operator<<(std::ostream& out, const GemmProblem& p) {
  const auto matrix = [&out](DType dtype, int64_t rows, int64_t cols, bool transposed) {
    if (transposed) std::swap(rows, cols);
    out << dtype << Shape{rows, cols} << (transposed ? "^T" : "");
  };
  matrix(p.d, p.m, p.n, false);
  out << (p.accumulate ? " += " : " = ");
  matrix(p.a, p.m, p.k, p.ta);
  out << ' ';
  matrix(p.b, p.k, p.n, p.tb);
  if (p.bias) out << " + bias";
  out << words_of(p.epilogue);
  if (p.epilogue == Epilogue::rope) out << " of " << p.rotated << " columns in heads of " << p.head_dim;
  if (p.tf32) out << " in tf32";
  out << ", rows " << p.stride_d << ' ' << p.stride_a << ' ' << p.stride_b;
  out << ", aligned " << p.align_d << ' ' << p.align_a << ' ' << p.align_b;
  if (p.scales_a == ScaleLayout::none) return out;
  return out << ", scales " << words_of(p.scales_a) << ' ' << words_of(p.scales_b) << (p.fast ? ", fast" : "");
}

std::string words_of(const GemmUse& use) {
  const std::string gemm = cat(problem_of(use.op));
  if (!use.quantized) return gemm;
  const ScaledGemm& op = *use.quantized;
  const auto scales = [](const Tensor& t, const Blocks& blocks) {
    const auto size = [](int64_t n) { return n ? cat(n) : std::string("all"); };
    return cat(t.dtype, " per ", size(blocks.rows), "x", size(blocks.cols));
  };
  return cat(gemm, ", scales ", scales(op.a_scales, op.a_blocks), " and ", scales(op.b_scales, op.b_blocks),
             op.fast ? ", fast" : "");
}

std::vector<GemmUse> distinct_gemms(std::span<const Gemm> ops, std::span<const ScaledGemm> of_quantized) {
  std::map<GemmProblem, GemmUse> distinct;
  const auto add = [&](const Gemm& op, int64_t GemmUse::*count) {
    GemmUse& use = distinct[problem_of(op)];
    use.op = op;
    use.op.recompute = false;
    use.*count += 1;
  };
  for (const Gemm& op : ops) {
    if (op.d.numel() == 0 || op.k() == 0) continue;
    if (op.recompute) {
      distinct[problem_of(op)].recompute = true;
      continue;
    }
    add(op, &GemmUse::launches);
    if (op.epilogue == Epilogue::none) continue;
    in_parts(op, [&]<class Part>(const Part& part) {
      if constexpr (std::is_same_v<Part, Gemm>) add(part, &GemmUse::within);
    });
  }
  std::vector<GemmUse> order;
  for (const auto& [problem, use] : distinct)
    if (use.op.d) order.push_back(use);
  std::map<std::string, size_t> known;  // index of each scaled GEMM listed so far
  for (const ScaledGemm& op : of_quantized) {
    if (op.gemm.d.numel() == 0 || op.gemm.k() == 0) continue;
    const GemmUse use{.op = op.gemm, .quantized = op};
    const auto [at, is_new] = known.try_emplace(words_of(use), order.size());
    if (is_new) order.push_back(use);
    ++order[at->second].launches;
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const GemmUse& x, const GemmUse& y) { return x.flops() > y.flops(); });
  return order;
}
}  // namespace athanor
