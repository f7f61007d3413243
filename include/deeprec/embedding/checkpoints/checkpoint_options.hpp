// What checkpoints are given and return.
#pragma once

#include <cstdint>
#include <functional>
#include <memory_resource>
#include <string>
#include <string_view>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/embedding/files/named_table.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Which files tables stand on: a full file begins a chain, and each delta of it goes from one number to a
/// larger one.
struct checkpoint_position {
  std::uint64_t chain = 0;   ///< 0: on none
  std::uint64_t number = 0;  ///< of the last file; numbers of a folder only grow

  friend bool operator==(const checkpoint_position&, const checkpoint_position&) = default;
};

struct checkpoint_options {
  /// Full files that stay, with their deltas, at least one: older ones are removed when a full file is
  /// written.
  index_t kept_chains = 2;
  /// Bytes of rows of a table that were copied because they changed while a cut is written. Beyond, writers
  /// of its rows wait for the thread that saves; never before that has come to this table.
  index_t copy_budget = index_t{64} << 20;
  index_t block_bytes = index_t{4} << 20;  ///< unit of writing and of checksums
  /// Of logs, copies and buffers; thread-safe.
  std::pmr::memory_resource* memory = std::pmr::new_delete_resource();
};

struct apply_options {
  /// Which keys of a table are taken, for tables that hold a part of the keys; empty: all.
  std::function<bool(std::string_view table, std::uint64_t key)> takes;
  std::pmr::memory_resource* memory = std::pmr::new_delete_resource();
};

/// What was read from a folder.
struct restored_checkpoint {
  training_state state;  ///< of the last file
  checkpoint_position at;
  std::string path;                ///< of the last file
  std::vector<fault> passed_over;  ///< newer files that are not whole, and why
};

}}  // namespace deeprec::DEEPREC_ABI
