#include "data/tokenize_chats.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "data/document_stream.h"
#include "data/one_tokenizer.h"
#include "data/text_encoding.h"
#include "data/text_input.h"

namespace athanor {
namespace {

constexpr size_t kMostChat = 64 << 20;
constexpr const char* kChatParts[] = {"train", "val"};
constexpr const char* kSideFiles[] = {"", ".index", ".loss", ".metadata"};

// A conversation as tokens, each marked as trained on or not.
struct ChatSample {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> learnt;
};

// User text is encoded without special tokens, whatever it contains; only the template produces special tokens.
class ChatEncoder {
 public:
  explicit ChatEncoder(TokenizerOptions options) {
    options.allow_special = true;
    special_ = make_tokenizer(options);
    options.allow_special = false;
    options.forbid_special = true;
    plain_ = make_tokenizer(options);
    encoder_ = plain_->encoder();
  }
  const Tokenizer& tokenizer() const { return *plain_; }

  ChatSample operator()(const std::vector<ChatSegment>& segments) {
    ChatSample out;
    auto place = TextPlace::document;
    for (const ChatSegment& s : segments) {
      const std::optional<int32_t> token = token_of(s);
      if (token)
        out.tokens.push_back(*token);
      else
        encoder_->append(s.text, out.tokens, place);
      place = token ? TextPlace::after_token : TextPlace::inside;
      out.learnt.resize(out.tokens.size(), s.learnt);
    }
    return out;
  }

 private:
  std::optional<int32_t> token_of(const ChatSegment& s) {
    if (s.kind == ChatSegment::Kind::text) return std::nullopt;
    if (s.kind == ChatSegment::Kind::end) return plain_->eod_id();
    const auto [it, added] = known_.try_emplace(s.text);
    if (added) {
      const std::vector<int32_t> ids = special_->encode(s.text, TextPlace::inside);
      if (ids.size() == 1) it->second = ids[0];
    }
    if (!it->second && s.kind == ChatSegment::Kind::special)
      throw Error(cat("the template needs the special token ", s.text, ", which tokenizer ", plain_->name(),
                      " does not have; take the template that the model was trained with, or plain"),
                  Exit::usage);
    return it->second;
  }

  std::unique_ptr<Tokenizer> plain_, special_;
  std::unique_ptr<Encoder> encoder_;
  std::map<std::string, std::optional<int32_t>> known_;
};

// Calls fn(line, number) for every line of a file that is not blank.
template <class Fn>
void for_each_line(const std::string& path, Fn&& fn) {
  constexpr size_t kRead = 1 << 20;
  TextInput input(path);
  std::string text;
  int64_t number = 0;
  for (bool ended = false; !ended || !text.empty();) {
    const bool at_start = !ended && text.empty() && number == 0;
    if (!ended) ended = input.read(text, kRead) < kRead;
    if (at_start) drop_byte_order_mark(text, path);
    size_t begin = 0;
    for (size_t end; begin < text.size(); begin = end + 1) {
      end = text.find('\n', begin);
      if (end == text.npos && !ended) break;
      end = std::min(end, text.size());
      const std::string_view line = std::string_view(text).substr(begin, end - begin);
      ++number;
      if (line.find_first_not_of(" \t\r") != line.npos) with_context(cat(path, ": line ", number), [&] { fn(line); });
    }
    text.erase(0, std::min(begin, text.size()));
    if (text.size() > kMostChat)
      throw Error(
          cat(path, ": line ", number + 1, " is longer than ", kMostChat >> 20, " MiB, which is no conversation"),
          Exit::usage);
  }
}

// Contents of the shard of one split.
struct ChatShard {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> learnt;
  std::vector<uint64_t> ends;  // document ends

  void add(const ChatSample& sample) {
    const size_t first = tokens.size();
    tokens.insert(tokens.end(), sample.tokens.begin(), sample.tokens.end());
    learnt.insert(learnt.end(), sample.learnt.begin(), sample.learnt.end());
    learnt[first] = 0;  // the first token cannot be predicted: nothing of its conversation precedes it
    ends.push_back(tokens.size());
  }
  void pad(int64_t count, int32_t token) {
    if (count == 0) return;
    tokens.insert(tokens.end(), size_t(count), token);
    learnt.insert(learnt.end(), size_t(count), 0);
    ends.push_back(tokens.size());
  }
};

// Packs whole samples into rows, and appends one token, so that the last row has a target for its last position.
ChatShard packed(const std::vector<ChatSample>& samples, int64_t length, int32_t pad) {
  std::vector<int64_t> sizes;
  for (const ChatSample& s : samples) sizes.push_back(int64_t(s.tokens.size()));
  ChatShard shard;
  for (const std::vector<size_t>& row : best_fit(sizes, length)) {
    int64_t left = length;
    for (const size_t i : row) shard.add(samples[i]), left -= sizes[i];
    shard.pad(left, pad);
  }
  if (!shard.tokens.empty()) shard.pad(1, pad);
  return shard;
}

ChatShard in_order(const std::vector<ChatSample>& samples) {
  ChatShard shard;
  for (const ChatSample& s : samples) shard.add(s);
  return shard;
}

// The side files of a shard that is being written. Without keep() the destructor removes them.
class SideFiles {
 public:
  explicit SideFiles(const std::string& shard) : shard_(shard) {}
  SideFiles(const SideFiles&) = delete;
  SideFiles& operator=(const SideFiles&) = delete;
  ~SideFiles() {
    std::error_code ignored;
    for (const char* end : kSideFiles)
      if (!kept_) std::filesystem::remove(shard_ + end, ignored);
  }
  void keep() { kept_ = true; }

