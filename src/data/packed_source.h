// The documents of one source as best-fit packed rows: a stream of rows, epoch after epoch, that depends only on
// (shards, seed, epoch), so that any rank can read any row and a run can resume at any row. Consecutive documents are
// packed together in windows (data/best_fit.h); every epoch shuffles the windows, and the rows within each. Keeps 4
// bytes per document and the tables of the windows in use. Thread-safe once constructed.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "data/best_fit.h"
#include "data/order.h"
#include "data/packing.h"
#include "data/token_file.h"

namespace athanor {

struct RowPacking {
  int64_t row_tokens = 0;       // T + 1
  int64_t documents = 1 << 16;  // documents per window
  int64_t eod_id = -1;          // end-of-document token, for shards without an index
  int64_t bos_id = -1;          // token put in front of every piece of a document; -1: none
};

// A row of the stream, and the parameters of the order of rows.
struct PackedRow {
  uint64_t seed = 0;
  uint64_t source = 0;  // source number: part of the random key
  bool shuffled = true;
  int64_t position = 0;  // row number in the stream; epoch = position / rows()
};

class PackedSource {
 public:
  // Reads the document indices of the shards, or all tokens of shards without an index. The shards must outlive it.
  PackedSource(const std::vector<TokenFile>& shards, const RowPacking& packing);

  int64_t rows() const { return rows_.back(); }  // rows per epoch
  const PackingCounts& counts() const { return counts_; }
  // Reads tokens, mask (0 = not predicted: unfilled positions, BOS tokens) and ends of pieces. tokens, mask:
  // [row_tokens].
  Window read(const PackedRow& row) const;

 private:
  struct Place {
    int32_t shard = 0;
    int64_t token = 0;
  };
  // A window of documents, packed into rows for one epoch.
  struct Table {
    uint64_t seed = 0, stream = 0;
    int64_t window = 0;
    PackedRows rows;
    std::vector<Place> documents;
  };
  // The order of the windows in one epoch.
  struct Epoch {
    uint64_t seed = 0, stream = 0;
    bool shuffled = true;
    std::vector<int64_t> windows, first_row;  // [windows], [windows + 1]
  };
  void find_documents(const TokenFile& shard);
  void add_document(const TokenFile& shard, int64_t begin, int64_t end);
  void require_no_bos(const TokenFile& shard, int64_t first) const;
  int64_t windows() const { return int64_t(rows_.size()) - 1; }
  std::span<const uint32_t> lengths_of(int64_t window) const;
  std::shared_ptr<const Epoch> epoch_of(const PackedRow& row) const;
  std::shared_ptr<const Table> table_of(int64_t window, uint64_t seed, uint64_t stream) const;

  const std::vector<TokenFile>& shards_;
  const RowPacking packing_;
  std::vector<uint32_t> lengths_;        // lengths of all documents
  std::vector<int64_t> first_document_;  // [shards + 1]
  std::vector<Place> first_place_;       // [windows]: place of the window's first document
  std::vector<int64_t> rows_;            // [windows + 1]: number of rows in all earlier windows
  PackingCounts counts_;
  mutable std::mutex mutex_;  // guards the two members below
  mutable std::vector<std::shared_ptr<const Table>> tables_;
  mutable std::shared_ptr<const Epoch> epoch_;
};

}  // namespace athanor
