// GEMM, layers, interactions, losses, metrics.
#pragma once

#include <deeprec/dense/attention_features.hpp>
#include <deeprec/dense/attention_options.hpp>
#include <deeprec/dense/attention_pool.hpp>
#include <deeprec/dense/bit_matrix_view.hpp>
#include <deeprec/dense/calibration.hpp>
#include <deeprec/dense/cross_layer.hpp>
#include <deeprec/dense/dice.hpp>
#include <deeprec/dense/dot_interaction.hpp>
#include <deeprec/dense/eigen_gemm.hpp>
#include <deeprec/dense/fm_interaction.hpp>
#include <deeprec/dense/gemm.hpp>
#include <deeprec/dense/gemm_backend.hpp>
#include <deeprec/dense/gemm_desc.hpp>
#include <deeprec/dense/gemm_weights.hpp>
#include <deeprec/dense/grouped_auc.hpp>
#include <deeprec/dense/in_batch_softmax.hpp>
#include <deeprec/dense/linear.hpp>
#include <deeprec/dense/logistic_loss.hpp>
#include <deeprec/dense/metrics.hpp>
#include <deeprec/dense/mlp.hpp>
#include <deeprec/dense/mlp_pass.hpp>
#include <deeprec/dense/normalize_rows.hpp>
#include <deeprec/dense/relu.hpp>
#include <deeprec/dense/tf32.hpp>
#include <deeprec/dense/thin_gemm.hpp>
