#include "train/checkpointer.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/process_mark.h"
#include "comm/rank_info.h"
#include "comm/texts.h"

namespace athanor {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Adds the duration of its scope to a sum.
class Stopwatch {
 public:
  explicit Stopwatch(double& sum) : sum_(sum) {}
  ~Stopwatch() { sum_ += seconds_between(begin_, std::chrono::steady_clock::now()); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& sum_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Encodes a rank's list of files and tensors as a manifest.
std::string part_json(std::vector<WrittenFile> part) {
  Manifest manifest;
  for (WrittenFile& written : part) {
    manifest.files.push_back(std::move(written.file));
    std::move(written.tensors.begin(), written.tensors.end(), std::back_inserter(manifest.tensors));
  }
  return manifest_json(manifest);
}

std::vector<WrittenFile> parse_part(const std::string& json, int rank) {
  const Manifest manifest = parse_manifest(json, cat("part of rank ", rank));
  std::vector<WrittenFile> part;
  for (const ManifestFile& file : manifest.files) {
    part.push_back({file, {}});
    for (const ManifestTensor& tensor : manifest.tensors)
      if (tensor.file == file.name) part.back().tensors.push_back(tensor);
  }
  return part;
}

// Returns the rank, within a worker, that writes each piece's tensors: pieces of a stage go to consecutive ranks of
// that stage, with about the same number of elements per rank.
std::vector<int> writers_of(const ParamStore& params, const std::vector<ParamStore::Piece>& pieces, int of_worker) {
  const StageUnits& stages = params.stages();
  const int ranks = of_worker / stages.stages;  // ranks of a stage have consecutive numbers
  const auto stage_of = [&](const ParamStore::Piece& p) {
    return size_t(stages.stages == 1 ? 0 : stages.stage_of[size_t(p.unit)]);
  };
  const auto elements_of = [&](const ParamStore::Piece& p) { return params.is_saved(p) ? p.slice->shape.numel() : 0; };
  std::vector<int64_t> total(size_t(stages.stages), 1), before(total.size(), 0);
  for (const ParamStore::Piece& piece : pieces) total[stage_of(piece)] += elements_of(piece);
  std::vector<int> writers;
  for (const ParamStore::Piece& piece : pieces) {
    const size_t stage = stage_of(piece);
    const int64_t elements = elements_of(piece);
    writers.push_back(int(stage) * ranks + int((before[stage] + elements / 2) * ranks / total[stage]));
    before[stage] += elements;
  }
  return writers;
}

// Calls fn(tensor, rank that writes it). The first worker writes tensors that are the same on all workers.
template <class Fn>
void for_each_writer(const ParamStore& params, const std::vector<ParamStore::Piece>& pieces, int ranks, Fn&& fn) {
  const int of_worker = ranks / params.worker().workers;
  const std::vector<int> writers = writers_of(params, pieces, of_worker);
  for (SavedTensor& tensor : saved_tensors(params)) {
    const int rank = std::max(tensor.worker, 0) * of_worker + writers[tensor.piece];
    fn(std::move(tensor), rank);
  }
}

// Runs fn on a thread; without `background`, or if no thread can be started, runs it when the result is requested.
template <class Fn>
auto begin_work(bool background, const Fn& fn) {
  if (background) try {
      return std::async(std::launch::async, fn);
    } catch (const std::system_error& e) {
      log::warn("checkpoint.async_save: no thread can be started (", e.code().message(),
                "), so the checkpoint is written while training waits");
    }
  return std::async(std::launch::deferred, fn);
}

}  // namespace

size_t snapshot_bytes(const ParamStore& params, int ranks) {
  const std::vector<ParamStore::Piece> pieces = params.pieces();
  std::vector<int64_t> bytes(size_t(ranks), 0);
  for_each_writer(params, pieces, ranks,
                  [&](const SavedTensor& t, int rank) { bytes[size_t(rank)] += bytes_of(params, pieces, t); });
  return size_t(*std::ranges::max_element(bytes));
}

int64_t tensor_bytes(const ParamStore& params) {
  const std::vector<ParamStore::Piece> pieces = params.pieces();
  int64_t bytes = 0;
  for (const SavedTensor& tensor : saved_tensors(params)) bytes += bytes_of(params, pieces, tensor);
  return bytes;
}

// Gathers the blocks of all tensors. All ranks of a worker's pipeline stage make the same rounds, even if writing a
// file fails.
class Checkpointer::Rounds {
 public:
  explicit Rounds(Checkpointer& save) : blocks_(save.engine_.gather_blocks()) {
    const ParamStore& params = save.engine_.model().params();
    const StageUnits& stages = params.stages();
    const WorkerRank& worker = params.worker();
    const size_t ranks = save.order_.size() / size_t(worker.workers * stages.stages);
    order_ = std::span(save.order_).subspan(size_t(worker.worker * stages.stages + stages.stage) * ranks, ranks);
    next_.resize(ranks);
  }

