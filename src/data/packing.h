// A window of tokens as a row of a micro-batch: which of its predictions count, where its documents lie, and the
// position of each token within its document. Pure functions; what the options mean is described in data/README.md.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace athanor {

struct PackingOptions {
  bool reset_attention_mask = false;  // a token sees its own document only
  bool reset_position_ids = false;    // positions start anew in every document
  bool eod_mask_loss = false;         // what follows a document's end is not predicted from it
  int64_t eod_id = -1;                // ends a document, in sources without an index of them
  int64_t max_documents = 1;          // rows of HostBatch::documents for each sequence

  bool needs_documents() const { return reset_attention_mask || reset_position_ids || eod_mask_loss; }
  // Whether rows differ in documents or positions, so that both must go to the device with every micro-batch.
  bool varies() const { return reset_attention_mask || reset_position_ids; }
};

// Tokens [begin, begin + length) of a row see each other and nothing else; length 0: a row of the table without use.
struct Document {
  int32_t begin = 0, length = 0;
  bool operator==(const Document&) const = default;
};

struct Window {
  std::vector<int32_t> tokens;  // [T + 1]
  std::vector<uint8_t> mask;    // [T + 1]: 0 = not to be predicted
  std::vector<int64_t> ends;    // tokens of the window before the end of each document that ends in it, ascending
};

struct Row {
  std::span<int32_t> tokens, targets;  // [T]; target -1: ignored
  std::span<int32_t> positions;        // [T]; empty unless options.varies()
  std::span<Document> documents;       // [max_documents]; likewise
};

// Ends of documents by the token that ends them.
std::vector<int64_t> ends_by_token(std::span<const int32_t> tokens, int64_t eod_id);

// Returns how many predictions were given up because the window has more than max_documents: the documents beyond are
// one with the last that fits, so nothing of them is predicted, and what is predicted sees exactly its own document.
int64_t pack(const Window& window, const PackingOptions& options, const Row& row);

}  // namespace athanor
