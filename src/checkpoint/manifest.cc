// Manifest to JSON and back. The text begins with a checksum over all bytes after it, so that any flipped bit is
// detected before a value is used.
#include "checkpoint/manifest.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/printable.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/strict_json.h"

namespace athanor {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kHead = "{\n \"xxh3\": \"";  // then 32 digits, kTail, and the checksummed rest
constexpr std::string_view kTail = "\",";
// Upper bounds, far beyond the needs of a thousand ranks with thousands of tensors each.
constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;

nlohmann::ordered_json dims(const Shape& s) {
  auto list = nlohmann::ordered_json::array();
  for (int i = 0; i < s.rank; ++i) list.push_back(s.dim[i]);
  return list;
}

// Reads the fields of one object; every error names the object and the field.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw Error(cat(where_, ": expected an object, found ", object.type_name()));
  }
  const Json& field(const char* key) const {
    const auto it = object_.find(key);
    if (it == object_.end()) throw Error(cat(where_, ": lacks \"", key, "\""));
    return *it;
  }
  std::string text(const char* key) const {
    const Json& v = field(key);
    if (!v.is_string()) throw Error(cat(where_, ": \"", key, "\": expected a string, found ", v.type_name()));
    return v.get<std::string>();
  }
  int64_t count(const char* key) const { return to_count(field(key), key); }
  int64_t count_or(const char* key, int64_t otherwise) const { return object_.contains(key) ? count(key) : otherwise; }
  const Json& list(const char* key) const {
    const Json& v = field(key);
    if (!v.is_array()) throw Error(cat(where_, ": \"", key, "\": expected a list, found ", v.type_name()));
    return v;
  }
  Shape shape(const char* key) const {
    Shape s;
    for (const Json& d : list(key)) {
      if (s.rank == Shape::kMaxRank) throw Error(cat(where_, ": \"", key, "\": rank above ", Shape::kMaxRank));
      s.dim[s.rank++] = to_count(d, key);
    }
    return s;
  }
  std::string checksum(const char* key) const {
    std::string hex = text(key);
    const bool good = hex.size() == Xxh3::kHexDigits && hex.find_first_not_of("0123456789abcdef") == hex.npos;
    if (!good) throw Error(cat(where_, ": \"", key, "\": expected ", Xxh3::kHexDigits, " hex digits"));
    return hex;
  }
  [[noreturn]] void fail(const std::string& message) const { throw Error(cat(where_, ": ", message)); }

 private:
  int64_t to_count(const Json& v, const char* key) const {
    if (!v.is_number_unsigned() || v.get<uint64_t>() > uint64_t(INT64_MAX))
      throw Error(cat(where_, ": \"", key, "\": expected a whole number from 0 to 2^63-1"));
    return int64_t(v.get<uint64_t>());
  }

  const Json& object_;
  std::string where_;
};

ManifestFile parse_file(const Json& object, const std::string& where) {
  const Fields f(object, where);
  ManifestFile file{.name = f.text("name"), .bytes = f.count("bytes"), .xxh3 = f.checksum("xxh3")};
  if (!is_plain_file_name(file.name) || file.name == kManifestName)
    f.fail(cat("the file name ", printable(file.name), " is not allowed"));
  return file;
}

ManifestTensor parse_tensor(const Json& object, const std::string& where) {
  const Fields f(object, where);
  ManifestTensor t{.file = f.text("file"),
                   .name = f.text("name"),
                   .dtype = DType::f32,
                   .shape = f.shape("shape"),
                   .begin = f.shape("begin"),
                   .end = f.shape("end"),
                   .xxh3 = f.checksum("xxh3")};
  const std::string dtype = f.text("dtype");
  const auto known = dtype_of_safetensors(dtype);
  if (!known) f.fail(cat(printable(t.name), ": unknown dtype ", printable(dtype)));
  t.dtype = *known;
  if (t.begin.rank != t.shape.rank || t.end.rank != t.shape.rank)
    f.fail(cat(printable(t.name), ": slice ", t.begin, " to ", t.end, " is not of rank ", t.shape.rank));
  int64_t bytes = int64_t(size_of(t.dtype));
  for (int i = 0; i < t.shape.rank; ++i) {
    if (t.begin.dim[i] > t.end.dim[i] || t.end.dim[i] > t.shape.dim[i])
      f.fail(cat(printable(t.name), ": slice ", t.begin, " to ", t.end, " is outside shape ", t.shape));
    if (__builtin_mul_overflow(bytes, t.shape.dim[i], &bytes))
      f.fail(cat(printable(t.name), ": the size of shape ", t.shape, " overflows 64 bits"));
  }
  return t;
}

