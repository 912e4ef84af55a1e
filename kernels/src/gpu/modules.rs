//! Kernels: sources, their compilation for the device found, and compiled modules kept on disk.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::DeviceError;
use crate::gpu::driver::{Driver, Function, Module, Source};

/// Headers that every source can include.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("arch.h", include_str!("../../gpu/arch.h")),
    ("tables.h", include_str!("../../gpu/tables.h")),
    ("emulation.h", include_str!("../../gpu/emulation.h")),
];

type Key = (&'static str, Vec<(&'static str, String)>);

/// Modules of a device, compiled when first asked for.
#[derive(Debug)]
pub(crate) struct Modules {
    driver: Arc<dyn Driver>,
    loaded: Mutex<Loaded>,
}

#[derive(Debug, Default)]
struct Loaded {
    modules: HashMap<Key, Module>,
    functions: HashMap<(Key, &'static str), Function>,
}

impl Modules {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Self {
        Self {
            driver,
            loaded: Mutex::default(),
        }
    }

    /// Kernel `name` of `source`; `shared_bytes`: the most dynamic shared memory that its launches ask for.
    ///
    /// # Errors
    /// [`DeviceError::Compile`] with the compiler's words.
    pub(crate) fn function(
        &self,
        source: &Source,
        name: &'static str,
        shared_bytes: u32,
    ) -> Result<Function, DeviceError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (source.name, source.defines.clone());
        if let Some(function) = loaded.functions.get(&(key.clone(), name)) {
            return Ok(*function);
        }
        let module = match loaded.modules.get(&key) {
            Some(module) => *module,
            None => {
                let image = self.driver.compile(source)?;
                let module = self.driver.load(&image)?;
                loaded.modules.insert(key.clone(), module);
                module
            }
        };
        let c_name = CString::new(name).map_err(|_| DeviceError::Driver {
            what: format!("kernel name {name:?}"),
        })?;
        let function = self.driver.function(module, &c_name, shared_bytes)?;
        loaded.functions.insert((key, name), function);
        Ok(function)
    }
}
