// The lookups of a table_group as one list of pieces.
//
//   jobs      |  job 0  |job 1|   job 2     |        a job is a lookup_job behind virtual functions
//   pieces    |p0 |p1 |p2|p3 |p4|p5 |p6 |p7 |        numbered through; starts_[t] is job t's first
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <new>
#include <vector>

#include <deeprec/core/config.hpp>
#include <deeprec/core/context.hpp>
#include <deeprec/core/matrix_view.hpp>
#include <deeprec/core/status.hpp>
#include <deeprec/embedding/detail/lookup_job.hpp>
#include <deeprec/embedding/lookup.hpp>
#include <deeprec/exec/executor_ref.hpp>

namespace deeprec::inline DEEPREC_ABI::detail {

/// A lookup_job whose types are forgotten.
class group_job {
 public:
  virtual ~group_job() = default;
  virtual status open() = 0;
  [[nodiscard]] virtual bool checks() const noexcept = 0;
  [[nodiscard]] virtual index_t slots() const noexcept = 0;
  virtual void check(isa which, index_t begin, index_t end) noexcept = 0;
  [[nodiscard]] virtual status fault() const = 0;
  virtual void plan(const context<executor_ref>& ctx) = 0;
  [[nodiscard]] virtual index_t units() const noexcept = 0;
  [[nodiscard]] virtual index_t grain() const noexcept = 0;
  virtual void pool(isa which, index_t begin, index_t end) noexcept = 0;
  virtual void close(const context<executor_ref>& ctx) = 0;
};

template <class Source, class Bags, class Pooling, class Out>
class group_job_of final : public group_job {
 public:
  group_job_of(const Source& table, const Bags& bags, const Pooling& how, matrix_view<Out> out,
               std::pmr::memory_resource* memory)
      : job_(table, bags, how, out, memory) {}
  status open() override { return job_.open(); }
  bool checks() const noexcept override { return job_.checks; }
  index_t slots() const noexcept override { return job_.slots(); }
  void check(isa which, index_t begin, index_t end) noexcept override { job_.check(which, begin, end); }
  status fault() const override { return job_.fault(); }
  void plan(const context<executor_ref>& ctx) override { job_.plan(ctx); }
  index_t units() const noexcept override { return job_.units(); }
  index_t grain() const noexcept override { return job_.grain(); }
  void pool(isa which, index_t begin, index_t end) noexcept override { job_.pool(which, begin, end); }
  void close(const context<executor_ref>& ctx) override { job_.close(ctx); }

 private:
  lookup_job<Source, Bags, Pooling, Out> job_;
};

/// A feature of a group whose types are forgotten: it makes the job of one batch.
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

template <class Source, class Bags, class Pooling, class Out>
class group_feature_of final : public group_feature<Bags, Out> {
  using job = group_job_of<Source, Bags, Pooling, Out>;
  static_assert(alignof(job) <= alignof(std::max_align_t));

 public:
  group_feature_of(const Source& table, const Pooling& how) : table_(table), how_(how) {}
  index_t width() const noexcept override { return table_.format().width(); }
  std::size_t job_bytes() const noexcept override { return sizeof(job); }
  status shapes(const Bags& bags, matrix_view<Out> out) const override {
    return lookup_shapes(table_, bags, how_, out);
  }
  group_job* make_job(void* where, const Bags& bags, matrix_view<Out> out,
                      std::pmr::memory_resource* memory) const override {
    return ::new (where) job(table_, bags, how_, out, memory);
  }

 private:
  Source table_;
  Pooling how_;
};

/// The jobs of one call.
template <class Bags, class Out>
class group_jobs {
 public:
  group_jobs(std::pmr::memory_resource* memory, index_t features) : memory_(memory), jobs_(memory) {
    jobs_.reserve(static_cast<std::size_t>(features));
  }
  group_jobs(const group_jobs&) = delete;
  group_jobs& operator=(const group_jobs&) = delete;
  ~group_jobs() {
    for (const owned& job : jobs_) {
      job.made->~group_job();
      memory_->deallocate(job.where, job.bytes);
    }
  }

  status open(const group_feature<Bags, Out>& feature, const Bags& bags, matrix_view<Out> out) {
    if (const status s = feature.shapes(bags, out); !s) return s;
    const std::size_t bytes = feature.job_bytes();
    void* const where = memory_->allocate(bytes);
    jobs_.push_back({feature.make_job(where, bags, out, memory_), where, bytes});
    return jobs_.back().made->open();
  }

  status run(const context<executor_ref>& ctx) {
    // Few ids in a piece cost more to hand out than to work on.
    constexpr index_t ids_worth_a_thread = 256;
    std::pmr::vector<index_t> starts(jobs_.size() + 1, ctx.memory);
    index_t slots = 0;
    for (const owned& job : jobs_) slots += job.made->slots();
    const auto in_pieces = [&](const auto& units_of, const auto& grain_of, index_t at_once, const auto& body) {
      for (std::size_t t = 0; t < jobs_.size(); ++t) {
        const index_t grain = grain_of(*jobs_[t].made);
        starts[t + 1] = starts[t] + (units_of(*jobs_[t].made) + grain - 1) / grain;
      }
      const index_t pieces = starts.back();
      const index_t share = slots == 0 ? pieces : pieces * at_once / slots;
      ctx.executor->parallel_for(pieces, std::clamp<index_t>(share, 1, (std::max)(pieces, index_t{1})),
                                 [&](index_t first, index_t last, int) {
        auto t = static_cast<std::size_t>(
            std::upper_bound(starts.begin(), starts.end(), first) - starts.begin() - 1);
        for (index_t piece = first; piece < last; ++piece) {
          while (piece >= starts[t + 1]) ++t;
          group_job& job = *jobs_[t].made;
          const index_t grain = grain_of(job);
          const index_t begin = (piece - starts[t]) * grain;
          body(job, begin, (std::min)(begin + grain, units_of(job)));
        }
      });
    };
    in_pieces([](const group_job& job) { return job.checks() ? job.slots() : 0; },
              [](const group_job&) { return check_slots_at_once; }, check_slots_at_once,
              [&](group_job& job, index_t begin, index_t end) { job.check(ctx.instruction_set, begin, end); });
    for (std::size_t t = 0; t < jobs_.size(); ++t) {
      if (status s = jobs_[t].made->fault(); !s) return s.in_table(static_cast<index_t>(t));
    }
    for (const owned& job : jobs_) job.made->plan(ctx);
    in_pieces([](const group_job& job) { return job.units(); },
              [](const group_job& job) { return job.grain(); }, ids_worth_a_thread,
              [&](group_job& job, index_t begin, index_t end) { job.pool(ctx.instruction_set, begin, end); });
    for (const owned& job : jobs_) job.made->close(ctx);
    return {};
  }

 private:
  struct owned {
    group_job* made;
    void* where;
    std::size_t bytes;
  };

  std::pmr::memory_resource* memory_;
  std::pmr::vector<owned> jobs_;
};

}  // namespace deeprec::inline DEEPREC_ABI::detail
