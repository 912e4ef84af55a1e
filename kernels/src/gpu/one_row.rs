//! Steps of one row of one sequence: as a graph or as one launch.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use crate::decode_path::DecodePath;
use crate::device::Step;
use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DeviceFacts, DevicePtr, Driver, Graph};
use crate::gpu::megakernel::{Choice, Program, Recorder, Remembered, StuckFlag, Way, block_warps};
use crate::gpu::places;
use crate::gpu::steps::{OneLaunch, seen_bucket};

/// How such steps go on a device.
#[derive(Debug)]
pub(super) struct OneRow {
    setting: Mutex<Setting>,
    /// Is told operations in place of launching them.
    recorder: Mutex<Option<Recorder>>,
    stuck: OnceLock<StuckFlag>,
    remembered: Remembered,
    /// Steps that went as one launch.
    launches: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub path: DecodePath,
    /// That work on a step which is one launch; 0: the device has no such launches.
    blocks: usize,
    /// See gpu/ring.h: of chips that have no copies of many bytes.
    pub copies_by_lanes: bool,
    /// That are not launched, though the others wait for them.
    pub lost_blocks: usize,
}

impl OneRow {
    pub fn new(facts: &DeviceFacts) -> Self {
        let copies_by_lanes = COPIES_BY_LANES.contains(&generation(facts));
        let copies_at_once = facts.arch == "host" || generation(facts) >= COPIES_BY_LANES.end;
        Self {
            setting: Mutex::new(Setting {
                path: DecodePath::Auto,
                blocks: match copies_by_lanes || copies_at_once {
                    true => facts.multiprocessors as usize,
                    false => 0,
                },
                copies_by_lanes,
                lost_blocks: 0,
            }),
            recorder: Mutex::default(),
            stuck: OnceLock::new(),
            remembered: Remembered::new(places::kernel_cache()),
            launches: AtomicU64::new(0),
        }
    }

    /// After the device has done what it was asked.
    ///
    /// # Errors
    /// The blocks of a launch waited for what did not come.
    pub fn check(&self) -> Result<(), DeviceError> {
        match self.stuck.get().is_some_and(StuckFlag::is_set) {
            false => Ok(()),
            true => Err(DeviceError::Driver {
                what: "the megakernel's blocks waited in vain for each other: \
                       the device is of no use any more (see --decode-path)"
                    .to_owned(),
            }),
        }
    }

    pub fn setting(&self) -> MutexGuard<'_, Setting> {
        self.setting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recorder(&self) -> MutexGuard<'_, Option<Recorder>> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stuck_flag(&self, driver: &Arc<dyn Driver>) -> Result<DevicePtr, DeviceError> {
        if self.stuck.get().is_none() {
            // One thread drives the device: nobody else makes one meanwhile.
            let _ = self.stuck.set(StuckFlag::new(driver)?);
        }
        Ok(self.stuck.get().map_or(DevicePtr::NULL, StuckFlag::ptr))
    }
}

