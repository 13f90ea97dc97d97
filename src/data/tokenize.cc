#include "data/tokenize.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "data/json_line.h"
#include "data/one_tokenizer.h"
#include "data/ordered_pool.h"
#include "data/shard_writer.h"
#include "data/text_encoding.h"
#include "data/tokenize_journal.h"

namespace athanor {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::array<const char*, 2> kPartNames = {"train", "val"};

bool is_standard_input(const TokenizeOptions& o) {
  return std::find(o.documents.inputs.begin(), o.documents.inputs.end(), "-") != o.documents.inputs.end();
}

void require_sane(const TokenizeOptions& o) {
  const auto refuse = [](auto... parts) { throw Error(cat("tokenize: ", parts...), Exit::usage); };
  const DocumentOptions& d = o.documents;
  if (d.inputs.empty()) refuse("expected at least one input file, got none");
  require_output("tokenize", o.output_prefix, d.valid_every);
  if (d.block < 0) refuse("block: expected 0 (documents are held out whole) or bytes, got ", d.block);
  if (d.format != "auto" && d.format != "text" && d.format != "jsonl")
    refuse("format: expected \"auto\", \"text\" or \"jsonl\", got \"", d.format, "\"");
  if (o.output_format != "llm.c" && o.output_format != "megatron")
    refuse("output format: expected \"llm.c\" or \"megatron\", got \"", o.output_format, "\"");
  if (o.threads < 0) refuse("threads: expected 0 (all cores) or more, got ", o.threads);
  if (d.separator.size() > 4096) refuse("separator: expected at most 4096 bytes, got ", d.separator.size());
}

// Identity of a run: a hash of everything that the output depends on. Input files are identified by path, size and
// modification time.
std::string identity_of(const TokenizeOptions& o, const Tokenizer& tokenizer, int64_t& bytes) {
  std::ostringstream text;
  const DocumentOptions& d = o.documents;
  text << tokenizer.files()[0].content << o.output_format << '\0' << d.key << '\0' << d.format << '\0' << d.separator
       << '\0' << d.valid_every << ' ' << d.block << ' ' << o.shard_tokens;
  bytes = 0;
  for (const std::string& path : d.inputs) {
    struct stat status {};
    if (path != "-") {
      open_regular(path);  // all inputs must exist before the first is read
      if (::stat(path.c_str(), &status) != 0) throw_io("looking at", path, errno);
    }
    bytes += status.st_size;
    text << '\0' << path << '\0' << status.st_size << ' ' << status.st_mtim.tv_sec << ' ' << status.st_mtim.tv_nsec;
  }
  return xxh3_hex(text.str());
}

struct Encoded {
  std::array<std::vector<int32_t>, 2> ids;  // [Part]
  int64_t documents = 0, text_bytes = 0, outside_utf8 = 0;
  std::string_view encoding;  // Job::encoding
  StreamPosition after;
};

// Encodes jobs in one thread.
class JobEncoder {
 public:
  JobEncoder(const TokenizeOptions& options, const Tokenizer& tokenizer)
      : options_(options), eod_(tokenizer.eod_id()), encoder_(tokenizer.encoder()) {}

  Encoded operator()(const Job& job) {
    Encoded out;
    out.after = job.after;
    out.encoding = job.encoding;
    out.text_bytes = int64_t(job.text.size());
    out.outside_utf8 = bytes_outside_utf8(job.text);
    if (job.is_lines) {
      lines(job, out);
      return out;
    }
    for (const Segment& s : job.segments) {
      encoder_->append(std::string_view(job.text).substr(s.begin, s.end - s.begin), out.ids[s.part], s.place);
      for (const Part part : {kTrain, kValid})
        if (s.ends >> part & 1) out.ids[part].push_back(eod_);
      out.documents += s.ends != 0;
    }
    return out;
  }

 private:
  void lines(const Job& job, Encoded& out) {
    const std::string_view text = job.text;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view line = text.substr(begin, end - begin);
      if (line.find_first_not_of(" \t\r") != line.npos) {
        try {
          if (!json_line_text(line, options_.documents.key, document_))
            throw Error(cat("no member \"", options_.documents.key,
                            "\" in this line; --key names the member that holds the text"),
                        Exit::usage);
        } catch (const Error& e) {
          throw Error(cat(job.where, ": line at byte ", job.offset + int64_t(begin), ": ", e.what()), e.code());
        }
        const Part part = is_held_out(document_, options_.documents.valid_every) ? kValid : kTrain;
        encoder_->append(document_, out.ids[part]);
        if (!document_.empty()) out.ids[part].push_back(eod_);
        out.documents += !document_.empty();
      }
      begin = end + 1;
    }
  }

