#include "convert/gguf_file.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/int.h"

namespace athanor {
namespace {

constexpr int64_t kAlignment = 32;  // default of general.alignment
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

}  // namespace

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

void GgufFile::sort_tensors() {
  const auto layer = [](const std::string& name) {
    constexpr std::string_view prefix = "blk.";
    return name.starts_with(prefix) ? std::stoll(name.substr(prefix.size())) : -1;
  };
  std::ranges::sort(tensors_, [&](const GgufTensor& a, const GgufTensor& b) {
    return std::pair(layer(a.name), std::string_view(a.name)) < std::pair(layer(b.name), std::string_view(b.name));
  });
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

  make_dirs(parent_dir(path));
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
