//! What a driver notes of what it was asked, whatever its runtime: what went wrong, and what a recording cannot take or puts off.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::error::DeviceError;
use crate::gpu::driver::{DevicePtr, Function, Module, refused};

/// Of a device and its stream.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// The first call that failed of those that have no way to say so.
    fault: OnceLock<String>,
    is_recording: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Begin and end of pinned host memory.
    pinned: Vec<(u64, u64)>,
    /// What cannot be recorded and was asked for all the same.
    not_recordable: Option<&'static str>,
    /// Memory given back during a recording.
    to_free: Vec<DevicePtr>,
    modules: Vec<Module>,
    /// For messages.
    kernel_names: HashMap<Function, String>,
}

impl Notes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what went wrong in a call that cannot say so. The first counts: what follows from it would only hide it.
    pub fn note(&self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            self.fault.get_or_init(|| error.to_string());
        }
    }

    /// Whether calls still make sense, behind `enter`, by which the device is made the one that they go to.
    pub fn is_usable(&self, enter: impl FnOnce() -> Result<(), DeviceError>) -> bool {
        if self.fault.get().is_some() {
            return false;
        }
        self.note(enter());
        self.fault.get().is_none()
    }

    /// # Errors
    /// The first call that went wrong.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.fault.get().map_or(Ok(()), |what| Err(refused(what)))
    }

    /// Copies are asynchronous from and to this host memory.
    pub fn pin(&self, at: *const u8, bytes: usize) {
        self.state()
            .pinned
            .push((at as u64, at as u64 + bytes as u64));
    }

    /// Takes `pin` back.
    pub fn unpin(&self, at: *const u8) {
        self.state().pinned.retain(|&(begin, _)| begin != at as u64);
    }

    /// Whether a range of host memory lies in what was pinned.
    pub fn is_pinned(&self, at: *const u8, bytes: usize) -> bool {
        let (begin, end) = (at as u64, at as u64 + bytes as u64);
        let state = self.state();
        let mut ranges = state.pinned.iter();
        ranges.any(|&(first, last)| first <= begin && end <= last)
    }

    /// From here to `end_recording`, what is asked is recorded.
    pub fn begin_recording(&self) {
        self.is_recording.store(true, Ordering::Relaxed);
    }

    /// What was given back meanwhile, and whether what was asked could be recorded.
    pub fn end_recording(&self) -> (Vec<DevicePtr>, Result<(), DeviceError>) {
        self.is_recording.store(false, Ordering::Relaxed);
        let mut state = self.state();
        let recorded = match state.not_recordable.take() {
            Some(what) => Err(refused(format_args!("{what} cannot be recorded"))),
            None => Ok(()),
        };
        (std::mem::take(&mut state.to_free), recorded)
    }

    pub fn is_recording(&self) -> bool {
        // One thread drives the device; the flag is its own note.
        self.is_recording.load(Ordering::Relaxed)
    }

    /// Whether there is a recording, which `what` then spoils.
    pub fn spoils(&self, what: &'static str) -> bool {
        let is_recording = self.is_recording();
        if is_recording {
            self.state().not_recordable = Some(what);
        }
        is_recording
    }

    /// Whether there is a recording: then memory is given back behind it.
    pub fn puts_off(&self, ptr: DevicePtr) -> bool {
        let is_recording = self.is_recording();
        if is_recording {
            self.state().to_free.push(ptr);
        }
        is_recording
    }

    pub fn add_module(&self, module: Module) {
        self.state().modules.push(module);
    }

    /// All modules, to be unloaded.
    pub fn take_modules(&self) -> Vec<Module> {
        std::mem::take(&mut self.state().modules)
    }

    pub fn name(&self, function: Function, name: String) {
        self.state().kernel_names.insert(function, name);
    }

    /// For messages.
    pub fn name_of(&self, function: Function) -> String {
        let state = self.state();
        let name = state.kernel_names.get(&function);
        name.map_or_else(|| "?".to_owned(), String::clone)
    }
}
