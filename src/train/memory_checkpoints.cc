#include "train/memory_checkpoints.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "base/process_mark.h"
#include "comm/texts.h"

namespace athanor {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKey = "checkpoint.memory_interval";
constexpr int64_t kUnreadable = -2;
constexpr int64_t kBlock = int64_t{4} << 20;  // bytes sent at a time

// Creates /dev/shm/athanor-UID, which only this user may enter: any user may create names in /dev/shm.
std::string private_folder() {
  const std::string folder = cat("/dev/shm/athanor-", getuid());
  std::error_code none;
  if (!fs::exists(fs::symlink_status(folder, none))) ::mkdir(folder.c_str(), S_IRWXU);
  struct stat info {};
  if (::lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == getuid() &&
      (info.st_mode & (S_IRWXG | S_IRWXO)) == 0)
    return folder;
  throw Error(cat(kKey, ": expected ", folder, " to be a folder of this user with mode 0700, it is not, or cannot be ",
                  "created; remove it, or set checkpoint.memory_folder to a folder in memory that only you can write"),
              Exit::usage);
}

DiskState parse_disk_state(const nlohmann::json& j) {
  return {.start = j.at("start").get<std::string>(),
          .serial = j.at("serial").get<int64_t>(),
          .manifest = j.at("manifest").get<std::string>(),
          .step = j.at("step").get<int64_t>(),
          .saving_step = j.at("saving_step").get<int64_t>()};
}

nlohmann::json json_of(const DiskState& s) {
  return {{"start", s.start},
          {"serial", s.serial},
          {"manifest", s.manifest},
          {"step", s.step},
          {"saving_step", s.saving_step}};
}

constexpr int64_t kMaxDiskStateBytes = int64_t{1} << 30;  // of a manifest or kStartFile

// DiskState::start of a save folder; "" without the file.
std::string start_of(const std::string& save) {
  const std::string path = cat(save, "/", kStartFile);
  if (!fs::exists(path)) return "";
  return with_context(
      path, [&] { return nlohmann::json::parse(read_file(path, kMaxDiskStateBytes)).at("start").get<std::string>(); });
}

bool has_tensors(const std::string& file) { return file.ends_with(".safetensors"); }

}  // namespace

bool DiskState::leads_to(const DiskState& now) const {
  if (!known() || !now.known() || start != now.start) return false;
  return (serial == now.serial && manifest == now.manifest) ||
         (saving_step >= 0 && now.step == saving_step && now.serial == std::max<int64_t>(serial, 0) + 1);
}

std::string to_json(const DiskState& state) { return json_of(state).dump() + "\n"; }

DiskState disk_state_from_json(const std::string& text) { return parse_disk_state(nlohmann::json::parse(text)); }

DiskState disk_state(const std::string& save) {
  try {
    const std::string start = start_of(save);
    const std::vector<CheckpointInfo> all = list_checkpoints(save);
    if (all.empty()) return {.start = start};
    return {.start = start,
            .serial = all.back().serial,
            .manifest = xxh3_hex(read_file(cat(all.back().path, "/", kManifestName), kMaxDiskStateBytes)),
            .step = all.back().step};
  } catch (const std::exception& e) {
    log::warn(kKey, ": the newest checkpoint on disk cannot be read, so none in memory can follow it: ", e.what());
    return {.serial = kUnreadable};
  }
}

void begin_without_memory(const std::string& save, bool saves_to_memory) {
  const std::string path = cat(save, "/", kStartFile);
  std::random_device random;
  if (saves_to_memory)
    write_file(path, nlohmann::json{{"start", cat(process_mark(), "-", random(), "-", random())}}.dump() + "\n");
  else
    fs::remove(path);
}

std::string memory_folder(const std::string& configured, const std::string& save) {
  const std::string path = fs::weakly_canonical(fs::absolute(save)).string();
  return cat(configured.empty() ? private_folder() : configured, "/", base_name(path), "-",
             xxh3_hex(path).substr(0, 12));
}

// What a machine holds of a checkpoint.
struct MemoryCheckpoints::Held {
  int64_t step = 0;
  std::string content;                   // hash of the checksums of all its files with tensors, on any machine
  DiskState disk;                        // when it was written
  std::vector<std::string> names;        // all its files
  std::map<std::string, int64_t> files;  // bytes of the files that are here in full

  bool same(const Held& other) const { return step == other.step && content == other.content; }
  static Held read(const CheckpointInfo&);
};

// A file to copy between machines; paths are below the machines' folders.
struct MemoryCheckpoints::Transfer {
  int from = 0, to = 0;  // machines
  std::string source, target;
  int64_t bytes = 0;
};

