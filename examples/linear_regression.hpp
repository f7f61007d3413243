// Training steps of a linear regression, z = x_0 w_0 + x_1 w_1 + ... + b, as ops for streams.
//
//   multiply 0 ─┐           ┌─> update 0 ─> multiply 0 ...      update: w += x^T error
//   multiply 1 ─┼─> error ──┼─> update 1 ─> multiply 1 ...      error:  -rate 2 / samples (z - target)
//               ...         └─> bias ─────> error ...           bias:   b += sum of error
//
// The graph is that of the example of DeepRec's GPU MultiStream document, which has two inputs. Host code
// only: what the ops do is in linear_regression.cuh.
#pragma once

#include <cstddef>
#include <vector>

#include <deeprec/plan/stream_plan.hpp>

namespace linear_regression {

using deeprec::index_t;

struct op {
  enum what { multiply, error, update, bias } kind;
  int input;  // of multiply and update
};

struct step_work {
  deeprec::task_list work;
  std::vector<op> ops;  // by their numbers in work

  index_t add(op which, const std::vector<index_t>& after) {
    ops.push_back(which);
    const bool reads_input = which.kind == op::multiply || which.kind == op::update;
    return work.add(after, reads_input ? 1 : 0.1);
  }
};

/// `steps` steps, one after the other. placed_on: as the document places them, input i on stream i of that
/// many; 0: wherever the plan likes.
inline step_work make_work(int inputs, int steps, int placed_on = 0) {
  step_work made;
  const auto scope = [&](int stream) { return made.work.on_stream(placed_on > 0 ? stream % placed_on : -1); };
  const auto n = static_cast<std::size_t>(inputs);
  std::vector<index_t> multiplied(n), updated(n);
  index_t bias = -1;
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < n; ++i) {
      const auto here = scope(static_cast<int>(i));
      multiplied[i] = made.add({op::multiply, static_cast<int>(i)},
                               step > 0 ? std::vector<index_t>{updated[i]} : std::vector<index_t>{});
    }
    const auto here = scope(0);
    std::vector<index_t> before = multiplied;
    if (bias >= 0) before.push_back(bias);
    const index_t error = made.add({op::error, 0}, before);
    for (std::size_t i = 0; i < n; ++i) {
      // tf.colocate_with: where the input is read already.
      if (placed_on > 0) {
        const auto with = made.work.colocate_with(multiplied[i]);
        updated[i] = made.add({op::update, static_cast<int>(i)}, {error});
      } else {
        updated[i] = made.add({op::update, static_cast<int>(i)}, {error});
      }
    }
    bias = made.add({op::bias, 0}, {error});
  }
  return made;
}

}  // namespace linear_regression
