// Optimizers of rows, wrappers, schedules.
#pragma once

#include <deeprec/optim/adagrad.hpp>
#include <deeprec/optim/adam.hpp>
#include <deeprec/optim/apply_row.hpp>
#include <deeprec/optim/ftrl.hpp>
#include <deeprec/optim/global_norm.hpp>
#include <deeprec/optim/optimizers.hpp>
#include <deeprec/optim/rmsprop.hpp>
#include <deeprec/optim/row_optimizer.hpp>
#include <deeprec/optim/schedules.hpp>
#include <deeprec/optim/sgd.hpp>
#include <deeprec/optim/steps.hpp>
#include <deeprec/optim/wrappers.hpp>
