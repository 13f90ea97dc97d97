#include "convert/gguf_reader.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/int.h"
#include "checkpoint/printable.h"

namespace athanor {
namespace {

constexpr int64_t kMaxHeader = int64_t{256} << 20, kMaxTensors = 1 << 20, kMaxDimensions = 4;

// Bytes of the kinds of values, by their numbers; 0: a string or an array.
constexpr std::array<int64_t, 13> kKindBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr uint32_t kString = 8, kArray = 9;

// Reads the header from the front; an end that comes too early is an Error.
class Cursor {
 public:
  Cursor(const Fd& file, const std::string& path) : path_(path), size_(file_bytes(file, path)) {
    bytes_.resize(size_t(std::min(size_, kMaxHeader)));
    pread_all(file, bytes_, 0, path);
  }
  int64_t at() const { return int64_t(at_); }
  int64_t size() const { return size_; }

  std::span<const std::byte> take(uint64_t count) {
    if (count > bytes_.size() - at_)
      throw Error(cat(path_, ": is cut off or damaged: byte ", at_, " of its header announces ", count,
                      " bytes, and there are ", bytes_.size() - at_));
    at_ += count;
    return std::span(bytes_).subspan(at_ - count, count);
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() {
    const auto bytes = take(number<uint64_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  uint32_t kind() {
    const auto kind = number<uint32_t>();
    if (kind >= kKindBytes.size()) throw Error(cat(path_, ": a key has the unknown kind ", kind));
    return kind;
  }
  double scalar(uint32_t kind) {
    switch (kind) {
      case 0:
        return number<uint8_t>();
      case 1:
        return number<int8_t>();
      case 2:
        return number<uint16_t>();
      case 3:
        return number<int16_t>();
      case 4:
        return number<uint32_t>();
      case 5:
        return number<int32_t>();
      case 6:
        return double(number<float>());
      case 7:
        return number<uint8_t>() != 0;
      case 10:
        return double(number<uint64_t>());
      case 11:
        return double(number<int64_t>());
      default:
        return number<double>();
    }
  }
  void skip_array() {
    const uint32_t of = kind();
    const auto count = number<uint64_t>();
    if (of == kArray) throw Error(cat(path_, ": holds an array of arrays, which the format does not allow"));
    if (of != kString) {
      if (count > bytes_.size()) throw Error(cat(path_, ": announces an array of ", count, " values"));
      take(count * uint64_t(kKindBytes[of]));
      return;
    }
    for (uint64_t i = 0; i < count; ++i) text();
  }

 private:
  const std::string& path_;
  int64_t size_;
  std::vector<std::byte> bytes_;
  size_t at_ = 0;
};

GgufReader::Stored tensor_info(Cursor& in, const std::string& path, const std::string& name) {
  const auto refuse = [&](const auto&... why) { throw Error(cat(path, ": tensor ", printable(name), ": ", why...)); };
  GgufReader::Stored tensor{};
  const auto rank = in.number<uint32_t>();
  if (rank == 0 || rank > kMaxDimensions) refuse("has ", rank, " dimensions; expected 1 to ", kMaxDimensions);
  int64_t values = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    const auto size = in.number<uint64_t>();
    if (size == 0 || size > uint64_t(in.size()) * 2 || values > (int64_t{1} << 50) / int64_t(size))
      refuse("has a dimension of ", size, ", more than the file can hold");
    values *= int64_t(size);
    tensor.shape.insert(tensor.shape.begin(), int64_t(size));
  }
  const auto type = in.number<uint32_t>();
  if (!is_ggml_type(type))
    refuse("has the type number ", type, " of ggml; known are f32, f16, bf16, q4_0 to q8_0, q4_K, q5_K and q6_K");
  tensor.type = GgmlType(type);
  if (tensor.columns() % ggml_info(tensor.type).block != 0)
    refuse("has rows of ", tensor.columns(), " values, no multiple of the block of ", ggml_info(tensor.type).block);
  tensor.offset = narrow<int64_t>(in.number<uint64_t>());
  return tensor;
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
  if (std::memcmp(in.take(4).data(), "GGUF", 4) != 0) throw Error(cat(path_, ": is no GGUF file"), Exit::usage);
  const auto version = in.number<uint32_t>();
  if (version != 2 && version != 3)
    throw Error(cat(path_, ": has version ", version, " of GGUF; expected 2 or 3"), Exit::usage);
  const auto tensors = in.number<uint64_t>(), pairs = in.number<uint64_t>();
  if (tensors > kMaxTensors || pairs > kMaxTensors)
    throw Error(
        cat(path_, ": announces ", tensors, " tensors and ", pairs, " keys; at most ", kMaxTensors, " are read"));
  int64_t alignment = 32;  // the format's default
  for (uint64_t i = 0; i < pairs; ++i) {
    const std::string key = in.text();
    const uint32_t kind = in.kind();
    if (kind == kArray)
      in.skip_array();
    else if (kind == kString)
      pairs_[key] = in.text();
    else
      pairs_[key] = in.scalar(kind);
  }
  if (const auto given = number("general.alignment")) alignment = int64_t(*given);
  if (alignment < 1 || alignment > (1 << 20)) throw Error(cat(path_, ": general.alignment is ", alignment));
  for (uint64_t i = 0; i < tensors; ++i) {
    const std::string name = in.text();
    if (!tensors_.emplace(name, tensor_info(in, path_, name)).second)
      throw Error(cat(path_, ": tensor ", printable(name), " is there twice"));
  }
  const int64_t data = round_up(in.at(), alignment);
  for (auto& [name, tensor] : tensors_) {
    const int64_t bytes = tensor.rows() * ggml_row_bytes(tensor.type, tensor.columns());
    if (tensor.offset < 0 || tensor.offset > in.size() || data + tensor.offset + bytes > in.size())
      throw Error(cat(path_, ": tensor ", printable(name), " ends at byte ", data + tensor.offset + bytes,
                      ", the file has ", in.size(), ": it is cut off or damaged"));
    tensor.offset += data;
  }
}

std::optional<double> GgufReader::number(const std::string& key) const {
  const auto it = pairs_.find(key);
  if (it == pairs_.end()) return std::nullopt;
  if (const auto* value = std::get_if<double>(&it->second)) return *value;
  throw Error(cat(path_, ": ", printable(key), " is a text; expected a number"));
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