impl GpuDevice {
    /// The step as one launch too, where it has one row, its state moves along, and this device has such launches.
    pub(super) fn one_launch(
        &self,
        step: &Step<'_>,
        most_seen: usize,
        work: &mut dyn FnMut(),
    ) -> Option<Arc<OneLaunch>> {
        let Setting {
            path,
            blocks,
            copies_by_lanes,
            ..
        } = *self.one_row.setting();
        let [segment] = step.segments else {
            return None;
        };
        if path == DecodePath::Graph || blocks == 0 || segment.parents.len() != 1 {
            return None;
        }
        // Emulation has no speed to choose by; and copies by lanes have not run on a chip yet, so they are for those who ask.
        let is_choice = self.facts().arch != "host" && !copies_by_lanes;
        if !segment.advance || (path == DecodePath::Auto && !is_choice) {
            return None;
        }
        let most_seen = seen_bucket(most_seen);
        let shared_bytes = self.facts().shared_bytes_per_block as usize;
        let warps = block_warps(shared_bytes, copies_by_lanes);
        *self.one_row.recorder() = Some(Recorder::new(&self.driver, (blocks, warps), most_seen));
        work();
        let program = self.one_row.recorder().take().map(|recorder| {
            let tables = self.tables(step.segments, step.visibility)?.ptrs;
            Program::new(
                self,
                recorder,
                tables,
                self.one_row.stuck_flag(&self.driver)?,
            )
        });
        match program? {
            Ok(program) => {
                let choice = Choice::new(path, || self.one_row.remembered.get(&program.id));
                tracing::debug!(?choice, "how steps of one row are launched");
                Some(Arc::new(OneLaunch {
                    program,
                    choice: Mutex::new(choice),
                }))
            }
            Err(error) => {
                match path {
                    DecodePath::Megakernel => tracing::warn!(%error, "steps are graphs"),
                    _ => tracing::debug!(%error, "steps are graphs"),
                }
                None
            }
        }
    }

    /// Runs a step in the way that is chosen, or times the one that is to be tried.
    pub(super) fn run_either(&self, graph: Graph, launch: &OneLaunch) -> Result<(), DeviceError> {
        let choice = || launch.choice.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut way, is_timed) = choice().next();
        if is_timed {
            self.driver.synchronize()?;
        }
        let begin = Instant::now();
        if way == Way::Megakernel
            && let Err(error) = launch.program.launch(self)
        {
            tracing::warn!(%error, "a step is no single launch: steps like it are graphs from now on");
            *choice() = Choice::Made(Way::Graph);
            way = Way::Graph;
        }
        if way == Way::Megakernel {
            self.one_row.launches.fetch_add(1, Ordering::Relaxed);
        } else {
            // SAFETY: nothing moved since it was recorded, and the caller's buffers are those of its variant.
            unsafe { self.driver.launch_graph(graph) };
        }
        if is_timed {
            self.driver.synchronize()?;
            if let Some((faster, medians)) = choice().tell(way, begin.elapsed()) {
                let [graph, megakernel] = medians;
                tracing::info!(?graph, ?megakernel, "how steps of one row are launched");
                self.one_row
                    .remembered
                    .put(&launch.program.id, faster, medians);
            }
        }
        Ok(())
    }

    /// Has steps of one row go as one launch, of so many blocks, for tests of what happens where they do not fit.
    #[doc(hidden)]
    pub fn set_one_row_blocks(&self, blocks: usize) {
        self.one_row.setting().blocks = blocks;
    }

    /// Has such launches copy by lanes, or not, for tests of chips that are not there.
    #[doc(hidden)]
    pub fn set_one_row_copies_by_lanes(&self, copies_by_lanes: bool) {
        self.one_row.setting().copies_by_lanes = copies_by_lanes;
    }

    /// Steps that went as one launch, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn one_launches(&self) -> u64 {
        self.one_row.launches.load(Ordering::Relaxed)
    }

    /// Launches so many blocks fewer than the others wait for, for tests of what happens then.
    #[doc(hidden)]
    pub fn lose_one_row_blocks(&self, blocks: usize) {
        self.one_row.setting().lost_blocks = blocks;
    }

    /// Tells an operation where operations are told; then it is not to be launched.
    pub(super) fn tell(&self, tell: impl FnOnce(&mut Recorder)) -> bool {
        self.one_row.recorder().as_mut().map(tell).is_some()
    }
}

/// Numbers of chips that have copies to shared memory by lanes alone; later ones copy many bytes at once. See gpu/ring.h.
const COPIES_BY_LANES: Range<u32> = 80..90;

/// The number of a chip `sm_NN`; 0 of others.
fn generation(facts: &DeviceFacts) -> u32 {
    let number = facts.arch.strip_prefix("sm_").unwrap_or_default();
    let number = number.trim_end_matches(|c: char| !c.is_ascii_digit());
    number.parse().unwrap_or(0)
}
