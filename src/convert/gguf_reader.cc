#include "convert/gguf_reader.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/int.h"
#include "checkpoint/printable.h"

namespace athanor {
namespace {

constexpr int64_t kMaxHeader = int64_t{256} << 20, kMaxDimensions = 4;
constexpr int64_t kMaxAlignment = 1 << 20;
// Minimum sizes in the header: a key's length, type and value; a tensor's name length, rank, one dimension, type and
// offset.
constexpr int64_t kPairBytes = 8 + 4 + 1, kTensorBytes = 8 + 4 + 8 + 4 + 8;
constexpr int64_t kValuesPerByte = 2;  // maximum for the supported types

// Bytes of each value type, by number; 0: a string or an array.
constexpr std::array<int64_t, 13> kKindBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr uint32_t kString = 8, kArray = 9;

// The decimal number that a writer rounded to f32, 1e-05 for 9.99999975e-06: the shortest one that rounds to it.
double decimal_of(float rounded) {
  char text[32];
  double value = rounded;
  std::from_chars(text, std::to_chars(text, text + sizeof text, rounded).ptr, value);
  return value;
}

// Reads the header sequentially. A size that exceeds the file is an Error naming the field, the value and the limit,
// before memory is allocated for it.
class Cursor {
 public:
  Cursor(const Fd& file, const std::string& path) : path_(path), size_(file_bytes(file, path)) {
    bytes_.resize(size_t(std::min(size_, kMaxHeader)));
    pread_all(file, bytes_, 0, path);
  }
  int64_t at() const { return int64_t(at_); }
  int64_t size() const { return size_; }

