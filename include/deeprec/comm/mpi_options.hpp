// How ranks call MPI.
#pragma once

#include <cstdint>

#include <deeprec/core/config.hpp>
#include <deeprec/core/dtypes.hpp>

namespace deeprec { inline namespace DEEPREC_ABI {

/// Which threads of a process call MPI.
enum class mpi_calls : std::uint8_t {
  at_once,      ///< each communicator has a thread of its own: needs MPI_THREAD_MULTIPLE
  one_at_time,  ///< no two calls at once, whichever the communicators: needs MPI_THREAD_SERIALIZED
  one_thread,   ///< the thread that initialised MPI makes them all
};

struct mpi_options {
  mpi_calls calls = mpi_calls::at_once;
  std::uint32_t generation = 0;  ///< of the job: counted at each restart
  /// Of one message to MPI, which counts bytes in an int; larger ones go in pieces.
  index_t most_bytes = index_t{1} << 30;
};

}}  // namespace deeprec::DEEPREC_ABI
