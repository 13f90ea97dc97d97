// The commit protocol, the list of steps, and retention.
#include "checkpoint/store.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <set>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/printable.h"

namespace athanor {
namespace {

void pass(const CheckpointOptions& options, std::string_view point) {
  if (options.at_point) options.at_point(point);
}

ManifestTensor manifest_tensor(const CheckpointTensor& t, const std::string& file, const std::string& xxh3) {
  const Shape& piece = t.data.shape;
  TensorPlacement place{.whole = piece, .begin = piece};
  place.begin.dim.fill(0);
  if (t.placement) place = *t.placement;
  CHECK(place.whole.rank == piece.rank && place.begin.rank == piece.rank, t.data.name, " ", piece, " in ", place.whole);
  Shape end = place.begin;
  for (int i = 0; i < piece.rank; ++i) {
    end.dim[i] += piece.dim[i];
    CHECK(place.begin.dim[i] >= 0 && end.dim[i] <= place.whole.dim[i], t.data.name, " ", piece, " at ", place.begin,
          " leaves ", place.whole);
  }
  return {.file = file,
          .name = t.data.name,
          .dtype = t.data.dtype,
          .shape = place.whole,
          .begin = place.begin,
          .end = end,
          .xxh3 = xxh3};
}

void check_name(const std::string& name) {
  CHECK(is_plain_file_name(name) && name != kManifestName, "a checkpoint cannot hold a file named ", printable(name));
}

// Writes a new file in `folder`; durable on return. fill(OutputFile&) returns the file's checksum.
template <class Fill>
ManifestFile write_member(const std::string& folder, const std::string& name, const CheckpointOptions& options,
                          Fill&& fill) {
  OutputFile out(cat(folder, "/", name));
  const std::string xxh3 = fill(out);
  pass(options, "file_written");
  out.finish();
  pass(options, "file_synced");
  return {.name = name, .bytes = out.written(), .xxh3 = xxh3};
}

// Renames a folder to a hidden name, then removes it: an interrupted removal leaves no partial step under a step's
// name.
void remove_step(const std::string& root, const CheckpointInfo& info) {
  const std::string hidden = cat(root, "/", tmp_folder(info.step));
  rename_path(info.path, hidden);
  fsync_dir(root);
  remove_tree(hidden);
}

// True for a real folder (not a link) that contains a manifest. Anything else is not a checkpoint and is never removed
// or replaced.
bool is_checkpoint(const std::string& path) {
  std::error_code none;
  namespace fs = std::filesystem;
  return fs::is_directory(fs::symlink_status(path, none)) &&
         fs::exists(fs::symlink_status(cat(path, "/", kManifestName), none));
}

// Renames something that is not a checkpoint but has a checkpoint's path.
void move_out_of_the_way(const std::string& path) {
  std::error_code none;
  for (int i = 1;; ++i) {
    const std::string free = cat(path, ".moved-", i);
    if (std::filesystem::exists(std::filesystem::symlink_status(free, none))) continue;
    rename_path(path, free);
    return log::warn("checkpoint: ", path, " existed but is not a checkpoint (it has no ", kManifestName,
                     "): it was renamed to ", free);
  }
}

// The checkpoint is already durable, so failing to write the hint must not fail its save.
void name_latest(const std::string& root, int64_t step) {
  try {
    write_file(cat(root, "/", kLatestName), cat(step_folder(step), "\n"));
  } catch (const Error& e) {
    log::warn("checkpoint: step ", step, " is saved, but the file ", kLatestName, " does not name it: ", e.what());
  }
}

// Serial number for the next checkpoint or diverged state of the folder: one more than its largest.
int64_t next_serial(const std::string& root) {
  int64_t largest = 0;
  for (const CheckpointInfo& info : list_checkpoints(root)) largest = std::max(largest, info.serial);
  for (const CheckpointInfo& info : list_diverged(root)) largest = std::max(largest, info.serial);
  return largest + 1;
}

int64_t serial_of(const std::string& folder) {
  for (int attempt = 0; attempt < 2; ++attempt) try {  // one transient read failure must not change the order
      return read_manifest(folder).serial;
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): verification reports the reason
    }
  return -1;
}

}  // namespace

WrittenFile write_part(const std::string& folder, const std::string& name, std::span<const CheckpointTensor> tensors,
                       const CheckpointOptions& options) {
  check_name(name);
  CHECK(name.ends_with(".safetensors"), "a file of tensors cannot be named ", printable(name));
  std::vector<TensorData> data;
  for (const CheckpointTensor& t : tensors) data.push_back(t.data);
  SafetensorsSummary summary;
  WrittenFile part;
  part.file = write_member(folder, name, options, [&](OutputFile& out) {
    const auto after_tensor = [&](std::string_view) { pass(options, "tensor_written"); };
    summary = write_safetensors(out, data, {.metadata = options.metadata, .after_tensor = after_tensor});
    return summary.xxh3;
  });
  for (size_t i = 0; i < tensors.size(); ++i)
    part.tensors.push_back(manifest_tensor(tensors[i], name, summary.tensor_xxh3[i]));
  return part;
}

