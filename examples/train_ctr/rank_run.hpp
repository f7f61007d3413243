// The ranks of a run: processes that mpirun has started, each with a part of the tables and of each batch.
#pragma once

#include <memory>
#include <span>

#include <deeprec/optim/adagrad.hpp>
#include <deeprec/sharding/dense_tensor.hpp>

#include "models/kernels.hpp"
#include "models/rank_tables.hpp"

namespace ctr {

/// The stacks, which all ranks have: a step sums their gradients in the order of the ranks.
class rank_stacks {
 public:
  rank_stacks() = default;
  rank_stacks(const rank_stacks&) = delete;
  rank_stacks& operator=(const rank_stacks&) = delete;
  virtual ~rank_stacks() = default;
  /// `mine`: a fault of this rank, which all get.
  [[nodiscard]] virtual status step(const step_context& on, const deeprec::adagrad& optimizer,
                                    const status& mine) = 0;
};

/// From the beginning of MPI to its end.
class rank_run {
 public:
  rank_run() = default;
  rank_run(const rank_run&) = delete;
  rank_run& operator=(const rank_run&) = delete;
  virtual ~rank_run() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual std::unique_ptr<rank_tables> tables(std::span<const rank_part> parts) = 0;
  [[nodiscard]] virtual std::unique_ptr<rank_stacks> stacks(
      std::span<const deeprec::dense_tensor> tensors) = 0;
  /// Ends the processes of all ranks.
  [[noreturn]] virtual void abort() = 0;
};

/// Throws a failure where this program was built without MPI, or MPI can't serve its threads.
[[nodiscard]] std::unique_ptr<rank_run> begin_ranks();

}  // namespace ctr
