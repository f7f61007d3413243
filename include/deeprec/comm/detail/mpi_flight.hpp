// An exchange under MPI, from its first message to its last. Needs <mpi.h>.
//
//   a block of at most most_bytes   one message
//   a longer one                    its header, and then pieces
//
// Messages of one sender, tag and communicator come in their order, so pieces need no numbers.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <deeprec/comm/detail/exchange_checks.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/mpi_options.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/status.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

inline status mpi_failed(int rank = -1) noexcept {
  fault_place place{};
  place.rank = rank;
  return {errc::io_error, "exchange: MPI reports an error", place};
}
inline status mpi_checked(int code, int rank = -1) noexcept {
  return code == MPI_SUCCESS ? status() : mpi_failed(rank);
}

/// Owns an MPI communicator, whose errors are returned.
class mpi_handle {
 public:
  explicit mpi_handle(MPI_Comm comm) noexcept : comm_(comm) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  mpi_handle(mpi_handle&& other) noexcept
      : comm_(std::exchange(other.comm_, MPI_COMM_NULL)), kept_(other.kept_) {}
  mpi_handle& operator=(mpi_handle&& other) noexcept {
    std::swap(comm_, other.comm_);
    std::swap(kept_, other.kept_);
    return *this;
  }
  ~mpi_handle() {
    int finalized = 0;
    if (comm_ != MPI_COMM_NULL && !kept_ && MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0)
      MPI_Comm_free(&comm_);
  }
  [[nodiscard]] MPI_Comm get() const noexcept { return comm_; }
  /// It is never freed.
  void keep() noexcept { kept_ = true; }

 private:
  MPI_Comm comm_;
  bool kept_ = false;
};

/// Where exchanges take place.
struct mpi_place {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1;
  mpi_options options{};
};

class mpi_flight {
 public:
  static constexpr int tags = 1 << 14;  // MPI has 32767 at least

  /// None: the exchange has ended, or not begun.
  [[nodiscard]] exchange* of() const noexcept { return of_; }

  /// All memory that begin() takes. Throws std::bad_alloc, and nothing has changed.
  void reserve(const mpi_place& at, const exchange& x) {
    index_t messages = at.size;
    for (const std::span<std::byte> block : x.to)
      messages += static_cast<index_t>(block.size()) / at.options.most_bytes + 1;
    sends_.reserve(static_cast<std::size_t>(messages));
    peers_.reserve(static_cast<std::size_t>(at.size));
  }
  /// @pre reserve(at, x)
  status begin(const mpi_place& at, exchange& x) {
    of_ = &x;
    local_ = {};
    agreed_by_ = -1;
    arrived_ = 0;
    peers_.assign(static_cast<std::size_t>(at.size), {});
    sends_.clear();
    if (!x.fault.ok()) agree(x, at.rank, own_fault(x, at.rank), agreed_by_);
    if (const status s = x.rooms.empty() ? receive_all(at) : status(); !s) return s;
    return send_all(at);
  }

  /// Takes what has come. @post of() is null where that was all.
  status progress(const mpi_place& at) {
    for (int r = 0; r < at.size; ++r) {
      if (r == at.rank || peer_of(r).done) continue;
      if (const status s = progress_from(at, r); !s) return s;
    }
    if (arrived_ < at.size - 1) return {};  // what is sent goes on meanwhile
    int sent = 1;
    if (!sends_.empty()) {
      const status s = mpi_checked(
          MPI_Testall(static_cast<int>(sends_.size()), sends_.data(), &sent, MPI_STATUSES_IGNORE));
      if (!s) return s;
    }
    if (sent != 0) {
      of_->outcome = of_->agreed.ok() ? local_ : of_->agreed;
      of_ = nullptr;
    }
    return {};
  }

  [[nodiscard]] bool awaits(int rank) const noexcept { return !peers_[static_cast<std::size_t>(rank)].done; }

  /// The end of an exchange that is not complete. MPI may have its blocks still.
  void fail(const status& why) {
    for (peer& p : peers_) {
      if (p.request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&p.request);
      MPI_Request_free(&p.request);
    }
    of_->outcome = why;
    of_ = nullptr;
  }

 private:
  // What comes from a rank.
  struct peer {
    MPI_Request request = MPI_REQUEST_NULL;
    index_t expected = -1;  ///< bytes of the block, from its header
    index_t taken = 0;      ///< that have come
    bool dropped = false;   ///< there is no memory for them
    bool apart = false;     ///< the header comes alone, to `header`
    bool done = false;
    message_header header{};
  };

