// Checkpointer: the saves of a run. Tensors are divided among the ranks. Each rank receives its tensors in blocks and
// either writes them as they arrive, or copies all of them to host memory and writes them in the background; training
// waits only for the copies. When all files are durable, rank 0, or one rank of each machine, commits them under one
// manifest; until then the previous checkpoints stay valid. A save that fails on any rank is aborted by all ranks, and
// training continues.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/store.h"
#include "checkpoint/weights.h"
#include "train/saved_tensors.h"
#include "train/snapshot.h"

namespace athanor {

struct CheckpointerOptions {
  std::string root;                 // the save folder, of all ranks or of each machine
  RunLock* lock = nullptr;          // set on the first rank that sees the folder
  Communicator* control = nullptr;  // all ranks, over host memory; null: one rank
  bool background = false;          // uses snapshot_bytes() of host memory
  int64_t keep_latest = 0;          // number of checkpoints to keep; 0: all
  // Called on all ranks once all have written their files to `folder`, before the commit; may throw.
  std::function<void(const std::string& folder)> written = {};
};

struct SavedCheckpoint {
  std::string folder, why;
  int64_t step = 0;
  double stall_seconds = 0;  // seconds for which training was blocked
  double seconds = 0;        // duration from the start until the checkpoint is durable
  int64_t bytes = 0;         // size of its files, without the manifest
};

struct FailedSave {
  int64_t step = 0;
  std::string why;     // reason given by the first rank that failed, with that rank's name
  double seconds = 0;  // duration of the attempt
  bool here = true;    // true on ranks that failed
};

// Returns the host memory, in bytes, that background saves use on the one of `ranks` ranks that writes the most: whole
// tensors.
size_t snapshot_bytes(const ParamStore&, int ranks);

// Returns the bytes of a checkpoint's tensors, over all ranks.
int64_t tensor_bytes(const ParamStore&);

// All ranks must make the same calls in the same order.
class Checkpointer {
 public:
  Checkpointer(Engine&, Device&, CheckpointerOptions);
  ~Checkpointer();  // an unfinished save is aborted and removed
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Finishes the previous save, then copies the state and starts writing. With background saving, weights may change
  // once it returns. `prune`: older checkpoints may be removed afterwards.
  void begin(const RunState&, std::string why, SaveExtras, CheckpointOptions, bool prune = true);
  bool writing() const { return part_.valid(); }  // true from begin() to collect()
  bool under_way() const { return writing() || commit_.valid(); }
  bool part_is_written() const;  // true if this rank has written its files, or failed
  // Call once all ranks have written: sends the file lists to ranks with a lock, which commit in the background.
  void collect();
  // Blocks until the save is durable or has failed on all ranks; no-op without a save.
  void finish();
  // On ranks with a lock: returns the save that became durable since the last call, if any.
  std::optional<SavedCheckpoint> take_saved();
  // Returns the save that failed since the last call, if any. After finish() all ranks know of it; before, possibly
  // only some.
  std::optional<FailedSave> take_failed() { return std::exchange(failed_, std::nullopt); }

 private:
  using Clock = std::chrono::steady_clock;
  using Tensors = std::vector<CheckpointTensor>;
  struct Item {
    SavedTensor tensor;
    int rank;  // rank that writes it
  };
  // Gathers blocks of all tensors, in rounds, each on the rank that writes it.
  class Rounds;
  struct File {
    std::string stem;
    std::vector<Item> items;
  };
  struct Committed {
    std::string folder;
    Clock::time_point time;
    int64_t bytes = 0;
  };
  // Host memory. Background saves use it for a copy of everything that this rank writes; it is allocated at the start,
  // so that a run without enough memory to save fails there. Other saves use it for one block, if the host cannot read
  // device memory.
  struct HostMemory {
    Device& device;
    Mem kind;
    size_t bytes = 0;
    void* memory = nullptr;
    void allocate(size_t size);
    ~HostMemory() {
      if (memory) device.release(memory, bytes, kind);
    }
  };

  std::vector<Tensors> snapshot();
  std::vector<WrittenFile> write_blocks(const std::string& folder, CheckpointOptions);
  std::span<const std::byte> on_host(const Tensor& block);
  TensorData described(const Item&) const;
  std::vector<WeightShard> shards(const File&) const;  // one file per rank with tensors
  std::vector<WrittenFile> write(const std::string& folder, const std::vector<Tensors>&, CheckpointOptions) const;
  Committed commit();
  void make_room() const;
  void remove_older() const;
  void settle();
  void fail(const std::string& why, bool here);
  std::string named(const std::string& why) const;  // adds this rank, if there are several, and its machine
  std::string of_any_rank(const std::string& why) const;

  Engine& engine_;
  Device& device_;
  const CheckpointerOptions options_;
  const int rank_, ranks_;
  const std::vector<ParamStore::Piece> pieces_;
  std::vector<File> files_;
  std::vector<std::vector<Item>> order_;  // items that each rank writes, in the order of its files
  HostMemory host_;
  std::atomic<bool> give_up_ = false;
  // State of the current save.
  SavedCheckpoint save_;
  bool prune_ = true, diverged_ = false, failed_before_ = false;
  Clock::time_point begin_;
  SaveExtras extras_;
  std::string state_;
  std::unique_ptr<CheckpointWriter> writer_;  // set on ranks with a lock
  std::future<std::vector<WrittenFile>> part_;
  std::future<Committed> commit_;  // valid on ranks with a lock
  std::optional<SavedCheckpoint> saved_;
  std::optional<FailedSave> failed_;
};

}  // namespace athanor
