//! The way that was found to be the faster one for a step, kept from one start to the next: a file for each step, beside the
//! compiled kernels.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::gpu::driver::{DeviceFacts, Source};
use crate::gpu::image_cache::{hash_of, hex, write_whole};
use crate::gpu::megakernel::choice::Way;
use crate::gpu::modules::HEADERS;

const ENDING: &str = ".path";

/// A step on a chip, with the kernels of this version: the name of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepId(String);

impl StepId {
    /// `kernel`: that of the whole step, whose constants say how layers look. `step`: what else makes it fast or slow, in words.
    pub fn new(facts: &DeviceFacts, kernel: &Source, step: &str) -> Self {
        let multiprocessors = facts.multiprocessors.to_string();
        let about = [
            env!("CARGO_PKG_VERSION"),
            &facts.name,
            &facts.driver_version,
            &multiprocessors,
            step,
        ];
        // Both ways are made of all of these; a file's text comes once for each set of constants, and counts once.
        let mut texts: Vec<&str> = crate::gpu::sources()
            .iter()
            .map(|source| source.text)
            .collect();
        texts.dedup();
        let headers = HEADERS.iter().map(|(_, text)| *text);
        let defines = kernel.defines.iter();
        let defines = defines.flat_map(|(name, value)| [name, value.as_str()]);
        let all = about.into_iter().chain(texts).chain(headers).chain(defines);
        Self(format!(
            "{}-{}{ENDING}",
            facts.arch,
            hex(&hash_of(all)[..16])
        ))
    }
}

/// The folder of such files; without one nothing is remembered.
#[derive(Debug)]
pub(crate) struct Remembered {
    folder: Option<PathBuf>,
}

impl Remembered {
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder }
    }

    /// `None`: not known, or the file says something else.
    pub fn get(&self, step: &StepId) -> Option<Way> {
        let text = fs::read_to_string(self.folder.as_ref()?.join(&step.0)).ok()?;
        let named = |way: &Way| {
            text.strip_prefix(way.name())
                .is_some_and(|rest| rest.starts_with(':'))
        };
        [Way::Graph, Way::Megakernel].into_iter().find(named)
    }

    /// `medians`: of the graph and of the megakernel, for people who read the file.
    pub fn put(&self, step: &StepId, way: Way, [graph, megakernel]: [Duration; 2]) {
        let Some(folder) = &self.folder else {
            return;
        };
        let text = format!(
            "{}: graph {graph:?}, megakernel {megakernel:?}\n",
            way.name()
        );
        if let Err(error) = write_whole(folder, &folder.join(&step.0), &[text.as_bytes()]) {
            tracing::debug!(folder = %folder.display(), %error, "the faster way is measured again at the next start");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(name: &str) -> DeviceFacts {
        DeviceFacts {
            name: name.to_owned(),
            arch: "sm_90a".to_owned(),
            driver_version: "1".to_owned(),
            multiprocessors: 132,
            memory_bytes: 0,
            shared_bytes_per_block: 0,
            clusters: [0; 3],
            uuid: [0; 16],
        }
    }

    fn id(chip: &str, warps: &str, step: &str) -> StepId {
        let kernel = Source {
            name: "megakernel.cu",
            text: "",
            defines: vec![("BLOCK_WARPS", warps.to_owned())],
        };
        StepId::new(&facts(chip), &kernel, step)
    }

    const MEDIANS: [Duration; 2] = [Duration::from_micros(5), Duration::from_micros(4)];

    #[test]
    fn a_way_is_remembered_for_the_same_step_on_the_same_chip() {
        let folder = tempfile::tempdir().unwrap();
        // Not there yet: it is made.
        let here = || Remembered::new(Some(folder.path().join("a/b")));
        let known = id("one", "16", "step");
        assert_eq!(here().get(&known), None);
        for way in [Way::Megakernel, Way::Graph] {
            here().put(&known, way, MEDIANS);
            assert_eq!(here().get(&known), Some(way));
        }
        for other in [
            id("two", "16", "step"),
            id("one", "8", "step"),
            id("one", "16", "another step"),
        ] {
            assert_eq!(here().get(&other), None, "{other:?}");
        }
    }

    #[test]
    fn what_is_no_way_is_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let here = Remembered::new(Some(folder.path().to_owned()));
        let known = id("one", "16", "step");
        for text in ["", "graph", "graphs: 1", "\u{fffd}", "megakernel"] {
            fs::write(folder.path().join(&known.0), text).unwrap();
            assert_eq!(here.get(&known), None, "{text:?}");
        }
        // No folder, and one that cannot be.
        let nowhere = [None, Some(folder.path().join(&known.0).join("below"))];
        for folder in nowhere {
            let nowhere = Remembered::new(folder);
            nowhere.put(&known, Way::Graph, MEDIANS);
            assert_eq!(nowhere.get(&known), None);
        }
    }
}
