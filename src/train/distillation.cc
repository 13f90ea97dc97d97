#include "train/distillation.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/checksum.h"
#include "base/format.h"
#include "checkpoint/store.h"
#include "convert/gguf_reader.h"
#include "data/loader.h"
#include "infer/evaluate.h"
#include "tokenizer/load.h"
#include "train/find_together.h"

namespace athanor {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw Error(text, Exit::usage); }

// Returns text that says which tokens of a window a teacher's position attends to.
std::string documents_text(const PackingOptions& o) {
  if (!o.reset_attention_mask && !o.reset_position_ids) return "one per window";
  return cat(o.reset_attention_mask ? "documents.reset_attention_mask" : "",
             o.reset_attention_mask && o.reset_position_ids ? ", " : "",
             o.reset_position_ids ? "documents.reset_position_ids" : "", ", up to ", o.max_documents,
             ", documents.eod_token_id ", o.eod_id);
}

void require_same_vocab(const std::string& path, const ModelConfig& model, const Config& c, const char* else_what) {
  if (model.vocab_size != c.model.vocab_size)
    refuse(cat(path, " has vocab_size ", model.vocab_size, ", the run's model has ", c.model.vocab_size,
               ": their distributions are not of the same tokens; take a teacher with the run's tokenizer", else_what));
}

void require_positions(const std::string& path, const ModelConfig& model, const Config& c) {
  if (model.max_position_embeddings < c.seq_length)
    refuse(cat(path, " has max_position_embeddings ", model.max_position_embeddings, ", which is less than seq_length ",
               c.seq_length, "; shorten the run's sequences"));
}

TeacherOptions cached_options(const Config& c) {
  return with_context("distillation.teacher_logits", [&] {
    const LogitCacheInfo info = read_logit_cache_info(c.teacher_logits);
    const auto require_equal = [&](const char* key, const auto& there, const auto& here) {
      if (there != here)
        refuse(cat(c.teacher_logits, " was made with ", key, " ", there, ", the run has ", here,
                   "; set it to the same, or make another cache with `athanor cache-logits`"));
    };
    require_equal("model.vocab_size", info.vocab_size, c.model.vocab_size);
    require_equal("seq_length", info.seq_length, c.seq_length);
    require_equal("distillation.temperature", info.temperature, c.distill_temperature);
    if (!info.teacher_tokens.empty() && c.distill_loss != DistillLoss::uld)
      refuse(cat(c.teacher_logits, " was made by a teacher with other tokens (", info.teacher_tokens,
                 "), and distillation.loss ", name_of(c.distill_loss),
                 " compares probabilities of the same tokens; set distillation.loss to uld"));
    if (c.distill_loss == DistillLoss::reverse_kl && info.top_k == info.teacher_vocab_size &&
        info.teacher_vocab_size < info.vocab_size)
      refuse(
          cat(c.teacher_logits, " has the logits of all ", info.teacher_vocab_size, " tokens of the teacher, so the ",
              info.vocab_size - info.teacher_vocab_size,
              " other tokens of the run have probability 0, for which distillation.loss reverse_kl is infinite; make a "
              "cache with a smaller --top-k, or set distillation.loss to kl"));
    return TeacherOptions{.top_k = info.top_k};
  });
}

TeacherOptions model_options(const Config& c) {
  return with_context("distillation.teacher", [&] {
    const bool file = is_gguf_file(c.teacher);
    if (!file) require_folder(c.teacher);
    const auto newest =  // has a value for the folder of a run
        file ? std::nullopt : newest_valid(c.teacher, nullptr, verify_sizes);
    const ModelFolder folder(VerifiedModel{.folder = newest ? newest->path : c.teacher, .elsewhere = true});
    require_same_vocab(folder.path(), folder.config(), c,
                       ", or cache its logits with `athanor cache-logits`: with --common-vocab where they share the "
                       "ids of the smaller one, with --teacher-tokenizer for distillation.loss uld");
    require_positions(folder.path(), folder.config(), c);
    return TeacherOptions{.model = folder.config()};
  });
}

}  // namespace