  std::span<const std::byte> take(uint64_t count, std::string_view what) {
    require_bytes(count, 1, what, "bytes");
    at_ += count;
    return std::span(bytes_).subspan(at_ - count, count);
  }
  template <class T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }
  std::string text(std::string_view what) {
    const auto bytes = take(number<uint64_t>(what), what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // Reads a count of items that have at least `each` bytes.
  uint64_t count(int64_t each, std::string_view what, std::string_view things) {
    const auto count = number<uint64_t>(what);
    require_bytes(count, each, what, things);
    return count;
  }
  uint32_t kind(const std::string& key) {
    const auto kind = number<uint32_t>(key);
    if (kind >= kKindBytes.size())
      throw Error(cat(path_, ": ", printable(key), " has the kind ", kind, "; expected 0 to ", kKindBytes.size() - 1));
    return kind;
  }
  double scalar(uint32_t kind, const std::string& key) {
    if (kind == 0) return number<uint8_t>(key);
    if (kind == 1) return number<int8_t>(key);
    if (kind == 2) return number<uint16_t>(key);
    if (kind == 3) return number<int16_t>(key);
    if (kind == 4) return number<uint32_t>(key);
    if (kind == 5) return number<int32_t>(key);
    if (kind == 6) return decimal_of(number<float>(key));
    if (kind == 7) return number<uint8_t>(key) != 0;
    if (kind == 10) return double(number<uint64_t>(key));
    if (kind == 11) return double(number<int64_t>(key));
    return number<double>(key);
  }
  void skip_array(const std::string& key) {
    const uint32_t of = kind(key);
    if (of == kArray)
      throw Error(cat(path_, ": ", printable(key), " is an array of arrays, which the format does not allow"));
    const int64_t each = of == kString ? int64_t{sizeof(uint64_t)} : kKindBytes[of];
    const uint64_t values = count(each, key, "values");
    if (of != kString) take(values * uint64_t(each), key);
    for (uint64_t i = 0; of == kString && i < values; ++i) text(key);
  }

 private:
  void require_bytes(uint64_t count, int64_t each, std::string_view what, std::string_view things) const {
    const uint64_t left = bytes_.size() - at_;
    if (count > left / uint64_t(each))
      throw Error(cat(path_, ": is cut off or damaged: ", printable(what), ", at byte ", at_, ", has ", count, " ",
                      things, ", and ", left, " bytes follow"));
  }

  const std::string& path_;
  int64_t size_;
  std::vector<std::byte> bytes_;
  size_t at_ = 0;
};

GgufReader::Stored tensor_info(Cursor& in, const std::string& path, const std::string& name) {
  const auto refuse = [&](const auto&... why) { throw Error(cat(path, ": tensor ", printable(name), ": ", why...)); };
  GgufReader::Stored tensor{};
  const auto rank = in.number<uint32_t>(name);
  if (rank == 0 || rank > kMaxDimensions) refuse("has ", rank, " dimensions; expected 1 to ", kMaxDimensions);
  const int64_t most = in.size() * kValuesPerByte;
  int64_t values = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    const auto size = in.number<uint64_t>(name);
    if (size == 0 || size > uint64_t(most / values))
      refuse("dimension ", i, " is ", size, "; expected 1 to ", most / values, ", for which the file has bytes");
    values *= int64_t(size);
    tensor.shape.insert(tensor.shape.begin(), int64_t(size));
  }
  const auto type = in.number<uint32_t>(name);
  if (!is_ggml_type(type))
    refuse("has the type number ", type,
           " of ggml; known are f32, f16, bf16, q4_0 to q8_0, q4_K, q5_K, q6_K and mxfp4");
  tensor.type = GgmlType(type);
  if (tensor.columns() % ggml_info(tensor.type).block != 0)
    refuse("has rows of ", tensor.columns(), " values, no multiple of the block of ", ggml_info(tensor.type).block);
  const auto offset = in.number<uint64_t>(name);
  if (offset > uint64_t(in.size())) refuse("begins at byte ", offset, " of the data; the file has ", in.size());
  tensor.offset = int64_t(offset);
  return tensor;
}

int64_t bytes_of(const GgufReader::Stored& tensor) {
  return tensor.rows() * ggml_row_bytes(tensor.type, tensor.columns());
}

}  // namespace

int64_t GgufReader::Stored::rows() const {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  return rows;
}

bool is_gguf_file(const std::string& path) {
  std::error_code ignored;
  return path.ends_with(".gguf") && std::filesystem::is_regular_file(path, ignored);
}

GgufReader::GgufReader(const std::string& path) : path_(path), file_(open_regular(path)) {
  Cursor in(file_, path_);
  if (std::memcmp(in.take(4, "magic").data(), "GGUF", 4) != 0)
    throw Error(cat(path_, ": is no GGUF file"), Exit::usage);
  const auto version = in.number<uint32_t>("version");
  if (version != 2 && version != 3)
    throw Error(cat(path_, ": has version ", version, " of GGUF; expected 2 or 3"), Exit::usage);
  const uint64_t tensors = in.count(kTensorBytes, "tensor_count", "tensors");
  const uint64_t pairs = in.count(kPairBytes, "metadata_kv_count", "keys");
  std::set<std::string> keys;
  for (uint64_t i = 0; i < pairs; ++i) {
    const std::string key = in.text("a key");
    if (!keys.insert(key).second) throw Error(cat(path_, ": the key ", printable(key), " appears twice"));
    const uint32_t kind = in.kind(key);
    if (kind == kArray)
      in.skip_array(key);
    else if (kind == kString)
      pairs_[key] = in.text(key);
    else
      pairs_[key] = in.scalar(kind, key);
  }
  const double alignment = number("general.alignment").value_or(32);  // the format's default
  if (!(alignment >= 1 && alignment <= kMaxAlignment))
    throw Error(cat(path_, ": general.alignment is ", alignment, "; expected 1 to ", kMaxAlignment));
  int64_t next = 0;  // where the next tensor's data begins, as llama.cpp requires
  for (uint64_t i = 0; i < tensors; ++i) {
    const std::string name = in.text("a tensor's name");
    const Stored tensor = tensor_info(in, path_, name);
    if (!tensors_.emplace(name, tensor).second) throw Error(cat(path_, ": tensor ", printable(name), " appears twice"));
    if (tensor.offset != next)
      throw Error(cat(path_, ": tensor ", printable(name), " begins at byte ", tensor.offset, " of the data; expected ",
                      next, ", the end of the tensor before it: the file is damaged"));
    next = round_up(next + bytes_of(tensor), int64_t(alignment));
  }
  const int64_t data = round_up(in.at(), int64_t(alignment));
  for (auto& [name, tensor] : tensors_) {
    const int64_t end = data + tensor.offset + bytes_of(tensor);
    if (end > in.size())
      throw Error(cat(path_, ": tensor ", printable(name), " ends at byte ", end, ", the file has ", in.size(),
                      ": it is cut off or damaged"));
    tensor.offset += data;
  }
}

std::optional<double> GgufReader::number(const std::string& key) const {
  const auto it = pairs_.find(key);
  if (it == pairs_.end()) return std::nullopt;
  const auto* value = std::get_if<double>(&it->second);
  if (value && std::isfinite(*value)) return *value;
  throw Error(cat(path_, ": ", printable(key), " is ", value ? cat(*value) : "a text", "; expected a finite number"));
}

std::optional<std::string> GgufReader::text(const std::string& key) const {
  const auto it = pairs_.find(key);
  if (it == pairs_.end()) return std::nullopt;
  if (const auto* value = std::get_if<std::string>(&it->second)) return *value;
  throw Error(cat(path_, ": ", printable(key), " is a number; expected a text"));
}

void GgufReader::read_rows(const Stored& tensor, int64_t begin, int64_t end, std::vector<float>& out) const {
  const int64_t row = ggml_row_bytes(tensor.type, tensor.columns());
  std::vector<std::byte> bytes(static_cast<size_t>((end - begin) * row));
  pread_all(file_, bytes, tensor.offset + begin * row, path_);
  read_ggml(tensor.type, bytes, out);
}

}  // namespace athanor