void check_names(const Manifest& m, const std::string& where) {
  std::set<std::string_view> files;
  for (const ManifestFile& f : m.files)
    if (!files.insert(f.name).second) throw Error(cat(where, ": the file ", printable(f.name), " is listed twice"));
  std::set<std::tuple<std::string_view, std::string_view>> tensors;
  for (const ManifestTensor& t : m.tensors) {
    if (!files.contains(t.file))
      throw Error(cat(where, ": the tensor ", printable(t.name), " refers to file ", printable(t.file),
                      ", which the manifest does not list"));
    if (!tensors.emplace(t.file, t.name).second)
      throw Error(cat(where, ": the tensor ", printable(t.name), " of ", printable(t.file), " is listed twice"));
  }
}

void check_own_checksum(std::string_view text, const std::string& where) {
  const size_t rest = kHead.size() + Xxh3::kHexDigits + kTail.size();
  const bool framed =
      text.size() > rest && text.starts_with(kHead) && text.substr(kHead.size() + Xxh3::kHexDigits).starts_with(kTail);
  if (!framed || text.substr(kHead.size(), Xxh3::kHexDigits) != xxh3_hex(text.substr(rest)))
    throw Error(cat(where, ": does not match its own checksum: it was damaged or edited"));
}

}  // namespace

Shape ManifestTensor::piece_shape() const {
  Shape s = end;
  for (int i = 0; i < s.rank; ++i) s.dim[i] -= begin.dim[i];
  return s;
}

const ManifestFile* Manifest::find_file(std::string_view name) const {
  const auto it = std::find_if(files.begin(), files.end(), [&](const ManifestFile& f) { return f.name == name; });
  return it == files.end() ? nullptr : &*it;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

bool is_plain_file_name(std::string_view name) {
  const bool clean =
      std::none_of(name.begin(), name.end(), [](char c) { return c == '/' || uint8_t(c) < 0x20 || c == 0x7f; });
  return clean && !name.empty() && name[0] != '.' && name.size() <= 255;
}

std::string manifest_json(const Manifest& m) {
  nlohmann::ordered_json json = {{"format_version", m.format_version},
                                 {"program_version", m.program_version},
                                 {"program_commit", m.program_commit},
                                 {"step", m.step},
                                 {"serial", m.serial},
                                 {"created", m.created},
                                 {"config_hash", m.config_hash},
                                 {"data_fingerprint", m.data_fingerprint},
                                 {"files", nlohmann::ordered_json::array()},
                                 {"tensors", nlohmann::ordered_json::array()}};
  for (const ManifestFile& f : m.files)
    json["files"].push_back({{"name", f.name}, {"bytes", f.bytes}, {"xxh3", f.xxh3}});
  for (const ManifestTensor& t : m.tensors)
    json["tensors"].push_back({{"file", t.file},
                               {"name", t.name},
                               {"dtype", safetensors_name(t.dtype)},
                               {"shape", dims(t.shape)},
                               {"begin", dims(t.begin)},
                               {"end", dims(t.end)},
                               {"xxh3", t.xxh3}});
  try {
    const std::string rest = json.dump(1).substr(1) + "\n";
    return cat(kHead, xxh3_hex(rest), kTail, rest);
  } catch (const nlohmann::json::exception& e) {
    throw Error(cat("manifest of step ", m.step, ": a name or value is not valid UTF-8: ", json_problem(e.what())));
  }
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  require_strict_json(text, where);
  const Json json = Json::parse(text);
  const Fields f(json, where);
  Manifest m;
  m.format_version = f.count("format_version");
  if (m.format_version != kManifestVersion) {
    const auto writer = json.find("program_version");
    const std::string version = writer != json.end() && writer->is_string() ? writer->get<std::string>() : "";
    f.fail(cat("format_version ", m.format_version, " is unknown, this program reads ", kManifestVersion,
               ": use the athanor that wrote it", version.empty() ? "" : cat(" (", printable(version), ")"),
               " or a newer one"));
  }
  check_own_checksum(text, where);
  m.program_version = f.text("program_version");
  m.program_commit = f.text("program_commit");
  m.step = f.count("step");
  m.serial = f.count_or("serial", 0);
  m.created = f.text("created");
  m.config_hash = f.text("config_hash");
  m.data_fingerprint = f.text("data_fingerprint");
  for (const Json& file : f.list("files"))
    m.files.push_back(parse_file(file, cat(where, ": files[", m.files.size(), "]")));
  for (const Json& tensor : f.list("tensors"))
    m.tensors.push_back(parse_tensor(tensor, cat(where, ": tensors[", m.tensors.size(), "]")));
  check_names(m, where);
  return m;
}

Manifest read_manifest(const std::string& dir) {
  const std::string path = cat(dir, "/", kManifestName);
  return parse_manifest(read_all(open_regular(path), kMaxManifestBytes, path), path);
}

}  // namespace athanor
