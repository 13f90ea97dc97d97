#include "data/logit_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/error.h"
#include "base/int.h"
#include "base/json.h"
#include "tensor/half.h"

namespace athanor {
namespace {

using Manifest = nlohmann::ordered_json;

constexpr const char* kManifest = "manifest.json";
constexpr int64_t kFormat = 1, kMaxManifestBytes = 1 << 20;
constexpr int64_t kShardBytes = int64_t{1} << 30;
constexpr int64_t kMostLength = int64_t{1} << 30, kMostWindows = int64_t{1} << 40, kMostVocab = int64_t{1} << 30;

std::string manifest_of(const std::string& folder) { return folder + "/" + kManifest; }

bool short_ids(const LogitCacheInfo& info) { return info.vocab_size <= 65536; }

// Sizes in bytes of the parts of a record.
struct Parts {
  size_t ids, values, rest;
  explicit Parts(const LogitCacheInfo& info)
      : ids(size_t(info.seq_length * info.top_k) * (short_ids(info) ? 2 : 4)),
        values(size_t(info.seq_length * info.top_k) * size_of(info.dtype)),
        rest(size_t(info.seq_length) * sizeof(float)) {}
  size_t checked() const { return ids + values + rest; }
};

std::string checksum_of(int64_t window, std::span<const int32_t> tokens, std::span<const std::byte> parts) {
  Xxh3 hash;
  hash.update(&window, sizeof window);
  hash.update(std::as_bytes(tokens));
  hash.update(parts);
  return hash.hex();
}

template <class To, class From>
void convert(void* to, std::span<const From> from, const auto& each) {
  auto* out = static_cast<std::byte*>(to);
  for (const From& x : from) {
    const To y = each(x);
    out = static_cast<std::byte*>(std::memcpy(out, &y, sizeof y)) + sizeof y;
  }
}
template <class From, class To>
void convert_back(std::span<To> to, const std::byte* from, const auto& each) {
  for (To& y : to) {
    From x;
    std::memcpy(&x, from, sizeof x);
    y = each(x), from += sizeof x;
  }
}

// Finite numbers stay finite: x is never above 0, so only the lower end is clamped.
f16 to_half(float x) { return from_float<f16>(std::isfinite(x) ? std::max(x, -65504.0f) : x); }

int64_t count(const Manifest& json, const char* key, int64_t most) {
  const bool is_count = json.contains(key) && json.at(key).is_number_unsigned() && json.at(key) <= uint64_t(most);
  if (!is_count) throw Error(cat("\"", key, "\": expected a whole number from 0 to ", most), Exit::usage);
  return json.at(key).get<int64_t>();
}
std::string text_of(const Manifest& json, const char* key) {
  if (!json.contains(key) || !json.at(key).is_string())
    throw Error(cat("\"", key, "\": expected a string"), Exit::usage);
  return json.at(key).get<std::string>();
}

Manifest to_json(const LogitCacheInfo& info) {
  return {{"format", kFormat},
          {"teacher", info.teacher},
          {"teacher_fingerprint", info.teacher_fingerprint},
          {"data_fingerprint", info.data_fingerprint},
          {"documents", info.documents},
          {"compute", info.compute},
          {"teacher_tokens", info.teacher_tokens},
          {"seq_length", info.seq_length},
          {"vocab_size", info.vocab_size},
          {"teacher_vocab_size", info.teacher_vocab_size},
          {"top_k", info.top_k},
          {"windows", info.windows},
          {"temperature", info.temperature},
          {"dtype", name_of(info.dtype)}};
}

LogitCacheInfo from_json(const Manifest& json) {
  if (!json.is_object() || count(json, "format", 1 << 20) != kFormat)
    throw Error(cat("expected format ", kFormat, " of cached logits; another version of the program made it"),
                Exit::usage);
  LogitCacheInfo info{.teacher = text_of(json, "teacher"),
                      .teacher_fingerprint = text_of(json, "teacher_fingerprint"),
                      .data_fingerprint = text_of(json, "data_fingerprint"),
                      .documents = text_of(json, "documents"),
                      .compute = text_of(json, "compute"),
                      .teacher_tokens = json.contains("teacher_tokens") ? text_of(json, "teacher_tokens") : "",
                      .seq_length = count(json, "seq_length", kMostLength),
                      .vocab_size = count(json, "vocab_size", kMostVocab),
                      .teacher_vocab_size = count(json, "teacher_vocab_size", kMostVocab),
                      .top_k = count(json, "top_k", kMostVocab),
                      .windows = count(json, "windows", kMostWindows)};
  const std::string dtype = text_of(json, "dtype");
  for (const DType known : {DType::f16, DType::f32})
    if (dtype == name_of(known)) info.dtype = known;
  if (json.contains("temperature") && json.at("temperature").is_number()) info.temperature = json.at("temperature");
  const bool sane = info.seq_length > 0 && info.windows > 0 && info.top_k > 0 &&
                    info.top_k <= std::min(info.vocab_size, info.teacher_vocab_size) &&
                    info.top_k <= kMostLength / info.seq_length && info.temperature > 0 && dtype == name_of(info.dtype);
  if (!sane)
    throw Error("expected positive sizes and temperature, top_k up to vocab_size, and dtype f16 or f32", Exit::usage);
  return info;
}

// The keys whose values differ between two manifests, with both values.
std::string differences(const LogitCacheInfo& there, const LogitCacheInfo& here) {
  const Manifest a = to_json(there), b = to_json(here);
  std::string all;
  for (const auto& [key, value] : a.items())
    if (value != b.at(key)) all += cat("\n  ", key, ": cached ", value.dump(), ", needed ", b.at(key).dump());
  return all;
}

}  // namespace

int64_t LogitCacheInfo::record_bytes() const { return int64_t(Parts(*this).checked() + Xxh3::kHexDigits); }
int64_t LogitCacheInfo::shard_windows() const { return std::max<int64_t>(1, kShardBytes / record_bytes()); }
int64_t LogitCacheInfo::shards() const { return div_ceil(windows, shard_windows()); }
int64_t LogitCacheInfo::windows_in(int64_t shard) const {
  return std::min(shard_windows(), windows - shard * shard_windows());
}
std::string LogitCacheInfo::text() const { return json_text(to_json(*this), 1) + "\n"; }

std::string logit_shard(const std::string& folder, int64_t shard) {
  std::string number = cat(shard);
  number.insert(0, number.size() < 5 ? 5 - number.size() : 0, '0');
  return cat(folder, "/logits-", number, ".bin");
}

LogitCacheInfo read_logit_cache_info(const std::string& folder) {
  const std::string path = manifest_of(folder);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw Error(cat(folder, " has no ", kManifest,
                    " of cached logits; make it with `athanor cache-logits CONFIG TEACHER`, or name another folder"),
                Exit::usage);
  return with_context(path,
                      [&] { return from_json(parse_json_text<Manifest>(read_file(path, kMaxManifestBytes), path)); });
}

void begin_logit_cache(const std::string& folder, const LogitCacheInfo& info) {
  make_dirs(folder);
  std::error_code ignored;
  if (std::filesystem::exists(manifest_of(folder), ignored)) {
    const LogitCacheInfo there = read_logit_cache_info(folder);
    if (there == info) return;
    throw Error(cat(folder, " has cached logits of another run:", differences(there, info),
                    "\nremove it, or set distillation.teacher_logits to another folder"),
                Exit::usage);
  }
  remove_leftovers(manifest_of(folder));
  if (!std::filesystem::is_empty(folder, ignored))
    throw Error(cat(folder, " has files that are no cached logits; set distillation.teacher_logits to a new folder"),
                Exit::usage);
  write_file(manifest_of(folder), info.text());
}

bool has_logit_shard(const std::string& folder, const LogitCacheInfo& info, int64_t shard) {
  std::error_code missing;
  const auto bytes = std::filesystem::file_size(logit_shard(folder, shard), missing);
  return !missing && int64_t(bytes) == info.windows_in(shard) * info.record_bytes();
}

namespace {
std::string new_shard(const std::string& folder, int64_t shard) {
  std::string path = logit_shard(folder, shard);
  remove_leftovers(path);
  return path;
}
}  // namespace

LogitShardWriter::LogitShardWriter(const std::string& folder, const LogitCacheInfo& info, int64_t shard)
    : info_(info),
      file_(new_shard(folder, shard)),
      window_(shard * info.shard_windows()),
      record_(size_t(info.record_bytes())) {
  file_.out().reserve(info.windows_in(shard) * info.record_bytes());
}

void LogitShardWriter::append(std::span<const int32_t> tokens, const TopLogitRow& row) {
  const Parts parts(info_);
  const auto is_nan = [](float x) { return std::isnan(x); };
  if (std::ranges::any_of(row.values, is_nan) || std::ranges::any_of(row.rest, is_nan))
    throw Error(
        cat("the teacher's logits of window ", window_,
            " are not finite: the weights are damaged, or overflow in this precision (try --set precision=fp32)"));
  std::byte *ids = record_.data(), *values = ids + parts.ids, *rest = values + parts.values;
  if (short_ids(info_))
    convert<uint16_t>(ids, std::span<const int32_t>(row.ids), [](int32_t id) { return uint16_t(id); });
  else
    convert<int32_t>(ids, std::span<const int32_t>(row.ids), [](int32_t id) { return id; });
  if (info_.dtype == DType::f16)
    convert<f16>(values, std::span<const float>(row.values), to_half);
  else
    std::memcpy(values, row.values.data(), parts.values);
  std::memcpy(rest, row.rest.data(), parts.rest);
  const std::string sum = checksum_of(window_++, tokens, std::span(record_).first(parts.checked()));
  std::memcpy(record_.data() + parts.checked(), sum.data(), sum.size());
  file_.out().write(record_);
}

void LogitShardWriter::commit() { file_.commit(); }

LogitCache::LogitCache(const std::string& folder) : folder_(folder), info_(read_logit_cache_info(folder)) {
  for (int64_t shard = 0; shard < info_.shards(); ++shard) {
    if (!has_logit_shard(folder, info_, shard))
      throw Error(
          cat(folder, " is not complete: ", logit_shard(folder, shard), ", shard ", shard + 1, " of ", info_.shards(),
              ", is missing or has another length than ", info_.windows_in(shard) * info_.record_bytes(),
              " bytes; run `athanor cache-logits` again, which makes what is missing"),
          Exit::usage);
    shards_.push_back(StableFile::open(logit_shard(folder, shard)));
  }
}

void LogitCache::read(int64_t window, std::span<const int32_t> tokens, const TopLogitRow& row) const {
  CHECK(window >= 0 && window < info_.windows, "window ", window, " of ", info_.windows);
  const Parts parts(info_);
  std::vector<std::byte> record(size_t(info_.record_bytes()));
  const StableFile& file = shards_[size_t(window / info_.shard_windows())];
  file.read(window % info_.shard_windows() * info_.record_bytes(), record);
  const std::string_view sum(reinterpret_cast<const char*>(record.data()) + parts.checked(), Xxh3::kHexDigits);
  if (sum != checksum_of(window, tokens, std::span(record).first(parts.checked())))
    throw Error(cat(file.path(), ": the record of window ", window,
                    " has another checksum: it is damaged, or of other tokens than the data's; remove the file and run "
                    "`athanor cache-logits` again, which makes what is missing"));
  const std::byte *ids = record.data(), *values = ids + parts.ids, *rest = values + parts.values;
  if (short_ids(info_))
    convert_back<uint16_t>(row.ids, ids, [](uint16_t id) { return int32_t(id); });
  else
    convert_back<int32_t>(row.ids, ids, [](int32_t id) { return id; });
  if (info_.dtype == DType::f16)
    convert_back<f16>(row.values, values, [](f16 x) { return to_float(x); });
  else
    std::memcpy(row.values.data(), values, parts.values);
  std::memcpy(row.rest.data(), rest, parts.rest);
}

}  // namespace athanor
