// The safetensors reader. Parses the header by SAX events, so that a malicious header cannot use more memory than its
// valid entries need; checks every rule before using an offset.
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/printable.h"
#include "checkpoint/strict_json.h"

namespace athanor {
namespace {

// Limit of the reference implementation: a corrupt length field must not allocate all memory.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct FileDType {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;
};
constexpr std::array<FileDType, 22> kDTypes = {{
    {"F64", 64, DType::f64},
    {"F32", 32, DType::f32},
    {"F16", 16, DType::f16},
    {"BF16", 16, DType::bf16},
    {"I64", 64, DType::i64},
    {"I32", 32, DType::i32},
    {"I16", 16, {}},
    {"I8", 8, {}},
    {"U64", 64, {}},
    {"U32", 32, {}},
    {"U16", 16, {}},
    {"U8", 8, DType::u8},
    {"BOOL", 8, {}},
    {"C64", 64, {}},
    {"F8_E4M3", 8, DType::f8_e4m3},
    {"F8_E5M2", 8, DType::f8_e5m2},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"F4", 4, {}},
}};

const FileDType* find_dtype(std::string_view name) {
  const auto it = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const FileDType& t) { return t.name == name; });
  return it == kDTypes.end() ? nullptr : &*it;
}

// A tensor's header entry, not yet validated.
struct RawEntry {
  TensorEntry entry;
  uint64_t begin = 0, end = 0;  // from the first byte after the header
};

// The header's grammar as a state machine: {name: {"dtype": s, "shape": [n...], "data_offsets": [b, e]}, ...} with
// "__metadata__": {s: s}.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderHandler(const std::string& where) : where_(where) {}
  std::vector<RawEntry> entries;
  TextMap metadata;

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t& text) override {
    unexpected(cat("the number ", text.substr(0, 40), " (not an unsigned 64-bit integer)"));
  }
  bool binary(binary_t&) override { unexpected("binary data"); }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& text) override;
  bool start_object(size_t) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool key(string_t& name) override;
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& e) override {
    throw Error(cat(where_, ": header is not valid JSON at byte ", position, ": ", json_problem(e.what())));
  }

 private:
  enum class At { start, top, value, metadata, metadata_value, tensor, dtype, shape, shape_list, offsets, offset_list };

  [[noreturn]] void fail(const std::string& message) const {
    throw Error(cat(where_, ": header: ", name_.empty() ? "" : cat(printable(name_), ": "), message));
  }
  [[noreturn]] void unexpected(std::string_view what) const {
    static constexpr const char* kExpected[] = {
        "an object", "a tensor name",   "an object",         "a metadata key",        "a string",         "a field",
        "a string",  "a list of sizes", "unsigned integers", "a list of two offsets", "unsigned integers"};
    fail(cat("expected ", kExpected[int(at_)], ", found ", what));
  }
  void enter_field(const std::string& field);

  const std::string& where_;
  At at_ = At::start;
  std::string name_;  // the tensor or metadata key being read
  bool has_metadata_ = false;
  unsigned seen_ = 0;  // fields of the current tensor: 1 dtype, 2 shape, 4 data_offsets
  std::vector<uint64_t> offsets_;
};

bool HeaderHandler::number_unsigned(number_unsigned_t value) {
  if (at_ == At::shape_list) {
    if (value > uint64_t(INT64_MAX)) fail(cat("the dimension ", value, " is too large"));
    entries.back().entry.shape.push_back(int64_t(value));
  } else if (at_ == At::offset_list) {
    if (offsets_.size() == 2) fail("data_offsets: expected two numbers, found more");
    offsets_.push_back(value);
  } else {
    unexpected("a number");
  }
  return true;
}

bool HeaderHandler::string(string_t& text) {
  if (at_ == At::metadata_value) {
    if (!metadata.emplace(name_, std::move(text)).second) fail("this metadata key appears twice");
    at_ = At::metadata;
  } else if (at_ == At::dtype) {
    if (!find_dtype(text)) fail(cat("unknown dtype ", printable(text)));
    entries.back().entry.dtype = std::move(text);
    at_ = At::tensor;
  } else {
    unexpected("a string");
  }
  return true;
}

bool HeaderHandler::start_object(size_t) {
  if (at_ == At::start) {
    at_ = At::top;
  } else if (at_ == At::value && name_ == "__metadata__") {
    if (std::exchange(has_metadata_, true)) fail("appears twice");
    at_ = At::metadata;
  } else if (at_ == At::value) {
    entries.emplace_back().entry.name = name_;
    seen_ = 0;
    offsets_.clear();
    at_ = At::tensor;
  } else {
    unexpected("an object");
  }
  return true;
}