MemoryCheckpoints::Held MemoryCheckpoints::Held::read(const CheckpointInfo& info) {
  constexpr int64_t kMaxBytes = 1 << 16;
  const Manifest manifest = read_manifest(info.path);
  Held held{.step = info.step, .content = {}, .disk = {}, .names = {kManifestName}, .files = {}};
  held.disk = parse_disk_state(nlohmann::json::parse(read_file(cat(info.path, "/", kDiskStateFile), kMaxBytes)));
  std::error_code none;
  held.files[kManifestName] = int64_t(fs::file_size(cat(info.path, "/", kManifestName), none));
  std::string sums;
  for (const ManifestFile& file : manifest.files) {
    held.names.push_back(file.name);
    if (has_tensors(file.name)) sums += cat(file.name, " ", file.xxh3, "\n");
    const auto bytes = fs::file_size(cat(info.path, "/", file.name), none);
    if (!none && int64_t(bytes) == file.bytes) held.files[file.name] = file.bytes;
  }
  held.content = xxh3_hex(sums);
  return held;
}

MemoryCheckpoints::MemoryCheckpoints(std::string root, Communicator* control)
    : root_(std::move(root)), control_(control) {
  if (!control_) {
    with_context(kKey, [&] { lock_.emplace(root_); });
    machines_ = {{0}};
    return;
  }
  const int me = control_->rank();
  const std::string mark = cat("rank-", me, "-", std::random_device{}());
  const std::string path = cat(root_, "/", mark);
  std::string failure = failure_of([&] {
    make_dirs(root_);
    write_file(path, "");
  });
  const std::vector<std::string> marks = gather_texts(*control_, mark);
  int first = me;  // the first rank of this machine
  std::error_code none;
  for (int r = me; r >= 0; --r)
    if (fs::exists(cat(root_, "/", marks[size_t(r)]), none)) first = r;
  const std::vector<std::string> firsts = gather_texts(*control_, cat(first));
  unlink(path.c_str());
  std::map<int, std::vector<int>> machines;
  for (int r = 0; r < control_->size(); ++r) machines[std::stoi(firsts[size_t(r)])].push_back(r);
  for (auto& [_, ranks] : machines) machines_.push_back(std::move(ranks));
  if (failure.empty() && leads()) failure = failure_of([&] { lock_.emplace(root_); });
  failure = on_any_rank(failure);
  if (!failure.empty()) throw Error(cat(kKey, ": ", failure));
}

int MemoryCheckpoints::machine() const {
  const int me = control_ ? control_->rank() : 0;
  for (size_t m = 0; m < machines_.size(); ++m)
    if (std::ranges::find(machines_[m], me) != machines_[m].end()) return int(m);
  CHECK(false, "rank ", me, " is on no machine");
}

bool MemoryCheckpoints::leads() const { return !control_ || machines_[size_t(machine())].front() == control_->rank(); }

std::vector<std::string> MemoryCheckpoints::gather(const std::string& mine) const {
  return control_ ? gather_texts(*control_, mine) : std::vector{mine};
}

std::string MemoryCheckpoints::on_any_rank(const std::string& failure) const {
  if (!control_) return failure;
  return first_text(*control_,
                    failure.empty() ? "" : cat("rank ", control_->rank(), " (", host_name(), "): ", failure));
}

void MemoryCheckpoints::require_room(int64_t bytes) const {
  const int64_t copies = machines() > 1 ? 2 : 1;
  const int64_t need = 2 * copies * bytes / machines();  // the old one stays until the new one is complete
  std::string lack;
  if (const auto free = leads() ? free_bytes(root_) : std::nullopt) {
    int64_t held = 0;
    std::error_code none;
    for (const CheckpointInfo& info : list_checkpoints(root_))
      for (const std::string& name : folder_names(info.path)) {
        const auto size = fs::file_size(cat(info.path, "/", name), none);
        if (!none) held += int64_t(size);
      }
    if (*free + held < need)
      lack = cat("expected ", format_bytes(uint64_t(need)), " in ", root_, " for two checkpoints",
                 copies > 1 ? ", with those of another machine" : "", "; it has ", format_bytes(uint64_t(*free + held)),
                 ": enlarge that file system (docker: --shm-size), set checkpoint.memory_folder to another one in "
                 "memory, or ",
                 kKey, " to 0");
  }
  lack = on_any_rank(lack);
  if (!lack.empty()) throw Error(cat(kKey, ": ", lack), Exit::usage);
}

