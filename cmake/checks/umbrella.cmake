# cmake -DROOT=<repository> -P umbrella.cmake
# deeprec.hpp includes every public header that needs no optional component; deeprec.cuh includes it
# and every device header.

include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

# Not for deeprec.hpp: private kernels, halves of a region, headers of one component or host framework.
set(apart "^deeprec[.]" "/detail/" "/kernels/" "_kernels[.]hpp$" "^simd/(begin|end|foreach)_" "(^|/)cuda_" "onednn" "^data/(gzip|zstd)_" "^data/farmhash[.]" "^interop/")

foreach(umbrella IN ITEMS deeprec.hpp deeprec.cuh)
  set(text_${umbrella})
  if(umbrella IN_LIST HEADERS)
    file(READ "${INCLUDE}/${umbrella}" text_${umbrella})
  endif()
endforeach()

foreach(header IN LISTS HEADERS)
  if(header MATCHES "[.]hpp$")
    set(skip FALSE)
    foreach(pattern IN LISTS apart)
      if(header MATCHES "${pattern}")
        set(skip TRUE)
      endif()
    endforeach()
    if(NOT skip AND NOT text_deeprec.hpp MATCHES "\n#include <deeprec/${header}>")
      fault("deeprec.hpp does not include deeprec/${header}")
    endif()
  elseif(header MATCHES "[.]cuh$" AND NOT header MATCHES "^deeprec[.]|/detail/|/kernels/|^interop/")
    if(NOT text_deeprec.cuh MATCHES "\n#include <deeprec/${header}>")
      fault("deeprec.cuh does not include deeprec/${header}")
    endif()
  endif()
endforeach()
if(text_deeprec.cuh AND NOT text_deeprec.cuh MATCHES "\n#include <deeprec/deeprec.hpp>")
  fault("deeprec.cuh does not include deeprec/deeprec.hpp")
endif()
report_faults()
