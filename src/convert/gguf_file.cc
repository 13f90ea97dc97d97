#include "convert/gguf_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/int.h"
#include "convert/floats.h"
#include "tensor/half.h"

namespace athanor {
namespace {

constexpr int64_t kAlignment = 32;  // general.alignment's default
enum class PairType : uint32_t { u32 = 4, i32 = 5, f32 = 6, boolean = 7, string = 8, array = 9 };

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_text(std::string& out, std::string_view text) {
  put(out, uint64_t(text.size()));
  out += text;
}
void put_key(std::string& out, std::string_view key, PairType type) {
  put_text(out, key);
  put(out, type);
}

void append_q8(std::span<const float> values, std::vector<std::byte>& out) {
  CHECK(int64_t(values.size()) % kQ8Block == 0, values.size(), " values in blocks of ", kQ8Block);
  for (size_t at = 0; at < values.size(); at += size_t(kQ8Block)) {
    float largest = 0;
    for (size_t i = 0; i < size_t(kQ8Block); ++i) largest = std::max(largest, std::fabs(values[at + i]));
    const float unit = largest / 127, inverse = unit == 0 ? 0 : 1 / unit;
    const f16 stored = from_float<f16>(unit);
    const auto* bytes = reinterpret_cast<const std::byte*>(&stored);
    out.insert(out.end(), bytes, bytes + sizeof stored);
    for (size_t i = 0; i < size_t(kQ8Block); ++i)
      out.push_back(std::byte(uint8_t(int8_t(std::round(values[at + i] * inverse)))));
  }
}

}  // namespace

int64_t ggml_row_bytes(GgmlType type, int64_t columns) {
  switch (type) {
    case GgmlType::f32:
      return 4 * columns;
    case GgmlType::f16:
    case GgmlType::bf16:
      return 2 * columns;
    case GgmlType::q8_0:
      return columns / kQ8Block * (kQ8Block + 2);
  }
  return 0;
}

void append_ggml(GgmlType type, std::span<const float> values, std::string_view what, std::vector<std::byte>& out) {
  for (const float value : values)
    if (!std::isfinite(value)) throw Error(cat(what, ": holds the value ", value, "; a model must be finite"));
  if (type == GgmlType::q8_0) return append_q8(values, out);
  std::vector<std::byte> bytes;
  const DType dtype = type == GgmlType::f32 ? DType::f32 : type == GgmlType::f16 ? DType::f16 : DType::bf16;
  from_floats(values, dtype, what, bytes);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void GgufFile::set(std::string_view key, uint32_t value) {
  put_key(pairs_, key, PairType::u32);
  put(pairs_, value);
  ++pair_count_;
}

void GgufFile::set(std::string_view key, float value) {
  put_key(pairs_, key, PairType::f32);
  put(pairs_, value);
  ++pair_count_;
}

void GgufFile::set(std::string_view key, bool value) {
  put_key(pairs_, key, PairType::boolean);
  put(pairs_, uint8_t(value));
  ++pair_count_;
}

void GgufFile::set(std::string_view key, const std::string& value) {
  put_key(pairs_, key, PairType::string);
  put_text(pairs_, value);
  ++pair_count_;
}

void GgufFile::set(std::string_view key, const std::vector<std::string>& values) {
  put_key(pairs_, key, PairType::array);
  put(pairs_, PairType::string);
  put(pairs_, uint64_t(values.size()));
  for (const std::string& value : values) put_text(pairs_, value);
  ++pair_count_;
}

void GgufFile::set(std::string_view key, const std::vector<int32_t>& values) {
  put_key(pairs_, key, PairType::array);
  put(pairs_, PairType::i32);
  put(pairs_, uint64_t(values.size()));
  for (const int32_t value : values) put(pairs_, value);
  ++pair_count_;
}

int64_t GgufFile::GgufTensor::bytes() const {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  return rows * ggml_row_bytes(type, shape.back());
}

int64_t GgufFile::write(const std::string& path) const {
  std::string header = "GGUF";
  put(header, uint32_t{3});
  put(header, uint64_t(tensors_.size()));
  put(header, pair_count_);
  header += pairs_;
  int64_t offset = 0;
  for (const GgufTensor& t : tensors_) {
    put_text(header, t.name);
    put(header, uint32_t(t.shape.size()));
    for (auto d = t.shape.rbegin(); d != t.shape.rend(); ++d) put(header, uint64_t(*d));
    put(header, t.type);
    put(header, uint64_t(offset));
    offset += round_up(t.bytes(), kAlignment);
  }
  header.resize(round_up(header.size(), size_t(kAlignment)), '\0');

  AtomicFile file(path);
  OutputFile& out = file.out();
  out.reserve(int64_t(header.size()) + offset);
  out.write(header);
  for (const GgufTensor& t : tensors_) {
    const int64_t begin = out.written();
    t.make([&](std::span<const std::byte> bytes) { out.write(bytes); });
    CHECK(out.written() - begin == t.bytes(), t.name, " was made with ", out.written() - begin, " bytes, needs ",
          t.bytes());
    out.write(std::string(size_t(round_up(t.bytes(), kAlignment) - t.bytes()), '\0'));
  }
  file.commit();
  return out.written();
}

}  // namespace athanor
