// Manifest of a checkpoint: its files and tensors with sizes and checksums, and the run it belongs to. Written last; a
// folder without a valid manifest is not a checkpoint. Protected by its own checksum.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace athanor {

constexpr int64_t kManifestVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";

struct ManifestFile {
  std::string name;  // inside the folder, no slash
  int64_t bytes = 0;
  std::string xxh3;  // checksum of the whole file, 32 hex digits
};

// A piece of a logical tensor: elements [begin, end) of every dimension of `shape`. All pieces of one name tile it.
struct ManifestTensor {
  std::string file, name;
  DType dtype = DType::f32;
  Shape shape;       // shape of the whole logical tensor
  Shape begin, end;  // same rank
  std::string xxh3;  // checksum of the piece's bytes

  Shape piece_shape() const;
};

struct Manifest {
  int64_t format_version = kManifestVersion;
  std::string program_version, program_commit;
  int64_t step = 0;
  int64_t serial = 0;   // save counter of a folder: the newest checkpoint has the largest; 0: older format
  std::string created;  // UTC, ISO 8601
  std::string config_hash, data_fingerprint;
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;

  const ManifestFile* find_file(std::string_view name) const;
};

std::string manifest_json(const Manifest& manifest);
// Malformed text throws an Error starting with `where`. A newer format_version is an error that names the remedy.
Manifest parse_manifest(std::string_view text, const std::string& where);
Manifest read_manifest(const std::string& dir);

std::string utc_now();  // in the form of `created`

// True if a name is a valid file name in a folder: not empty, no slash, not hidden, no control characters.
bool is_plain_file_name(std::string_view name);

}  // namespace athanor