  const TokenizeOptions& options_;
  int32_t eod_;
  std::unique_ptr<Encoder> encoder_;
  std::string document_;
};

// A run, from its start or from the point where an earlier run was killed, to its finished shards.
class Run {
 public:
  Run(const TokenizeOptions& options, const Tokenizer& tokenizer)
      : options_(options),
        tokenizer_(tokenizer),
        lock_(options.output_prefix),
        identity_(identity_of(options, tokenizer, file_bytes_)),
        journal_(options.output_prefix + "_progress.json", identity_),
        resumable_(!is_standard_input(options)) {
    require_own_tokenizer();
    if (auto left = find_interrupted()) state_ = *left, resumed_ = true;
    if (!resumed_)
      for (const char* part : kPartNames) ShardWriter::discard(shards_for(part).prefix);
    for (const Part part : {kTrain, kValid}) {
      const ShardOptions shards = shards_for(kPartNames[part]);
      if (resumed_)
        writers_[part].emplace(shards, state_.parts[part]);
      else
        writers_[part].emplace(shards);
    }
    progress_.text_bytes = state_.position.total;
    progress_.file_bytes = file_bytes_;
  }

  TokenizeResult go() {
    if (!state_.parts[kTrain].closed) encode_all();
    TokenizerOfShards stored(tokenizer_, parent_dir(options_.output_prefix));
    TokenizeResult result{.input_bytes = state_.position.total,
                          .documents = state_.documents,
                          .train_tokens = writers_[kTrain]->tokens(),
                          .valid_tokens = writers_[kValid]->tokens()};
    result.valid_shards = writers_[kValid]->finish();
    result.train_shards = writers_[kTrain]->finish();
    stored.keep();
    journal_.remove();
    result.summary = summarise(result);
    result.warning = encoding_warning();
    return result;
  }

 private:
  ShardOptions shards_for(const char* part) const {
    return {.prefix = cat(options_.output_prefix, "_", part, "_"),
            .vocab_size = tokenizer_.vocab_size(),
            .shard_tokens = options_.shard_tokens,
            .overwrite = options_.overwrite,
            .format = options_.output_format == "megatron" ? ShardFormat::megatron : ShardFormat::llmc,
            .eod_id = tokenizer_.eod_id()};
  }

  void require_own_tokenizer() const {
    std::vector<std::string> own;
    for (const char* part : kPartNames) own.push_back(cat(base_name(options_.output_prefix), "_", part, "_"));
    require_one_tokenizer(parent_dir(options_.output_prefix), tokenizer_, own, options_.overwrite);
  }

  std::optional<TokenizeState> find_interrupted() const {
    try {
      auto state = journal_.load();
      if (state)
        log::info("tokenize: resuming after byte ", state->position.total,
                  " of the text, where an earlier run was interrupted");
      return state;
    } catch (const Error&) {
      if (!options_.overwrite) throw;
      journal_.remove();
      return {};
    }
  }

  void encode_all() {
    const int64_t threads = options_.threads > 0 ? options_.threads : allowed_cores();
    DocumentStream stream(options_.documents, tokenizer_, state_.position);
    using Pool = OrderedPool<Job, Encoded>;
    Pool pool(threads, options_.threads > 0 ? Pool::Fewer::refused : Pool::Fewer::allowed, [this] {
      return [encoder = std::make_shared<JobEncoder>(options_, tokenizer_)](const Job& job) { return (*encoder)(job); };
    });
    const auto begin = Clock::now();
    auto saved = begin;
    const int64_t text_before = state_.position.total;
    std::optional<int64_t> read_before;
    for (bool more = true; more || !pool.empty();) {
      while (more && !pool.full()) {
        auto job = stream.next();
        if (!read_before) read_before = stream.file_bytes_read();
        more = job.has_value();
        if (job) pool.put(std::move(*job));
      }
      if (pool.empty()) break;
      accept(pool.take());
      const auto now = Clock::now();
      if (resumable_ && std::chrono::duration<double>(now - saved).count() >= options_.save_seconds) {
        save();
        saved = now;
      }
      progress_.read_bytes = stream.file_bytes_read();
      progress_.seconds = std::chrono::duration<double>(now - begin).count();
      progress_.seconds_text_bytes = progress_.text_bytes - text_before;
      progress_.seconds_read_bytes = progress_.read_bytes - *read_before;
      if (options_.progress) options_.progress(progress_);
    }
    if (writers_[kTrain]->tokens() == 0)
      throw Error(cat("tokenize: the inputs hold ", state_.position.total, " bytes, nothing to train on"), Exit::usage);
    for (auto& writer : writers_) writer->close();
    if (resumable_) save();
  }