  peer& peer_of(int rank) noexcept { return peers_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::span<std::byte>& block_from(int rank) const noexcept {
    return of_->from[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] int tag() const noexcept { return static_cast<int>(of_->number % tags); }
  status finish(int rank) noexcept {
    peer_of(rank).done = true;
    ++arrived_;
    return {};
  }

  // The bytes that go with the first message of a block.
  static index_t first_bytes(const mpi_place& at, index_t block) noexcept {
    return block <= at.options.most_bytes ? block : index_t{sizeof(message_header)};
  }
  // body(r) for the other ranks, from the next one on: so not all send to one.
  template <class Body>
  static status each_rank(const mpi_place& at, const Body& body) {
    status s;
    for (int k = 1; k < at.size && s.ok(); ++k) s = body((at.rank + k) % at.size);
    return s;
  }
  status receive_all(const mpi_place& at) {
    return each_rank(at, [&](int r) {
      const std::span<std::byte> block = block_from(r);
      return receive(at, block.data(), first_bytes(at, static_cast<index_t>(block.size())), r);
    });
  }
  status send_all(const mpi_place& at) {
    exchange& x = *of_;
    if (!x.fault.ok()) {
      own_ = header_of(x, at.options.generation, 0);
      return each_rank(at, [&](int r) { return send(at, &own_, sizeof(own_), r); });
    }
    return each_rank(at, [&](int r) {
      const std::span<std::byte> block = x.to[static_cast<std::size_t>(r)];
      const auto bytes = static_cast<index_t>(block.size());
      put_message_header(block, header_of(x, at.options.generation, block.size()));
      index_t sent = first_bytes(at, bytes);
      status s = send(at, block.data(), sent, r);
      while (s.ok() && sent < bytes) {
        const index_t piece = (std::min)(at.options.most_bytes, bytes - sent);
        s = send(at, block.data() + sent, piece, r);
        sent += piece;
      }
      return s;
    });
  }
  status send(const mpi_place& at, const void* from, index_t bytes, int to) {
    sends_.push_back(MPI_REQUEST_NULL);
    return mpi_checked(MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, to, tag(), at.comm, &sends_.back()),
                       to);
  }
  status receive(const mpi_place& at, void* to, index_t bytes, int from) {
    return mpi_checked(
        MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, from, tag(), at.comm, &peer_of(from).request), from);
  }

  status progress_from(const mpi_place& at, int r) {
    peer& p = peer_of(r);
    while (!p.done) {
      if (p.request == MPI_REQUEST_NULL) {
        int there = 0;
        if (const status s = take_first(at, r, there); !s || there == 0) return s;
      }
      int come = 0;
      MPI_Status what;
      const int code = MPI_Test(&p.request, &come, &what);
      if (code != MPI_SUCCESS && !p.dropped) return refused(r, code);
      if (come == 0 && code == MPI_SUCCESS) return {};
      if (const status s = take(at, r, what); !s) return s;
    }
    return {};
  }
  static status refused(int r, int code) {
    int kind = MPI_SUCCESS;
    MPI_Error_class(code, &kind);
    if (kind != MPI_ERR_TRUNCATE) return mpi_failed(r);
    fault_place place{};
    place.rank = r;
    return {errc::invalid_value, "exchange: a payload must have the bytes that its receiver waits for",
            place};
  }
  // The first message of a rank, whose size is not known.
  status take_first(const mpi_place& at, int r, int& there) {
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status what;
    if (const status s = mpi_checked(MPI_Improbe(r, tag(), at.comm, &there, &message, &what), r);
        !s || there == 0)
      return s;
    int bytes = 0;
    MPI_Get_count(&what, MPI_BYTE, &bytes);
    peer& p = peer_of(r);
    p.apart = bytes == int{sizeof(message_header)};
    void* to = &p.header;
    if (!p.apart) {
      const std::span<std::byte> block = make_room((std::max)(bytes, int{sizeof(message_header)}), r);
      to = block.data();
      if (block.empty()) bytes = 0;
    }
    return mpi_checked(MPI_Imrecv(to, bytes, MPI_BYTE, &message, &p.request), r);
  }
  // A room for a block, or none where there is no memory.
  std::span<std::byte> make_room(index_t block_bytes, int r) {
    const std::span<std::byte> block = make_block(*of_, r, block_bytes - index_t{sizeof(message_header)});
    if (block.empty()) {
      local_ = no_memory_for(r);
      peer_of(r).dropped = true;
    }
    return block;
  }
  // A message, or a piece of one, has come.
  status take(const mpi_place& at, int r, const MPI_Status& what) {
    peer& p = peer_of(r);
    if (p.dropped) return finish(r);
    int bytes = 0;
    MPI_Get_count(&what, MPI_BYTE, &bytes);
    p.taken += bytes;
    if (p.expected < 0) {
      const message_header h = p.apart ? p.header : message_header_in(block_from(r).data());
      if (const status s = check_header(h, r, at.options.generation, *of_); !s) return s;
      if (h.code != 0) {
        agree(*of_, r, h.fault(r), agreed_by_);
        return finish(r);
      }
      p.expected = h.bytes + index_t{sizeof(message_header)};
      if (of_->rooms.empty()) {
        if (const status s = check_bytes(h, r, block_from(r).size()); !s) return s;
      } else if (p.apart) {
        if (make_room(p.expected, r).empty()) return drop_pieces(at, r);
        put_message_header(block_from(r), h);
      }
    }
    if (p.taken == p.expected) return finish(r);
    return receive(at, block_from(r).data() + p.taken,
                   (std::min)(at.options.most_bytes, p.expected - p.taken), r);
  }
  // Pieces for which there is no memory: they are received, and are nowhere.
  status drop_pieces(const mpi_place& at, int r) {
    peer& p = peer_of(r);
    while (p.taken < p.expected) {
      MPI_Recv(nullptr, 0, MPI_BYTE, r, tag(), at.comm, MPI_STATUS_IGNORE);
      p.taken += (std::min)(at.options.most_bytes, p.expected - p.taken);
    }
    return finish(r);
  }

  exchange* of_ = nullptr;
  status local_{};
  int agreed_by_ = -1, arrived_ = 0;
  message_header own_{};  // of a fault
  std::vector<peer> peers_;
  std::vector<MPI_Request> sends_;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