  // Returns this rank's next block.
  Tensor next() {
    std::vector<SavedBlock> wanted(next_.size());
    for (size_t r = 0; r < next_.size(); ++r) {
      const std::vector<Item>& items = order_[r];
      auto& [number, begin] = next_[r];
      if (number == items.size()) continue;
      const size_t piece = items[number].tensor.piece;
      const int state = items[number].tensor.state;
      wanted[r] = {piece, state, begin, blocks_->block_end(piece, state, begin)};
      begin = wanted[r].end;
      if (begin == blocks_->values(piece, state)) ++number, begin = 0;
    }
    return blocks_->next(wanted);
  }
  // Takes part in the remaining rounds, in which only other ranks get blocks.
  void finish() {
    for (size_t r = 0; r < next_.size(); ++r)
      while (next_[r].item < order_[r].size()) next();
  }
  size_t block_bytes() const { return blocks_->block_bytes(); }

 private:
  struct Next {
    size_t item = 0;
    int64_t begin = 0;
  };
  std::unique_ptr<BlockGather> blocks_;
  std::span<const std::vector<Item>> order_;  // indices: rank within the stage
  std::vector<Next> next_;
};

void Checkpointer::HostMemory::allocate(size_t size) {
  bytes = size;
  if (bytes > 0) memory = device.allocate(bytes, kind);
}

Checkpointer::Checkpointer(Engine& engine, Device& device, CheckpointerOptions options)
    : engine_(engine),
      device_(device),
      options_(std::move(options)),
      rank_(options_.control ? options_.control->rank() : 0),
      ranks_(options_.control ? options_.control->size() : 1),
      pieces_(engine.model().params().pieces()),
      files_{{"model", {}}, {"optimizer", {}}},
      order_(size_t(ranks_)),
      host_{device, device.unified() ? Mem::host : Mem::pinned} {
  const ParamStore& params = engine_.model().params();
  size_t all = 0;
  for_each_writer(params, pieces_, ranks_, [&](SavedTensor tensor, int rank) {
    if (rank == rank_) all += size_t(bytes_of(params, pieces_, tensor));
    std::vector<Item>& items = files_[tensor.model ? 0 : 1].items;
    items.push_back({std::move(tensor), rank});
  });
  for (File& file : files_) std::ranges::stable_sort(file.items, {}, &Item::rank);  // each rank's tensors are one shard
  for (const File& file : files_)
    for (const WeightShard& shard : shards(file)) {
      std::vector<TensorData> tensors;
      for (const size_t i : shard.tensors) tensors.push_back(described(file.items[i]));
      for (const size_t i : safetensors_order(tensors)) {
        const Item& item = file.items[shard.tensors[i]];
        order_[size_t(item.rank)].push_back(item);
      }
    }
  with_context(
      "checkpoint.async_save: host memory for a copy of the weights and optimizer states; off writes them without one",
      [&] {
        if (options_.background) host_.allocate(all);
      });
}

Checkpointer::~Checkpointer() { give_up_ = true; }  // the futures wait for running work

TensorData Checkpointer::described(const Item& item) const {
  const ParamStore& params = engine_.model().params();
  return {.name = item.tensor.name,
          .dtype = dtype_of(params, pieces_, item.tensor),
          .shape = shape_of(params, pieces_, item.tensor),
          .pieces = {}};
}

std::vector<WeightShard> Checkpointer::shards(const File& file) const {
  std::vector<WeightShard> shards;
  for (size_t i = 0; i < file.items.size(); ++i) {
    if (i == 0 || file.items[i].rank != file.items[i - 1].rank) shards.emplace_back();
    shards.back().tensors.push_back(i);
  }
  name_weight_shards(shards, file.stem);
  return shards;
}

// Copies everything that this rank writes to host memory.
std::vector<Checkpointer::Tensors> Checkpointer::snapshot() {
  auto* next = static_cast<std::byte*>(host_.memory);
  std::map<std::pair<size_t, int>, std::byte*> copies;
  Rounds rounds(*this);
  for (const Item& item : order_[size_t(rank_)]) {
    copies[{item.tensor.piece, item.tensor.state}] = next;
    const TensorData tensor = described(item);
    for (auto* end = next + tensor.shape.numel() * int64_t(size_of(tensor.dtype)); next < end;) {
      const Tensor block = rounds.next();
      device_.copy(next, block.data, block.bytes(), Stream::compute);
      next += block.bytes();
    }
  }
  rounds.finish();
  device_.sync();
  std::vector<Tensors> held(files_.size());
  for (size_t f = 0; f < files_.size(); ++f)
    for (const Item& item : files_[f].items)
      if (item.rank == rank_) {
        const TensorData saved = described(item);
        const Tensor copy{copies.at({item.tensor.piece, item.tensor.state}), saved.dtype, saved.shape};
        held[f].push_back({tensor_data(saved.name, copy), std::nullopt});
      }
  return held;
}

std::span<const std::byte> Checkpointer::on_host(const Tensor& block) {
  const void* from = block.data;
  if (!device_.unified()) {
    device_.copy(host_.memory, block.data, block.bytes(), Stream::compute);
    from = host_.memory;
  }
  device_.sync();
  return {static_cast<const std::byte*>(from), block.bytes()};
}

// Writes this rank's tensors block by block, while training waits.
std::vector<WrittenFile> Checkpointer::write_blocks(const std::string& folder, CheckpointOptions options) {
  Rounds rounds(*this);
  std::vector<Tensors> made(files_.size());
  for (size_t f = 0; f < files_.size(); ++f)
    for (const Item& item : files_[f].items)
      if (item.rank == rank_) {
        TensorData tensor = described(item);
        const int64_t bytes = tensor.shape.numel() * int64_t(size_of(tensor.dtype));
        tensor.make = [this, &rounds, bytes](const ByteSink& sink) {
          for (int64_t left = bytes; left > 0;) {
            const std::span<const std::byte> block = on_host(rounds.next());
            sink(block);
            left -= int64_t(block.size());
          }
        };
        made[f].push_back({std::move(tensor), std::nullopt});
      }
  std::vector<WrittenFile> part;
  const std::string failure = failure_of([&] {
    if (!device_.unified() && !host_.memory) host_.allocate(rounds.block_bytes());
    part = write(folder, made, std::move(options));
  });
  rounds.finish();
  if (!failure.empty()) throw Error(failure);
  return part;
}

std::vector<WrittenFile> Checkpointer::write(const std::string& folder, const std::vector<Tensors>& held,
                                             CheckpointOptions options) const {
  options.at_point = [this, before = std::move(options.at_point)](std::string_view point) {
    if (before) before(point);
    if (give_up_) throw Error("the save was aborted because the run ends");
  };
  std::vector<WrittenFile> part;
  for (size_t f = 0; f < files_.size(); ++f)
    for (const WeightShard& shard : shards(files_[f]))
      if (files_[f].items[shard.tensors.front()].rank == rank_)
        part.push_back(write_part(folder, shard.file, held[f], options));
  return part;
}

void Checkpointer::begin(const RunState& state, std::string why, SaveExtras extras, CheckpointOptions options,
                         bool prune) {
  finish();
  begin_ = Clock::now();
  save_ = {.folder = {}, .why = std::move(why), .step = state.step};
  const Stopwatch stall(save_.stall_seconds);
  extras_ = std::move(extras);
  state_ = state_json(state);
  prune_ = prune, diverged_ = options.diverged;
  const std::string mine = failure_of([&] {
    if (!options_.lock) return;
    options_.lock->keep();
    make_room();
    writer_ = std::make_unique<CheckpointWriter>(*options_.lock, state.step, options);
  });
  if (const std::string failure = of_any_rank(named(mine)); !failure.empty()) return fail(failure, !mine.empty());
  const std::string folder = cat(options_.root, "/", tmp_folder(state.step));
  if (!options_.background) {
    part_ = begin_work(false, [this, folder, options = std::move(options)] { return write_blocks(folder, options); });
    return;
  }
  std::vector<Tensors> held = snapshot();
  part_ = begin_work(true, [this, folder, held = std::move(held), options = std::move(options)] {
    return write(folder, held, options);
  });
}

bool Checkpointer::part_is_written() const {
  return part_.valid() && part_.wait_for(std::chrono::seconds(0)) != std::future_status::timeout;
}

void Checkpointer::collect() {
  const Stopwatch stall(save_.stall_seconds);
  std::vector<WrittenFile> mine;
  const std::string mine_failed = failure_of([&] { mine = part_.get(); });
  if (const std::string failure = of_any_rank(named(mine_failed)); !failure.empty())
    return fail(failure, !mine_failed.empty());
  if (options_.written) {
    const std::string failed = failure_of([&] { options_.written(cat(options_.root, "/", tmp_folder(save_.step))); });
    if (const std::string failure = of_any_rank(named(failed)); !failure.empty()) return fail(failure, !failed.empty());
  }
  std::vector<std::vector<WrittenFile>> parts;
  if (options_.control) {
    const auto texts = gather_texts(*options_.control, part_json(std::move(mine)));
    for (size_t r = 0; r < texts.size() && writer_; ++r) parts.push_back(parse_part(texts[r], int(r)));
  } else {
    parts.push_back(std::move(mine));
  }
  if (!writer_) return;
  for (auto& part : parts)
    for (WrittenFile& file : part) writer_->adopt(std::move(file));
  commit_ = begin_work(options_.background, [this] { return commit(); });
}

Checkpointer::Committed Checkpointer::commit() {
  for (const File& file : files_) {
    const std::vector<WeightShard> all = shards(file);
    std::vector<TensorData> tensors;
    for (const Item& item : file.items) tensors.push_back(described(item));
    if (all.size() > 1) writer_->add_text(file.stem + ".safetensors.index.json", weight_index_json(all, tensors));
  }
  writer_->add_text("config.json", extras_.hf_config);
  writer_->add_text("config.resolved.json", extras_.resolved_config);
  writer_->add_text("state.json", state_);
  if (!extras_.tuning.empty()) writer_->add_text("tuning.json", extras_.tuning);
  if (!extras_.adapter.empty()) writer_->add_text(kAdapterFile, extras_.adapter);
  for (const auto& [name, content] : extras_.files) writer_->add_text(name, content);
  const std::string folder = writer_->commit();
  const Committed done = {folder, Clock::now(), writer_->bytes()};
  writer_.reset();
  if (options_.keep_latest > 0) remove_older();
  return done;
}

// Removes old checkpoints before the save if the new one does not fit on the disk in addition to them, or if a save has
// failed (the only sign of an exceeded quota): first those that would be removed after the save anyway, then one more
// if that is not enough. One complete checkpoint always remains.
void Checkpointer::make_room() const {
  // Upper bounds for manifest, headers and indexes, which take about 380 bytes per tensor, 120 more with several ranks.
  constexpr int64_t kBesides = 1 << 16, kPerTensor = 768;
  if (options_.keep_latest == 0 || !prune_ || diverged_) return;
  int64_t need = tensor_bytes(engine_.model().params()) + kBesides;
  for (const File& file : files_) need += kPerTensor * int64_t(file.items.size());
  for (const std::string* text :
       {&extras_.hf_config, &extras_.resolved_config, &extras_.tuning, &extras_.adapter, &state_})
    need += int64_t(text->size());
  for (const TokenizerFile& file : extras_.files) need += int64_t(file.content.size());
  const auto lacks = [&] { return free_bytes(options_.root).value_or(need) < need; };
  const auto remove = [&](int64_t keep) {
    for (const int64_t step : prune(*options_.lock, keep))
      log::info("step ", step, " was removed before step ", save_.step,
                " is saved, to free disk space (checkpoint.keep_latest_k ", options_.keep_latest, ")");
  };
  if (failed_before_ || lacks()) remove(options_.keep_latest);
  if (options_.keep_latest > 1 && lacks()) remove(options_.keep_latest - 1);
}

// The save is already durable, so a failed removal must not fail it.
void Checkpointer::remove_older() const {
  try {
    if (diverged_) prune_diverged(*options_.lock);
    if (prune_ && !diverged_) prune(*options_.lock, options_.keep_latest);
  } catch (const Error& e) {
    log::warn("step ", save_.step, " is saved, but older checkpoints could not be removed: ", e.what());
  }
}

std::optional<SavedCheckpoint> Checkpointer::take_saved() {
  if (commit_.valid() && commit_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) settle();
  return std::exchange(saved_, std::nullopt);
}

void Checkpointer::settle() {
  Committed done;
  const std::string failure = failure_of([&] { done = commit_.get(); });
  if (!failure.empty()) return fail(named(failure), true);
  failed_before_ = false;
  save_.folder = done.folder;
  save_.seconds = seconds_between(begin_, done.time);
  save_.bytes = done.bytes;
  saved_ = save_;
}

void Checkpointer::fail(const std::string& why, bool here) {
  writer_.reset();  // removes the files written so far
  failed_before_ = true;
  failed_ = FailedSave{save_.step, why, seconds_between(begin_, Clock::now()), here};
}

std::string Checkpointer::named(const std::string& why) const {
  return why.empty() || !options_.control ? why : cat("rank ", rank_, " (", host_name(), "): ", why);
}

std::string Checkpointer::of_any_rank(const std::string& why) const {
  return options_.control ? first_text(*options_.control, why) : why;
}

void Checkpointer::finish() {
  if (writing()) collect();
  if (commit_.valid()) {
    {
      const Stopwatch stall(save_.stall_seconds);
      commit_.wait();
    }
    settle();
  }
  const std::string failure = of_any_rank(failed_ ? failed_->why : "");  // not all ranks commit
  if (!failure.empty() && !failed_) fail(failure, false);
}

}  // namespace athanor