  void accept(const Encoded& done) {
    for (const Part part : {kTrain, kValid}) writers_[part]->append(done.ids[part]);
    state_.position = done.after;
    state_.documents += done.documents;
    if (state_.outside_utf8 == 0) state_.outside_utf8_input = done.after.input, outside_encoding_ = done.encoding;
    state_.outside_utf8 += done.outside_utf8;
    progress_.text_bytes += done.text_bytes;
    progress_.tokens = writers_[kTrain]->tokens() + writers_[kValid]->tokens();
  }

  void save() {
    for (const Part part : {kTrain, kValid}) state_.parts[part] = writers_[part]->save();
    journal_.save(state_);
    for (auto& writer : writers_) writer->keep();  // an interrupted run resumes with these files
  }

  std::string encoding_warning() const {
    if (state_.outside_utf8 == 0) return "";
    const auto& inputs = options_.documents.inputs;
    const size_t first = std::min(size_t(state_.outside_utf8_input), inputs.size() - 1);
    const std::string_view encoding = outside_encoding_;
    return cat("tokenize: ", state_.outside_utf8, " bytes of the text are no UTF-8, the first of them in ",
               inputs[first], encoding.empty() ? "" : cat(", which looks like ", encoding),
               "; they became tokens as they are. Text in another encoding, such as ",
               encoding.empty() ? "Latin-1" : encoding, ", is to be converted first: iconv -f ",
               encoding.empty() ? "LATIN1" : encoding, " -t UTF-8");
  }

  std::string summarise(const TokenizeResult& r) const {
    std::ostringstream out;
    out << r.input_bytes << " bytes in " << options_.documents.inputs.size() << " file(s), " << r.documents
        << " document(s), tokenizer " << tokenizer_.name() << ", vocabulary " << tokenizer_.vocab_size() << "\n";
    const auto part = [&](const char* name, int64_t tokens, const std::vector<std::string>& shards) {
      out << name << ": " << tokens << " tokens";
      if (!shards.empty()) out << " in " << shards.size() << " shard(s): " << shards.front();
      if (shards.size() > 1) out << " to " << shards.back();
      out << "\n";
    };
    part("training", r.train_tokens, r.train_shards);
    part("validation", r.valid_tokens, r.valid_shards);
    return out.str();
  }

  const TokenizeOptions& options_;
  const Tokenizer& tokenizer_;
  int64_t file_bytes_ = 0;
  TokenizeLock lock_;
  std::string identity_;
  TokenizeJournal journal_;
  bool resumable_, resumed_ = false;
  TokenizeState state_;
  std::string_view outside_encoding_;                  // of the first input with text that is not UTF-8; empty: unknown
  std::array<std::optional<ShardWriter>, 2> writers_;  // [Part]
  TokenizeProgress progress_;
};

}  // namespace

TokenizeResult tokenize(const TokenizeOptions& options) {
  require_sane(options);
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer);
  const DocumentOptions& d = options.documents;
  if (!tokenizer->cuts() && d.separator.empty() && d.block > 0 && d.valid_every > 0 && d.format != "jsonl")
    log::warn("tokenize: texts cannot be cut at blocks with this tokenizer; give --block 0 to hold out whole files");
  TokenizeResult result = Run(options, *tokenizer).go();
  if (!result.warning.empty()) log::warn(result.warning);
  if (const std::string caveat = tokenizer->caveat(); !caveat.empty()) log::warn(caveat);
  return result;
}

}  // namespace athanor