TeacherOptions teacher_options(const Config& c) {
  TeacherOptions o = c.teacher.empty() ? cached_options(c) : model_options(c);
  o.loss = c.distill_loss, o.temperature = c.distill_temperature, o.ce_weight = c.distill_ce_weight;
  return o;
}

VerifiedModel find_teacher(const Config& c, const Backend& backend) {
  const auto find = [&](const Verify& verify) { return verified_model(c.teacher, verify).folder; };
  return {.folder = find_together(backend.control, find), .elsewhere = backend.mesh.world().rank() > 0};
}

std::unique_ptr<LogitCache> open_teacher_logits(const Config& c, const Dataset& train, const PackingOptions& packing) {
  if (c.teacher_logits.empty()) return nullptr;
  cached_options(c);  // checked first: another seq_length also changes the data
  return with_context("distillation.teacher_logits", [&] {
    auto cache = std::make_unique<LogitCache>(c.teacher_logits);
    const LogitCacheInfo& info = cache->info();
    if (info.data_fingerprint != train.fingerprint())
      refuse(cat(c.teacher_logits, " is of other data (fingerprint ", info.data_fingerprint, ") than train_data (",
                 train.fingerprint(),
                 "): other shards, weights or order of sources; restore them, or make another "
                 "cache with `athanor cache-logits`"));
    if (info.documents != documents_text(packing))
      refuse(cat(c.teacher_logits, " is of windows with documents ", info.documents, ", the run has ",
                 documents_text(packing),
                 " (documents.reset_attention_mask, documents.reset_position_ids); set the keys to the same, or make "
                 "another cache with `athanor cache-logits`"));
    CHECK(info.windows == train.windows(), info.windows, " cached windows of ", train.windows());
    return cache;
  });
}

std::string teacher_words(const ModelFolder* teacher, const LogitCache* logits) {
  if (teacher)
    return cat("teacher ", teacher->path(), " of ", format_count(double(parameter_count(teacher->config()))), ", ");
  if (!logits) return "";
  return cat("distillation.teacher_logits ", logits->folder(), ", the ", logits->info().top_k, " largest of ",
             logits->info().teacher, ", ");
}

std::string TeacherTokens::text() const {
  Xxh3 files;
  for (const Tokenizer* each : {run.get(), teacher.get()})
    for (const TokenizerFile& file : each->files()) files.update(std::as_bytes(std::span(file.content)));
  return cat(teacher->name(), " of ", teacher->vocab_size(), ", bos ", bos, ", up to ", length, " in a window, ",
             files.hex());
}

TeacherTokens teacher_tokens(const std::string& path, const Dataset& train, const ModelFolder& model, int32_t bos,
                             int64_t length) {
  return with_context("--teacher-tokenizer", [&] {
    const ModelConfig& teacher = model.config();
    TeacherTokens tokens{.run = find_tokenizer(train.first_shard()),
                         .teacher = load_tokenizer(path),
                         .bos = bos,
                         .length = length > 0 ? length : train.seq_length()};
    if (!tokens.run)
      refuse(cat("there is no tokenizer next to ", train.first_shard(),
                 ", so its text is not known; make the shards with `athanor tokenize`"));
    if (tokens.teacher->vocab_size() > teacher.vocab_size)
      refuse(cat(path, " has ", tokens.teacher->vocab_size(), " tokens, the teacher's vocab_size is ",
                 teacher.vocab_size, "; give the teacher's own tokenizer"));
    const int64_t own = path != model.path() && has_tokenizer(model.path()) ? load_tokenizer(model.path())->vocab_size()
                                                                            : tokens.teacher->vocab_size();
    if (own != tokens.teacher->vocab_size())
      refuse(cat(path, " has ", tokens.teacher->vocab_size(), " tokens, and the tokenizer in ", model.path(), " has ",
                 own, "; give that folder"));
    if (bos >= teacher.vocab_size)
      refuse(cat("--teacher-bos ", bos, " is outside the teacher's vocabulary of ", teacher.vocab_size));
    if (teacher.max_position_embeddings < tokens.length)
      refuse(cat("windows of ", tokens.length, " tokens are longer than the teacher's max_position_embeddings, ",
                 teacher.max_position_embeddings, "; give a smaller --teacher-length"));
    return tokens;
  });
}

