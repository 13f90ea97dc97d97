// Reads logical tensors from a checkpoint, independently of the files and slices in which it was saved, so a run may
// resume on another number of ranks. Does not verify the folder; do so first (store.h: newest_valid).
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace athanor {

class CheckpointReader {
 public:
  // Opens the folder and checks that manifest and files agree and that the pieces tile every tensor.
  explicit CheckpointReader(std::string dir);

  const Manifest& manifest() const { return manifest_; }
  const std::string& dir() const { return dir_; }

  struct Info {
    DType dtype = DType::f32;
    Shape shape;  // shape of the whole tensor
  };
  const std::map<std::string, Info, std::less<>>& tensors() const { return infos_; }
  const Info& at(std::string_view name) const;  // Error if the checkpoint lacks it

  // Reads elements [begin, end) of the tensor, row-major, into `out`, whose size must be exactly their bytes.
  void read(std::string_view name, const Shape& begin, const Shape& end, std::span<std::byte> out) const;
  void read(std::string_view name, std::span<std::byte> out) const;  // the whole tensor
  // Reads elements [begin, end) of a vector or matrix, in row-major order.
  void read_run(std::string_view name, int64_t begin, int64_t end, std::span<std::byte> out) const;

  std::string text(const std::string& file, int64_t max_bytes = int64_t{64} << 20) const;

 private:
  struct Piece {
    const ManifestTensor* place;
    const SafetensorsFile* file;
    const TensorEntry* entry;
  };
  void open_pieces();
  void check_tiling(const std::string& name) const;

  std::string dir_;
  Manifest manifest_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Info, std::less<>> infos_;
  std::map<std::string, std::vector<Piece>, std::less<>> pieces_;
};

}  // namespace athanor
