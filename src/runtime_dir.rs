//! The folder of one running set: the workers' socket and the configuration that they were started with.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{Pid, Uid};

/// A private folder, removed when dropped.
#[derive(Debug)]
pub(crate) struct RuntimeDir(PathBuf);

impl RuntimeDir {
    /// Makes the folder of this process, and removes those of processes that died without doing so.
    pub(crate) fn create() -> Result<Self> {
        let base = std::env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|dir| dir.is_dir())
            .unwrap_or_else(std::env::temp_dir);
        Self::create_in(&base)
    }

    fn create_in(base: &Path) -> Result<Self> {
        let prefix = format!("tandem-{}-", Uid::current());
        remove_left_behind(base, &prefix);
        let path = base.join(format!("{prefix}{}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("making the folder {}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "could not remove the runtime folder");
        }
    }
}

fn remove_left_behind(base: &Path, prefix: &str) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix(prefix)?.parse().ok());
        let Some(pid) = pid.map(Pid::from_raw) else {
            continue;
        };
        let is_ours = entry
            .metadata()
            .is_ok_and(|found| found.is_dir() && found.uid() == Uid::current().as_raw());
        // In a container every start may get the same process id: what bears ours is of a process before this one.
        let is_dead = pid == Pid::this() || kill(pid, None) == Err(Errno::ESRCH);
        if is_ours && is_dead {
            tracing::info!(path = %entry.path().display(), "removing what a killed set left behind");
            // Another starting set may do the same.
            let _gone = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use nix::unistd::Uid;

    use super::RuntimeDir;

    #[test]
    fn the_folder_is_private_and_goes_with_its_owner() {
        let base = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::create_in(base.path()).unwrap();
        let path = dir.join("");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o700
        );
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn folders_of_dead_processes_go_and_others_stay() {
        let base = tempfile::tempdir().unwrap();
        let uid = Uid::current();
        // Above the largest process id there can be.
        let dead = base.path().join(format!("tandem-{uid}-2000000000"));
        let alive = base.path().join(format!("tandem-{uid}-1"));
        let foreign = base.path().join("tandem-notes");
        let id = std::process::id();
        // A killed container starts again with the same ids.
        let namesake = base.path().join(format!("tandem-{uid}-{id}"));
        let file = namesake.join("target.sock");
        for path in [&dead, &alive, &foreign, &namesake] {
            fs::create_dir(path).unwrap();
        }
        fs::write(&file, "").unwrap();
        let _dir = RuntimeDir::create_in(base.path()).unwrap();
        assert!(!dead.exists() && !file.exists());
        assert!(alive.exists() && foreign.exists());
    }
}
