#include "rank_run.hpp"

#include "models/ctr_data.hpp"

#if TRAIN_CTR_HAS_MPI

#  include <mpi.h>

#  include <chrono>
#  include <cstdint>
#  include <cstdlib>
#  include <numeric>
#  include <optional>
#  include <utility>
#  include <vector>

#  include <deeprec/comm/mpi_ranks.hpp>
#  include <deeprec/sharding/dense_step.hpp>
#  include <deeprec/sharding/sharded_group.hpp>
#  include <deeprec/sharding/sharded_verbs.hpp>

namespace ctr {

namespace {

constexpr std::chrono::minutes patience(5);

class mpi_tables final : public rank_tables {
 public:
  mpi_tables(deeprec::mpi_ranks comm, std::span<const rank_part> parts)
      : group_(std::move(comm), {.patience = patience}), ids_(parts.size()), bags_(parts.size()) {
    for (const rank_part& part : parts)
      group_.add(part.rows, deeprec::combiner::sum, deeprec::placement::rows{part.count});
  }
  [[nodiscard]] status resolve(const step_context& on, std::span<const slot_bags> by_slot) override {
    const index_t bags = by_slot.front().bags();
    if (static_cast<index_t>(numbers_.size()) <= bags) {
      numbers_.resize(static_cast<std::size_t>(bags) + 1);
      std::iota(numbers_.begin(), numbers_.end(), std::int64_t{0});
    }
    for (std::size_t s = 0; s < by_slot.size(); ++s) {
      ids_[s].assign(by_slot[s].ids(), by_slot[s].ids() + bags);
      bags_[s] = {numbers_.data(), bags, ids_[s].data(), bags};
    }
    auto rows = deeprec::resolve(on, group_, bags_);
    if (!rows) return rows.fault();
    rows_.emplace(std::move(rows).value());
    return {};
  }
  [[nodiscard]] status look_up(const step_context& on, matrix_view<float> out) override {
    return lookup(on, *rows_, out);
  }
  [[nodiscard]] status update(const step_context& on, matrix_view<const float> gradient,
                              const deeprec::rowwise_adagrad& optimizer) override {
    return deeprec::update(on, *rows_, gradient, optimizer);
  }

 private:
  using group_type = deeprec::sharded_group<deeprec::rowwise_adagrad, deeprec::mpi_ranks>;
  group_type group_;
  std::vector<std::int64_t> numbers_;
  std::vector<std::vector<std::int64_t>> ids_;
  std::vector<deeprec::jagged_view<>> bags_;
  std::optional<deeprec::sharded_rows<group_type>> rows_;
};

class mpi_stacks final : public rank_stacks {
 public:
  mpi_stacks(deeprec::mpi_ranks comm, std::span<const deeprec::dense_tensor> tensors)
      : dense_(dense_type::make(std::move(comm), tensors, {.patience = patience}).or_throw()) {}
  [[nodiscard]] status step(const step_context& on, const deeprec::adagrad& optimizer,
                            const status& mine) override {
    return dense_.step(on, optimizer, mine);
  }

 private:
  using dense_type = deeprec::dense_step<deeprec::adagrad, deeprec::mpi_ranks>;
  dense_type dense_;
};

class mpi_run final : public rank_run {
 public:
  mpi_run() : comm_(begin()) {}
  ~mpi_run() override {
    comm_.reset();
    MPI_Finalize();
  }
  [[nodiscard]] int rank() const override { return comm_->rank(); }
  [[nodiscard]] int size() const override { return comm_->size(); }
  [[nodiscard]] std::unique_ptr<rank_tables> tables(std::span<const rank_part> parts) override {
    return std::make_unique<mpi_tables>(comm_->duplicate().or_throw(), parts);
  }
  [[nodiscard]] std::unique_ptr<rank_stacks> stacks(std::span<const deeprec::dense_tensor> tensors) override {
    return std::make_unique<mpi_stacks>(comm_->duplicate().or_throw(), tensors);
  }
  [[noreturn]] void abort() override {
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::abort();
  }

 private:
  // Whichever thread trains calls MPI, and no other one beside it.
  static deeprec::mpi_ranks begin() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    auto made = deeprec::mpi_ranks::over(MPI_COMM_WORLD, {.calls = deeprec::mpi_calls::one_at_time});
    if (!made) {
      const std::string why = made.message();
      MPI_Finalize();
      throw failure("--ranks: " + why);
    }
    return std::move(made).value();
  }
  std::optional<deeprec::mpi_ranks> comm_;
};

}  // namespace

std::unique_ptr<rank_run> begin_ranks() { return std::make_unique<mpi_run>(); }

}  // namespace ctr

#else

namespace ctr {

std::unique_ptr<rank_run> begin_ranks() { throw failure("--ranks: this program was built without MPI"); }

}  // namespace ctr

#endif