// Copies all files at once, in rounds of a block for each pair of ranks that has files to copy. A rank that cannot read
// or write still takes part in all rounds.
void MemoryCheckpoints::copy(const std::vector<Transfer>& all) {
  struct Pair {
    std::vector<const Transfer*> files;
    size_t next = 0;
    int64_t at = 0;  // offset in the next file
    Fd source;
    std::optional<OutputFile> target;
    std::vector<std::byte> block = {};
    bool ended() const { return next == files.size(); }
    Tensor take() {  // memory for the next block
      block.resize(size_t(std::min(kBlock, files[next]->bytes - at)));
      return {block.data(), DType::u8, {int64_t(block.size())}};
    }
    void read(const std::string& root) {
      const std::string path = cat(root, "/", files[next]->source);
      if (at == 0) source = open_regular(path);
      pread_all(source, block, at, path);
    }
    void write(const std::string& root) {
      if (at == 0) target.emplace(cat(root, "/", files[next]->target));
      target->write(block);
      if (target->written() == files[next]->bytes) target->finish();
    }
    void advance() {
      at += int64_t(block.size());
      if (at == files[next]->bytes) at = 0, ++next;
    }
  };
  const int ranks = control_->size(), me = control_->rank();
  std::map<int, Pair> out, in;  // keys: the rank that receives, or sends
  std::map<std::pair<int, int>, int64_t> blocks;
  std::string failure;
  const auto attempt = [&](const auto& fn) {
    if (failure.empty()) failure = failure_of(fn);
  };
  for (size_t k = 0; k < all.size(); ++k) {
    const Transfer& t = all[k];
    const auto of = [&](int machine) {
      const std::vector<int>& its = machines_[size_t(machine)];
      return its[k % its.size()];
    };
    const int from = of(t.from), to = of(t.to);
    if (to == me) attempt([&] { remove_tree(cat(root_, "/", t.target)); });
    if (to == me && t.bytes == 0) attempt([&] { OutputFile(cat(root_, "/", t.target)).finish(); });
    if (t.bytes == 0) continue;
    blocks[{from, to}] += (t.bytes + kBlock - 1) / kBlock;
    if (from == me) out[to].files.push_back(&t);
    if (to == me) in[from].files.push_back(&t);
  }
  int64_t rounds = 0;
  for (const auto& [_, count] : blocks) rounds = std::max(rounds, count);
  for (int64_t round = 0; round < rounds; ++round) {
    std::vector<Tensor> sent(static_cast<size_t>(ranks)), received(sent.size());
    for (auto& [rank, p] : out) {
      Pair& pair = p;
      if (pair.ended()) continue;
      sent[size_t(rank)] = pair.take();
      attempt([&] { pair.read(root_); });
      pair.advance();
    }
    for (auto& [rank, pair] : in)
      if (!pair.ended()) received[size_t(rank)] = pair.take();
    control_->all_to_all(sent, received, Stream::compute);
    for (auto& [rank, p] : in) {
      Pair& pair = p;
      if (pair.ended()) continue;
      attempt([&] { pair.write(root_); });
      pair.advance();
    }
  }
  const std::string problem = on_any_rank(failure);
  if (!problem.empty()) throw Error(cat("copying a checkpoint in memory to another machine: ", problem));
}

void MemoryCheckpoints::copy_to_next_machine(const std::string& folder) {
  if (machines() == 1) return;
  nlohmann::json mine = nlohmann::json::object();
  const std::string problem = on_any_rank(failure_of([&] {
    if (leads())
      for (const std::string& name : folder_names(folder)) mine[name] = fs::file_size(cat(folder, "/", name));
  }));
  if (!problem.empty()) throw Error(problem);
  const std::vector<std::string> all = gather(leads() ? mine.dump() : "");
  std::vector<Transfer> transfers;
  for (int m = 0; m < machines(); ++m) {
    const auto files = nlohmann::json::parse(all[size_t(machines_[size_t(m)].front())]);
    for (const auto& [name, bytes] : files.items()) {
      const std::string path = cat(base_name(folder), "/", name);
      transfers.push_back(
          {.from = m, .to = (m + 1) % machines(), .source = path, .target = path, .bytes = bytes.get<int64_t>()});
    }
  }
  copy(transfers);
}

std::vector<std::vector<MemoryCheckpoints::Held>> MemoryCheckpoints::held() const {
  nlohmann::json mine = nlohmann::json::array();
  std::vector<CheckpointInfo> infos;
  const std::string unlisted = failure_of([&] {
    if (leads()) infos = list_checkpoints(root_);
  });
  if (!unlisted.empty()) log::warn(kKey, ": no checkpoint of ", root_, " is used: ", unlisted);
  for (const CheckpointInfo& info : infos) try {
      const Held held = Held::read(info);
      mine.push_back({{"step", held.step},
                      {"content", held.content},
                      {"disk", json_of(held.disk)},
                      {"names", held.names},
                      {"files", held.files}});
    } catch (const std::exception& e) {
      log::warn(kKey, ": ", info.path, " is not used: ", e.what());
    }
  const std::vector<std::string> all = gather(mine.dump());
  std::vector<std::vector<Held>> machines;
  for (const std::vector<int>& ranks : machines_) {
    std::vector<Held>& here = machines.emplace_back();
    for (const nlohmann::json& j : nlohmann::json::parse(all[size_t(ranks.front())]))
      here.push_back({.step = j.at("step").get<int64_t>(),
                      .content = j.at("content").get<std::string>(),
                      .disk = parse_disk_state(j.at("disk")),
                      .names = j.at("names").get<std::vector<std::string>>(),
                      .files = j.at("files").get<std::map<std::string, int64_t>>()});
  }
  return machines;
}

