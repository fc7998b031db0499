// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_CORE_KERNELS_KERNEL_CREATION_H_
#define CAESURA_CORE_KERNELS_KERNEL_CREATION_H_

#include "core/base/status.h"
#include "core/kernels/kernel.h"

namespace caesura {

// The factory of `def` between the checks that every kernel needs: integers of attributes before
// it, sizes of outputs and of scratch memory after it. A value that is a view of less memory counts
// as all of its elements. Where all inputs and outputs are tensors without elements, the function
// is one that does nothing: a dim beside one of size 0 may be of any size, and counting through it
// would take minutes. A kernel with some other input or output sees to this itself.
Status CreateKernel(const KernelDef& def, KernelInfo& info);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_KERNEL_CREATION_H_
