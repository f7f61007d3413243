// NCCL without cards: what cuda_nccl_ranks.hpp calls of it, on the streams of cuda_runtime.h.
//
//   world w(3);  w.comm(r)     the communicators of three ranks, of one thread or of several
//   settings()                 how the library behaves
//
// A send and a receive are done when both streams have come to them, and then the group; a group of a rank
// begins when its groups before it are done. Operations of two ranks match in their order; sizes that differ
// are a fault. Names and values are those of NCCL 2.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

extern "C" {

typedef struct ncclComm* ncclComm_t;
typedef struct ncclConfig_s ncclConfig_t;
typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
} ncclResult_t;
typedef enum { ncclInt8 = 0 } ncclDataType_t;
#define NCCL_SPLIT_NOCOLOR -1

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank);
ncclResult_t ncclCommCount(ncclComm_t comm, int* count);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* now);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int to, ncclComm_t comm,
                      cudaStream_t on);
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int from, ncclComm_t comm,
                      cudaStream_t on);
const char* ncclGetErrorString(ncclResult_t code);

}  // extern "C"

namespace host_nccl {

struct behaviour {
  int looks = 0;          ///< not 0: a communicator does not block: its groups are enqueued after so many looks
  int refuse_after = -1;  ///< the call after so many is refused, once
  bool tells = true;      ///< the end of a rank is told to the others
  std::string fault;      ///< the first thing that NCCL does not allow
};
behaviour& settings();
/// Communicators that were neither destroyed nor aborted.
std::size_t alive();

/// Communicators of n ranks, which whoever takes them ends.
class world {
 public:
  explicit world(int ranks);
  [[nodiscard]] ncclComm_t comm(int rank) const { return first_[rank]; }

 private:
  ncclComm_t* first_;  // of the library
};

}  // namespace host_nccl