LogitCacheInfo logit_cache_info(const Config& c, const ModelFolder& teacher, const Dataset& train,
                                const PackingOptions& packing, const CacheOptions& o) {
  if (!o.common_vocab && !o.tokens)
    require_same_vocab(teacher.path(), teacher.config(), c,
                       ", or give --common-vocab where they share the ids of the smaller one, --teacher-tokenizer for "
                       "distillation.loss uld");
  if (!o.tokens) require_positions(teacher.path(), teacher.config(), c);
  const int64_t vocab = std::min(c.model.vocab_size, teacher.config().vocab_size);
  if (o.top_k > vocab) refuse(cat("--top-k: ", o.top_k, " is more than the ", vocab, " tokens of the vocabulary"));
  return {.teacher = std::filesystem::absolute(teacher.path()).lexically_normal().string(),
          .teacher_fingerprint = weights_fingerprint(teacher),
          .data_fingerprint = train.fingerprint(),
          .documents = documents_text(packing),
          .compute = name_of(engine_options(c, false).recipe.compute),
          .teacher_tokens = o.tokens ? o.tokens->text() : "",
          .seq_length = c.seq_length,
          .vocab_size = c.model.vocab_size,
          .teacher_vocab_size = teacher.config().vocab_size,
          .top_k = o.top_k,
          .windows = train.windows(),
          .temperature = c.distill_temperature,
          .dtype = o.dtype};
}

std::unique_ptr<Engine> teacher_engine(const Config& c, const ModelConfig& teacher, const CacheOptions& o,
                                       int64_t batch, Backend backend) {
  Config config = c;
  if (low_precision(config.precision)) config.precision = Precision::bf16;
  config.multiple_choice_data.clear();
  if (o.tokens) config.seq_length = o.tokens->length;
  EngineOptions options = engine_options(config, false);
  options.zero_stage = 0;  // each rank has the whole teacher
  options.pipeline = {};
  options.sequence_parallel = false;
  if (batch == 0)
    batch = c.micro_batch_size > 0 ? c.micro_batch_size : std::max<int64_t>(1, kAutoTokens / config.seq_length);
  options.micro_batch_size = batch;
  options.global_batch_size = batch * backend.mesh.batches();
  auto engine = std::make_unique<Engine>(teacher, options, backend);
  const int64_t vocab = o.tokens ? teacher.vocab_size : std::min(c.model.vocab_size, teacher.vocab_size);
  engine->want_top_logits(o.top_k, vocab, float(c.distill_temperature));
  engine->memory().require_fits(memory_capacity(c, backend.device), runtime_reserve(c, backend.device));
  return engine;
}

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// Windows of the run, converted to the tokens of a teacher with another tokenizer, and the teacher's logits at the
// run's positions.
class AlignedBatch {
 public:
  AlignedBatch(int64_t rows, const TeacherTokens& tokens, const PackingOptions& of_run, const LogitCacheInfo& info)
      : aligner_(*tokens.run, *tokens.teacher, tokens.length, tokens.bos),
        packing_(of_run),
        eod_(tokens.teacher->eod_id()),
        length_(tokens.length),
        k_(info.top_k),
        batch_(rows, length_, of_run),
        positions_(size_t(rows)),
        ids_(size_t(info.seq_length * k_)),
        values_(ids_.size()),
        rest_(size_t(info.seq_length)) {
    packing_.eod_id = eod_;
    for (size_t i = 0; i < ids_.size(); ++i) ids_[i] = int32_t(i % size_t(k_));
  }

  const HostBatch& batch() const { return batch_; }
  int64_t taught() const { return taught_; }  // number of positions with teacher logits so far

