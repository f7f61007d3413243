// Ranks that are processes under MPI. Needs <mpi.h> (deeprec::mpi); not in the umbrella header.
//
//   MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
//   mpi_ranks comm = mpi_ranks::over(MPI_COMM_WORLD).or_throw();
//   status s = complete(comm, x, within(30s));
//
// Messages go from point to point, with the number of their exchange as the tag. Where the receiver knows
// the sizes its receives are posted before anything is sent, and messages land in their places; else it
// probes for each. MPI moves bytes only while it is called: exchanges that are to be hidden behind other work
// are polled. Not here: starting and ending MPI.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include <deeprec/comm/communicator.hpp>
#include <deeprec/comm/detail/exchange_checks.hpp>
#include <deeprec/comm/detail/mpi_flight.hpp>
#include <deeprec/comm/exchange.hpp>
#include <deeprec/comm/message_header.hpp>
#include <deeprec/comm/mpi_options.hpp>
#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>
#include <deeprec/core/result.hpp>
#include <deeprec/core/space.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/queue/queue_result.hpp>
#include <deeprec/support/verb.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// The end of this process. Movable; it frees its MPI communicator, unless MPI was finalised before.
///
/// @threads one thread at a time for each; several communicators as mpi_options::calls
class mpi_ranks {
 public:
  using space = host_space;

