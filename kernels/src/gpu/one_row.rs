//! Steps of one row of one sequence: as a graph or as one launch.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::decode_path::DecodePath;
use crate::device::{Step, TopKArgs};
use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DeviceFacts, DevicePtr, Driver};
use crate::gpu::megakernel::{
    Choice, Manner, Program, Recorder, Remembered, StuckFlag, Way, block_warps,
};
use crate::gpu::places;
use crate::gpu::steps::{OneLaunch, Recording, seen_bucket};
use crate::gpu::tables::HostTables;
use crate::gpu::top_k::{Logits, Sought};

/// How long a launch waits to be asked for the next token, where that is likely: longer than it takes to send the last one on its way
/// and to come back, and little for who has something else for the device to do.
const PATIENCE: Duration = Duration::from_micros(100);

/// How such steps go on a device.
#[derive(Debug)]
pub(super) struct OneRow {
    setting: Mutex<Setting>,
    /// Is told operations in place of launching them.
    recorder: Mutex<Option<Recorder>>,
    stuck: OnceLock<StuckFlag>,
    remembered: Remembered,
    last: Mutex<Option<LastStep>>,
    looks_for: Mutex<Option<LooksFor>>,
    /// The device has told what came of all that it was asked.
    is_done: AtomicBool,
    /// Steps that went as one launch, or as a part of one.
    steps: AtomicU64,
    launches: AtomicU64,
}

/// The last step, as long as nothing else was asked of the device since.
#[derive(Debug)]
struct LastStep {
    launch: Arc<OneLaunch>,
    number: u32,
    /// What it looked for was asked for: then its launch is done with it, and the same is likely of the next step.
    is_told: bool,
}

