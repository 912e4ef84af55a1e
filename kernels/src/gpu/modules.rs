//! Kernels: sources, and their modules, compiled for the device found when first asked for.

use std::collections::HashMap;
use std::ffi::CString;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::error::DeviceError;
use crate::gpu::driver::{Driver, Function, Module, Source};
use crate::gpu::image_cache::{ImageCache, ImageId};

/// Headers that every source can include.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("arch.h", include_str!("../../gpu/arch.h")),
    ("far.h", include_str!("../../gpu/far.h")),
    ("tables.h", include_str!("../../gpu/tables.h")),
    ("keys.h", include_str!("../../gpu/keys.h")),
    ("likeliest.h", include_str!("../../gpu/likeliest.h")),
    ("values.h", include_str!("../../gpu/values.h")),
    ("tokens.h", include_str!("../../gpu/tokens.h")),
    ("attention.h", include_str!("../../gpu/attention.h")),
    (
        "attention_tiles.h",
        include_str!("../../gpu/attention_tiles.h"),
    ),
    ("together.h", include_str!("../../gpu/together.h")),
    ("phases.h", include_str!("../../gpu/phases.h")),
    ("step_products.h", include_str!("../../gpu/step_products.h")),
    (
        "step_recurrence.h",
        include_str!("../../gpu/step_recurrence.h"),
    ),
    (
        "step_attention.h",
        include_str!("../../gpu/step_attention.h"),
    ),
    ("step_combine.h", include_str!("../../gpu/step_combine.h")),
    ("emulation.h", include_str!("../../gpu/emulation.h")),
    ("kept.h", include_str!("../../gpu/kept.h")),
    ("kept_pairs.h", include_str!("../../gpu/kept_pairs.h")),
    ("quantise.h", include_str!("../../gpu/quantise.h")),
    ("rotation.h", include_str!("../../gpu/rotation.h")),
    ("grouped.h", include_str!("../../gpu/grouped.h")),
    ("mma.h", include_str!("../../gpu/mma.h")),
    ("columns.h", include_str!("../../gpu/columns.h")),
    ("cluster.h", include_str!("../../gpu/cluster.h")),
    ("ring.h", include_str!("../../gpu/ring.h")),
    ("heads.h", include_str!("../../gpu/heads.h")),
    ("turns.h", include_str!("../../gpu/turns.h")),
    ("wide.h", include_str!("../../gpu/wide.h")),
    ("held.h", include_str!("../../gpu/held.h")),
    ("matmul.h", include_str!("../../gpu/matmul.h")),
    ("products.h", include_str!("../../gpu/products.h")),
    ("warpgroup.h", include_str!("../../gpu/warpgroup.h")),
    ("weights.h", include_str!("../../gpu/weights.h")),
    ("activations.h", include_str!("../../gpu/activations.h")),
    ("row_norm.h", include_str!("../../gpu/row_norm.h")),
    ("activate.h", include_str!("../../gpu/activate.h")),
    ("rest.h", include_str!("../../gpu/rest.h")),
    ("gated_norm.h", include_str!("../../gpu/gated_norm.h")),
    ("delta_rows.h", include_str!("../../gpu/delta_rows.h")),
    ("delta_state.h", include_str!("../../gpu/delta_state.h")),
];

/// Modules of a device, compiled when first asked for.
#[derive(Debug)]
pub(crate) struct Modules {
    driver: Arc<dyn Driver>,
    cache: ImageCache,
    loaded: Mutex<Loaded>,
}

#[derive(Debug, Default)]
struct Loaded {
    modules: Vec<(Source, Module)>,
    /// By a hash of all that tells kernels apart: a launch looks one up without making a key.
    kernels: HashMap<u64, Vec<Kernel>>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Kernel {
    source: Source,
    name: &'static str,
    module: Module,
    function: Function,
    /// The most dynamic shared memory asked for so far.
    shared_bytes: u32,
}

impl Modules {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Self {
        Self {
            driver,
            cache: ImageCache::here(),
            loaded: Mutex::default(),
        }
    }

    /// Kernel `name` of `source`, for a launch with `shared_bytes` of dynamic shared memory.
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
        let loaded = &mut *loaded;
        let key = loaded.hasher.hash_one((source.name, &source.defines, name));
        let kernels = loaded.kernels.entry(key).or_default();
        let known = kernels
            .iter_mut()
            .find(|kernel| kernel.name == name && is_same(&kernel.source, source));
        if let Some(kernel) = known {
            if kernel.shared_bytes < shared_bytes {
                kernel.function = self.entry(kernel.module, name, shared_bytes)?;
                kernel.shared_bytes = shared_bytes;
            }
            return Ok(kernel.function);
        }
        let modules = &mut loaded.modules;
        let module = match modules.iter().find(|(known, _)| is_same(known, source)) {
            Some((_, module)) => *module,
            None => {
                let module = self.module(source)?;
                modules.push((source.clone(), module));
                module
            }
        };
        let function = self.entry(module, name, shared_bytes)?;
        kernels.push(Kernel {
            source: source.clone(),
            name,
            module,
            function,
            shared_bytes,
        });
        Ok(function)
    }

    /// Those that are there of sources with such names.
    #[cfg(test)]
    pub(crate) fn count_of(&self, name: &str) -> usize {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let sources = loaded.modules.iter().map(|(source, _)| source.name);
        sources.filter(|of| of.starts_with(name)).count()
    }

    fn entry(
        &self,
        module: Module,
        name: &'static str,
        shared_bytes: u32,
    ) -> Result<Function, DeviceError> {
        let c_name = CString::new(name).map_err(|_| DeviceError::Driver {
            what: format!("kernel name {name:?}"),
        })?;
        self.driver.function(module, &c_name, shared_bytes)
    }

    /// Compiles what is not there yet, on as many threads as there are processors.
    ///
    /// # Errors
    /// [`DeviceError::Compile`] with the compiler's words.
    pub(crate) fn compile_ahead(&self, sources: Vec<Source>) -> Result<(), DeviceError> {
        let mut wanted: Vec<Source> = Vec::new();
        for source in sources {
            let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            let is_known = loaded
                .modules
                .iter()
                .any(|(known, _)| is_same(known, &source));
            if !is_known && !wanted.iter().any(|known| is_same(known, &source)) {
                wanted.push(source);
            }
        }
        let left = Mutex::new(wanted.into_iter());
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
        let done = Mutex::new(Vec::new());
        let work = || {
            for source in std::iter::from_fn(next) {
                let module = self.module(&source);
                let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                done.push((source, module));
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        for (source, module) in done.into_inner().unwrap_or_else(PoisonError::into_inner) {
            loaded.modules.push((source, module?));
        }
        Ok(())
    }

    /// The module of a source: kept from before, or compiled.
    fn module(&self, source: &Source) -> Result<Module, DeviceError> {
        let arch = &self.driver.facts().arch;
        let compiler = self.driver.compiler();
        let id = ImageId::new(source, arch, compiler.as_deref().ok());
        if let Some(kept) = self.cache.get(&id) {
            match self.driver.load(&kept.image) {
                Ok(module) => return Ok(module),
                Err(_) => self.cache.reject(&kept),
            }
        }
        // Without a compiler its absence is what there is to say.
        compiler?;
        tracing::info!("compiling kernels for {arch}: {}", source.name);
        let image = self.driver.compile(source)?;
        let module = self.driver.load(&image)?;
        self.cache.put(&id, &image);
        Ok(module)
    }
}

/// Sources are known by their file and their constants; one file has one text.
fn is_same(a: &Source, b: &Source) -> bool {
    a.name == b.name && a.defines == b.defines
}