std::string MemoryCheckpoints::find(const DiskState& disk) {
  const std::vector<std::vector<Held>> all = held();
  std::vector<const Held*> wanted;
  for (const std::vector<Held>& here : all)
    for (const Held& held : here)
      if (held.step > disk.step && held.disk.leads_to(disk) &&
          std::ranges::none_of(wanted, [&](const Held* other) { return other->same(held); }))
        wanted.push_back(&held);
  std::ranges::stable_sort(wanted, std::ranges::greater{}, &Held::step);
  for (const Held* held : wanted) {
    const std::string problem = complete(all, *held);
    if (problem.empty()) return cat(root_, "/", step_folder(held->step));
    if (!control_ || control_->rank() == 0)
      log::warn(kKey, ": the checkpoint of step ", held->step, " in memory is not used: ", problem);
  }
  return "";
}

// Returns "" once the checkpoint is whole and verified on every machine, else the reason.
std::string MemoryCheckpoints::complete(const std::vector<std::vector<Held>>& all, const Held& wanted) {
  const std::string final_name = step_folder(wanted.step), new_name = tmp_folder(wanted.step);
  std::vector<const Held*> at(all.size());  // by machine; null: it has nothing of this checkpoint
  std::map<std::string, int> source;        // file -> a machine that has it
  for (size_t m = 0; m < all.size(); ++m)
    for (const Held& held : all[m])
      if (held.same(wanted)) {
        at[m] = &held;
        for (const auto& [name, _] : held.files) source.emplace(name, int(m));
      }
  for (const std::string& name : wanted.names)
    if (!source.contains(name)) return cat("no machine has its file ", name, " any more");
  std::vector<Transfer> transfers;
  for (size_t m = 0; m < all.size(); ++m)
    for (const std::string& name : wanted.names) {
      if (at[m] && at[m]->files.contains(name)) continue;
      const int from = source.at(name);
      transfers.push_back({.from = from,
                           .to = int(m),
                           .source = cat(final_name, "/", name),
                           .target = cat(at[m] ? final_name : new_name, "/", name),
                           .bytes = at[size_t(from)]->files.at(name)});
    }
  const std::string folder = cat(root_, "/", final_name);
  received_.clear();
  for (const Transfer& t : transfers)
    if (t.to == machine() && has_tensors(t.target)) received_.push_back(cat(folder, "/", base_name(t.target)));
  const bool anew = leads() && !at[size_t(machine())];
  const auto together = [&](const auto& fn) { return on_any_rank(failure_of(fn)); };
  std::string problem = together([&] {
    if (anew) remove_tree(cat(root_, "/", new_name)), make_dirs(cat(root_, "/", new_name));
  });
  if (problem.empty() && !transfers.empty()) problem = failure_of([&] { copy(transfers); });
  if (!problem.empty()) return problem;
  problem = together([&] {
    if (anew) remove_tree(folder), rename_path(cat(root_, "/", new_name), folder);
  });
  if (!problem.empty()) return problem;
  return together([&] {
    const std::vector<int>& here = machines_[size_t(machine())];
    const int me = control_ ? control_->rank() : 0;
    const auto index = size_t(std::ranges::find(here, me) - here.begin());
    const Verification v = verify_checkpoint(folder, Depth::checksums, {.first = index, .every = here.size()});
    if (!v.ok) throw Error(v.problem);
  });
}

void MemoryCheckpoints::drop_received() {
  if (control_) control_->barrier();  // all ranks have read them
  const std::string failure = failure_of([&] {
    if (leads())
      for (const std::string& path : received_) remove_tree(path);
  });
  if (!failure.empty()) log::warn(kKey, ": files of other machines were not removed: ", failure);
}

void MemoryCheckpoints::keep_only(int64_t step) {
  if (!leads()) return;
  const std::string failure = failure_of([&] {
    for (const CheckpointInfo& info : list_checkpoints(root_))
      if (info.step != step) remove_tree(info.path);
  });
  if (!failure.empty()) log::warn(kKey, ": an old checkpoint in memory was not removed: ", failure);
}

void MemoryCheckpoints::remove_folder() {
  if (!leads()) return;
  const std::string failure = failure_of([&] { remove_tree(root_); });
  if (!failure.empty()) log::warn(kKey, ": ", root_, " was not removed: ", failure);
}

}  // namespace athanor