bool HeaderHandler::end_object() {
  if (at_ == At::tensor) {
    if (seen_ != 7) fail(cat("lacks ", !(seen_ & 1) ? "dtype" : !(seen_ & 2) ? "shape" : "data_offsets"));
    if (offsets_.size() != 2) fail("data_offsets: expected two numbers");
    entries.back().begin = offsets_[0];
    entries.back().end = offsets_[1];
  }
  at_ = At::top;
  name_.clear();
  return true;
}

bool HeaderHandler::start_array(size_t) {
  if (at_ == At::shape)
    at_ = At::shape_list;
  else if (at_ == At::offsets)
    at_ = At::offset_list;
  else
    unexpected("a list");
  return true;
}

bool HeaderHandler::end_array() {
  at_ = At::tensor;
  return true;
}

bool HeaderHandler::key(string_t& name) {
  if (at_ == At::tensor) {
    enter_field(name);
  } else {
    at_ = at_ == At::metadata ? At::metadata_value : At::value;
    name_ = std::move(name);
  }
  return true;
}

void HeaderHandler::enter_field(const std::string& field) {
  const bool dtype = field == "dtype", shape = field == "shape", offsets = field == "data_offsets";
  const unsigned bit = dtype ? 1 : shape ? 2 : offsets ? 4 : 0;
  if (bit == 0) fail(cat("unknown field ", printable(field)));
  if (seen_ & bit) fail(cat(field, " appears twice"));
  seen_ |= bit;
  at_ = dtype ? At::dtype : shape ? At::shape : At::offsets;
}

int64_t checked_bytes(const TensorEntry& t, const std::string& where) {
  uint64_t bits = 1;
  bool fits = true;
  for (int64_t d : t.shape) fits = !__builtin_mul_overflow(bits, uint64_t(d), &bits) && fits;
  fits = !__builtin_mul_overflow(bits, uint64_t(find_dtype(t.dtype)->bits), &bits) && fits;
  if (!fits) throw Error(cat(where, ": header: ", printable(t.name), ": the size of its shape overflows 64 bits"));
  if (bits % 8 != 0) throw Error(cat(where, ": header: ", printable(t.name), ": ", bits, " bits are not whole bytes"));
  return int64_t(bits / 8);
}

void check_unique(std::span<const RawEntry> entries, const std::string& where) {
  std::vector<std::string_view> names;
  for (const RawEntry& e : entries) names.push_back(e.entry.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) throw Error(cat(where, ": header: the tensor ", printable(*twice), " appears twice"));
}

}  // namespace

const char* safetensors_name(DType dtype) {
  for (const FileDType& t : kDTypes)
    if (t.dtype == dtype) return t.name.data();
  CHECK(false, "dtype ", dtype, " has no safetensors name");
}

std::optional<DType> dtype_of_safetensors(std::string_view name) {
  const FileDType* t = find_dtype(name);
  return t ? t->dtype : std::nullopt;
}

DType TensorEntry::checked_dtype() const {
  const auto known = dtype_of_safetensors(dtype);
  if (!known) throw Error(cat("tensor ", printable(name), ": dtype ", dtype, " is not supported"));
  return *known;
}

Shape TensorEntry::checked_shape() const {
  if (shape.size() > Shape::kMaxRank)
    throw Error(cat("tensor ", printable(name), ": rank ", shape.size(), " is above ", Shape::kMaxRank));
  Shape s;
  for (int64_t d : shape) s.dim[s.rank++] = d;
  return s;
}

int64_t parse_safetensors_length(std::span<const std::byte, 8> field, int64_t file_bytes, const std::string& where) {
  uint64_t length;  // little-endian, as this program requires of its machine (checksum.cc)
  std::memcpy(&length, field.data(), 8);
  if (length > kMaxHeaderBytes)
    throw Error(cat(where, ": not a safetensors file: its header would have ", length, " bytes, at most ",
                    kMaxHeaderBytes, " are allowed"));
  if (int64_t(length) > file_bytes - 8)
    throw Error(cat(where, ": truncated: the header needs ", 8 + length, " bytes, the file has ", file_bytes));
  return int64_t(length);
}

SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t file_bytes, const std::string& where) {
  if (json.empty() || json[0] != '{') throw Error(cat(where, ": not a safetensors file: its header lacks the first {"));
  refuse_nul_bytes(json, cat(where, ": header"));
  HeaderHandler handler(where);
  nlohmann::json::sax_parse(json, &handler);

  std::vector<RawEntry>& raw = handler.entries;
  check_unique(raw, where);
  std::sort(raw.begin(), raw.end(), [](const RawEntry& a, const RawEntry& b) {
    return std::tie(a.begin, a.end, a.entry.name) < std::tie(b.begin, b.end, b.entry.name);
  });
  SafetensorsHeader header{.json_bytes = int64_t(json.size()), .tensors = {}, .metadata = std::move(handler.metadata)};
  const int64_t data_bytes = file_bytes - header.data_begin();
  uint64_t next = 0;
  for (RawEntry& r : raw) {
    TensorEntry& t = r.entry;
    if (r.begin != next)
      throw Error(cat(where, ": header: ", printable(t.name), ": data begins at ", r.begin, ", expected ", next,
                      ": tensors must lie back to back"));
    t.bytes = checked_bytes(t, where);
    if (r.end < r.begin || r.end - r.begin != uint64_t(t.bytes))
      throw Error(cat(where, ": header: ", printable(t.name), ": data_offsets [", r.begin, ", ", r.end,
                      "] do not hold the ", t.bytes, " bytes of its shape"));
    if (r.end > uint64_t(data_bytes))
      throw Error(
          cat(where, ": truncated: ", printable(t.name), " ends at data byte ", r.end, ", the file has ", data_bytes));
    t.offset = header.data_begin() + int64_t(r.begin);
    next = r.end;
    header.tensors.push_back(std::move(t));
  }
  if (next != uint64_t(data_bytes))
    throw Error(cat(where, ": ", uint64_t(data_bytes) - next, " bytes follow the last tensor: the file is damaged"));
  return header;
}

SafetensorsFile::SafetensorsFile(std::string path)
    : path_(std::move(path)), file_(open_regular(path_)), file_bytes_(athanor::file_bytes(file_, path_)) {
  if (file_bytes_ < 8)
    throw Error(cat(path_, ": not a safetensors file: it has ", file_bytes_, " bytes, at least 8 are needed"));
  std::array<std::byte, 8> field;
  pread_all(file_, field, 0, path_);
  std::string json(size_t(parse_safetensors_length(field, file_bytes_, path_)), '\0');
  pread_all(file_, std::as_writable_bytes(std::span(json)), 8, path_);
  header_ = parse_safetensors_header(json, file_bytes_, path_);

  by_name_.resize(tensors().size());
  std::iota(by_name_.begin(), by_name_.end(), size_t{0});
  std::sort(by_name_.begin(), by_name_.end(),
            [&](size_t a, size_t b) { return tensors()[a].name < tensors()[b].name; });
  mapping_ = MappedFile(file_, path_);
  if (int64_t(mapping_.bytes().size()) != file_bytes_)
    throw Error(cat(path_, ": changed its size while it was opened: another program writes it"));
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](size_t i, std::string_view n) { return tensors()[i].name < n; });
  return it != by_name_.end() && tensors()[*it].name == name ? &tensors()[*it] : nullptr;
}

const TensorEntry& SafetensorsFile::at(std::string_view name) const {
  const TensorEntry* t = find(name);
  if (!t) throw Error(cat(path_, ": has no tensor ", printable(name), "; it holds ", tensors().size(), " others"));
  return *t;
}

std::span<const std::byte> SafetensorsFile::data(const TensorEntry& entry) const {
  CHECK(entry.offset >= header_.data_begin() && entry.offset + entry.bytes <= file_bytes_, "entry of another file");
  return mapping_.bytes().subspan(size_t(entry.offset), size_t(entry.bytes));
}

void SafetensorsFile::read(const TensorEntry& entry, std::span<std::byte> out) const {
  CHECK(int64_t(out.size()) == entry.bytes, "tensor ", entry.name, " has ", entry.bytes, " bytes, buffer ", out.size());
  read_part(entry, 0, out);
}

void SafetensorsFile::read_part(const TensorEntry& entry, int64_t first_byte, std::span<std::byte> out) const {
  CHECK(first_byte >= 0 && first_byte + int64_t(out.size()) <= entry.bytes, "bytes ", first_byte, "+", out.size(),
        " of tensor ", entry.name, " with ", entry.bytes);
  pread_all(file_, out, entry.offset + first_byte, path_);
}

}  // namespace athanor
