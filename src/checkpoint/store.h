// The folder of a run's checkpoints. A step is written to .step-N.tmp/, synced, and renamed to step-N/: it is there
// completely or not at all. `latest` is only a hint for people; resume scans for the newest valid step.
// Does not know what is saved: the trainer gives tensors and texts.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/verify.h"

namespace athanor {

// The right to write into a save folder; at most one run has it (flock on ROOT/.lock, freed by the system when the
// process ends in whatever way). Taking it creates the folder and clears away what killed runs left half written.
class RunLock {
 public:
  explicit RunLock(std::string root);  // Error naming host and process that hold it
  const std::string& root() const { return root_; }

 private:
  std::string root_;
  Fd file_;
};

// Where a rank's piece lies in the logical tensor; the piece's extent is its own shape.
struct TensorPlacement {
  Shape whole;
  Shape begin;
};
struct CheckpointTensor {
  TensorData data;
  std::optional<TensorPlacement> placement;  // absent: the piece is the whole tensor
};

// What one rank wrote: rank 0 collects these into the manifest.
struct WrittenFile {
  ManifestFile file;
  std::vector<ManifestTensor> tensors;
};

struct CheckpointOptions {
  std::string program_version, program_commit, config_hash, data_fingerprint;
  bool diverged = false;              // committed as diverged_folder(step), which replaces no step
  TextMap metadata = kPlainMetadata;  // of every safetensors file
  // Called with the name of each point the save passes (kSavePoints); tests die there.
  std::function<void(std::string_view point)> at_point;
};

// In this order; those of a file repeat for every file. "moved_aside" and "old_removed" only when a step is replaced.
inline constexpr std::string_view kSavePoints[] = {
    "begin",       "tensor_written", "file_written", "file_synced", "manifest_written", "folder_synced",
    "moved_aside", "renamed",        "root_synced",  "old_removed", "latest_replaced",
};

// Writes one checkpoint. Destroyed before commit() it removes what it wrote and nothing else. The lock must outlive it.
class CheckpointWriter {
 public:
  CheckpointWriter(const RunLock& lock, int64_t step, CheckpointOptions options = {});
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  void add_safetensors(const std::string& name, std::span<const CheckpointTensor> tensors);
  void add_text(const std::string& name, std::string_view text);

  // For ranks that write their own files: each calls write_part on the writer's folder; rank 0 adopts the results.
  const std::string& folder() const { return tmp_.path; }
  void adopt(WrittenFile part);
  int64_t bytes() const;  // of all its files so far

  // Durable when it returns; gives the checkpoint's folder. A step that is already there is replaced, and a crash at
  // any instant leaves the old or the new one.
  std::string commit();

 private:
  // A folder that vanishes unless it is kept; as a member it does so even if the constructor fails.
  struct Unfinished {
    std::string path;
    bool kept = false;
    ~Unfinished();
  };
  std::string swap_in(const std::string& target) const;
  void write_latest() const;

  std::string root_;
  Unfinished tmp_;
  int64_t step_;
  CheckpointOptions options_;
  Manifest manifest_;
};

// Writes and syncs one safetensors file in `folder`.
WrittenFile write_part(const std::string& folder, const std::string& name, std::span<const CheckpointTensor> tensors,
                       const CheckpointOptions& options);

struct CheckpointInfo {
  int64_t step = 0;
  std::string path;
};

// Ascending by step; nothing is opened. A missing root has no checkpoints.
std::vector<CheckpointInfo> list_checkpoints(const std::string& root);

// The same of states that diverged (diverged_folder).
std::vector<CheckpointInfo> list_diverged(const std::string& root);

// The newest step that passes verification; the reasons against newer ones go to why_skipped. Error if a newer one
// cannot be read: it may be whole, and must not be taken for lost.
std::optional<CheckpointInfo> newest_valid(const std::string& root, std::vector<std::string>* why_skipped = nullptr,
                                           Depth depth = Depth::checksums);

// Removes what diverged, but for the newest.
void prune_diverged(const RunLock& lock);

// Removes old steps, keeping the newest keep_latest that are whole. Nothing is removed before one kept step has passed
// checksum verification; if none passes, the newest older one that does is kept as well. Gives the removed steps.
// Steps above up_to neither count nor go: a run that went back to an earlier step must not lose what it saves now to
// what it left behind.
std::vector<int64_t> prune(const RunLock& lock, int64_t keep_latest, int64_t up_to = INT64_MAX);

}  // namespace athanor
