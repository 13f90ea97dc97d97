// Checkpoints in host memory (a folder of a memory file system), besides those on disk. Each machine holds the files
// that its ranks write, and copies of those of the machine before it, so a run continues from them after the loss of
// processes, or of any one machine, without reading a disk. After the idea of GEMINI [Wang et al. 2023].
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "comm/communicator.h"

namespace athanor {

inline constexpr const char* kDiskStateFile = "disk.json";  // DiskState of a checkpoint in memory

inline constexpr const char* kStartFile = "memory.json";  // of a save folder: DiskState::start

// The state of the save folder when a checkpoint in memory was written. If it is another one later, the checkpoint in
// memory is outdated: the run was continued elsewhere, went back, or began anew.
struct DiskState {
  std::string start;         // identity of the last start that did not continue from memory; "": none is known
  int64_t serial = -1;       // -1: no checkpoint; -2: unknown, since the disk cannot be read
  std::string manifest;      // XXH3 of its manifest
  int64_t step = -1;         // step of that checkpoint
  int64_t saving_step = -1;  // step of a save to disk that has not ended yet; -1: none

  bool known() const { return serial >= -1; }
  // True if `now` has the same start, and the same newest checkpoint or the one that was being saved.
  bool leads_to(const DiskState& now) const;
};
std::string to_json(const DiskState&);
DiskState disk_state_from_json(const std::string&);
DiskState disk_state(const std::string& save);  // of a save folder; saving_step stays -1
// Makes all checkpoints in memory outdated that were written before this call. saves_to_memory: false also removes
// kStartFile.
void begin_without_memory(const std::string& save, bool saves_to_memory);

// The folder for checkpoints in memory of the run in `save`: `configured`, or if that is empty, a folder of the run
// below /dev/shm/athanor-UID, which only this user can read. Throws Error(usage) if others can write there.
std::string memory_folder(const std::string& configured, const std::string& save);

// All ranks must make the same calls in the same order. control: all ranks, over host memory; null: one rank.
class MemoryCheckpoints {
 public:
  // Creates the folder. Ranks that see each other's files in it are on one machine.
  MemoryCheckpoints(std::string root, Communicator* control);

  const std::string& root() const { return root_; }
  RunLock* lock() { return lock_ ? &*lock_ : nullptr; }  // on the first rank of each machine
  int machines() const { return int(machines_.size()); }
  // Throws Error(usage) if the folder has no room for two checkpoints of `bytes` over all machines, with copies.
  void require_room(int64_t bytes) const;

  // Copies the files of this machine's `folder` to the folder of the same name of the next machine. With one machine
  // does nothing. Throws on every rank if any rank failed.
  void copy_to_next_machine(const std::string& folder);
  // Makes the newest usable checkpoint whole on every machine, by copying the files that a machine lacks from another
  // one, and verifies its checksums. Returns its folder on this machine, or "" if there is none; failures are logged.
  // `disk`: the state of the save folder, as rank 0 sees it.
  std::string find(const DiskState& disk);
  // Call once all ranks have read what find() returned: removes the large files that it copied from other machines.
  void drop_received();
  void keep_only(int64_t step);  // removes all other checkpoints of this machine; -1: all
  void remove_folder();          // of this machine, at the end of a run

 private:
  struct Held;      // what a machine holds of a checkpoint
  struct Transfer;  // a file to copy between machines
  int machine() const;
  bool leads() const;
  std::vector<std::string> gather(const std::string& mine) const;
  void copy(const std::vector<Transfer>&);
  std::string on_any_rank(const std::string& failure) const;
  std::vector<std::vector<Held>> held() const;  // by machine
  std::string complete(const std::vector<std::vector<Held>>&, const Held& wanted);

  const std::string root_;
  Communicator* const control_;
  std::vector<std::vector<int>> machines_;  // ranks of each machine
  std::optional<RunLock> lock_;
  std::vector<std::string> received_;  // files with tensors that other machines hold, too
};

}  // namespace athanor