/// What the step looks for.
#[derive(Clone, Copy, Debug)]
struct LooksFor {
    sought: Sought,
    /// Of the results with it, where they are on their way.
    number: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub path: DecodePath,
    /// That work on a step which is one launch; 0: the device has no such launches.
    blocks: usize,
    /// See gpu/ring.h: of chips that have no copies of many bytes.
    pub copies_by_lanes: bool,
    /// That are not launched, though the others wait for them.
    pub lost_blocks: u32,
    patience: Duration,
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
                patience: PATIENCE,
            }),
            recorder: Mutex::default(),
            stuck: OnceLock::new(),
            remembered: Remembered::new(places::kernel_cache()),
            last: Mutex::default(),
            looks_for: Mutex::default(),
            is_done: AtomicBool::new(false),
            steps: AtomicU64::new(0),
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

    fn last(&self) -> MutexGuard<'_, Option<LastStep>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn looks_for(&self) -> MutexGuard<'_, Option<LooksFor>> {
        self.looks_for
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What the step is to look for.
    pub fn sought(&self) -> Option<Sought> {
        self.looks_for().map(|looks_for| looks_for.sought)
    }

    pub fn set_sought(&self, sought: Sought, number: Option<u32>) {
        *self.looks_for() = Some(LooksFor { sought, number });
    }

    /// Whether the device has done the last step, and was asked for nothing since.
    pub fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Relaxed)
    }

    /// The device has told the last thing that came of what it was asked.
    pub fn set_done(&self) {
        self.is_done.store(true, Ordering::Relaxed);
    }

    /// Something else is asked of the device: a launch that waits for another token need not.
    pub fn end(&self) {
        self.is_done.store(false, Ordering::Relaxed);
        *self.looks_for() = None;
        if let Some(last) = self.last().take() {
            last.launch.program.dismiss();
        }
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
            let tables = self.staged().ptrs();
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

    /// Repeats a recorded step.
    fn run_graph(
        &self,
        step: &Step<'_>,
        tables: HostTables,
        recording: &Recording,
    ) -> Result<(), DeviceError> {
        self.one_row.end();
        let number = self.put_inputs(tables, step.tokens)?;
        self.replay(recording, number);
        Ok(())
    }

    /// Runs a recorded step in the way that is chosen, or times the one that is to be tried.
    pub(super) fn run_either(
        &self,
        step: &Step<'_>,
        tables: HostTables,
        recording: &Recording,
    ) -> Result<(), DeviceError> {
        let Some(launch) = &recording.launch else {
            return self.run_graph(step, tables, recording);
        };
        let choice = || launch.choice.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut way, is_timed) = choice().next();
        if is_timed {
            self.one_row.end();
            self.driver.synchronize()?;
        }
        let begin = Instant::now();
        if way == Way::Megakernel
            && let Err(error) = self.ask(step, &tables, launch)
        {
            // A device that has failed says why.
            self.one_row.check()?;
            tracing::warn!(%error, "a step is no single launch: steps like it are graphs from now on");
            *choice() = Choice::Made(Way::Graph);
            way = Way::Graph;
        }
        if way == Way::Graph {
            self.run_graph(step, tables, recording)?;
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

    /// Asks for a step as one launch, or of the one that waits for it.
    fn ask(
        &self,
        step: &Step<'_>,
        tables: &HostTables,
        launch: &Arc<OneLaunch>,
    ) -> Result<(), DeviceError> {
        let Setting {
            lost_blocks,
            patience,
            ..
        } = *self.one_row.setting();
        let mut staged = self.staged();
        let mut last = self.one_row.last();
        if let Some(other) = last.take_if(|last| !Arc::ptr_eq(&last.launch, launch)) {
            other.launch.program.dismiss();
        }
        let manner = Manner {
            lost_blocks,
            patience: last.as_ref().filter(|last| last.is_told).map(|_| patience),
        };
        let known_pages = staged.known_pages(tables);
        let id = step.tokens.first().copied().unwrap_or_default();
        let program = &launch.program;
        let (number, is_launch) = program.ask(self, id, (tables, known_pages), manner)?;
        staged.hold(tables.clone());
        self.one_row.steps.fetch_add(1, Ordering::Relaxed);
        let launches = u64::from(is_launch);
        self.one_row.launches.fetch_add(launches, Ordering::Relaxed);
        self.one_row.is_done.store(false, Ordering::Relaxed);
        *self.one_row.looks_for() = None;
        *last = Some(LastStep {
            launch: Arc::clone(launch),
            number,
            is_told: false,
        });
        Ok(())
    }

    /// Ids and values that the last step has looked for, where they are what is wanted: values only of more ids than one.
    pub(super) fn top_of_step(&self, args: &TopKArgs<'_>) -> Result<Option<Vec<u32>>, DeviceError> {
        let logits = Logits {
            at: args.logits.on_gpu().memory.ptr(),
            len: args.vocab_size,
        };
        let wanted = Sought { logits, k: args.k };
        let has_values = args.values.is_none() || args.k > 1;
        if args.num_rows != 1 || args.log_probs.is_some() || !has_values {
            return Ok(None);
        }
        let looks_for = *self.one_row.looks_for();
        let looks_for = looks_for.filter(|looks_for| looks_for.sought == wanted);
        if let Some(number) = looks_for.and_then(|looks_for| looks_for.number) {
            return self.told(number, wanted.words()).map(Some);
        }
        match &mut *self.one_row.last() {
            Some(last) if last.launch.program.sought == Some(wanted) => {
                let top = last.launch.program.top(self, last.number)?;
                last.is_told = true;
                self.one_row.set_done();
                Ok(Some(top))
            }
            _ => Ok(None),
        }
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

    /// Has launches wait so long to be asked for another token, for tests of what happens then.
    #[doc(hidden)]
    pub fn set_one_row_patience(&self, patience: Duration) {
        self.one_row.setting().patience = patience;
    }

    /// Steps that went as one launch or as a part of one, and launches of them, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn one_row_steps(&self) -> (u64, u64) {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (of(&self.one_row.steps), of(&self.one_row.launches))
    }

    /// Launches so many blocks fewer than the others wait for, for tests of what happens then.
    #[doc(hidden)]
    pub fn lose_one_row_blocks(&self, blocks: u32) {
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