CheckpointWriter::Unfinished::~Unfinished() {
  if (kept) return;
  try {
    remove_tree(path);
  } catch (const Error& e) {
    log::warn("checkpoint: an unfinished one was left behind, since it cannot be removed: ", e.what());
  }
}

CheckpointWriter::CheckpointWriter(const RunLock& lock, int64_t step, CheckpointOptions options)
    : root_(lock.root()), tmp_{cat(root_, "/", tmp_folder(step))}, step_(step), options_(std::move(options)) {
  remove_tree(folder());
  make_dirs(folder());
  pass(options_, "begin");
}

void CheckpointWriter::add_safetensors(const std::string& name, std::span<const CheckpointTensor> tensors) {
  adopt(write_part(folder(), name, tensors, options_));
}

void CheckpointWriter::add_text(const std::string& name, std::string_view text) {
  check_name(name);
  const ManifestFile file = write_member(folder(), name, options_, [&](OutputFile& out) {
    out.write(text);
    return xxh3_hex(text);
  });
  adopt({.file = file, .tensors = {}});
}

void CheckpointWriter::adopt(WrittenFile part) {
  CHECK(!manifest_.find_file(part.file.name), "two files of a checkpoint are named ", part.file.name);
  manifest_.files.push_back(std::move(part.file));
  for (ManifestTensor& t : part.tensors) manifest_.tensors.push_back(std::move(t));
}

int64_t CheckpointWriter::bytes() const {
  int64_t sum = 0;
  for (const ManifestFile& file : manifest_.files) sum += file.bytes;
  return sum;
}

std::string CheckpointWriter::commit() {
  CHECK(!tmp_.kept, "step ", step_, " was committed before");
  manifest_.program_version = options_.program_version;
  manifest_.program_commit = options_.program_commit;
  manifest_.config_hash = options_.config_hash;
  manifest_.data_fingerprint = options_.data_fingerprint;
  manifest_.step = step_;
  manifest_.serial = next_serial(root_);
  manifest_.created = utc_now();
  OutputFile out(cat(folder(), "/", kManifestName));
  out.write(manifest_json(manifest_));
  out.finish();
  pass(options_, "manifest_written");
  fsync_dir(folder());
  pass(options_, "folder_synced");

  const std::string target = cat(root_, "/", options_.diverged ? diverged_folder(step_) : step_folder(step_));
  if (options_.diverged && is_checkpoint(target)) remove_tree(target);  // no other data depends on the old state
  std::error_code none;
  bool replaces = std::filesystem::exists(std::filesystem::symlink_status(target, none));
  if (replaces && !is_checkpoint(target)) move_out_of_the_way(target), replaces = false;
  const std::string old_path = replaces ? swap_in(target) : "";
  if (!replaces) rename_path(folder(), target);
  tmp_.kept = true;
  pass(options_, "renamed");
  fsync_dir(root_);
  pass(options_, "root_synced");
  if (replaces) {
    remove_tree(old_path);
    pass(options_, "old_removed");
  }
  if (options_.diverged) return target;
  name_latest(root_, step_);
  pass(options_, "latest_replaced");
  return target;
}

