//! How many clusters of thread blocks a device runs at a time.

use std::ffi::CStr;

use cudarc::driver::sys::{self, CUfunction_attribute, CUlaunchAttributeID};

use crate::error::DeviceError;
use crate::gpu::cuda::call::is_ok;
use crate::gpu::cuda::context::Context;
use crate::gpu::driver::{CLUSTERS, DeviceFacts};

/// A kernel that does nothing.
const SOURCE: &CStr =
    c".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry nothing()\n{\nret;\n}\n";
const NAME: &CStr = c"nothing";

/// See [`DeviceFacts::clusters`]. Cards of one kind differ in how their multiprocessors are wired, so the driver is asked; what it does not
/// answer counts as none.
pub(super) fn clusters(
    context: &Context,
    facts: &DeviceFacts,
) -> Result<[u32; CLUSTERS.len()], DeviceError> {
    let mut counts = [0; CLUSTERS.len()];
    // Those of later chips have not been tried.
    if facts.arch != "sm_90a" {
        return Ok(counts);
    }
    context.enter()?;
    let mut module = std::ptr::null_mut();
    // SAFETY: a place for the answer, and text that ends with a zero.
    if !is_ok(unsafe { sys::cuModuleLoadData(&mut module, SOURCE.as_ptr().cast()) }) {
        return Ok(counts);
    }
    let mut function = std::ptr::null_mut();
    let shared = facts.shared_bytes_per_block;
    let limit = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: a place for the answer, and the module from above.
    let is_there = is_ok(unsafe { sys::cuModuleGetFunction(&mut function, module, NAME.as_ptr()) })
            // SAFETY: a function of ours.
            && is_ok(unsafe { sys::cuFuncSetAttribute(function, limit, shared.cast_signed()) });
    for (size, count) in CLUSTERS.into_iter().zip(&mut counts) {
        if !is_there {
            break;
        }
        let mut attribute = sys::CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 {
                    x: size,
                    y: 1,
                    z: 1,
                },
            },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: size * facts.multiprocessors,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: std::ptr::null_mut(),
            numAttrs: 1,
            attrs: &mut attribute,
        };
        let mut answer = 0;
        // SAFETY: a place for the answer, a function of ours, and a launch that is only asked about.
        if is_ok(unsafe { sys::cuOccupancyMaxActiveClusters(&mut answer, function, &config) }) {
            *count = u32::try_from(answer).unwrap_or(0);
        }
    }
    // SAFETY: loaded above, and nothing of it has run.
    let _ = unsafe { sys::cuModuleUnload(module) };
    Ok(counts)
}
