//! The prefill worker of a set.

use anyhow::{Context, Result};
use models::scorer_memory_need;
use router::Settings;
use serde::Serialize;
use service::Endpoint;

use crate::cli::{PrefillArgs, UpArgs};
use crate::config;
use crate::runtime_dir::RuntimeDir;
use crate::session;

/// Reads the settings of the prefill worker that the set itself runs, and tells the router of it. `None` where no drafter is
/// named, unless it is the demo whose prompts are to be made shorter.
pub(super) fn load(
    args: &UpArgs,
    dir: &RuntimeDir,
    router: &mut Settings,
) -> Result<Option<prefill_worker::Config>> {
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct Flags<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        drain_seconds: Option<u64>,
        #[serde(flatten)]
        prefill: &'a PrefillArgs,
    }
    let common = &args.common;
    let flags = Flags {
        drain_seconds: common.drain_seconds,
        prefill: &args.prefill,
    };
    let mut config: prefill_worker::Config =
        config::load(common.config.as_deref(), "prefill-worker", &flags)?;
    let wants_demo =
        router.model.is_none() && router.prefill.is_none() && router.prefill_compression != "off";
    if config.drafter.is_none() && !wants_demo {
        return Ok(None);
    }
    config.listen = Endpoint::Unix(dir.join("prefill.sock"));
    router.prefill = Some(config.listen.clone());
    if router.draft_residency == "persistent" {
        config.skip_park.get_or_insert(true);
    }
    if router.prefill_drafter.is_none() {
        router.prefill_drafter.clone_from(&config.drafter);
    }
    Ok(Some(config))
}

/// Whether it could score: what no restart would mend is told before any process is there.
pub(super) fn check(config: &prefill_worker::Config) -> Result<()> {
    config.check()?;
    super::check_device("prefill-device", config.device()?)?;
    let file = session::open_drafter(config.drafter.as_deref())?;
    let need = scorer_memory_need(&file, &config.scorer_options()?, 0);
    need.with_context(|| format!("the prefill drafter {}", file.path().display()))?;
    Ok(())
}