// Replaces the old folder by the new one and returns the current path of the old one.
std::string CheckpointWriter::swap_in(const std::string& target) const {
  if (renameat2(AT_FDCWD, folder().c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return folder();
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
    throw_io(cat("renaming ", folder(), " to"), target, errno);
  // For file systems without RENAME_EXCHANGE: two renames. Between them the step has its aside name.
  const std::string aside = cat(root_, "/", aside_folder(step_));
  remove_tree(aside);
  rename_path(target, aside);
  pass(options_, "moved_aside");
  rename_path(folder(), target);
  return aside;
}

std::vector<CheckpointInfo> list_checkpoints(const std::string& root) {
  std::map<int64_t, std::string> steps;
  for (const std::string& name : folder_names(root)) {
    // A step moved aside counts only if there is none under the final name; hidden names sort first.
    if (const auto aside = parse_aside_folder(name)) steps[*aside] = name;
    if (const auto step = parse_step_folder(name)) steps[*step] = name;
  }
  std::vector<CheckpointInfo> list, unknown;
  for (const auto& [step, name] : steps) {
    CheckpointInfo info{.step = step, .path = cat(root, "/", name), .serial = serial_of(cat(root, "/", name))};
    (info.serial < 0 ? unknown : list).push_back(std::move(info));
  }
  std::ranges::stable_sort(list, {}, &CheckpointInfo::serial);
  for (CheckpointInfo& info : unknown) {
    const auto below =
        std::find_if(list.rbegin(), list.rend(), [&](const auto& other) { return other.step < info.step; });
    list.insert(below.base(), std::move(info));
  }
  int64_t smallest = INT64_MAX;  // minimum step of the checkpoints written later
  for (auto info = list.rbegin(); info != list.rend(); ++info) {
    info->given_up = info->step >= smallest;
    smallest = std::min(smallest, info->step);
  }
  return list;
}

void make_newest(const RunLock& lock, const CheckpointInfo& info) {
  Manifest manifest = read_manifest(info.path);
  manifest.serial = next_serial(lock.root());
  write_file(cat(info.path, "/", kManifestName), manifest_json(manifest));
  name_latest(lock.root(), info.step);
}

std::string checkpoint_at(const std::string& path, const Verify& verify) {
  namespace fs = std::filesystem;
  std::error_code none;
  const bool names_latest = fs::path(path).filename() == kLatestName && fs::is_regular_file(path, none);
  const std::string folder = names_latest ? parent_dir(path) : path;
  require_folder(folder);
  if (is_checkpoint(folder) || list_checkpoints(folder).empty()) {
    const Verification whole = verify(folder);
    if (whole.ok) return folder;
    throw Error(cat("load: ", folder, " is not a whole checkpoint: ", whole.problem, "; `athanor checkpoint list ",
                    parent_dir(folder), "` lists the checkpoints there"));
  }
  std::vector<std::string> skipped;
  const auto newest = newest_valid(folder, &skipped, verify);
  for (const std::string& why : skipped) log::warn("checkpoint skipped: ", why);
  if (!newest)
    throw Error(cat("load: ", folder, ": none of its checkpoints is whole; `athanor checkpoint list ", folder,
                    "` shows what is wrong with them"));
  return newest->path;
}

void require_folder(const std::string& folder) {
  std::error_code ignored;
  if (std::filesystem::is_directory(folder, ignored)) return;
  const size_t end = std::max<size_t>(folder.find_last_not_of('/') + 1, 1);
  const std::string around = parent_dir(folder.substr(0, end));
  const auto others = list_checkpoints(around);
  throw Error(
      cat(folder, ": there is no such folder",
          others.empty() ? "" : cat("; the newest checkpoint in ", around, " is ", step_folder(others.back().step))),
      Exit::usage);
}

std::optional<CheckpointInfo> newest_valid(const std::string& root, std::vector<std::string>* why_skipped,
                                           const Verify& verify) {
  std::vector<CheckpointInfo> list = list_checkpoints(root);
  std::reverse(list.begin(), list.end());
  for (const CheckpointInfo& info : list) {
    const Verification v = verify(info.path);
    if (v.ok) return info;
    if (v.unreadable)
      throw Error(cat(info.path, ": cannot be read, so it cannot be verified: ", v.problem,
                      "; make it readable, or move it out of ", root, " to continue without it"));
    if (why_skipped) why_skipped->push_back(cat(step_folder(info.step), ": ", v.problem));
  }
  return std::nullopt;
}

std::vector<CheckpointInfo> list_diverged(const std::string& root) {
  std::vector<CheckpointInfo> list;
  for (const std::string& name : folder_names(root))
    if (const auto step = parse_diverged_folder(name)) {
      const std::string path = cat(root, "/", name);
      list.push_back({.step = *step, .path = path, .serial = serial_of(path)});
    }
  std::ranges::sort(list, {}, [](const CheckpointInfo& info) { return std::pair(info.serial, info.step); });
  return list;
}

void prune_diverged(const RunLock& lock) {
  std::vector<CheckpointInfo> all = list_diverged(lock.root());
  std::erase_if(all, [&](const CheckpointInfo& info) { return !is_checkpoint(info.path); });
  for (size_t i = 0; i + 1 < all.size(); ++i) remove_step(lock.root(), all[i]);
}

std::vector<int64_t> prune(const RunLock& lock, int64_t keep_latest) {
  CHECK(keep_latest >= 1, "keep ", keep_latest, " checkpoints");
  std::vector<CheckpointInfo> list = list_checkpoints(lock.root());
  std::erase_if(list, [&](const CheckpointInfo& info) { return !is_checkpoint(info.path); });
  size_t first_kept = list.size();
  for (int64_t whole = 0; whole < keep_latest; whole += verify_checkpoint(list[first_kept].path, Depth::sizes).ok) {
    if (first_kept == 0) return {};  // fewer than keep_latest complete steps: keep everything
    --first_kept;
  }
  if (first_kept == 0) return {};
  size_t proven = list.size();  // the newest step with verified checksums
  do {
    if (proven == 0) {
      log::warn("save folder ", lock.root(), ": no checkpoint passes verification, so none is removed");
      return {};
    }
    --proven;
  } while (!verify_checkpoint(list[proven].path, Depth::checksums).ok);

  std::vector<int64_t> removed;
  for (size_t i = 0; i < first_kept; ++i) {
    if (i == proven) continue;
    remove_step(lock.root(), list[i]);
    removed.push_back(list[i].step);
  }
  return removed;
}

}  // namespace athanor
