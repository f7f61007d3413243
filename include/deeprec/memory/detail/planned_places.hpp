// The places of what a step requests: a plan for the blocks of each chunk, and one for the chunks.
//
//   chunk 0   | block 0 | block 2 |      chunks whose phases overlap lie one after the other, others may lie
//             | block 1           |      in the same bytes
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/memory/detail/planned_chunk.hpp>
#include <deeprec/memory/detail/request_record.hpp>
#include <deeprec/memory/plans/block_lifetime.hpp>
#include <deeprec/memory/plans/block_plan.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// Blocks are whole cache lines: none shares one with another.
inline constexpr std::size_t planned_line = 64;

struct planned_places {
  std::vector<chunk_plan> chunks;
  std::size_t bytes = 0;
  std::size_t alignment = planned_line;
  std::size_t live_bytes = 0;       // the most at once: no plan is below
  std::size_t requested_bytes = 0;  // of all requests
};

/// The lifetimes of the blocks of a chunk, by events, without those that outlive the step.
///
/// @param block_of the number of the block of each request; -1: outlives the step
inline std::vector<block_lifetime> lifetimes_of(const request_record& record,
                                                std::vector<std::int32_t>& block_of) {
  constexpr std::size_t line = planned_line;
  constexpr std::size_t most = (std::numeric_limits<std::size_t>::max)() / 2;
  block_of.assign(record.requests().size(), -1);
  std::vector<block_lifetime> blocks;
  for (std::size_t t = 0; t < record.events().size(); ++t) {
    const memory_event event = record.events()[t];
    const memory_request& request = record.requests()[event.request];
    if (request.outlives_step) continue;
    const auto now = static_cast<std::int64_t>(t);
    if (event.frees) {
      blocks[static_cast<std::size_t>(block_of[event.request])].end = now;
      continue;
    }
    const std::size_t bytes = (std::max)((std::min)(request.room(), most), std::size_t{1});
    block_of[event.request] = static_cast<std::int32_t>(blocks.size());
    blocks.push_back({now, now + 1, (bytes + line - 1) / line * line, (std::max)(request.alignment, line)});
  }
  return blocks;
}

/// What a chunk is served by, whose blocks lie at `first` and behind.
inline chunk_plan plan_of_chunk(const request_record& record, std::span<const std::int32_t> block_of,
                                std::span<const block_lifetime> blocks, std::span<const std::size_t> offsets,
                                std::size_t first) {
  using kind = event_facts::kind;
  chunk_plan plan;
  plan.blocks = static_cast<std::uint32_t>(record.requests().size());
  std::uint32_t served = 0, live = 0;
  const auto add = [&](const event_facts& facts) {
    plan.requests.push_back(served);
    plan.live.push_back(live);
    plan.facts.push_back(facts);
    const bool at_once = !facts.is_optional && (facts.is == kind::request || facts.is == kind::free);
    if (!at_once) {
      plan.events.emplace_back();
    } else if (facts.is == kind::free) {
      plan.events.push_back({facts.offset, 0, 0});
      --live;
    } else {
      plan.events.push_back({facts.offset, facts.bytes, facts.alignment});
      ++live;
      ++served;
    }
  };
  for (const memory_event event : record.events()) {
    const memory_request& request = record.requests()[event.request];
    event_facts facts{kind::upstream, request.is_optional, event.request,    0,
                      request.least,  request.room(),      request.alignment};
    if (!request.outlives_step) {
      const auto block = static_cast<std::size_t>(block_of[event.request]);
      facts.is = event.frees ? kind::free : kind::request;
      facts.offset = first + offsets[block];
      facts.bytes = blocks[block].bytes;
      facts.alignment = blocks[block].alignment;
    }
    add(facts);
  }
  add({});
  return plan;
}

/// @param records of each chunk; chunks that follow each other may have the same one
/// @param phases  of the chunks; their bytes and alignments are those of the chunks then
/// @error  that of plan_blocks
inline result<planned_places> plan_places(std::span<const request_record* const> records,
                                          std::vector<block_lifetime> phases,
                                          const block_plan_options& options) {
  planned_places answer;
  struct chunk_blocks {
    std::vector<std::int32_t> block_of;
    std::vector<block_lifetime> blocks;
    block_plan plan;
  };
  std::vector<chunk_blocks> chunks(records.size());
  for (std::size_t c = 0; c < records.size(); ++c) {
    chunk_blocks& chunk = chunks[c];
    const bool as_before = c > 0 && records[c] == records[c - 1];
    if (as_before) {
      chunk = chunks[c - 1];
    } else {
      chunk.blocks = lifetimes_of(*records[c], chunk.block_of);
    }
    phases[c].alignment = planned_line;
    for (const block_lifetime& block : chunk.blocks) {
      phases[c].alignment = (std::max)(phases[c].alignment, block.alignment);
      answer.requested_bytes += block.bytes;
    }
    if (!as_before) {
      result<block_plan> plan = plan_blocks(chunk.blocks, options);
      if (!plan) return std::move(plan).fault();
      chunk.plan = std::move(plan).value();
    }
    phases[c].bytes = (std::max)(chunk.plan.bytes, std::size_t{1});
    answer.alignment = (std::max)(answer.alignment, phases[c].alignment);
  }
  result<block_plan> places = plan_blocks(phases, options);
  if (!places) return std::move(places).fault();
  answer.bytes = places.value().bytes;
  for (std::size_t c = 0; c < records.size(); ++c) {
    answer.chunks.push_back(plan_of_chunk(*records[c], chunks[c].block_of, chunks[c].blocks,
                                          chunks[c].plan.offsets, places.value().offsets[c]));
    std::size_t live = 0;  // when this chunk begins
    for (std::size_t other = 0; other < records.size(); ++other) {
      if (phases[other].begin <= phases[c].begin && phases[c].begin < phases[other].end)
        live += chunks[other].plan.live_bytes;
    }
    answer.live_bytes = (std::max)(answer.live_bytes, live);
  }
  return answer;
}

}}}  // namespace deeprec::DEEPREC_ABI::detail
