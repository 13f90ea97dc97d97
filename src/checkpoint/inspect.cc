// Formats the contents of a checkpoint as a table, from its manifest and small JSON files.
#include <algorithm>
#include <cstring>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/printable.h"
#include "checkpoint/reader.h"
#include "checkpoint/verify.h"

namespace athanor {
namespace {

constexpr int64_t kMaxStateBytes = int64_t{16} << 20;
constexpr size_t kMaxValueShown = 60;

std::string human_bytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = double(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 6; ++unit) value /= 1024;
  std::ostringstream out;
  out << std::fixed << std::setprecision(unit ? 1 : 0) << value << " " << kUnits[unit];
  return out.str();
}

using Row = std::vector<std::string>;

// Pads columns to the width of their widest cell, two spaces apart.
std::string table(const std::vector<Row>& rows) {
  std::vector<size_t> width;
  for (const Row& row : rows) {
    width.resize(std::max(width.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::ostringstream out;
  out << std::left;
  for (const Row& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i) out << "  " << std::setw(int(width[i])) << row[i];
    out << "  " << row.back() << "\n";
  }
  return out.str();
}

std::string bare(std::string_view text) {  // escaped and shortened like printable(), without the quotes
  const std::string q = printable(text);
  return q.substr(1, q.size() - 2);
}

// Fraction of zeros among the values of a piece, as "12.5 %"; -0 counts, too.
std::string share_of_zeros(const CheckpointReader& reader, const ManifestTensor& t) {
  constexpr int64_t kBlock = int64_t{1} << 22;  // maximum values in memory at once, unless one row has more
  const auto size = size_of(t.dtype);
  const bool is_float = t.dtype == DType::f32 || t.dtype == DType::bf16 || t.dtype == DType::f16;
  const Shape piece = t.piece_shape();
  const int64_t row = piece.rank == 0 ? 1 : piece.numel() / std::max<int64_t>(1, piece.dim[0]);
  const int64_t step = std::max<int64_t>(1, kBlock / std::max<int64_t>(1, row));
  int64_t zeros = 0;
  std::vector<std::byte> bytes;
  Shape begin = t.begin, end = t.end;
  const int64_t last = piece.rank == 0 ? 1 : t.end.dim[0];
  for (int64_t at = piece.rank == 0 ? 0 : t.begin.dim[0]; at < last; at += step) {
    const int64_t to = std::min(last, at + step);
    if (piece.rank > 0) begin.dim[0] = at, end.dim[0] = to;
    bytes.resize(size_t((piece.rank == 0 ? 1 : to - at) * row) * size);
    reader.read(t.name, begin, end, bytes);
    for (size_t i = 0; i < bytes.size(); i += size) {
      if (is_float) bytes[i + size - 1] &= std::byte{0x7f};
      zeros += std::all_of(bytes.begin() + std::ptrdiff_t(i), bytes.begin() + std::ptrdiff_t(i + size),
                           [](std::byte b) { return b == std::byte{0}; });
    }
  }
  std::ostringstream out;
  out << std::fixed << std::setprecision(2) << 100 * double(zeros) / double(std::max<int64_t>(1, piece.numel()))
      << " %";
  return out.str();
}

// reader: reads the values to count zeros; null: no zeros column.
std::string tensor_table(const Manifest& m, const CheckpointReader* reader) {
  std::vector<Row> rows = {{"tensor", "dtype", "shape", "piece", "bytes", "file"}};
  if (reader) rows.front().insert(rows.front().begin() + 4, "zeros");
  int64_t elements = 0, total = 0;
  for (const ManifestTensor& t : m.tensors) {
    const Shape piece = t.piece_shape();
    const int64_t bytes = piece.numel() * int64_t(size_of(t.dtype));
    elements += piece.numel();
    total += bytes;
    rows.push_back({bare(t.name), name_of(t.dtype), cat(t.shape),
                    piece == t.shape ? "whole" : cat(t.begin, "..", t.end), human_bytes(bytes), bare(t.file)});
    if (reader) rows.back().insert(rows.back().begin() + 4, share_of_zeros(*reader, t));
  }
  rows.push_back({cat(m.tensors.size(), " tensors"), "", cat(elements, " elements"), "", human_bytes(total), ""});
  if (reader) rows.back().insert(rows.back().begin() + 4, "");
  return table(rows);
}

std::string state_keys(const std::string& dir, const ManifestFile& file) {
  const std::string path = cat(dir, "/", file.name);
  std::vector<Row> rows;
  try {
    const auto json = parse_json_text<nlohmann::json>(read_file(path, kMaxStateBytes), path);
    if (!json.is_object()) return "";
    for (const auto& [key, value] : json.items()) {
      const std::string shown = json_text(value);
      rows.push_back(
          {bare(key), shown.size() > kMaxValueShown ? cat(bare(shown.substr(0, kMaxValueShown)), "...") : bare(shown)});
    }
  } catch (const Error& e) {
    return cat("  ", e.what(), "\n");
  }
  return table(rows);
}

}  // namespace

std::string inspect_checkpoint(const std::string& dir, bool zeros) {
  const Verification v = verify_checkpoint(dir, Depth::sizes);
  if (!v.ok && v.file == kManifestName) throw Error(v.problem);
  const Manifest& m = v.manifest;
  std::string out = cat("checkpoint ", dir, "\n");
  out += table({{"step", cat(m.step)},
                {"created", bare(m.created)},
                {"written by", bare(cat("athanor ", m.program_version, " ", m.program_commit))},
                {"config hash", bare(m.config_hash)},
                {"data fingerprint", bare(m.data_fingerprint)},
                {"condition", v.ok ? "present (sizes checked, not checksums)" : cat("DAMAGED: ", v.problem)}});
  std::vector<Row> files = {{"file", "bytes", "xxh3"}};
  for (const ManifestFile& f : m.files) files.push_back({bare(f.name), human_bytes(f.bytes), f.xxh3});
  std::optional<CheckpointReader> reader;
  if (zeros) reader.emplace(dir);
  out += cat("\n", table(files), "\n", tensor_table(m, reader ? &*reader : nullptr));
  for (const ManifestFile& f : m.files)
    if (f.name.ends_with(".json")) out += cat("\n", bare(f.name), "\n", state_keys(dir, f));
  return out;
}

}  // namespace athanor
