// The folder of a run's checkpoints. A step is written to .step-N.tmp/, synced and renamed to step-N/, so it is
// saved atomically. `latest` is informational only. The newest checkpoint is the one written last, according to the
// serial number in its manifest: a run that went back to an earlier step resumes from there, not from a later step of
// the abandoned branch. Independent of what is saved: the trainer passes tensors and texts.
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

// Exclusive write access to a save folder: locks ROOT/.lock and, if the file system allows it, the folder itself, so
// that deleting `.lock` does not admit a second run. The kernel releases both when the process ends. Creates the
// folder, and removes incomplete steps of killed runs once it holds the lock.
class RunLock {
 public:
  // Throws an Error naming the host and process that hold it, or if it is inside a checkpoint of a run.
  explicit RunLock(std::string root);
  const std::string& root() const { return root_; }
  // Recreates `.lock` if somebody deleted it, with a warning. Throws an Error if another run has locked the folder
  // since.
  void keep();

 private:
  std::string take();  // returns "" if locked, otherwise who holds the lock

  std::string root_, holder_;
  Fd file_, folder_;
  bool told_ = false;
};

// Position of a rank's piece in the logical tensor; the piece's own shape is its extent.
struct TensorPlacement {
  Shape whole;
  Shape begin;
};
struct CheckpointTensor {
  TensorData data;
  std::optional<TensorPlacement> placement;  // absent: the piece is the whole tensor
};

// The files that one rank wrote; rank 0 collects these into the manifest.
struct WrittenFile {
  ManifestFile file;
  std::vector<ManifestTensor> tensors;
};

struct CheckpointOptions {
  std::string program_version, program_commit, config_hash, data_fingerprint;
  bool diverged = false;              // committed as diverged_folder(step), replaces no step
  TextMap metadata = kPlainMetadata;  // metadata of every safetensors file
  // Called with the name of each point that the save passes (kSavePoints); tests kill the process there.
  std::function<void(std::string_view point)> at_point;
};

// The points in order; per-file points occur once per file. "moved_aside" and "old_removed" occur only when a step is
// replaced.
inline constexpr std::string_view kSavePoints[] = {
    "begin",       "tensor_written", "file_written", "file_synced", "manifest_written", "folder_synced",
    "moved_aside", "renamed",        "root_synced",  "old_removed", "latest_replaced",
};

// Writes one checkpoint. If destroyed before commit(), removes only its own files. The lock must outlive it.
class CheckpointWriter {
 public:
  CheckpointWriter(const RunLock& lock, int64_t step, CheckpointOptions options = {});
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  void add_safetensors(const std::string& name, std::span<const CheckpointTensor> tensors);
  void add_text(const std::string& name, std::string_view text);

  // For ranks that write their own files: each rank calls write_part on the writer's folder; rank 0 adopts the results.
  const std::string& folder() const { return tmp_.path; }
  void adopt(WrittenFile part);
  int64_t bytes() const;  // size of all its files so far

  // Durable on return; returns the checkpoint's folder. Replaces an existing step atomically: a crash at any time
  // leaves the old or the new one.
  std::string commit();

 private:
  // Removes its folder at destruction unless `kept`, also if the writer's constructor throws.
  struct Unfinished {
    std::string path;
    bool kept = false;
    ~Unfinished();
  };
  std::string swap_in(const std::string& target) const;

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
  int64_t serial = 0;     // Manifest::serial; -1: the manifest cannot be read
  bool given_up = false;  // a checkpoint of the same or a smaller step was written later
};

// Checkpoints in the order in which they were written, the newest last. Checkpoints with equal serial numbers (0: made
// by older versions) are ordered by step; one whose manifest cannot be read comes after those of smaller steps. Empty
// if root does not exist.
std::vector<CheckpointInfo> list_checkpoints(const std::string& root);

// Makes a checkpoint in the lock's folder its newest, durably, by giving it a new serial number; used when a run goes
// back.
void make_newest(const RunLock& lock, const CheckpointInfo& info);

// The checkpoint that `path` refers to: itself, or the newest checkpoint if path is a run's folder or its `latest`
// file. If there is none, throws Error(usage) that says what to pass.
std::string checkpoint_at(const std::string& path, const Verify& verify);

// Folders of the states of diverged runs (diverged_folder), in the order in which they were written.
std::vector<CheckpointInfo> list_diverged(const std::string& root);

// Throws Error(usage) if the folder does not exist, listing the checkpoints in its parent folder.
void require_folder(const std::string& folder);

// The newest checkpoint that passes verification; why_skipped gets the reasons for skipping newer ones. Throws an Error
// if a newer step is unreadable: it may be complete and must not be skipped.
std::optional<CheckpointInfo> newest_valid(const std::string& root, std::vector<std::string>* why_skipped = nullptr,
                                           const Verify& verify = verify_checksums);

// Removes all diverged states except the newest.
void prune_diverged(const RunLock& lock);

// Removes all checkpoints except the newest keep_latest complete ones, and returns the removed steps. Removes nothing
// before the checksums of a kept one have been verified; if no kept one passes, also keeps the newest older one that
// passes. Folders without a manifest are not checkpoints and are kept.
std::vector<int64_t> prune(const RunLock& lock, int64_t keep_latest);

// Merges the files of a checkpoint that several ranks wrote into one file per kind of tensor: verifies the checkpoint
// and writes it to root/step-N/ in the form in which a single rank saves (consolidate.cc). Returns that folder.
std::string consolidate_checkpoint(const std::string& folder, const std::string& root);

}  // namespace athanor
