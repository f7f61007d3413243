// The lookups of a table_group as one list of pieces.
//
//   jobs      |  job 0  |job 1|   job 2     |        a job is a type-erased lookup_job
//   pieces    |p0 |p1 |p2|p3 |p4|p5 |p6 |p7 |        numbered consecutively; starts_[t] is job t's first
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <memory_resource>
#include <new>
#include <span>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/core/unit.hpp>
#include <deeprec/embedding/kernels/lookup_job.hpp>
#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/executor_ref.hpp>

namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {

/// A type-erased lookup_job.
class group_job {
 public:
  virtual ~group_job() = default;
  virtual status open() = 0;
  [[nodiscard]] virtual bool checks() const noexcept = 0;
  [[nodiscard]] virtual index_t positions() const noexcept = 0;
  virtual void check(isa which, index_t begin, index_t end) noexcept = 0;
  [[nodiscard]] virtual status fault() const = 0;
  virtual void plan(const context<executor_ref>& ctx) = 0;
  [[nodiscard]] virtual index_t units() const noexcept = 0;
  [[nodiscard]] virtual index_t grain() const noexcept = 0;
  virtual void fetch(isa which, index_t begin) const noexcept = 0;
  virtual void pool(isa which, index_t begin, index_t end) noexcept = 0;
  virtual void close(const context<executor_ref>& ctx) = 0;
};

template <class Source, class Bags, class Pooling, class Out, class = unit>
class group_job_of final : public group_job {
 public:
  group_job_of(const Source& table, const Bags& bags, const Pooling& pooling, matrix_view<Out> out,
               std::pmr::memory_resource* memory)
      : job_(table, bags, pooling, out, memory) {}
  status open() override { return job_.open(); }
  bool checks() const noexcept override { return job_.checks; }
  index_t positions() const noexcept override { return job_.positions(); }
  void check(isa which, index_t begin, index_t end) noexcept override { job_.check(which, begin, end); }
  status fault() const override { return job_.fault(); }
  void plan(const context<executor_ref>& ctx) override { job_.plan(ctx); }
  index_t units() const noexcept override { return job_.units(); }
  index_t grain() const noexcept override { return job_.grain(); }
  void fetch(isa which, index_t begin) const noexcept override { job_.fetch(which, begin); }
  void pool(isa which, index_t begin, index_t end) noexcept override { job_.pool(which, begin, end); }
  void close(const context<executor_ref>& ctx) override { job_.close(ctx); }

 private:
  lookup_job<Source, Bags, Pooling, Out> job_;
};

/// A type-erased feature of a group; it makes the job of one batch.
template <class Bags, class Out>
class group_feature {
 public:
  virtual ~group_feature() = default;
  [[nodiscard]] virtual index_t width() const noexcept = 0;
  [[nodiscard]] virtual std::size_t job_bytes() const noexcept = 0;
  [[nodiscard]] virtual status shapes(const Bags& bags, matrix_view<Out> out) const = 0;
  virtual group_job* make_job(void* where, const Bags& bags, matrix_view<Out> out,
                              std::pmr::memory_resource* memory) const = 0;
};

template <class Source, class Bags, class Pooling, class Out, class = unit>
class group_feature_of final : public group_feature<Bags, Out> {
  using job = group_job_of<Source, Bags, Pooling, Out>;
  static_assert(alignof(job) <= alignof(std::max_align_t));

 public:
  group_feature_of(const Source& table, const Pooling& pooling) : table_(table), pooling_(pooling) {}
  index_t width() const noexcept override { return table_.format().width(); }
  std::size_t job_bytes() const noexcept override { return sizeof(job); }
  status shapes(const Bags& bags, matrix_view<Out> out) const override {
    return lookup_shapes(table_, bags, pooling_, out);
  }
  group_job* make_job(void* where, const Bags& bags, matrix_view<Out> out,
                      std::pmr::memory_resource* memory) const override {
    return ::new (where) job(table_, bags, pooling_, out, memory);
  }

 private:
  Source table_;
  Pooling pooling_;
};

/// The jobs of one call.
template <class Bags, class Out, class = unit>
class group_jobs {
  using group = std::span<const std::unique_ptr<group_feature<Bags, Out>>>;

 public:
  group_jobs(std::pmr::memory_resource* memory, group features)
      : memory_(memory), features_(features), jobs_(memory), starts_(features.size() + 1, memory) {
    for (const auto& feature : features_) bytes_ += padded(feature->job_bytes());
    jobs_.reserve(features_.size());
    place_ = static_cast<std::byte*>(memory_->allocate(bytes_));
  }
  group_jobs(const group_jobs&) = delete;
  group_jobs& operator=(const group_jobs&) = delete;
  ~group_jobs() {
    for (group_job* const job : jobs_) job->~group_job();
    memory_->deallocate(place_, bytes_);
  }

  status run(const context<executor_ref>& ctx, std::span<const Bags> bags,
             std::span<const matrix_view<Out>> outs) {
    const status opened = open(bags, outs);
    number_pieces([](const group_job& job) {
      return job.checks() ? (job.positions() + check_positions_at_once - 1) / check_positions_at_once : 0;
    });
    ctx.executor->parallel_for(starts_.back(), pieces_of(check_positions_at_once),
                               [&](index_t begin, index_t end, int) {
                                 for (piece at = find(begin); at.number < end; at = next(at)) {
                                   check_piece(ctx.instruction_set, at);
                                 }
                               });
    for (std::size_t t = 0; t < jobs_.size(); ++t) {
      if (const status s = jobs_[t]->fault(); !s) return s.in_table(static_cast<index_t>(t));
    }
    if (!opened) return opened;
    for (group_job* const job : jobs_) job->plan(ctx);
    number_pieces([](const group_job& job) { return (job.units() + job.grain() - 1) / job.grain(); });
    ctx.executor->parallel_for(
        starts_.back(), pieces_of(positions_worth_a_thread),
        [&](index_t begin, index_t end, int) { pool_pieces(ctx.instruction_set, begin, end); });
    for (group_job* const job : jobs_) job->close(ctx);
    return {};
  }

 private:
  // Opens jobs up to the first that has a fault; the ids of the features before it may be bad as well.
  status open(std::span<const Bags> bags, std::span<const matrix_view<Out>> outs) {
    std::byte* next = place_;
    for (std::size_t t = 0; t < features_.size(); ++t) {
      const auto number = static_cast<index_t>(t);
      if (const status s = features_[t]->shapes(bags[t], outs[t]); !s) return s.in_table(number);
      group_job* const job = features_[t]->make_job(next, bags[t], outs[t], memory_);
      next += padded(features_[t]->job_bytes());
      if (const status s = job->open(); !s) {
        job->~group_job();
        return s.in_table(number);
      }
      jobs_.push_back(job);
    }
    return {};
  }

  // Fewer cost more to distribute than to process.
  static constexpr index_t positions_worth_a_thread = 256;

  // A piece: its number among all, and its job.
  struct piece {
    index_t number;
    std::size_t job;
  };

  static constexpr std::size_t padded(std::size_t bytes) {
    constexpr std::size_t alignment = alignof(std::max_align_t);
    return (bytes + alignment - 1) / alignment * alignment;
  }

  template <class Count>
  void number_pieces(const Count& count) {
    starts_.resize(jobs_.size() + 1);
    for (std::size_t t = 0; t < jobs_.size(); ++t) starts_[t + 1] = starts_[t] + count(*jobs_[t]);
  }
  // Number of pieces that hold about that many positions.
  [[nodiscard]] index_t pieces_of(index_t positions) const {
    index_t all = 0;
    for (const group_job* const job : jobs_) all += job->positions();
    const index_t pieces = starts_.back();
    return std::clamp<index_t>(all == 0 ? pieces : pieces * positions / all, 1,
                               (std::max)(pieces, index_t{1}));
  }
  [[nodiscard]] piece find(index_t number) const {
    const auto after = std::upper_bound(starts_.begin(), starts_.end(), number);
    return {number, static_cast<std::size_t>(after - starts_.begin()) - 1};
  }
  [[nodiscard]] piece next(piece at) const {
    ++at.number;
    while (at.job + 1 < jobs_.size() && at.number >= starts_[at.job + 1]) ++at.job;
    return at;
  }

  void check_piece(isa which, piece at) {
    group_job& job = *jobs_[at.job];
    const index_t begin = (at.number - starts_[at.job]) * check_positions_at_once;
    job.check(which, begin, (std::min)(begin + check_positions_at_once, job.positions()));
  }
  // While a piece is pooled, the first rows of the next one are being prefetched.
  void pool_pieces(isa which, index_t begin, index_t end) {
    piece at = find(begin);
    fetch_piece(which, at);
    while (at.number < end) {
      const piece then = next(at);
      if (then.number < end) fetch_piece(which, then);
      group_job& job = *jobs_[at.job];
      const index_t from = (at.number - starts_[at.job]) * job.grain();
      job.pool(which, from, (std::min)(from + job.grain(), job.units()));
      at = then;
    }
  }
  void fetch_piece(isa which, piece at) const {
    const group_job& job = *jobs_[at.job];
    job.fetch(which, (at.number - starts_[at.job]) * job.grain());
  }

  std::pmr::memory_resource* memory_;
  group features_;
  std::pmr::vector<group_job*> jobs_;
  std::pmr::vector<index_t> starts_;  // each job's first piece; last, the number of pieces
  std::byte* place_ = nullptr;
  std::size_t bytes_ = 0;
};

}}}  // namespace deeprec::DEEPREC_ABI::detail
