// Text to batches.
#pragma once

#include <deeprec/data/batch_reader.hpp>
#include <deeprec/data/batch_shape.hpp>
#include <deeprec/data/criteo_format.hpp>
#include <deeprec/data/csv_column.hpp>
#include <deeprec/data/csv_format.hpp>
#include <deeprec/data/feasign_format.hpp>
#include <deeprec/data/file_kind.hpp>
#include <deeprec/data/key_value_format.hpp>
#include <deeprec/data/libffm_format.hpp>
#include <deeprec/data/libsvm_format.hpp>
#include <deeprec/data/sparse_batch.hpp>
#include <deeprec/data/text_format.hpp>
#include <deeprec/data/text_stream.hpp>
