// Seeded lifetimes of blocks, and what plans of them must be: a check of all pairs and the optimum of a few
// blocks, both written without the headers of plans.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <deeprec/memory/plans/block_lifetime.hpp>

namespace deeprec_test {

using lifetimes = std::vector<deeprec::block_lifetime>;

/// How sizes and lives are drawn.
enum class lives_are { few_events, many_events, long_and_short, nested, disjoint_sections };
inline constexpr lives_are every_lives[] = {lives_are::few_events, lives_are::many_events,
                                            lives_are::long_and_short, lives_are::nested,
                                            lives_are::disjoint_sections};

/// @param alignments  true: powers of two up to 4096, sizes to the byte, some of 0 bytes; false: alignment 1
inline lifetimes draw_lifetimes(std::mt19937_64& random, std::size_t blocks, lives_are kind,
                                bool alignments) {
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  lifetimes drawn;
  const auto n = static_cast<std::int64_t>(blocks);
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t begin = 0, length = 1;
    switch (kind) {
      case lives_are::few_events:
        begin = below(6);
        length = 1 + below(4);
        break;
      case lives_are::many_events:
        begin = below(static_cast<std::uint64_t>(4 * n)) - 2 * n;
        length = 1 + below(static_cast<std::uint64_t>(2 * n));
        break;
      case lives_are::long_and_short:
        begin = below(static_cast<std::uint64_t>(2 * n));
        length = below(4) == 0 ? n + below(static_cast<std::uint64_t>(n)) : 1 + below(3);
        break;
      case lives_are::nested:  // as a forward pass and its backward pass
        begin = i;
        length = 2 * (n - i) + 1;
        break;
      case lives_are::disjoint_sections:
        begin = 10 * below(3) + below(4);
        length = 1 + below(6);
        break;
    }
    const auto bytes =
        static_cast<std::size_t>(below(8) == 0 ? 1 + below(8) : 1 + below(alignments ? 5000 : 20));
    drawn.push_back({begin, begin + length, alignments && below(16) == 0 ? 0 : bytes,
                     alignments ? std::size_t{1} << below(13) : std::size_t{1}});
  }
  return drawn;
}

inline bool live_together(const deeprec::block_lifetime& a, const deeprec::block_lifetime& b) {
  return std::max(a.begin, b.begin) < std::min(a.end, b.end);
}

/// What is wrong with a plan; empty: nothing.
inline std::string faults_of(const lifetimes& blocks, std::span<const std::size_t> offsets,
                             std::size_t bytes) {
  if (offsets.size() != blocks.size()) return "not one offset for each block";
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (offsets[i] % blocks[i].alignment != 0) return "not aligned: " + std::to_string(i);
    if (offsets[i] + blocks[i].bytes > bytes) return "outside: " + std::to_string(i);
    for (std::size_t k = 0; k < i; ++k) {
      if (!live_together(blocks[i], blocks[k]) || blocks[i].bytes == 0 || blocks[k].bytes == 0) continue;
      if (std::max(offsets[i], offsets[k]) <
          std::min(offsets[i] + blocks[i].bytes, offsets[k] + blocks[k].bytes))
        return "overlap: " + std::to_string(k) + " and " + std::to_string(i);
    }
  }
  return {};
}

/// The most bytes that are live at one time.
inline std::size_t live_bytes_of(const lifetimes& blocks) {
  std::size_t most = 0;
  for (const auto& at : blocks) {
    std::size_t live = 0;
    for (const auto& b : blocks) live += b.begin <= at.begin && at.begin < b.end ? b.bytes : 0;
    most = std::max(most, live);
  }
  return most;
}

/// The least bytes of all plans: some order of the blocks, each as low as those before it permit, is one.
inline std::size_t least_bytes(const lifetimes& blocks) {
  std::vector<std::size_t> offsets(blocks.size());
  std::vector<bool> is_placed(blocks.size());
  std::size_t least = SIZE_MAX;
  const auto place = [&](const auto& again, std::size_t placed, std::size_t height) -> void {
    if (height >= least) return;
    if (placed == blocks.size()) {
      least = height;
      return;
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (is_placed[i]) continue;
      std::size_t top = 0;
      for (std::size_t k = 0; k < blocks.size(); ++k) {
        if (is_placed[k] && blocks[k].bytes > 0 && live_together(blocks[i], blocks[k]))
          top = std::max(top, offsets[k] + blocks[k].bytes);
      }
      if (blocks[i].bytes == 0) top = 0;
      offsets[i] = (top + blocks[i].alignment - 1) / blocks[i].alignment * blocks[i].alignment;
      is_placed[i] = true;
      again(again, placed + 1, std::max(height, offsets[i] + blocks[i].bytes));
      is_placed[i] = false;
    }
  };
  place(place, 0, 0);
  return least;
}

/// Offsets by placing the blocks in an order, each into the smallest gap that fits, or the lowest one, among
/// those before it in the order that are live at the same time.
inline std::vector<std::size_t> offsets_in_order(const lifetimes& blocks,
                                                 const std::vector<std::size_t>& order, bool lowest) {
  std::vector<std::size_t> offsets(blocks.size());
  std::vector<std::size_t> placed;
  for (const std::size_t i : order) {
    std::vector<std::size_t> near;
    for (const std::size_t k : placed) {
      if (live_together(blocks[i], blocks[k])) near.push_back(k);
    }
    std::sort(near.begin(), near.end(),
              [&](std::size_t a, std::size_t b) { return offsets[a] < offsets[b]; });
    const auto fit = [&](std::size_t from) {
      return (from + blocks[i].alignment - 1) / blocks[i].alignment * blocks[i].alignment;
    };
    std::size_t top = 0, least = SIZE_MAX, chosen = 0;
    for (const std::size_t k : near) {
      if (offsets[k] > top && fit(top) + blocks[i].bytes <= offsets[k] && offsets[k] - top < least &&
          !(lowest && least != SIZE_MAX)) {
        least = offsets[k] - top;
        chosen = fit(top);
      }
      top = std::max(top, offsets[k] + blocks[k].bytes);
    }
    offsets[i] = least == SIZE_MAX ? fit(top) : chosen;
    placed.push_back(i);
  }
  return offsets;
}

/// The blocks of a file "id,lower,upper,size"; empty where DEEPREC_DATA_DIR does not have it.
inline lifetimes minimalloc_lifetimes(char name) {
  const char* const folder = std::getenv("DEEPREC_DATA_DIR");
  lifetimes read;
  if (folder == nullptr) return read;
  std::ifstream in(std::string(folder) + "/minimalloc/" + name + ".csv");
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::int64_t numbers[4] = {};
    const char* next = line.c_str();
    for (std::int64_t& number : numbers) {
      char* end = nullptr;
      number = std::strtoll(next, &end, 10);
      next = end + 1;
    }
    read.push_back({numbers[1], numbers[2], static_cast<std::size_t>(numbers[3]), 1});
  }
  return read;
}

}  // namespace deeprec_test