 private:
  std::string shard_;
  bool kept_ = false;
};

// Writes a shard in datatrove's layout.
void write_shard(const ChatShard& shard, const std::string& path, const Tokenizer& tokenizer) {
  const bool small = tokenizer.vocab_size() <= 65536;
  std::string tokens;
  for (const int32_t id : shard.tokens)
    for (int byte = 0; byte < (small ? 2 : 4); ++byte) tokens += char(uint32_t(id) >> (8 * byte));  // little-endian
  const auto bytes_of = [](const auto& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
  };
  SideFiles side(path);
  write_file(path + ".metadata", cat(tokenizer.name(), "|", small ? 2 : 4, "\n", shard.tokens.size(), "\n"));
  write_file(path + ".index", bytes_of(shard.ends));
  write_file(path + ".loss", bytes_of(shard.learnt));
  write_file(path, tokens);  // written last: an existing shard always has its side files
  side.keep();
}

class ChatRun {
 public:
  explicit ChatRun(const ChatOptions& options) : options_(options), encoder_(options.tokenizer) {}

  std::string go() {
    require_sane();
    for (const std::string& path : options_.inputs) for_each_line(path, [&](std::string_view line) { add(line); });
    if (parts_[kTrain].empty())
      throw Error(
          cat("tokenize: ", options_.inputs.front(), " holds no conversation to train on: ", lines_, " lines, ",
              without_answer_, " of them without an answer",
              cut_away_ > 0 ? cat(", ", cut_away_, " whose answers begin after --pack ", options_.pack, " tokens")
                            : ""),
          Exit::usage);
    make_dirs(parent_dir(options_.output_prefix));
    TokenizerOfShards stored(encoder_.tokenizer(), parent_dir(options_.output_prefix));
    std::ostringstream out;
    out << lines_ << " conversations, " << without_answer_ << " without an answer left out";
    if (options_.pack > 0)
      out << ", " << cut_ << " cut at " << options_.pack << " tokens, " << cut_away_
          << " left out whose answers begin after these";
    out << "\n";
    for (const int part : {kTrain, kValid}) {
      for (const char* end : kSideFiles) remove_tree(path_of(part) + end);  // files of an earlier run
      if (parts_[part].empty()) continue;
      const ChatShard shard = options_.pack > 0 ? packed(parts_[part], options_.pack, encoder_.tokenizer().eod_id())
                                                : in_order(parts_[part]);
      write_shard(shard, path_of(part), encoder_.tokenizer());
      const auto learnt = std::accumulate(shard.learnt.begin(), shard.learnt.end(), int64_t{0});
      out << path_of(part) << ": " << parts_[part].size() << " conversations, " << shard.tokens.size() << " tokens, "
          << learnt << " of them learnt\n";
    }
    stored.keep();
    return out.str();
  }

 private:
  std::string path_of(int part) const { return cat(options_.output_prefix, "_", kChatParts[part], ".ds"); }

  void require_sane() const {
    const auto refuse = [](const auto&... parts) { throw Error(cat("tokenize: ", parts...), Exit::usage); };
    if (options_.inputs.empty()) refuse("expected at least one input file, got none");
    require_output("tokenize", options_.output_prefix, options_.valid_every);
    if (options_.pack < 0 || options_.pack == 1) refuse("pack: expected 0 or at least 2 tokens, got ", options_.pack);
    for (const int part : {kTrain, kValid})
      for (const char* end : kSideFiles)
        if (!options_.overwrite && std::filesystem::exists(path_of(part) + end))
          refuse(path_of(part), end, " exists already: choose another output prefix, or give --overwrite");
    std::vector<std::string> own;
    for (const int part : {kTrain, kValid}) own.push_back(base_name(path_of(part)));
    require_one_tokenizer(parent_dir(options_.output_prefix), encoder_.tokenizer(), own, options_.overwrite);
  }

  void add(std::string_view line) {
    ++lines_;
    ChatSample sample = encoder_(apply_template(options_.form, parse_chat(line, options_.shape)));
    const auto learns = [&] { return std::ranges::any_of(sample.learnt, [](uint8_t l) { return l != 0; }); };
    if (!learns()) return void(++without_answer_);
    if (options_.pack > 0 && int64_t(sample.tokens.size()) > options_.pack) {
      sample.tokens.resize(size_t(options_.pack)), sample.learnt.resize(size_t(options_.pack));
      if (!learns()) return void(++cut_away_);
      ++cut_;
    }
    parts_[is_held_out(line, options_.valid_every) ? kValid : kTrain].push_back(std::move(sample));
  }

  const ChatOptions& options_;
  ChatEncoder encoder_;
  std::vector<ChatSample> parts_[2];
  int64_t lines_ = 0, without_answer_ = 0, cut_ = 0, cut_away_ = 0;
};

}  // namespace

std::vector<std::vector<size_t>> best_fit(const std::vector<int64_t>& sizes, int64_t length) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<std::vector<size_t>> rows;
  std::set<std::pair<int64_t, size_t>> space;  // space left in a row, and the row's number
  for (const size_t i : order) {
    CHECK(sizes[i] <= length, "a piece of ", sizes[i], " in rows of ", length);
    auto fit = space.lower_bound({sizes[i], 0});
    if (fit == space.end()) {
      rows.emplace_back();
      fit = space.emplace(length, rows.size() - 1).first;
    }
    const auto [left, row] = *fit;
    space.erase(fit);
    rows[row].push_back(i);
    if (left > sizes[i]) space.emplace(left - sizes[i], row);
  }
  return rows;
}

std::string tokenize_chats(const ChatOptions& options) { return ChatRun(options).go(); }

}  // namespace athanor
