// All of optim/. The optimizers and their state:
//
//   optimizer            floats per row, per element           table state    as in
//   sgd                  0   0                                                everywhere
//   momentum             0   1  velocity                                      PyTorch, TensorFlow
//   adagrad              0   1  sum of squares                                PyTorch, TensorFlow
//   rowwise_adagrad      1   0  sum of mean squares                           FBGEMM, DLRM
//   adagrad_decay        1   1  decays applied | sum           step           DeepRec's AdagradDecay, V2
//   rmsprop              0   1  mean square                                   PyTorch
//   centered_rmsprop     0   2  mean square, mean                             PyTorch
//   adam                 0   2  m, v                           step           PyTorch, FBGEMM; .epsilon_at
//   rowwise_adam         1   1  v | m                          step           FBGEMM's PARTIAL_ROWWISE_ADAM
//   adamw(adam, rate)    0   2  m, v                           step           PyTorch
//   adam_async           0   2  m, v                           powers         DeepRec's AdamAsync
//   adam_async_rmsprop   0   2  m, v                                          its apply_sparse_rmsprop
//   ftrl                 0   2  n, z                                          TensorFlow's FtrlV2
//
//   wrappers: with_gradient_scale, clipped_by_value, clipped_by_norm, with_weight_decay, with_decoupled_decay
//   schedules: constant_rate, step_decay, cosine_decay, smooth_exponential_decay
//
// One batch: optimizer.learning_rate = schedule(step), then update() or apply_rows(), then
// next_step(optimizer). Save the functor with the rows and their state, and training resumes bit for bit.
#pragma once

#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/adam.hpp>
#include <deeprec/optim/apply_row.hpp>
#include <deeprec/optim/ftrl.hpp>
#include <deeprec/optim/global_norm.hpp>
#include <deeprec/optim/rmsprop.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/optim/schedules.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/optim/steps.hpp>
#include <deeprec/optim/wrappers.hpp>
