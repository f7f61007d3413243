// What a disk may hold of a folder when power fails.
//
//   bytes    of a file as it was when it was last synced; of those written since none, some or all
//   names    as they were when the folder was last synced; of those given or taken away since any: also one
//            half of a rename without the other
//   folder   itself, where the one above it was synced since it was made
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace deeprec_test {

/// The names of a folder and what they hold.
using folder_state = std::map<std::string, std::string>;

/// Is told the calls that worked, by whole paths; those of other folders are passed over.
class disk_model {
 public:
  /// Follows a folder, which may be missing. What it has is on the disk.
  explicit disk_model(const std::string& folder)
      : folder_(std::filesystem::weakly_canonical(folder).string()),
        above_(folder_.substr(0, folder_.rfind('/'))) {
    if (!std::filesystem::exists(folder_)) return;
    for (const auto& one : std::filesystem::directory_iterator(folder_)) {
      std::ifstream in(one.path(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(in), {}};
      names_[one.path().filename().string()] = std::make_shared<file>(file{bytes, bytes});
    }
    names_on_disk_ = names_;
  }

  /// From now on `promise` holds.
  void report(std::uint64_t promise) {
    promise_ = promise;
    look();
  }
  /// Every folder that a power failure may have left after some call, and the last promise that held then.
  /// One that is missing has no names.
  [[nodiscard]] const std::map<folder_state, std::uint64_t>& found() const { return found_; }
  /// Those until now.
  void forget() { found_.clear(); }

  void made_folder(const std::string& path) {
    if (path != folder_) return;
    is_on_disk_ = false;
    look();
  }
  void made(const std::string& path) {
    const std::string name = name_of(path);
    if (name.empty() || names_.contains(name)) return;
    change(name, std::make_shared<file>());
    look();
  }
  void wrote(const std::string& path, const char* bytes, std::size_t count) {
    const auto found = names_.find(name_of(path));
    if (found == names_.end()) return;
    found->second->bytes.append(bytes, count);
    look();
  }
  void synced(const std::string& path) {
    if (path == folder_) {
      pending_.clear();
      names_on_disk_ = names_;
    } else if (path == above_) {
      is_on_disk_ = true;
    } else if (const auto found = names_.find(name_of(path)); found != names_.end()) {
      found->second->synced = found->second->bytes;
    }
    look();
  }
  void renamed(const std::string& from, const std::string& to) {
    const auto found = names_.find(name_of(from));
    if (found == names_.end()) return;
    const file_pointer what = found->second;
    change(name_of(to), what);
    change(name_of(from), nullptr);
    look();
  }
  void removed(const std::string& path) {
    if (!names_.contains(name_of(path))) return;
    change(name_of(path), nullptr);
    look();
  }

 private:
  struct file {
    std::string bytes, synced;  // what follows the synced bytes was appended since
  };
  using file_pointer = std::shared_ptr<file>;
  using name_map = std::map<std::string, file_pointer>;
  using name_change = std::pair<std::string, file_pointer>;  // null: taken away

  enum unsynced { none, all, first_half, zeros, second_half, ways };

  [[nodiscard]] std::string name_of(const std::string& path) const {
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos || path.compare(0, slash, folder_) != 0) return {};
    return path.substr(slash + 1);
  }
  static void apply(name_map& names, const name_change& one) {
    if (one.second == nullptr) {
      names.erase(one.first);
    } else {
      names[one.first] = one.second;
    }
  }
  void change(const std::string& name, const file_pointer& to) {
    pending_.emplace_back(name, to);
    apply(names_, pending_.back());
  }
  static std::string content(const file& of, int way) {
    std::string found = of.bytes;
    const std::size_t from = of.synced.size(), half = (from + found.size()) / 2;
    if (way == none) found.resize(from);
    if (way == first_half) found.resize(half);
    if (way == zeros || way == second_half)
      std::fill(found.begin() + static_cast<std::ptrdiff_t>(from),
                way == zeros ? found.end() : found.begin() + static_cast<std::ptrdiff_t>(half), '\0');
    return found;
  }
  // Any of the last changes of names; of those before all, none, all but one, or one.
  void look() {
    if (!is_on_disk_) found_[{}] = promise_;
    const std::size_t free = (std::min)(pending_.size(), std::size_t{6}), older = pending_.size() - free;
    std::vector<std::vector<bool>> choices{std::vector<bool>(older, true)};
    if (older > 0) choices.emplace_back(older, false);
    for (std::size_t i = 0; i < older; ++i) {
      for (const bool others : {false, true}) {
        choices.emplace_back(older, others);
        choices.back()[i] = !others;
      }
    }
    for (const std::vector<bool>& choice : choices) {
      for (std::size_t last = 0; last < std::size_t{1} << free; ++last) {
        name_map names = names_on_disk_;
        for (std::size_t i = 0; i < pending_.size(); ++i) {
          if (i < older ? choice[i] : (last >> (i - older) & 1) != 0) apply(names, pending_[i]);
        }
        for (int way = none; way < ways; ++way) {
          folder_state state;
          for (const auto& [name, one] : names) state[name] = content(*one, way);
          found_[std::move(state)] = promise_;
        }
      }
    }
  }

  std::string folder_, above_;
  bool is_on_disk_ = true;
  name_map names_, names_on_disk_;
  std::vector<name_change> pending_;  // from names_on_disk_ to names_
  std::uint64_t promise_ = 0;
  std::map<folder_state, std::uint64_t> found_;
};

}  // namespace deeprec_test
