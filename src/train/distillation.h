// What a run learns from besides the text: a teacher (key `teacher`), whose shape is known before the plan and whose
// weights come after it, or its cached logits (key `teacher_logits`), which the verb cache-logits makes.
#pragma once
#include <functional>
#include <memory>

#include "convert/model_folder.h"
#include "data/logit_cache.h"
#include "data/token_alignment.h"
#include "train/setup.h"

namespace athanor {

// What the engine needs of the configured teacher, read from its config.json, GGUF file or manifest. Throws
// Error(usage) where it is none, or cannot teach the run's: another vocabulary, too few positions, other windows or
// another temperature.
TeacherOptions teacher_options(const Config&);

// The teacher's files, every byte verified by one rank; collective.
VerifiedModel find_teacher(const Config&, const Backend&);

// The cached logits of the run's data; null: it has none. Throws Error(usage) where they are of other data, naming
// both.
std::unique_ptr<LogitCache> open_teacher_logits(const Config&, const Dataset& train, const PackingOptions&);

// "teacher FOLDER of 1.2M, " or what logits there are, for the log; "" without both.
std::string teacher_words(const ModelFolder* teacher, const LogitCache* logits);

// A teacher whose tokenizer is another than the run's.
struct TeacherTokens {
  std::shared_ptr<const Tokenizer> run, teacher;
  int32_t bos = -1;          // what align_tokens() begins documents with
  int64_t length = 0;        // tokens of the teacher in a window, at most
  std::string text() const;  // as in LogitCacheInfo
};
// `path`: as load_tokenizer() has it. The run's is beside its shards. Throws Error(usage) where either cannot be.
TeacherTokens teacher_tokens(const std::string& path, const Dataset& train, const ModelFolder& teacher, int32_t bos,
                             int64_t length);

// What `cache-logits` makes for this configuration with this teacher. dtype: of the stored values.
struct CacheOptions {
  int64_t top_k = 64;
  DType dtype = DType::f16;
  bool common_vocab = false;  // teacher and run may have other numbers of tokens, of which both have the first ones
  std::optional<TeacherTokens> tokens = {};
};
LogitCacheInfo logit_cache_info(const Config&, const ModelFolder& teacher, const Dataset& train, const PackingOptions&,
                                const CacheOptions&);

// An engine of the teacher alone, as a run with this configuration would run it (in bf16 with recipes of 8 bits), not
// committed; batch: sequences at once, 0: the configured micro-batch, or about kAutoTokens.
std::unique_ptr<Engine> teacher_engine(const Config&, const ModelConfig& teacher, const CacheOptions&, int64_t batch,
                                       Backend);

// Makes those shards of a cache that are missing, of which this rank has every engine.ranks()-th one. Throws
// Error(usage) where the teacher has no text in common with any position of a shard.
struct CacheProgress {
  std::function<void()> batch;                              // called after every micro-batch
  std::function<void(int64_t shard, double taught)> shard;  // after every shard, with the share of its positions
};
void write_logit_shards(Engine& teacher, const Dataset&, const PackingOptions&, const std::string& folder,
                        const LogitCacheInfo&, const CacheOptions&, const CacheProgress&);

}  // namespace athanor
