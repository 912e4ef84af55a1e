//! The configuration file: a table for each role.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

const TABLES: [&str; 4] = ["target-worker", "draft-worker", "prefill-worker", "router"];

/// Reads one role's settings: its table of `file` with `flags` on top.
///
/// # Errors
/// The file is missing or no TOML, or has a table, a key or a value that does not belong there.
pub(crate) fn load<Settings: DeserializeOwned>(
    file: Option<&Path>,
    table: &str,
    flags: &impl Serialize,
) -> Result<Settings> {
    if let Some(path) = file {
        check_tables(path)?;
    }
    Ok(service::load_config(file, table, flags)?)
}

/// A table of another name would be read by nobody.
fn check_tables(path: &Path) -> Result<()> {
    let file = || format!("configuration file {}", path.display());
    let text = fs::read_to_string(path).with_context(file)?;
    let tables: toml::Table = text.parse().with_context(file)?;
    for name in tables.keys() {
        ensure!(
            TABLES.contains(&name.as_str()),
            "{}: unknown table or key `{name}`, expected one of `{}`",
            file(),
            TABLES.join("`, `")
        );
    }
    Ok(())
}
