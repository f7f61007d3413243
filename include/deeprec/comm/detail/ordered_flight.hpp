// An exchange over a link that knows no tags, from its headers to its last payload.
//
//   queued ──> headers, one all-to-all ──> all ranks read the same ──> blocks, another one ──> ended
//                                      └── a fault, a stranger ─────────────────────────────> ended
//
// What all ranks read is the same, so they all begin the second all-to-all, or none does. What one rank alone
// knows (a payload of another size, no memory for it) waits until the second one is over.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <deeprec/comm/detail/exchange_checks.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/sizes.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// The word of a rank that has abandoned its communicator, in the place of a header.
inline message_header farewell_header(std::uint32_t generation) noexcept {
  message_header h;
  h.kind = message_kind::agreement;
  h.generation = generation;
  h.bytes = -1;
  return h;
}
inline bool is_farewell(const message_header& h) noexcept {
  return h.magic == message_header::mark && h.kind == message_kind::agreement && h.bytes == -1;
}

template <class Link>
class ordered_flight {
  static constexpr index_t header_bytes{sizeof(message_header)};

 public:
  /// None: the exchange has ended, or not begun.
  [[nodiscard]] exchange* of() const noexcept { return of_; }
  /// Whether the other ranks may wait for this rank's second all-to-all.
  [[nodiscard]] bool owes_payload() const noexcept { return of_ != nullptr && stage_ == stage::headers; }

  /// All memory that begin() takes. Throws std::bad_alloc, and nothing has changed.
  void reserve(Link& link) {
    const auto n = static_cast<std::size_t>(link.size());
    to_bytes_.reserve(n);
    from_bytes_.reserve(n);
    headers_.reserve(n);
    link.make(first_, link.size() * header_bytes, link.size() * header_bytes);
  }
  /// @pre reserve(link)
  void begin(exchange& x) noexcept {
    of_ = &x;
    stage_ = stage::queued;
    local_ = later_ = {};
    agreed_by_ = -1;
  }

  /// Goes on as far as it can. `turn`: whether this exchange may begin an all-to-all; behind it, whether the
  /// next one may. A fault ends the communicator.
  status progress(Link& link, std::uint32_t generation, bool& turn) {
    if (stage_ == stage::queued) {
      if (!turn) return {};
      if (link.size() == 1) return finish(link);
      stage_ = stage::headers;
      if (const status s = send_headers(link, generation); !s) return s;
    }
    if (stage_ == stage::headers) {
      turn = false;
      const queue_result come = link.poll(first_);
      if (come == queue_result::not_now) return {};
      if (come != queue_result::ok) return link.fault(first_);
      if (const status s = read_headers(link, generation); !s) return s;
      turn = true;
      if (!of_->agreed.ok()) return finish(link);
      if (const status s = or_out_of_memory("exchange", [&] { return send_payloads(link, generation); }); !s)
        return s;
      stage_ = stage::payload;
    }
    const queue_result come = link.poll(second_);
    if (come == queue_result::not_now) return {};
    if (come != queue_result::ok) return link.fault(second_);
    if (!later_) return later_;
    for (int r = 0; r < link.size(); ++r) {
      if (r != link.rank()) deliver(link, r);
    }
    return finish(link);
  }

  /// Whether nothing of `rank` has come, as far as the link can tell.
  [[nodiscard]] bool awaits(const Link& link, int rank) const {
    switch (stage_) {
      case stage::queued:
        return true;
      case stage::headers:
        return link.peek(first_, rank * header_bytes) != message_header::mark;
      case stage::payload:
        break;
    }
    return link.size() == 2;  // of more it is not known whose is missing
  }

  /// The end of an exchange that is not complete. The link has its own memory: blocks are the caller's.
  void fail(const status& why) noexcept {
    of_->outcome = why;
    of_ = nullptr;
  }

 private:
  enum class stage : std::uint8_t { queued, headers, payload };
  using round = typename Link::round;

