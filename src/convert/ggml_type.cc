#include "convert/ggml_type.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "convert/floats.h"
#include "convert/ggml_blocks.h"
#include "tensor/dtype.h"

namespace athanor {
namespace {

constexpr std::array<GgmlTypeInfo, 12> kTypes = {{
    {GgmlType::f32, "f32", 1, 4, nullptr, nullptr},
    {GgmlType::f16, "f16", 1, 2, nullptr, nullptr},
    {GgmlType::bf16, "bf16", 1, 2, nullptr, nullptr},
    {GgmlType::q4_0, "q4_0", kBlock32, 18, quantize_q4_0, dequantize_q4_0},
    {GgmlType::q4_1, "q4_1", kBlock32, 20, quantize_q4_1, dequantize_q4_1},
    {GgmlType::q5_0, "q5_0", kBlock32, 22, quantize_q5_0, dequantize_q5_0},
    {GgmlType::q5_1, "q5_1", kBlock32, 24, quantize_q5_1, dequantize_q5_1},
    {GgmlType::q8_0, "q8_0", kBlock32, 34, quantize_q8_0, dequantize_q8_0},
    {GgmlType::mxfp4, "mxfp4", kBlock32, 17, quantize_mxfp4, dequantize_mxfp4},
    {GgmlType::q4_k, "q4_K", kBlock256, 144, quantize_q4_k, dequantize_q4_k},
    {GgmlType::q5_k, "q5_K", kBlock256, 176, quantize_q5_k, dequantize_q5_k},
    {GgmlType::q6_k, "q6_K", kBlock256, 210, quantize_q6_k, dequantize_q6_k},
}};

DType float_of(GgmlType type) {
  return type == GgmlType::f32 ? DType::f32 : type == GgmlType::f16 ? DType::f16 : DType::bf16;
}

// Refuses values that need a scale too large for f16: it is stored as infinity, which dequantizes to non-finite values.
// But q6_K stores zeros for values whose squares overflow, so values above kMost are refused before. That is the
// largest value of q6_K (f16 scale, 8-bit scale, 6-bit value), and no other type has a larger one.
void require_finite(const GgmlTypeInfo& info, std::span<const float> from, std::span<const std::byte> row,
                    std::string_view what) {
  constexpr float kMost = 65504.0f * 128 * 32;
  const auto refuse = [&] {
    throw Error(cat(what, ": holds values too large for the f16 scales of ", info.name, "; take bf16 or f32"));
  };
  for (const float value : from)
    if (std::abs(value) > kMost) refuse();
  std::vector<float> values(static_cast<size_t>(info.block));
  for (size_t at = 0; at < row.size(); at += size_t(info.bytes)) {
    info.dequantize(row.data() + at, values.data());
    for (const float value : values)
      if (!std::isfinite(value)) refuse();
  }
}

constexpr int64_t kPiece = 1 << 14;  // values that one thread quantizes at a time

}  // namespace

const GgmlTypeInfo& ggml_info(GgmlType type) {
  const auto it = std::ranges::find(kTypes, type, &GgmlTypeInfo::type);
  CHECK(it != kTypes.end(), "no GGML type ", int(type));
  return *it;
}

bool is_ggml_type(uint32_t number) {
  return std::ranges::find(kTypes, GgmlType(number), &GgmlTypeInfo::type) != kTypes.end();
}

int64_t ggml_row_bytes(GgmlType type, int64_t columns) {
  const GgmlTypeInfo& info = ggml_info(type);
  CHECK(columns % info.block == 0, "rows of ", columns, " values in blocks of ", info.block);
  return columns / info.block * info.bytes;
}

void append_ggml(GgmlType type, const GgmlRows& rows, ThreadPool* pool, std::vector<std::byte>& out) {
  for (const float value : rows.values)
    if (!std::isfinite(value)) throw Error(cat(rows.what, ": holds the value ", value, "; expected finite weights"));
  const GgmlTypeInfo& info = ggml_info(type);
  if (!info.quantize) {
    std::vector<std::byte> bytes;
    from_floats(rows.values, float_of(type), rows.what, bytes);
    out.insert(out.end(), bytes.begin(), bytes.end());
    return;
  }
  CHECK(rows.importance.empty() || int64_t(rows.importance.size()) == rows.columns, rows.what, ": ",
        rows.importance.size(), " weights for ", rows.columns, " columns");
  const int64_t row_bytes = ggml_row_bytes(type, rows.columns), count = int64_t(rows.values.size()) / rows.columns;
  const size_t begin = out.size();
  out.resize(begin + size_t(count * row_bytes));
  const int64_t step = std::max<int64_t>(1, kPiece / rows.columns);
  const auto quantize = [&](int64_t piece) {
    for (int64_t row = piece * step; row < std::min(count, (piece + 1) * step); ++row) {
      std::byte* const to = out.data() + begin + row * row_bytes;
      const auto from = rows.values.subspan(size_t(row * rows.columns), size_t(rows.columns));
      info.quantize(from, rows.importance, to);
      require_finite(info, from, {to, size_t(row_bytes)}, rows.what);
    }
  };
  const int64_t pieces = (count + step - 1) / step;
  if (pool) return pool->parallel_for(pieces, quantize);
  for (int64_t piece = 0; piece < pieces; ++piece) quantize(piece);
}

void read_ggml(GgmlType type, std::span<const std::byte> bytes, std::vector<float>& out) {
  const GgmlTypeInfo& info = ggml_info(type);
  if (!info.dequantize) return to_floats(bytes, float_of(type), out);
  CHECK(int64_t(bytes.size()) % info.bytes == 0, bytes.size(), " bytes in blocks of ", info.bytes);
  out.resize(bytes.size() / size_t(info.bytes) * size_t(info.block));
  float* to = out.data();
  for (size_t at = 0; at < bytes.size(); at += size_t(info.bytes), to += info.block)
    info.dequantize(bytes.data() + at, to);
}

}  // namespace athanor
