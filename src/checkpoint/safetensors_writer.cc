// The safetensors writer: header first, then the tensors in file order, hashed as they are written.
#include "checkpoint/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/checksum.h"
#include "base/error.h"
#include "checkpoint/printable.h"

namespace athanor {
namespace {

// Bytes are hashed and written in blocks of this size, small enough to stay in cache for both hashes and the copy into
// the page cache; smaller pieces are gathered into blocks.
constexpr size_t kBlockBytes = size_t{1} << 20;

// The reference writer's order of types (descending alignment); this program's types only.
int order_of(DType t) {
  constexpr std::array kOrder = {DType::i64, DType::f64, DType::f32, DType::i32, DType::bf16, DType::f16, DType::u8};
  return int(std::find(kOrder.begin(), kOrder.end(), t) - kOrder.begin());
}

int64_t bytes_of(const TensorData& t) { return t.shape.numel() * int64_t(size_of(t.dtype)); }

void check_tensors(std::span<const TensorData> tensors) {
  std::vector<std::string_view> names;
  for (const TensorData& t : tensors) {
    CHECK(t.name != "__metadata__", "a tensor cannot have the reserved name __metadata__");
    for (int i = 0; i < t.shape.rank; ++i) CHECK(t.shape.dim[i] >= 0, "tensor ", t.name, " has shape ", t.shape);
    int64_t bytes = 0;
    for (const auto& piece : t.pieces) bytes += int64_t(piece.size());
    CHECK(bytes == (t.make ? 0 : bytes_of(t)), "tensor ", t.name, " ", t.shape, " ", t.dtype, " needs ", bytes_of(t),
          " bytes, its pieces have ", bytes);
    names.push_back(t.name);
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  CHECK(twice == names.end(), "two tensors are named ", *twice);
}

std::string json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(cat("safetensors: the name or metadata ", printable(text), " is not valid UTF-8"));
  }
}

// Length field, JSON and padding: everything before the data.
std::string header_bytes(std::span<const TensorData> tensors, std::span<const size_t> order, const TextMap& metadata) {
  std::string json = "{";
  auto comma = [&] { return json.back() == '{' ? "" : ","; };
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) json += cat(comma(), json_string(key), ":", json_string(value));
    json += "}";
  }
  int64_t offset = 0;
  for (size_t i : order) {
    const TensorData& t = tensors[i];
    std::string dims;
    for (int d = 0; d < t.shape.rank; ++d) dims += cat(d ? "," : "", t.shape.dim[d]);
    const int64_t end = offset + bytes_of(t);
    json += cat(comma(), json_string(t.name), ":{\"dtype\":\"", safetensors_name(t.dtype), "\",\"shape\":[", dims,
                "],\"data_offsets\":[", offset, ",", end, "]}");
    offset = end;
  }
  json += "}";
  json.resize(round_up(json.size(), size_t{8}), ' ');
  const uint64_t length = json.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + json;
}

// Feeds the file and both checksums; gathers small pieces (rows of a strided view) into blocks.
class HashedOutput {
 public:
  explicit HashedOutput(OutputFile& out) : out_(out) { buffer_.reserve(kBlockBytes); }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min(bytes.size(), kBlockBytes - buffer_.size()));
      bytes = bytes.subspan(part.size());
      if (buffer_.empty() && part.size() == kBlockBytes) {
        emit(part);
      } else {
        buffer_.insert(buffer_.end(), part.begin(), part.end());
        if (buffer_.size() == kBlockBytes) flush();
      }
    }
  }
  // Ends a tensor (or the header) and returns its checksum.
  std::string end_tensor() {
    flush();
    return std::exchange(tensor_, Xxh3()).hex();
  }
  std::string file_xxh3() const { return file_.hex(); }

 private:
  void flush() {
    emit(buffer_);
    buffer_.clear();
  }
  void emit(std::span<const std::byte> block) {
    tensor_.update(block);
    file_.update(block);
    out_.write(block);
  }

  OutputFile& out_;
  Xxh3 tensor_, file_;
  std::vector<std::byte> buffer_;
};

void write_made(HashedOutput& hashed, const TensorData& t) {
  int64_t left = bytes_of(t);
  t.make([&](std::span<const std::byte> bytes) {
    left -= int64_t(bytes.size());
    CHECK(left >= 0, "tensor ", t.name, " was made with more than its ", bytes_of(t), " bytes");
    hashed.write(bytes);
  });
  CHECK(left == 0, "tensor ", t.name, " was made with ", left, " bytes less than its ", bytes_of(t));
}

}  // namespace

std::vector<size_t> safetensors_order(std::span<const TensorData> tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int ta = order_of(tensors[a].dtype), tb = order_of(tensors[b].dtype);
    return ta != tb ? ta < tb : tensors[a].name < tensors[b].name;
  });
  return order;
}

TensorData tensor_data(std::string name, const Tensor& tensor) {
  TensorData t{.name = std::move(name), .dtype = tensor.dtype, .shape = tensor.shape, .pieces = {}};
  const auto* first = static_cast<const std::byte*>(tensor.data);
  if (tensor.contiguous()) {
    t.pieces.emplace_back(first, tensor.bytes());
    return t;
  }
  const size_t size = size_of(tensor.dtype), row = size_t(tensor.cols()) * size,
               stride = size_t(tensor.stride()) * size;
  for (int64_t i = 0; i < tensor.rows(); ++i) t.pieces.emplace_back(first + size_t(i) * stride, row);
  return t;
}

SafetensorsSummary write_safetensors(OutputFile& out, std::span<const TensorData> tensors,
                                     const SafetensorsWriteOptions& options) {
  check_tensors(tensors);
  const std::vector<size_t> order = safetensors_order(tensors);
  const std::string header = header_bytes(tensors, order, options.metadata);
  int64_t total = int64_t(header.size());
  for (const TensorData& t : tensors) total += bytes_of(t);
  out.reserve(total);

  SafetensorsSummary summary{.bytes = total, .xxh3 = {}, .tensor_xxh3 = std::vector<std::string>(tensors.size())};
  HashedOutput hashed(out);
  hashed.write(std::as_bytes(std::span(header)));
  hashed.end_tensor();
  for (size_t i : order) {
    for (const auto& piece : tensors[i].pieces) hashed.write(piece);
    if (tensors[i].make) write_made(hashed, tensors[i]);
    summary.tensor_xxh3[i] = hashed.end_tensor();
    if (options.after_tensor) options.after_tensor(tensors[i].name);
  }
  summary.xxh3 = hashed.file_xxh3();
  return summary;
}

SafetensorsSummary save_safetensors(const std::string& path, std::span<const TensorData> tensors,
                                    const SafetensorsWriteOptions& options) {
  AtomicFile file(path);
  SafetensorsSummary summary = write_safetensors(file.out(), tensors, options);
  file.commit();
  return summary;
}

}  // namespace athanor
