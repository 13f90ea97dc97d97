// Turns a window of tokens into a row of a micro-batch: which predictions count, its documents, and each token's
// position in its document. Pure functions; the options are described in data/README.md. Chunks are short sequences
// that a window is cut into during sequence length warm-up (docs/training.md): attention stays inside a chunk,
// positions start at 0 in each, and every token is predicted as in the whole window.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace athanor {

struct PackingOptions {
  bool reset_attention_mask = false;  // tokens attend only within their own document
  bool reset_position_ids = false;    // positions restart in every document
  bool eod_mask_loss = false;         // the token after a document's end is not predicted
  int64_t eod_id = -1;                // end-of-document token, for sources without an index
  int64_t max_documents = 1;          // documents per sequence with separate attention
  int64_t max_chunks = 1;             // maximum chunks per sequence; 1: sequences are never cut
  int64_t chunk_length = 0;           // tokens per chunk, except the last; 0: the whole sequence
  int64_t image_pixels = 0;           // bytes of an image, if rows are images; 0: rows are tokens

  bool needs_documents() const { return reset_attention_mask || reset_position_ids || eod_mask_loss; }
  // True if rows differ in documents or positions, so that both must be uploaded with every micro-batch.
  bool varies() const { return reset_attention_mask || reset_position_ids || max_chunks > 1; }
  // Rows of HostBatch::documents per sequence.
  int64_t table_rows() const { return max_documents + max_chunks - 1; }
};

// Tokens [begin, begin + length) of a row attend only to each other; length 0: unused entry of the table.
struct Document {
  int32_t begin = 0, length = 0;
  bool operator==(const Document&) const = default;
};

struct Window {
  std::vector<int32_t> tokens;  // [T + 1]
  std::vector<uint8_t> mask;    // [T + 1]: 0 = not predicted
  std::vector<int64_t> ends;    // document ends within the window, in tokens from its start, ascending
};

struct Row {
  std::span<int32_t> tokens, targets;  // [T]; target -1: ignored
  std::span<int32_t> positions;        // [T]; empty unless options.varies()
  std::span<Document> documents;       // [table_rows()]; empty unless options.varies()
  std::span<uint8_t> pixels = {};      // [options.image_pixels]
};

// Document ends, found by the end-of-document token.
std::vector<int64_t> ends_by_token(std::span<const int32_t> tokens, int64_t eod_id);

// Returns the number of predictions dropped because the window has more than max_documents: the excess documents are
// merged into the last one and not predicted. Every predicted token attends only to its own document, or to the part of
// it inside its chunk.
int64_t pack(const Window& window, const PackingOptions& options, const Row& row);

}  // namespace athanor
