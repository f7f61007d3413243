// GEMM, layers, interactions, losses, metrics.
#pragma once

#include <deeprec/dense/gemm/bit_matrix_view.hpp>
#include <deeprec/dense/gemm/eigen_gemm.hpp>
#include <deeprec/dense/gemm/gemm.hpp>
#include <deeprec/dense/gemm/gemm_backend.hpp>
#include <deeprec/dense/gemm/gemm_desc.hpp>
#include <deeprec/dense/gemm/gemm_weights.hpp>
#include <deeprec/dense/gemm/tf32.hpp>
#include <deeprec/dense/gemm/thin_gemm.hpp>
#include <deeprec/dense/interactions/cross_layer.hpp>
#include <deeprec/dense/interactions/dot_interaction.hpp>
#include <deeprec/dense/interactions/fm_interaction.hpp>
#include <deeprec/dense/layers/attention_features.hpp>
#include <deeprec/dense/layers/attention_options.hpp>
#include <deeprec/dense/layers/attention_pool.hpp>
#include <deeprec/dense/layers/dice.hpp>
#include <deeprec/dense/layers/linear.hpp>
#include <deeprec/dense/layers/mlp.hpp>
#include <deeprec/dense/layers/mlp_pass.hpp>
#include <deeprec/dense/layers/normalize_rows.hpp>
#include <deeprec/dense/layers/relu.hpp>
#include <deeprec/dense/losses/in_batch_softmax.hpp>
#include <deeprec/dense/losses/logistic_loss.hpp>
#include <deeprec/dense/metrics/calibration.hpp>
#include <deeprec/dense/metrics/grouped_auc.hpp>
#include <deeprec/dense/metrics/metrics.hpp>