  /// A communicator of the ranks of `parent`, which is duplicated; all of its ranks call this.
  ///
  /// @cost    a duplicate of an MPI communicator
  /// @threads as MPI
  /// @error   unsupported: MPI is not initialised, or with fewer threads than `calls` needs; invalid_value:
  ///          most_bytes is not at least 64 or does not fit an int; io_error: MPI's
  [[nodiscard]] static result<mpi_ranks> over(MPI_Comm parent, const mpi_options& options = {}) {
    int initialized = 0, provided = 0;
    MPI_Initialized(&initialized);
    if (initialized == 0) return status(errc::unsupported, "mpi_ranks: MPI_Init must have been called");
    MPI_Query_thread(&provided);
    const int needed = options.calls == mpi_calls::at_once       ? MPI_THREAD_MULTIPLE
                       : options.calls == mpi_calls::one_at_time ? MPI_THREAD_SERIALIZED
                                                                 : MPI_THREAD_SINGLE;
    if (provided < needed) {
      return status(errc::unsupported,
                    "mpi_ranks: MPI must be initialised for the threads that call it "
                    "(MPI_Init_thread, or mpi_calls::one_thread)",
                    {.is = provided, .must_be = needed});
    }
    if (options.most_bytes < index_t{sizeof(message_header)} || options.most_bytes > 0x7fff'ffff)
      return status(errc::invalid_value, "mpi_ranks: most_bytes must be at least 64 and fit an int",
                    {.is = options.most_bytes});
    MPI_Comm copy = MPI_COMM_NULL;
    if (MPI_Comm_dup(parent, &copy) != MPI_SUCCESS) return detail::mpi_failed();
    return mpi_ranks(copy, options);
  }
  mpi_ranks(mpi_ranks&& other) noexcept = default;
  mpi_ranks& operator=(mpi_ranks&& other) noexcept = default;

  [[nodiscard]] int rank() const noexcept { return at_.rank; }
  [[nodiscard]] int size() const noexcept { return at_.size; }
  [[nodiscard]] int most_in_flight() const noexcept { return depth; }

  [[nodiscard]] status begin(exchange& x) {
    if (const status s = detail::check_blocks(x, rank(), size()); !s) return s;
    detail::mpi_flight& f = flight(next_);
    if (f.of() != nullptr) return detail::too_many_in_flight(depth);
    if (!end_.ok()) return end_;
    if (const status s = detail::or_out_of_memory("exchange", [&] { return f.reserve(at_, x), status(); });
        !s)
      return s;
    detail::number_exchange(x, next_++);
    if (!x.rooms.empty() && x.fault.ok())
      x.from[static_cast<std::size_t>(rank())] = x.to[static_cast<std::size_t>(rank())];
    if (const status s = f.begin(at_, x); !s) abandon(s);
    return {};
  }

  [[nodiscard]] queue_result poll(exchange& x) {
    detail::mpi_flight& f = flight(x.number);
    if (f.of() == &x && ++looks_ % 1024 == 0) take_words();
    if (f.of() == &x) {
      if (const status s = f.progress(at_); !s) abandon(s);
    }
    if (f.of() == &x) return queue_result::not_now;
    return detail::result_of(x);
  }

  /// Polls, and lets other threads run after a while.
  [[nodiscard]] queue_result wait(exchange& x, const wait_limit& limit = {}) {
    return detail::wait_by_polling([&] { return poll(x); }, limit);
  }
  [[nodiscard]] rank_list awaited(const exchange& x) const {
    rank_list list;
    const detail::mpi_flight& f = flights_[x.number % depth];
    for (int r = 0; r < size() && f.of() == &x; ++r) {
      if (r != rank() && f.awaits(r)) list.push_back(r);
    }
    return list;
  }

  /// Sends the other ranks word of it. MPI may read and write blocks of exchanges that were in flight as long
  /// as it is called: end the process (MPI_Abort), or keep the blocks.
  void abandon(const status& why) {
    if (end_.ok()) {
      const bool told = why.code() == errc::closed;  // by another rank, which tells all
      end_ = told ? why : detail::abandoned_by(rank());
      if (!told) send_words(end_tag);
    }
    for (detail::mpi_flight& f : flights_) {
      if (f.of() != nullptr) f.fail(why);
    }
  }

  /// MPI's own: the order in which ranks are added is its choice. The last eighth of the limit is for asking
  /// which ranks call MPI: a time-out names the first that does not, where there is one. MPI can't cancel a
  /// sum: after one that failed the values must live on, and the process ends without MPI_Finalize (_exit,
  /// MPI_Abort).
  [[nodiscard]] status sum(std::span<float> values, const wait_limit& limit = {}) {
    const auto most = static_cast<std::size_t>(at_.options.most_bytes) / sizeof(float);
    const std::chrono::nanoseconds to_ask = an_eighth_of(limit);
    while (!values.empty()) {
      if (!end_.ok()) return end_.in_operation("sum");
      const std::size_t count = (std::min)(values.size(), most);
      MPI_Request request = MPI_REQUEST_NULL;
      int code = MPI_Iallreduce(MPI_IN_PLACE, values.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                                comm_.get(), &request);
      const queue_result ended =
          code != MPI_SUCCESS
              ? queue_result::failed
              : detail::wait_by_polling(
                    [&] {
                      if (++looks_ % 1024 == 0) take_words();
                      int done = 0;
                      code = end_.ok() ? MPI_Test(&request, &done, MPI_STATUS_IGNORE) : MPI_SUCCESS;
                      if (!end_.ok() || code != MPI_SUCCESS) return queue_result::failed;
                      return done != 0 ? queue_result::ok : queue_result::not_now;
                    },
                    {limit.deadline - to_ask, limit.stop});
      if (ended != queue_result::ok) {
        fault_place place{};
        if (ended == queue_result::timed_out && to_ask.count() > 0) place.rank = first_silent(within(to_ask));
        status s(errc::timed_out, "sum: all ranks must sum within the limit", place);
        if (ended == queue_result::stopped) s = {errc::stopped, "sum: stopped while it waited for the ranks"};
        if (code != MPI_SUCCESS) s = detail::mpi_failed();
        if (!end_.ok()) s = end_;
        comm_.keep();
        abandon(s);
        return s.in_operation("sum");
      }
      values = values.subspan(count);
    }
    return {};
  }

  [[nodiscard]] result<mpi_ranks> duplicate() { return over(comm_.get(), at_.options); }
  /// @param limit  MPI_Comm_split has none: not used
  [[nodiscard]] result<mpi_ranks> split(int color, int key, const wait_limit& limit = {}) {
    static_cast<void>(limit);
    MPI_Comm part = MPI_COMM_NULL;
    if (MPI_Comm_split(comm_.get(), color < 0 ? MPI_UNDEFINED : color, key, &part) != MPI_SUCCESS)
      return detail::mpi_failed();
    if (part == MPI_COMM_NULL) return status(errc::unsupported, "split: this rank has no color");
    return mpi_ranks(part, at_.options);
  }

 private:
  // Words are messages without bytes: the end; a call to all ranks, and what each returns.
  static constexpr int depth = 4, end_tag = detail::mpi_flight::tags, call_tag = end_tag + 1,
                       here_tag = end_tag + 2;

  mpi_ranks(MPI_Comm comm, const mpi_options& options) : comm_(comm) {
    at_ = {.comm = comm, .options = options};
    MPI_Comm_rank(comm, &at_.rank);
    MPI_Comm_size(comm, &at_.size);
  }

  detail::mpi_flight& flight(std::uint64_t number) noexcept { return flights_[number % depth]; }
  void send_word(int to, int tag) {
    MPI_Request word = MPI_REQUEST_NULL;
    if (MPI_Isend(nullptr, 0, MPI_BYTE, to, tag, comm_.get(), &word) == MPI_SUCCESS)
      MPI_Request_free(&word);  // nobody waits for it
  }
  void send_words(int tag) {
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) send_word(r, tag);
    }
  }
  // Whether a rank has sent one; MPI_ANY_SOURCE becomes that rank.
  bool has_word(int& from, int tag) {
    int there = 0;
    MPI_Status what;
    if (MPI_Iprobe(from, tag, comm_.get(), &there, &what) != MPI_SUCCESS || there == 0) return false;
    from = what.MPI_SOURCE;
    return true;
  }
  void take_words() {
    int from = MPI_ANY_SOURCE;
    if (has_word(from, end_tag)) return abandon(detail::abandoned_by(from));
    if (!has_word(from, call_tag)) return;
    MPI_Recv(nullptr, 0, MPI_BYTE, from, call_tag, comm_.get(), MPI_STATUS_IGNORE);
    send_word(from, here_tag);
  }
  // The first rank that does not return a call within the limit; -1: none. Then the communicator ends, so
  // there is one call.
  int first_silent(const wait_limit& limit) {
    send_words(call_tag);
    for (int r = 0; r < size(); ++r) {
      const auto look = [&] {
        take_words();
        if (!end_.ok()) return queue_result::closed;
        return r == rank() || has_word(r, here_tag) ? queue_result::ok : queue_result::not_now;
      };
      const queue_result heard = detail::wait_by_polling(look, limit);
      if (heard != queue_result::ok) return heard == queue_result::timed_out ? r : -1;
    }
    return -1;
  }
  static std::chrono::nanoseconds an_eighth_of(const wait_limit& limit) {
    using clock = std::chrono::steady_clock;
    const clock::time_point now = clock::now();
    if (limit.deadline == (clock::time_point::max)() || limit.deadline <= now) return {};
    return (limit.deadline - now) / 8;
  }

  detail::mpi_handle comm_;
  detail::mpi_place at_;
  std::uint64_t next_ = 0, looks_ = 0;
  std::array<detail::mpi_flight, depth> flights_;
  status end_{};
};

static_assert(SummingCommunicator<mpi_ranks>);

}}  // namespace deeprec::DEEPREC_ABI