  void read(int64_t row, std::span<const int32_t> tokens) {
    AlignedTokens aligned = aligner_.align(tokens);
    aligned.tokens.resize(size_t(length_ + 1), eod_);
    const Window text{.tokens = std::move(aligned.tokens),
                      .mask = std::vector<uint8_t>(size_t(length_ + 1), 1),
                      .ends = std::move(aligned.ends)};
    batch_.read(row, text, packing_);
    positions_[size_t(row)] = std::move(aligned.positions);
  }

  // Valid until the next call.
  TopLogitRow logits(int64_t row, const Engine::TopLogitsOfBatch& top) {
    const std::vector<int64_t>& positions = positions_[size_t(row)];
    std::ranges::fill(values_, kNone), std::ranges::fill(rest_, kNone);
    for (size_t i = 0; i < positions.size(); ++i) {
      if (positions[i] < 0) continue;
      const int64_t from = row * length_ + positions[i];
      std::copy_n(top.values.begin() + from * k_, k_, values_.begin() + int64_t(i) * k_);
      rest_[i] = top.rest[size_t(from)];
      ++taught_;
    }
    return {.ids = ids_, .values = values_, .rest = rest_};
  }

 private:
  TokenAligner aligner_;
  PackingOptions packing_;
  int32_t eod_;
  int64_t length_, k_;
  HostBatch batch_;
  std::vector<std::vector<int64_t>> positions_;  // AlignedTokens::positions of each row
  std::vector<int32_t> ids_;                     // [T, k]: 0 to k - 1 at each position
  std::vector<float> values_, rest_;             // [T, k], [T]
  int64_t taught_ = 0;
};

}  // namespace

void write_logit_shards(Engine& teacher, const Dataset& data, const PackingOptions& packing, const std::string& folder,
                        const LogitCacheInfo& info, const CacheOptions& options, const CacheProgress& progress) {
  const int64_t rows = teacher.options().micro_batch_size, t = info.seq_length, k = info.top_k;
  HostBatch batch(rows, t, packing);
  const auto tokens_of = [&](int64_t row) { return std::span(batch.tokens).subspan(size_t(row * t), size_t(t)); };
  for (int64_t shard = teacher.rank(); shard < info.shards(); shard += teacher.ranks()) {
    if (has_logit_shard(folder, info, shard)) continue;
    LogitShardWriter writer(folder, info, shard);
    std::optional<AlignedBatch> aligned;
    if (options.tokens) aligned.emplace(rows, *options.tokens, packing, info);
    const HostBatch& of_teacher = aligned ? aligned->batch() : batch;
    const int64_t first = shard * info.shard_windows(), end = first + info.windows_in(shard);
    for (int64_t window = first; window < end; window += rows) {
      const int64_t here = std::min(rows, end - window);
      for (int64_t row = 0; row < here; ++row) {
        batch.read(row, data, data.window(window + row), packing);
        if (aligned) aligned->read(row, tokens_of(row));
      }
      set_documents(teacher, of_teacher);
      Engine::TopLogitsOfBatch top = teacher.top_logits(of_teacher.tokens);
      const auto logits_of = [&](int64_t row) -> TopLogitRow {
        const auto at = size_t(row * t), size = size_t(t), of_k = size_t(k);
        return {.ids = std::span(top.ids).subspan(at * of_k, size * of_k),
                .values = std::span(top.values).subspan(at * of_k, size * of_k),
                .rest = std::span(top.rest).subspan(at, size)};
      };
      for (int64_t row = 0; row < here; ++row)
        writer.append(tokens_of(row), aligned ? aligned->logits(row, top) : logits_of(row));
      progress.batch();
    }
    const int64_t positions = info.windows_in(shard) * t, taught = aligned ? aligned->taught() : positions;
    if (taught == 0)
      refuse(cat(folder, ": no token of shard ", shard,
                 " ends where one of the teacher's does; is --teacher-tokenizer the teacher's?"));
    writer.commit();
    progress.shard(shard, double(taught) / double(positions));
  }
}

}  // namespace athanor
