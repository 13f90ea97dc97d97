#include "train/find_together.h"

#include <charconv>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "base/process_mark.h"
#include "comm/rank_info.h"
#include "comm/texts.h"

namespace athanor {
namespace {

void tell_size(const std::string& folder, int ranks) {
  constexpr int64_t kQuick = int64_t{1} << 30;  // larger checkpoints take seconds to read
  int64_t bytes = 0;
  try {
    for (const ManifestFile& file : read_manifest(folder).files) bytes += file.bytes;
  } catch (const Error&) {
    return;  // verifying it reports the reason
  }
  if (bytes > kQuick)
    log::info("verifying ", folder, ": ", format_bytes(uint64_t(bytes)), " to read",
              ranks > 1 ? cat(", divided among ", ranks, " ranks") : "");
}

// Returns the index in the manifest of the damaged file; 0 if the manifest itself is not readable.
size_t place_of(const Verification& damaged) {
  const std::vector<ManifestFile>& files = damaged.manifest.files;
  for (size_t i = 0; i < files.size(); ++i)
    if (files[i].name == damaged.file) return i;
  return 0;
}

// Encodes a rank's report on its share of the files: empty, or the index of the first damaged file, and the problem.
std::string said_of(const Verification& v) {
  return v.ok ? "" : cat(place_of(v), " ", v.problem, ", as read on ", host_name());
}

// Returns the verdict of all ranks on rank 0. A file that is damaged on another rank but intact on rank 0 counts as not
// damaged: that rank's machine cannot read it.
Verification verify_shared(Communicator& ranks, const std::string& folder) {
  const CollectiveSubject subject(cat("verifying ", folder));
  const int count = ranks.size();
  if (ranks.rank() == 0) tell_size(folder, count);
  Verification mine =
      verify_checkpoint(folder, Depth::checksums, {.first = size_t(ranks.rank()), .every = size_t(count)});
  const std::vector<std::string> all = gather_texts(ranks, said_of(mine));
  if (mine.file == kManifestName) return mine;
  std::optional<size_t> first;
  int rank = 0;
  for (int r = 0; r < count; ++r) {
    const std::string& said = all[size_t(r)];
    size_t place = 0;
    if (said.empty() || std::from_chars(said.data(), said.data() + said.size(), place).ec != std::errc()) continue;
    if (!first || place < *first) first = place, rank = r;
  }
  if (rank == 0 || ranks.rank() != 0) return mine;
  const std::string& said = all[size_t(rank)];
  Verification v = verify_checkpoint(folder, Depth::checksums, {.first = *first, .every = mine.manifest.files.size()});
  if (!v.ok) return v;
  v.ok = false, v.unreadable = true;
  v.problem = cat("rank ", rank, " cannot read what rank 0 can: ", said.substr(said.find(' ') + 1));
  return v;
}

}  // namespace

std::string find_together(Communicator* control, const FindFolder& find) {
  if (!control)
    return find([](const std::string& folder) {
      tell_size(folder, 1);
      return verify_checksums(folder);
    });
  if (control->rank() > 0) {
    for (;;) {
      const std::string folder = share_text(*control, "");
      if (folder.empty()) return share_text(*control, "");
      verify_shared(*control, folder);
    }
  }
  const std::string found =
      find([&](const std::string& folder) { return verify_shared(*control, share_text(*control, folder)); });
  share_text(*control, "");  // tells the other ranks that there is nothing left to verify
  return share_text(*control, found);
}

}  // namespace athanor