  template <class Number>
  static std::size_t index(Number n) noexcept {
    return static_cast<std::size_t>(n);
  }
  status finish(Link& link) {
    exchange& x = *of_;
    if (!x.fault.ok()) agree(x, link.rank(), own_fault(x, link.rank()), agreed_by_);
    if (!x.rooms.empty() && x.fault.ok()) x.from[index(link.rank())] = x.to[index(link.rank())];
    x.outcome = x.agreed.ok() ? local_ : x.agreed;
    of_ = nullptr;
    return {};
  }

  status send_headers(Link& link, std::uint32_t generation) {
    const std::span<std::byte> out = link.to(first_), in = link.from(first_);
    std::fill(in.begin(), in.end(), std::byte{0});
    for (int r = 0; r < link.size(); ++r) {
      const bool sends = of_->fault.ok() && r != link.rank();
      put_message_header(
          out.subspan(index(r) * sizeof(message_header)),
          header_of(*of_, generation, sends ? of_->to[index(r)].size() : sizeof(message_header)));
    }
    to_bytes_.assign(index(link.size()), header_bytes);
    return link.start(first_, to_bytes_, to_bytes_);
  }

  status read_headers(Link& link, std::uint32_t generation) {
    headers_.assign(index(link.size()), {});
    const std::span<std::byte> in = link.from(first_);
    for (int r = 0; r < link.size(); ++r) {
      if (r == link.rank()) continue;
      message_header& h = headers_[index(r)] = message_header_in(in.data() + r * header_bytes);
      if (is_farewell(h)) return abandoned_by(r);
      if (const status s = check_header(h, r, generation, *of_); !s) return s;
      if (h.code != 0) agree(*of_, r, h.fault(r), agreed_by_);
      if (of_->rooms.empty() && later_.ok()) later_ = check_bytes(h, r, of_->from[index(r)].size());
    }
    if (!of_->fault.ok()) agree(*of_, link.rank(), own_fault(*of_, link.rank()), agreed_by_);
    return {};
  }

  status send_payloads(Link& link, std::uint32_t generation) {
    to_bytes_.assign(index(link.size()), 0);
    from_bytes_.assign(index(link.size()), 0);
    index_t out_bytes = 0, in_bytes = 0;
    for (int r = 0; r < link.size(); ++r) {
      if (r == link.rank()) continue;
      out_bytes += to_bytes_[index(r)] = static_cast<index_t>(of_->to[index(r)].size());
      from_bytes_[index(r)] = capped_sum(headers_[index(r)].bytes, header_bytes);
      in_bytes = capped_sum(in_bytes, from_bytes_[index(r)]);
    }
    link.make(second_, out_bytes, in_bytes);
    std::span<std::byte> out = link.to(second_);
    for (int r = 0; r < link.size(); ++r) {
      if (r == link.rank()) continue;
      const std::span<std::byte> block = of_->to[index(r)];
      put_message_header(out, header_of(*of_, generation, block.size()));
      std::copy(payload_of(block).begin(), payload_of(block).end(), payload_of(out).begin());
      out = out.subspan(block.size());
    }
    return link.start(second_, to_bytes_, from_bytes_);
  }

  void deliver(Link& link, int r) {
    const message_header& h = headers_[index(r)];
    if (!of_->rooms.empty() && make_block(*of_, r, h.bytes).empty()) {
      local_ = no_memory_for(r);
      return;
    }
    const std::span<std::byte> to = of_->from[index(r)];
    index_t at = header_bytes;
    for (int before = 0; before < r; ++before) at += from_bytes_[index(before)];
    put_message_header(to, h);
    std::copy_n(link.from(second_).data() + at, h.bytes, payload_of(to).data());
  }

  exchange* of_ = nullptr;
  stage stage_ = stage::queued;
  status local_{};  // of this rank, which the others do not know
  status later_{};  // the same, and it ends the communicator
  int agreed_by_ = -1;
  round first_{}, second_{};
  std::vector<index_t> to_bytes_, from_bytes_;
  std::vector<message_header> headers_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
