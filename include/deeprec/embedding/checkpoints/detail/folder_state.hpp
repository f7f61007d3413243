// What a checkpoint_folder and its cut share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/embedding/checkpoints/checkpoint_options.hpp>
#include <deeprec/embedding/checkpoints/detail/checkpoint_table.hpp>
#include <deeprec/embedding/files/named_table.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Bytes of the caller, by a name.
struct attached_bytes {
  std::string name;
  std::vector<std::byte> bytes;

  [[nodiscard]] const_named_table table() const {
    const auto length = static_cast<index_t>(bytes.size());
    return {{name, "bytes", 1, length, length, length, 0}, bytes.data(), 0};
  }
};

struct folder_state {
  folder_state(std::string of, const checkpoint_options& given) : path(std::move(of)), options(given) {}

  std::string path;
  checkpoint_options options;
  std::vector<std::unique_ptr<checkpoint_table>> tables;
  std::vector<attached_bytes> attached;
  std::atomic<bool> is_running{false};  // a cut exists that was not written
  bool is_on_disk = false;              // all that the folder has, but for what was removed
  std::uint64_t last_number = 0;
  mutable std::mutex mutex;  // of `at`, which a cut changes when it is written
  checkpoint_position at;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
